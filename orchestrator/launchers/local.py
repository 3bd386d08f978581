"""local: as many copies of the command as ranks, started by profrun itself and told who they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from orchestrator.launchers.base import Expected, Launcher
from orchestrator.launchers.detect import found
from orchestrator.standalone import start_ranks


class Local(Launcher):
    """For programs that find their place in RANK, WORLD_SIZE and MASTER_ADDR, and need no torchrun for it."""

    use: Literal["local"] = "local"
    nproc_per_node: int = Field(ge=1, le=1024, description="how many ranks to start")
    purpose: ClassVar[str] = "starts the command as so many ranks itself, with RANK, WORLD_SIZE, MASTER_ADDR ... set"

    def argv(self, target: Sequence[str]) -> tuple[str, ...]:
        """Raises ValueError where the command is a launcher already."""
        seen = found(target)
        if seen:
            raise ValueError(f"the command starts its ranks by {seen.name} already: write {{use: auto}}")
        return (sys.executable, "-I", "-S", start_ranks.__file__, str(self.nproc_per_node), *target)

    def expected(self, target: Sequence[str], env: Mapping[str, str]) -> Expected:
        return Expected(self.nproc_per_node, self.nproc_per_node)
