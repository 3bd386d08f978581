"""Environment step `seeds`: runs that repeat. Fixed seeds and hashes, deterministic libraries, for the target alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt

from orchestrator.env_steps.base import Step, yaml_word
from orchestrator.model import Check, Child

if TYPE_CHECKING:
    from orchestrator.machine import Machine

Seed = Annotated[StrictInt, Field(ge=0, le=2**32 - 1)]
"""The range that PYTHONHASHSEED and NumPy take."""

_REPRODUCIBLE_CUBLAS = (":4096:8", ":16:8")
"""The two settings that torch's deterministic algorithms accept, from cuBLAS's manual on reproducibility."""


class Seeds(Step):
    """Seeds for `random`, NumPy and torch, given right after their import, so that the target's own seeds win; and the
    variables that only count when they are there before it starts. Nothing on the machine is changed."""

    use: Literal["seeds"] = "seeds"
    seed: Seed = Field(0, description="any number will do: what counts is that it stays the same")
    deterministic: StrictBool = Field(True, description="cuDNN: deterministic algorithms, chosen without a benchmark")
    deterministic_algorithms: Literal[False, "warn", "error"] = Field(
        False, description="torch.use_deterministic_algorithms; with a newer torch it takes a second at its import"
    )
    sort_listings: StrictBool = Field(
        False, description="os.listdir, scandir, walk, glob and pathlib by name; a folder is read whole first"
    )
    cublas_workspace: Annotated[str, Field(pattern=r"^(:\d+:\d+)+$")] | None = Field(
        ":4096:8", description="CUBLAS_WORKSPACE_CONFIG (KiB and count of cuBLAS's buffers); null leaves it alone"
    )
    hash_seed: Seed | None = Field(None, description="PYTHONHASHSEED, the order of sets; default: the seed")

    injects: ClassVar[bool] = True
    purpose: ClassVar[str] = "makes runs repeat: seeds, hashes, deterministic libraries, sorted listings"

    def checks(self, machine: Machine) -> list[Check]:
        if self.deterministic_algorithms and self.cublas_workspace not in _REPRODUCIBLE_CUBLAS:
            accepted = " or ".join(_REPRODUCIBLE_CUBLAS)
            message = f"deterministic_algorithms on a GPU need cublas_workspace {accepted}"
            return [Check("seeds", "warn", message, f"set cublas_workspace to {accepted}")]
        return []

    def child(self) -> Child:
        return Child(set=self._variables(), inject={"seeds": {"seed": self.seed, **self._asked()}})

    def _asked(self) -> dict[str, Any]:
        """What is to be set inside the target; what is left to it is not there."""
        asked: dict[str, Any] = {}
        if self.deterministic:
            asked.update(cudnn_deterministic=True, cudnn_benchmark=False)
        if self.deterministic_algorithms:
            asked.update(deterministic_algorithms=self.deterministic_algorithms)
        if self.sort_listings:
            asked.update(sort_listings=True)
        return asked

    def _variables(self) -> dict[str, str]:
        cublas = {} if self.cublas_workspace is None else {"CUBLAS_WORKSPACE_CONFIG": self.cublas_workspace}
        return {"PYTHONHASHSEED": str(self._hash_seed), **cublas}

    @property
    def _hash_seed(self) -> int:
        return self.seed if self.hash_seed is None else self.hash_seed

    def seen(self, started: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """As the base class has it. A seed of the target's own, set over ours, is its right and no deviation."""
        if started.get("ended") and started.get("seeds") is None:
            started = {**started, "in_force": False, "why_not": "profrun's part could not start them in this Python"}
        inside = (started.get("in_force") and started.get("seeds")) or {}
        environ = started.get("environ")
        variables = {name: (environ or {}).get(name) for name in self._variables()}
        deviations = [
            *(self._lost(variables) if environ is not None else ()),
            *(self._changed(inside) if started.get("in_force") else [_not_in_force(started)]),
        ]
        unset = None if environ is None else "not set"
        shown = {name: unset if text is None else text for name, text in variables.items()}
        return {**shown, **inside}, "; ".join(deviations) or None

    def _lost(self, variables: Mapping[str, str | None]) -> Iterator[str]:
        for name, wanted in self._variables().items():
            found = variables[name]
            if found is None:
                yield f"{name} was not set when Python started: a launcher dropped it"
            elif found != wanted:
                yield f"{name} was {found} instead of {wanted} when Python started: a launcher changed it"

    def _changed(self, inside: Mapping[str, Any]) -> Iterator[str]:
        """What the target, or its Python, has made of the settings. None: torch is not there, or can't tell."""
        if self._hash_seed == 0 and inside.get("hash_randomization"):
            yield "hashes are random although PYTHONHASHSEED is 0: python -R"
        for name, wanted in self._asked().items():
            found = inside.get(name)
            if found not in (None, wanted):
                yield f"{name} was {yaml_word(found)} instead of {yaml_word(wanted)}: the program changed it"
        for part, why in inside.get("failed", {}).items():
            yield f"{part} could not be set: {why}"


def _not_in_force(started: Mapping[str, Any]) -> str:
    why = started.get("why_not") or "its Python does not load what profrun adds"
    return f"seeds are not in force: {why}"
