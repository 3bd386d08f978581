"""slurm: every rank is a task of Slurm's, started by srun in the allocation that profrun is in, or its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from orchestrator.launchers.base import Expected, Launcher
from orchestrator.launchers.detect import found


class Slurm(Launcher):
    """`python train.py` becomes `srun OPTIONS python train.py`; a command that is an srun already stays as it is."""

    use: Literal["slurm"] = "slurm"
    options: tuple[str, ...] = Field(
        (), description="options of srun, such as [--ntasks-per-node, '4']; what the allocation says holds without them"
    )
    purpose: ClassVar[str] = "starts the command as Slurm's tasks, on many nodes, by srun"

    def argv(self, target: Sequence[str]) -> tuple[str, ...]:
        """Raises ValueError where the command is another launcher of nodes."""
        seen, own = found(target), ("srun", *self._cpus(), *self.options)
        if seen and seen.name == "srun":
            if self.options and tuple(target[: len(own)]) != own:
                raise ValueError("the command is an srun already: give it its options itself")
            return tuple(target)
        if seen and seen.name in ("mpirun", "mpiexec"):
            raise ValueError(f"the command starts its ranks by {seen.name} already: write {{use: mpi}}")
        return (*own, *target)

    def _cpus(self) -> tuple[str, ...]:
        """srun has to be told again what the allocation gives each task: since 22.05 it does not ask (srun(1), -c)."""
        count = os.environ.get("SLURM_CPUS_PER_TASK")
        told = any(word.startswith(("-c", "--cpus-per-task")) for word in self.options)
        return (f"--cpus-per-task={count}",) if count and not told else ()

    def expected(self, target: Sequence[str], env: Mapping[str, str]) -> Expected:
        seen = found(self.argv(target))
        return seen.expected(env) if seen else Expected()
