"""Seeds: gives random, NumPy and torch a fixed start as they are imported, and tells what is really in force.

Each is seeded once, right after its import, so that a seed the program sets itself always wins. What that means for
other processes:

- A process that is started anew (torchrun's ranks, spawned workers) starts from the same seed as all others.
- A forked one goes on with NumPy's and torch's state. `random`, which Python reseeds from the system's entropy after a
  fork, gets a seed made of ours and of which fork it was.
- A worker of torch's DataLoader, forked or spawned, is then seeded by torch: from the loader's state in the parent and
  the worker's number. So it is as reproducible as its parent is.
- NumPy generators made without a seed differ among themselves, among ranks and among workers, as their users expect,
  but are the same in the next run. Where threads race to make them, who gets which is up to the race.

What asks the system for entropy by itself stays random: `random.Random()`, `secrets`, `uuid`, temporary names.
"""

from __future__ import annotations

import os
import sys

from . import boot, listings

TYPE_CHECKING = False  # importing typing would cost the target more than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Hook = Callable[[Any], None]


class Seeds:
    """`settings`: seed (int), and of these what is to be set: cudnn_deterministic, cudnn_benchmark (bool) ·
    deterministic_algorithms ("warn" or "error") · sort_listings (True).

    `after_import` has what is to be called with a module right after it has been executed, by the module's name; for a
    module that is loaded already, right after `at_start`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._seed = int(settings["seed"])
        self._seeded: dict[str, int] = {}
        self._failed: dict[str, str] = {}
        self._forks = 0
        self._lineage: tuple[int, ...] = ()
        """Which fork of its parent this process is, and so on from the first one down."""
        self._fresh: dict[str, Any] = {}
        """The stream of seeds for generators that got none, by the process that it belongs to."""
        self.after_import: dict[str, Hook] = {
            "random": self._guarded({"random": self._seed_random}),
            "numpy.random": self._guarded({"numpy": self._seed_numpy, "numpy generators": self._seed_unseeded}),
            "torch": self._guarded(
                {"torch": self._seed_torch, "cudnn": self._set_cudnn, "deterministic_algorithms": self._set_algorithms}
            ),
        }

    def at_start(self) -> None:
        """Called once, before any code of the user."""
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)
        if self._settings.get("sort_listings"):
            listings.install()

    def _before_fork(self) -> None:
        self._forks += 1

    def _in_child(self) -> None:
        self._lineage += (self._forks,)
        self._forks = 0

    def _guarded(self, parts: dict[str, Hook]) -> Hook:
        """All parts, each on its own: whatever one raises is kept for `read_back` and never reaches the program."""

        def hook(module: Any) -> None:
            for name, part in parts.items():
                try:
                    part(module)
                except Exception as error:
                    self._failed[name] = f"{type(error).__name__}: {error}"

        return hook

    def _seed_random(self, random: Any) -> None:
        random.seed(self._seed)
        self._seeded["random"] = self._seed
        os.register_at_fork(after_in_child=lambda: random.seed(self._who()))  # runs after the one of `random` itself

    def _seed_numpy(self, numpy_random: Any) -> None:
        seed = self._seed % 2**32
        numpy_random.seed(seed)
        self._seeded["numpy"] = seed

    def _seed_unseeded(self, numpy_random: Any) -> None:
        """Every generator and SeedSequence of NumPy that gets no seed asks one function for entropy: `randbits`, taken
        from `secrets`. Were it gone one day, at least `default_rng` can be given a seed."""
        # the second name is that of NumPy 1.18
        source: Any = sys.modules.get("numpy.random.bit_generator") or sys.modules.get("numpy.random._bit_generator")
        if hasattr(source, "randbits"):
            source.randbits = self._bits
        elif hasattr(numpy_random, "default_rng"):
            original = numpy_random.default_rng
            numpy_random.default_rng = lambda seed=None: original(self._bits(128) if seed is None else seed)

    def _bits(self, count: int) -> int:
        """The next number of that many bits from this process's own stream."""
        who = self._who()
        if who not in self._fresh:
            self._fresh = {who: sys.modules["random"].Random(who)}
        number: int = self._fresh[who].getrandbits(count)
        return number

    def _who(self) -> str:
        """The seed, and what tells this process from others of the same run but is the same in the next run."""
        process = sys.modules.get("multiprocessing.process")
        identity = getattr(process.current_process(), "_identity", ()) if process else ()
        return repr((self._seed, boot.rank(), self._lineage, identity))

    def _seed_torch(self, torch: Any) -> None:
        torch.manual_seed(self._seed)  # for CUDA it takes effect when the program starts that, and does not start it
        self._seeded["torch"] = self._seed

    def _set_cudnn(self, torch: Any) -> None:
        for name in ("deterministic", "benchmark"):
            wanted = self._settings.get("cudnn_" + name)
            if wanted is not None:
                setattr(torch.backends.cudnn, name, wanted)

    def _set_algorithms(self, torch: Any) -> None:
        mode = self._settings.get("deterministic_algorithms")
        if mode == "warn":
            torch.use_deterministic_algorithms(True, warn_only=True)
        elif mode:
            torch.use_deterministic_algorithms(True)

    def read_back(self) -> dict[str, Any]:
        """What is in force in this process now, JSON-able. None: not known, or the module is not loaded.

        hash_randomization: sys.flags · random, numpy, torch: the seed that we gave · torch_initial_seed: the seed that
        torch has now · cudnn_deterministic, cudnn_benchmark · deterministic_algorithms: False, "warn" or "error" ·
        sort_listings · failed: what could not be done, and why. (The environment that the process started with is in
        its diary.)"""
        seeded = {name: self._seeded.get(name) for name in ("random", "numpy", "torch")}
        return {
            "hash_randomization": sys.flags.hash_randomization,
            **seeded,
            **_torch_now(sys.modules.get("torch")),
            "sort_listings": listings.in_force(),
            "failed": dict(self._failed),
        }


def _torch_now(torch: Any) -> dict[str, Any]:
    return {
        "torch_initial_seed": _known(lambda: torch.initial_seed()),
        "cudnn_deterministic": _known(lambda: torch.backends.cudnn.deterministic),
        "cudnn_benchmark": _known(lambda: torch.backends.cudnn.benchmark),
        "deterministic_algorithms": _known(lambda: _algorithms(torch)),
    }


def _algorithms(torch: Any) -> Any:
    if not torch.are_deterministic_algorithms_enabled():
        return False
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "error"


def _known(ask: Callable[[], Any]) -> Any:
    """The answer, or None where there is none: torch is not loaded, half loaded, or too old to know."""
    try:
        return ask()
    except Exception:
        return None
