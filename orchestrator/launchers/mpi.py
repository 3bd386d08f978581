"""mpi: every rank is a process of mpirun's, on one host or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from orchestrator.launchers.base import Expected, Launcher
from orchestrator.launchers.detect import found


class Mpi(Launcher):
    """`python train.py` becomes `mpirun OPTIONS python train.py`; a command that is an mpirun already stays so."""

    use: Literal["mpi"] = "mpi"
    starter: str = Field("mpirun", min_length=1, description="the program that starts the ranks: mpirun, mpiexec")
    options: tuple[str, ...] = Field((), description="its options, such as [-n, '8', --host, 'n1:4,n2:4']")
    purpose: ClassVar[str] = "starts the command as the processes of an MPI job, by mpirun"

    def argv(self, target: Sequence[str]) -> tuple[str, ...]:
        """Raises ValueError where the command is a launcher of nodes, and there are options for another."""
        seen, own = found(target), (self.starter, *self.options)
        if seen and seen.name in ("mpirun", "mpiexec"):
            if self.options and tuple(target[: len(own)]) != own:
                raise ValueError(f"the command is an {seen.name} already: give it its options itself")
            return tuple(target)
        if seen and seen.name == "srun":
            raise ValueError("the command starts its ranks by srun already: write {use: slurm}")
        return (*own, *target)

    def expected(self, target: Sequence[str], env: Mapping[str, str]) -> Expected:
        seen = found(self.argv(target))
        return seen.expected(env) if seen else Expected()
