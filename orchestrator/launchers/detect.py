"""`auto`: which launcher a command already is, and how many ranks it says it will start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from orchestrator import launching
from orchestrator.launchers.base import Expected, Launcher, is_python


class Auto(Launcher):
    """Whatever the command is: ranks are followed where it starts some, and recognised by their environment."""

    use: Literal["auto"] = "auto"
    purpose: ClassVar[str] = "sees in the command, and in what it starts, whether there are ranks"

    def expected(self, target: Sequence[str], env: Mapping[str, str]) -> Expected:
        seen = found(target)
        return seen.expected(env) if seen else Expected()


@dataclass(frozen=True)
class Found:
    """A launcher seen in a command line."""

    name: str
    """As its user calls it: torchrun, accelerate launch, deepspeed, mpirun, srun ..."""
    words: tuple[str, ...]
    """What stands behind it, the program included."""

    def expected(self, env: Mapping[str, str]) -> Expected:
        """The ranks that it will start, as far as its own words and variables say."""
        return _EXPECTED[self.name](_Options(self.words, env))


def found(argv: Sequence[str]) -> Found | None:
    """The outermost launcher in a command; what stands before it (env, numactl, conda run ...) is looked through."""
    for words in launching.layers(argv):
        name = launching.wrapper_of(words)
        if name in _EXPECTED:
            own = launching.without_interpreter(words)
            return Found(str(name), tuple(own[1:]))
    return None


# ---------------------------------------------------------------- what its options say


@dataclass(frozen=True)
class _Options:
    """The launcher's own words, up to the program that it starts; what follows there is the program's."""

    words: tuple[str, ...]
    env: Mapping[str, str]

    def text(self, *names: str) -> str | None:
        """The value of the first of these options; `--a-b`, `--a_b`, `--a=1` and `-n1` are all in use."""
        own = tuple(self._own())
        for place, word in enumerate(own):
            name, sign, value = word.partition("=")
            name = name.replace("_", "-")
            if name in names:
                return value if sign else "".join(own[place + 1 : place + 2])
            short = next((one for one in names if len(one) == 2 and re.fullmatch(re.escape(one) + r"\d+", word)), None)
            if short:
                return word[2:]
        return None

    def number(self, *names: str) -> int | None:
        return _number(self.text(*names))

    def has(self, *names: str) -> bool:
        return any(word.partition("=")[0].replace("_", "-") in names for word in self._own())

    def _own(self) -> Iterator[str]:
        for word in self.words:
            if word in ("--", "-m", "--module") or word.endswith((".py", ".sh")) or is_python(word):
                return
            yield word


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _torchrun(options: _Options) -> Expected:
    """torch.distributed.run: one rank where nothing is said; `gpu`, `cpu`, `auto` are counted by itself; as many nodes
    as `--nnodes MIN:MAX` says are known only where both are the same."""
    here = _number(options.text("--nproc-per-node") or options.env.get("PET_NPROC_PER_NODE") or "1")
    low, _, high = (options.text("--nnodes") or options.env.get("PET_NNODES") or "1").partition(":")
    nodes = _number(low) if high in ("", low) else None
    return Expected(here * nodes if here and nodes else None, here)


def _accelerate(options: _Options) -> Expected:
    """`--num_processes` counts those of all machines; without it the user's configuration does."""
    world, machines = options.number("--num-processes"), options.number("--num-machines") or 1
    return Expected(world, world // machines if world else None)


def _deepspeed(options: _Options) -> Expected:
    """Of this machine all GPUs where nothing is said; a host file says how many machines there are."""
    chosen = options.text("--include", "-i")
    here = options.number("--num-gpus")
    if chosen and "@" not in chosen and ":" in chosen:
        here = len(chosen.partition(":")[2].split(","))
    nodes = options.number("--num-nodes") or (None if options.has("--hostfile", "-H") else 1)
    return Expected(here * nodes if here and nodes else None, here)


def _mpi(options: _Options) -> Expected:
    """Where hosts are named, which of them gets how many is the launcher's secret."""
    world = options.number("-n", "-np", "--np", "-c", "--n")
    if ":" in options.words:  # several programs, each with a number of its own
        return Expected()
    elsewhere = options.has("-host", "--host", "-H", "-hosts", "--hostfile", "-hostfile", "-machinefile", "-f")
    return Expected(world, None if elsewhere else world)


def _srun(options: _Options) -> Expected:
    """As its options say, or the allocation that it is called in."""
    world = options.number("-n", "--ntasks") or _number(options.env.get("SLURM_NTASKS"))
    nodes = options.number("-N", "--nodes") or _number(options.env.get("SLURM_NNODES"))
    each = options.number("--ntasks-per-node")
    return Expected(world or (each * nodes if each and nodes else None), None)


_EXPECTED = {
    "torchrun": _torchrun, "torch.distributed.launch": _torchrun, "accelerate launch": _accelerate,
    "deepspeed": _deepspeed, "mpirun": _mpi, "mpiexec": _mpi, "srun": _srun,
}  # fmt: skip
"""By what launching.py calls them."""
