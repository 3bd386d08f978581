"""A task's place in its job, as its launcher tells it, and what the ranks in it need to find one another."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator import launching
from orchestrator.launchers.parted import hosts

_SLURM = {
    "index": ("SLURM_PROCID",), "size": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "local": ("SLURM_LOCALID",),
    "node": ("SLURM_NODEID",), "nodes": ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
}  # fmt: skip
_MPI = {
    "index": tuple(name for name in launching.RANKS if name not in ("RANK", "SLURM_PROCID")),
    "size": tuple(name for name in launching.SIZES if name not in ("WORLD_SIZE", "SLURM_NTASKS")),
    "local": tuple(name for name in launching.LOCAL_RANKS if name not in ("LOCAL_RANK", "SLURM_LOCALID")),
    "node": (), "nodes": (),
}  # fmt: skip
"""What `mpirun` starts in a job of Slurm's has inherited the number of the task that called it."""
_OWN_MEETING = ("--rdzv", "--master", "--standalone", "--node-rank", "--node_rank")
"""Options of torchrun by which its user has said himself where the nodes meet."""


@dataclass(frozen=True)
class Seat:
    """index: the task's number among `size`; local: that among those of its host; node: the number of its host."""

    index: int
    size: int
    host: str
    hostname: str
    local: int | None = None
    local_size: int | None = None
    node: int | None = None
    nodes: int | None = None
    step: str | None = None
    """Slurm's number of the step, as scancel takes it: 42.0."""
    first: str | None = None
    """The host of the job's first task, as its launcher names it."""


def seat_of(env: Mapping[str, str], kind: str) -> Seat:
    """A task without a launcher is the only one. A simulated Slurm has several nodes on one host: its name counts."""
    names = _SLURM if kind == "slurm" else _MPI

    def number(what: str) -> int | None:
        return next((int(env[name]) for name in names[what] if env.get(name, "").isdecimal()), None)

    hostname = socket.gethostname()
    own = env.get("SLURMD_NODENAME") if kind == "slurm" else None
    job, step = env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID")
    index, size, node = number("index") or 0, number("size") or 1, number("node")
    return Seat(
        index=index,
        size=size,
        host=own or hostname,
        hostname=hostname,
        local=number("local"),
        local_size=_on_node(env, node) if kind == "slurm" else launching.ranks_here(env),
        node=node,
        nodes=number("nodes"),
        step=f"{job}.{step}" if kind == "slurm" and job and step else None,
        first=next(hosts(env.get("SLURM_STEP_NODELIST", "")), None) if kind == "slurm" else None,
    )


def _on_node(env: Mapping[str, str], node: int | None) -> int | None:
    """How many tasks a node has: Slurm's list is `4(x2),3`, a number for each node in their order."""
    counts: list[int] = []
    for word in (env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "").split(","):
        count, _, times = word.partition("(x")
        if count.isdecimal():
            counts += [int(count)] * (int(times.rstrip(")")) if times.rstrip(")").isdecimal() else 1)
    return counts[node] if node is not None and node < len(counts) else None


def is_one_rank(command: Sequence[str]) -> bool:
    """Whether the task is one rank, and not what starts several, as torchrun does."""
    return not any(launching.wrapper_of(words) in launching.LAUNCHERS.values() for words in launching.layers(command))


def meeting(
    env: Mapping[str, str], seat: Seat, command: Sequence[str], place: tuple[str, int], run: str
) -> dict[str, str]:
    """The variables that the task lacks: torch finds the others by them (env://), torchrun the other nodes.

    place: the address of the first task's host and a port that is free there. What is set already stays."""
    address, port = place
    if is_one_rank(command):
        wanted = {
            "MASTER_ADDR": address, "MASTER_PORT": str(port), "RANK": str(seat.index), "WORLD_SIZE": str(seat.size),
            "LOCAL_RANK": None if seat.local is None else str(seat.local),
            "LOCAL_WORLD_SIZE": None if seat.local_size is None else str(seat.local_size),
        }  # fmt: skip
    elif seat.size > 1 and not any(word.startswith(_OWN_MEETING) for word in command):
        wanted = {
            "PET_NNODES": str(seat.size), "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"{address}:{port}",
            "PET_RDZV_ID": run,
        }  # fmt: skip
    else:
        wanted = {}
    return {name: text for name, text in wanted.items() if text is not None and name not in env}
