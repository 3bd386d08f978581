"""The plan: the YAML file as pydantic models. Their descriptions are what editors show."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from orchestrator import registry, sharing
from orchestrator.collectors.base import Collector
from orchestrator.env_steps.base import Step
from orchestrator.errors import UsageError
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.detect import Auto
from orchestrator.planfile.fields import Command, Environment, Variable, Word
from orchestrator.units import Budget, Duration

_Kind = TypeVar("_Kind", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


PositiveDuration = Annotated[Duration, Field(gt=0)]


class TargetPlan(_Part):
    """The program to run and what it needs. The command after `--` replaces `command`."""

    command: Command | None = Field(
        None, description="the program and its arguments; {pass} and {scratch} are replaced in it"
    )
    cwd: Word = Field(".", description="its working directory; relative to where profrun is started")
    env: Environment = Field({}, description="variables added to its environment; {pass} and {scratch} are replaced")
    timeout: PositiveDuration | None = Field(
        1800.0,
        description="time limit of each pass; null for none. Half an hour: longer runs are better looked at through a "
        "window, and a hang does not hold the machine overnight",
    )
    before_each: Command | None = Field(
        None, description="a command run before every pass, such as one that clears what the last pass left"
    )
    ok_exit_codes: tuple[Annotated[int, Field(ge=0, le=255)], ...] = Field(
        (0,), min_length=1, description="exit statuses of the target that count as success"
    )
    inject: bool = Field(
        True,
        description="let profrun's own part into the target's Python: it counts steps, sets seeds, runs the profiler, "
        "without a change to the program; false keeps it out",
    )
    retry: bool = Field(
        False, description="may a pass be started again when a tool lost its file? Only for programs that may run twice"
    )


class WindowPlan(_Part):
    """The part of each run that is recorded: in the program's own steps, found without a change to it, or in time since
    its start."""

    skip: int = Field(0, ge=0, description="how many training (or inference) steps to let pass before recording")
    steps: int | None = Field(None, ge=1, description="how many steps to record")
    after: Duration = Field(0.0, description="how long to wait before recording")
    for_: PositiveDuration | None = Field(
        None, alias="for", description="how long to record; until the end when left out"
    )
    then: Literal["stop", "continue"] = Field(
        "continue", description="after the window, stop the target (which counts as success) or let it finish"
    )

    @model_validator(mode="after")
    def _says_something(self) -> WindowPlan:
        if self.steps is not None and (self.after or self.for_ is not None):
            raise ValueError("a window is in steps (`skip`, `steps`) or in time (`after`, `for`), not in both")
        if self.skip and self.steps is None:
            raise ValueError("`skip` needs `steps`, such as {skip: 5, steps: 20}")
        if self.after == 0 and self.for_ is None and self.steps is None:
            raise ValueError(
                "a window needs `steps`, `after` or `for`, such as {skip: 5, steps: 20} or {after: 60s, for: 20s}"
            )
        if self.then == "stop" and self.for_ is None and self.steps is None:
            raise ValueError("`then: stop` needs `steps` or `for`: without them the window ends with the target")
        return self


class MetricPlan(_Part):
    """A number read from what the target prints."""

    pattern: str = Field(
        description="a regular expression with one group ( ) around the number; ^ and $ match at lines"
    )
    take: Literal["last", "mean", "median", "min", "max"] = Field(
        "last", description="which of the numbers of one run counts"
    )
    unit: str | None = Field(None, description="its unit, as the report should show it")

    @model_validator(mode="before")
    @classmethod
    def _from_pattern(cls, value: Any) -> Any:
        return {"pattern": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_one_group(self) -> MetricPlan:
        try:
            groups = re.compile(self.pattern, re.MULTILINE).groups
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{self.pattern} is no regular expression: {error}") from error
        if groups != 1:
            raise ValueError(
                f"{self.pattern} has {groups or 'no'} groups: put ( ) around the number, (?: ) around the rest"
            )
        return self

    def value(self, found: Sequence[float]) -> float | None:
        """The one number for a run that printed these, in this order; None when it printed none, or when what it comes
        from is none, such as the nan of a loss that has diverged."""
        import math
        import statistics

        take: dict[str, Callable[[Sequence[float]], float]] = {
            "last": lambda numbers: numbers[-1],
            "mean": statistics.fmean,
            "median": statistics.median,
            "min": min,
            "max": max,
        }
        taken = found[-1:] if self.take == "last" else found
        return take[self.take](taken) if taken and all(map(math.isfinite, taken)) else None


class ReportPlan(_Part):
    """Where the report goes, and what it shows."""

    directory: Word = Field("reports", min_length=1, description="the folder that gets one folder for each run")
    formats: tuple[Literal["html", "markdown"], ...] = Field(("html", "markdown"), description="the pages to write")
    env_show: tuple[Variable, ...] = Field(
        (), description="environment variables whose values are shown, beyond the built-in list of harmless ones"
    )
    keep_raw: PositiveDuration | None = Field(
        14 * 86400.0,
        description="how long the raw files of unremarkable nights are kept; only `profrun nightly` ever deletes any. "
        "null: for ever",
    )
    history: Word | None = Field(
        None,
        min_length=1,
        description="the database that remembers the run: a URL (postgresql://...), a file or folder, or none; "
        "history.sqlite beside the report's folder when left out",
    )


def _dumped(part: BaseModel) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True)


def collector_of(value: Any) -> Collector:
    """The collector that these keys and values describe. Raises ValueError for what is none."""
    return _built(value, "collector", Collector, registry.collector, registry.collector_names)


def step_of(value: Any) -> Step:
    """The environment step that these keys and values describe. Raises ValueError for what is none."""
    return _built(value, "environment step", Step, registry.environment_step, registry.environment_names)


def _launcher(value: Any) -> Launcher:
    if not isinstance(value, (dict, Launcher)):
        raise _refused("needs keys and values that say which launcher it is", "write {use: auto}")
    return _built(value, "launcher", Launcher, registry.launcher, registry.launcher_names)


AnyCollector = Annotated[
    Collector, PlainValidator(collector_of), PlainSerializer(_dumped), WithJsonSchema({"$comment": "collector"})
]
AnyStep = Annotated[Step, PlainValidator(step_of), PlainSerializer(_dumped), WithJsonSchema({"$comment": "step"})]
AnyLauncher = Annotated[
    Launcher, PlainValidator(_launcher), PlainSerializer(_dumped), WithJsonSchema({"$comment": "launcher"})
]


class Together(_Part):
    """Collectors that share one pass, and so one clock."""

    together: tuple[AnyCollector, ...] = Field(min_length=1, description="the collectors that share the pass")

    @model_validator(mode="after")
    def _can_share(self) -> Together:
        found = sharing.clashes(self.together)
        if found:
            ways = sharing.ways_out(self.together)
            hint = f"to keep them together: {', '.join(ways)}" if ways else ""
            context = {"text": "; ".join(found), "hint": hint, "instead": sharing.as_yaml(self.together)}
            raise PydanticCustomError("plan", "{text}", context)
        return self


def _item(value: Any) -> Collector | Together:
    if isinstance(value, Together) or (isinstance(value, dict) and "together" in value):
        return Together.model_validate(value)
    return collector_of(value)


Item = Annotated[
    Collector | Together, PlainValidator(_item), PlainSerializer(_dumped), WithJsonSchema({"$comment": "item"})
]


def plain_name(name: str) -> str:
    """The name as it is. Raises ValueError for one that can't be part of a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        rule = "use up to 64 letters, digits, `-`, `_` and `.`, a letter or digit first"
        raise ValueError(f"{name!r} can't name a folder: {rule}")
    return name


def _metric_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}", name):
        raise ValueError(
            f"{name!r} is no name for a metric: use letters, digits, `_`, `.`, `/` and `-`, a letter first"
        )
    return name


def _range_name(name: str) -> str:
    file, colon, path = name.rpartition(":")
    words = path.split(".")
    if not all(word.isidentifier() for word in words) or (colon and not file) or (not colon and len(words) < 2):
        raise ValueError(
            f"{name!r} names no function: write train.py:forward, train.py:Net.forward or model.Block.forward"
        )
    return name


def _tool_name(name: str) -> str:
    known = _tool_names()
    if name not in known:
        raise _refused("no collector uses a tool of this name", suggestion(name, known))
    return name


def _tool_names() -> list[str]:
    """The tools that something here looks for, sorted."""
    names = {"nvidia-smi"}
    for use in registry.collector_names():
        with contextlib.suppress(UsageError):  # a broken package is told where a plan uses it
            probe = registry.collector(use).probe
            names |= {probe.name} if probe else set()
    return sorted(names)


class Plan(_Part):
    """A profiling plan: what to run, what to look at it with, and in which state of the machine."""

    version: Literal[1] = Field(description="the version of the plan's format; always 1")
    name: Annotated[str, AfterValidator(plain_name)] = Field(
        "plan", description="the name of its reports; the file's name when left out"
    )
    description: str | None = Field(None, description="one sentence for people")
    extends: str | None = Field(
        None, description="the template (a name) or file (a path from this file) that this plan builds on"
    )
    target: TargetPlan = Field(TargetPlan(), description="the program to run")
    window: WindowPlan | None = Field(None, description="the part of each run to record; the whole run when left out")
    budget: Budget | None = Field(
        None, description="limit for the whole run: a time (2h) or a multiple of one bare run (10x)"
    )
    ranges: tuple[Annotated[str, AfterValidator(_range_name)], ...] = Field(
        (),
        description="functions to time as ranges, without a change to them: train.py:forward, model.Block.forward",
    )
    metrics: dict[Annotated[str, AfterValidator(_metric_name)], MetricPlan] = Field(
        {}, description="numbers read from the target's output: a name, and the regular expression that finds it"
    )
    environment: tuple[AnyStep, ...] = Field((), description="steps applied before the passes, and undone in reverse")
    collectors: tuple[Item, ...] = Field(min_length=1, description="what to look with, in this order; one pass each")
    launcher: AnyLauncher = Field(
        Auto(), description="what starts the ranks of a job, and which of them to look at; auto sees it in the command"
    )
    leftovers: Literal["keep", "end"] = Field(
        "keep", description="what to do with processes that the target leaves running; they are named in any case"
    )
    tools: dict[Annotated[str, AfterValidator(_tool_name)], Word] = Field(
        {}, description="paths of tools that are not where profrun looks"
    )
    report: ReportPlan = Field(ReportPlan(), description="where the report goes, and what it shows")

    _source_map: dict[str, tuple[str, int | None]] = PrivateAttr(default_factory=dict)
    _splits: tuple[sharing.Split, ...] = PrivateAttr(())

    @property
    def source_map(self) -> dict[str, tuple[str, int | None]]:
        """Where each value was written: "collectors[1].rate" -> (file, line). Defaults are not in it."""
        return self._source_map

    @property
    def splits(self) -> tuple[sharing.Split, ...]:
        """What the file has in one pass and this plan in several."""
        groups = self.groups()
        return tuple(one for one in self._splits if groups[one.at : one.at + len(one.passes)] == one.passes)

    def with_items(self, items: Sequence[Item], splits: Sequence[sharing.Split] = ()) -> Plan:
        """The plan with these collectors; `splits`: those that have come of one `together`."""
        other = self.model_copy(update={"collectors": tuple(items)})
        other._splits = tuple(splits)
        return other

    @model_validator(mode="after")
    def _lets_in(self) -> Plan:
        """What works inside the target's Python needs to be let in."""
        if self.target.inject:
            return self
        steps = [step.use for step in self.environment if step.injects]
        looking = [collector.use for collector in self.each_collector() if collector.injects]
        window = ["window.steps"] if self.window and self.window.steps is not None else []
        wanted = [*window, *(["ranges"] if self.ranges else []), *steps, *looking]
        if wanted:
            raise ValueError(f"target.inject is false, but {', '.join(wanted)} works inside the target's Python")
        return self

    @model_validator(mode="after")
    def _finds_what_it_needs(self) -> Plan:
        """What chooses its kernels from another collector's capture stands after that collector."""
        found = [
            (path, f"takes its kernels from {need}, which does not come before it",
             f"add - {{use: {need}}} above it, as a pass of its own; or name the kernels by a regex")
            for path, _, need in self.unmet()
        ] or [
            (path, f"takes its kernels from {need}, whose options leave them out", hint)
            for path, need, hint in self._blind()
        ]  # fmt: skip
        problems: list[Any] = [
            {"type": PydanticCustomError("plan", "{text}", {"text": text, "hint": hint}), "loc": path, "input": None}
            for path, text, hint in found
        ]
        if problems:
            raise ValidationError.from_exception_data("plan", problems)
        return self

    def unmet(self) -> list[tuple[tuple[str | int, ...], Collector, str]]:
        """(place in the plan, collector, what it needs) where no earlier pass has what it needs."""
        return [
            (path, collector, needs[0])
            for path, collector, earlier in self._with_earlier()
            if (needs := collector.needs()) and needs[0] not in {one.use for one in earlier}
        ]

    def _blind(self) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
        """(place in the plan, what it needs, what to write there) where all that it could ask leave out kernels."""
        for path, collector, earlier in self._with_earlier():
            asked = [one for one in earlier if one.use in collector.needs()]
            instead = [one.without_kernels() for one in asked]
            if instead and all(instead):
                yield path, asked[-1].use, f"write {instead[-1]} in - {{use: {asked[-1].use}}}"

    def _with_earlier(self) -> Iterator[tuple[tuple[str | int, ...], Collector, tuple[Collector, ...]]]:
        """Every collector with its place in the plan, and those of the passes before its own."""
        earlier: tuple[Collector, ...] = ()
        for index, (item, group) in enumerate(zip(self.collectors, self.groups(), strict=True)):
            for number, collector in enumerate(group):
                inside = ("together", number) if isinstance(item, Together) else ()
                yield ("collectors", index, *inside), collector, earlier
            earlier += group

    def groups(self) -> tuple[tuple[Collector, ...], ...]:
        """The collectors by pass: those of one `together` share theirs."""
        return tuple(item.together if isinstance(item, Together) else (item,) for item in self.collectors)

    def as_written(self) -> Iterator[tuple[tuple[Collector, ...], str]]:
        """(the collectors by pass as the file has them, where it had them together before they were split)."""
        groups, splits, at = self.groups(), {one.at: one for one in self.splits}, 0
        while at < len(groups):
            split = splits.get(at)
            yield (split.members, split.where) if split else (groups[at], "")
            at += len(split.passes) if split else 1

    def each_collector(self) -> Iterator[Collector]:
        """Every collector, also those inside `together`."""
        return (collector for group in self.groups() for collector in group)


# ---------------------------------------------------------------- items that say by `use` what they are


def _built(
    value: Any, what: str, base: type[_Kind], find_class: Callable[[str], type[_Kind]], names: Callable[[], list[str]]
) -> _Kind:
    """The collector or step that `value` describes. Its errors carry their paths inside the item."""
    if isinstance(value, base):
        return value
    if not isinstance(value, dict):
        raise _refused(f"needs keys and values that say which {what} it is", f"write - {{use: {value}}}")
    if "use" not in value:
        raise _refused(f"has no `use` to say which {what} it is", f"known: {', '.join(names())}")
    name = str(value["use"])
    try:
        found = find_class(name)
    except KeyError:
        raise _refused(f"{name} is no {what}", suggestion(name, names()), "use") from None
    except UsageError as error:
        raise _refused(error.what, f"{error.why}; {error.next_step}", "use") from error
    return _validated(found, base, value, name)


def _validated(found: type[_Kind], base: type[_Kind], value: dict[str, Any], name: str) -> _Kind:
    if not (isinstance(found, type) and issubclass(found, base)):
        raise _refused(f"{name} comes from an installed package, but is no {base.__name__}", "mend that package", "use")
    try:
        return found.model_validate(value)
    except ValidationError:
        raise
    except Exception as error:  # somebody else's validator; the plan's other problems are still told
        raise _refused(f"{name} fails on these options: {type(error).__name__}: {error}", "", "use") from error


def _refused(message: str, hint: str, *loc: str) -> Exception:
    reason = PydanticCustomError("plan", "{text}", {"text": message, "hint": hint})
    if not loc:
        return reason
    return ValidationError.from_exception_data("plan", [{"type": reason, "loc": loc, "input": None}])


def suggestion(word: str, known: Sequence[str]) -> str:
    """What was probably meant, and all that could be."""
    return closest(word, known) + f"known: {', '.join(known)}"


def closest(word: str, known: Sequence[str]) -> str:
    """`did you mean timing? `, or nothing when no known word is like it."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? " if close else ""
