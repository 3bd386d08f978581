"""The interface of a launcher: a frozen pydantic model whose fields are its options and whose methods return data.

How a rank tells its number is the same for all of them: by the variables that launching.py lists (`place_of` there)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

Rank = Annotated[int, Field(ge=0, lt=1 << 20)]


@dataclass(frozen=True)
class Expected:
    """How many ranks a job is to have, as far as its command line says; None: it does not."""

    world: int | None = None
    here: int | None = None
    """Those on this host."""


class Launcher(BaseModel):
    """One launcher of a plan. Subclasses narrow `use` to a Literal and add their options as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    use: str
    ranks: tuple[Rank, ...] | None = Field(
        None,
        min_length=1,
        description="the global ranks that the collectors look at; all when left out. Steps are counted in every rank",
    )

    purpose: ClassVar[str] = ""
    """One line for the table of README."""

    @field_validator("ranks")
    @classmethod
    def _in_order(cls, ranks: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if ranks is None else tuple(sorted(set(ranks)))

    def argv(self, target: Sequence[str]) -> tuple[str, ...]:
        """The command that starts the ranks: the target's own, with what this launcher puts before it."""
        return tuple(target)

    def expected(self, target: Sequence[str], env: Mapping[str, str]) -> Expected:
        """How many ranks there will be. `target` is the command as the user has given it."""
        return Expected()

    def removes(self) -> frozenset[str]:
        """The hurdles that it takes away (names of launching.Hurdle), as it starts profrun's part there by itself."""
        return frozenset()


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python interpreter."""
    return re.fullmatch(r"(.*/)?(python|pypy)[\d.]*", word) is not None
