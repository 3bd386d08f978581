"""torchrun: torch's own launcher of ranks, put before the command, or said to be in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orchestrator.launchers.base import Expected, Launcher, is_python
from orchestrator.launchers.detect import found


class Torchrun(Launcher):
    """`python train.py` becomes `python -m torch.distributed.run ... --no-python python train.py`: the torch of the
    program's own Python starts it, and every word of the command, also an option of Python's, reaches each rank."""

    use: Literal["torchrun"] = "torchrun"
    nproc_per_node: Annotated[int, Field(ge=1, le=1024)] | Literal["gpu", "cpu", "auto"] | None = Field(
        None, description="how many ranks to start; left out, the command starts them itself"
    )
    options: tuple[str, ...] = Field((), description="more options of torchrun, such as [--max-restarts, '3']")
    purpose: ClassVar[str] = "starts the command as so many ranks, by torchrun"

    def argv(self, target: Sequence[str]) -> tuple[str, ...]:
        """Raises ValueError where the command is a launcher already."""
        if self.nproc_per_node is None:
            return tuple(target)
        seen = found(target)
        if seen:
            raise ValueError(f"the command starts its ranks by {seen.name} already: leave nproc_per_node out")
        starter = (target[0], "-m", "torch.distributed.run") if is_python(target[0]) else ("torchrun",)
        own = (*starter, "--nproc-per-node", str(self.nproc_per_node), *self._rendezvous(), *self.options)
        return (*own, "--no-python", *target)

    def expected(self, target: Sequence[str], env: Mapping[str, str]) -> Expected:
        seen = found(self.argv(target))
        return seen.expected(env) if seen else Expected()

    def _rendezvous(self) -> tuple[str, ...]:
        """On a port that is free: the fixed one of torchrun's would keep two jobs apart from one machine."""
        given = {word.partition("=")[0].replace("_", "-") for word in self.options}
        named = given & {"--standalone", "--rdzv-endpoint", "--rdzv-backend", "--master-port", "--nnodes"}
        return () if named else ("--standalone",)
