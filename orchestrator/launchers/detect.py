"""`auto`: which launcher a command already is, and how many ranks it says it will start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from orchestrator import launching
from orchestrator.launchers.base import Expected, Launcher, is_python
from orchestrator.launchers.parted import STARTERS, options_of


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
        if STARTERS.get(self.name) == "mpi" and ":" in self.words:
            return Expected()  # several programs, each with a number of its own
        own = options_of(self.name, self.words) if self.name in STARTERS else _up_to_the_program(self.words)
        return _EXPECTED[self.name](_Options(tuple(own), env))


def found(argv: Sequence[str]) -> Found | None:
    """The outermost launcher in a command; what stands before it (env, numactl, conda run ...) is looked through."""
    for words in launching.layers(argv):
        name = launching.wrapper_of(words)
        if name in _EXPECTED:
            own = launching.without_interpreter(words)
            return Found(str(name), tuple(own[1:]))
    return None


# ---------------------------------------------------------------- what its options say


_ALONE = frozenset({"--no-python", "--standalone", "--run-path", "--multi-gpu"})
"""Options without a value; of other ones the next word is taken for it, if it is none that a program begins with."""


def _up_to_the_program(words: tuple[str, ...]) -> Iterator[str]:
    """The launcher's own words; what follows there is the program's."""
    may_be_value = words[:1] == ("launch",)  # of accelerate
    for word in words:
        if word in ("--", "-m", "--module") or word.endswith((".py", ".sh")) or is_python(word):
            return
        if not word.startswith("-") and not may_be_value:
            return
        may_be_value = word.startswith("-") and "=" not in word and word.replace("_", "-") not in _ALONE
        yield word


@dataclass(frozen=True)
class _Options:
    """The launcher's own words."""

    words: tuple[str, ...]
    env: Mapping[str, str]

    def text(self, *names: str) -> str | None:
        """The value of the first of these options; `--a-b`, `--a_b`, `--a=1` and `-n1` are all in use."""
        for place, word in enumerate(self.words):
            name, sign, value = word.partition("=")
            if _is_one(name.replace("_", "-"), names):
                return value if sign else "".join(self.words[place + 1 : place + 2])
            short = next((one for one in names if len(one) == 2 and re.fullmatch(re.escape(one) + r"\d+", word)), None)
            if short:
                return word[2:]
        return None

    def number(self, *names: str) -> int | None:
        return _number(self.text(*names))

    def has(self, *names: str) -> bool:
        return any(word.partition("=")[0].replace("_", "-") in names for word in self.words)


def _is_one(name: str, names: Sequence[str]) -> bool:
    """A long name may be cut short (argparse)."""
    return name in names or (len(name) > len("--num-") and any(one.startswith(name) for one in names))


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
