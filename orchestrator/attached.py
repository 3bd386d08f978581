"""Processes that ran before profrun came: the tree below those that are named, its ranks and its wrappers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from orchestrator import process
from orchestrator.model import Attached

RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Where launchers put a process's place among the others: torchrun, Slurm, Open MPI, MPICH and Intel MPI."""

_WRAPPERS = {
    "conda run": ("conda", "run"), "mamba run": ("mamba", "run"), "micromamba run": ("micromamba", "run"),
    "uv run": ("uv", "run"), "poetry run": ("poetry", "run"), "pdm run": ("pdm", "run"),
    "pipenv run": ("pipenv", "run"), "hatch run": ("hatch", "run"), "pixi run": ("pixi", "run"),
    "accelerate launch": ("accelerate", "launch"), "accelerate": ("accelerate-launch",), "torchrun": ("torchrun",),
    "torch.distributed.run": ("-m", "torch.distributed.run"), "deepspeed": ("deepspeed",),
    "torch.distributed.launch": ("-m", "torch.distributed.launch"), 
    "accelerate -m": ("-m", "accelerate.commands.launch"),
    "mpirun": ("mpirun",), "mpiexec": ("mpiexec",), "srun": ("srun",),
}  # fmt: skip
"""Programs that only start the program proper: what they are called, and the words by which they are known."""


def look(pids: Sequence[int]) -> tuple[Attached, ...]:
    """The named processes with all that they have started, parents before children. profrun itself, which one of them
    may have started, and what is ours beside it are left out."""
    ours = {os.getpid(), *process.descendants(os.getpid())}
    found: dict[int, Attached] = {}
    for root in pids:
        for pid, parent in _tree(root, None):
            if pid not in ours and pid not in found and process.alive(pid):
                found[pid] = _seen(pid, found.get(parent) if parent is not None else None)
    return tuple(found.values())


def families(attached: Iterable[Attached]) -> dict[int, tuple[Attached, ...]]:
    """The processes by the pid of their family's first one."""
    found: dict[int, tuple[Attached, ...]] = {}
    for one in attached:
        found[one.lead] = (*found.get(one.lead, ()), one)
    return found


def after(attached: Iterable[Attached]) -> tuple[Attached, ...]:
    """The same processes with the state that they are in now."""
    return tuple(
        replace(one, state_after=process.state(one.pid), tracer_after=process.tracer_of(one.pid)) for one in attached
    )


def _tree(pid: int, parent: int | None) -> Iterator[tuple[int, int | None]]:
    yield pid, parent
    for child in process.children(pid):
        yield from _tree(child, pid)


def _seen(pid: int, parent: Attached | None) -> Attached:
    env, argv = process.environ_of(pid) or {}, process.argv_of(pid)
    rank = _number(env, RANKS)
    own_family = parent is None or (rank is not None and rank != parent.rank)
    is_python = process.is_python(pid)
    return Attached(
        pid=pid,
        argv=argv,
        lead=pid if parent is None or own_family else parent.lead,
        is_python=is_python,
        is_top_python=is_python,  # the caller knows better
        wrapper=wrapper_of(argv),
        rank=rank if rank is not None or parent is None else parent.rank,
        local_rank=_number(env, LOCAL_RANKS),
        world_size=_number(env, SIZES),
        state_before=process.state(pid),
        tracer_before=process.tracer_of(pid),
    )


def wrapper_of(argv: Sequence[str]) -> str | None:
    """What a command is where it only starts the program proper; None for a program proper."""
    words = [PurePath(word).name if index < 2 else word for index, word in enumerate(argv[:6])]
    for name, signs in _WRAPPERS.items():
        if any(tuple(words[i : i + len(signs)]) == signs for i in range(2)):
            return name
    return None


def _number(env: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)
