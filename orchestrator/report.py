"""A report in memory, and its one file on disk that machines read: summary.json (schema profrun/summary/1)."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from orchestrator import tables
from orchestrator.errors import ReportError
from orchestrator.folder import SCRATCH, lookup
from orchestrator.model import (
    Abstention,
    Artifact,
    Attached,
    Capture,
    Clock,
    Evidence,
    Exit,
    Finding,
    Headline,
    Metric,
    Outcome,
    Part,
    PassRecord,
    Process,
    RankSeen,
    SeenPython,
    StepRecord,
    TargetRun,
    Task,
    Tool,
)

T = TypeVar("T")

if TYPE_CHECKING:
    import pandas
    import pyarrow

SCHEMA = "profrun/summary/1"


@dataclass(frozen=True)
class RunInfo:
    """Which run this is. `started_at` is UTC in ISO 8601."""

    id: str
    name: str
    started_at: str
    duration_s: float
    command: tuple[str, ...]
    cwd: str
    profrun_version: str
    imported: bool = False
    """Made of files that somebody already had: profrun has run nothing, and command and folder are unknown."""


@dataclass(frozen=True)
class TableInfo:
    """Where a table lies in the report, and how long it is."""

    path: str
    rows: int


@dataclass(frozen=True, repr=False)
class Report:
    """Everything one run found out. Renderers and rules get this and nothing else."""

    run: RunInfo
    outcome: Outcome
    machine: Mapping[str, Any]
    environment: tuple[StepRecord, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    captures: tuple[Capture, ...] = ()
    tables: Mapping[str, TableInfo] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    headline: Headline | None = None
    abstentions: tuple[Abstention, ...] = ()
    folder: Path = Path()

    def __repr__(self) -> str:
        """Short: a notebook shows it whole."""
        told = f"{len(self.findings)} findings, {len(self.tables)} tables"
        return f"<Report {self.run.id}: {self.outcome.status}, {told}>"

    def table(self, name: str) -> pandas.DataFrame | None:
        """The table as a DataFrame of its own, with units and meanings in its `.attrs` (see `orchestrator.tables`), or
        None when nothing filled it. Raises KeyError for a name that no table has, ReportError for a damaged file."""
        info = self.tables.get(name)
        if info is None and name not in tables.SCHEMAS:
            near = difflib.get_close_matches(name, tables.SCHEMAS, 1)
            raise KeyError(f"no table is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if info is None:
            return None
        return self._from(name, lambda path: _read(path, path.stat().st_mtime_ns).copy(deep=False))

    def rows(
        self, name: str, captures: Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> pandas.DataFrame | None:
        """Some columns of the rows of some captures: of a table of many ranks all would not fit into memory. Otherwise
        as `table`."""
        if self.tables.get(name) is None:
            return self.table(name)
        return self._from(name, lambda path: tables.read(path, columns, captures))

    def longest(self, name: str, count: int, by: Sequence[str]) -> pandas.DataFrame | None:
        """So many rows of a table of any length, by the first of these columns that is known. Otherwise as `table`."""
        if self.tables.get(name) is None:
            return self.table(name)
        return self._from(name, lambda path: tables.longest(path, count, by)[0])

    def _from(self, name: str, read: Callable[[Path], T]) -> T:
        path = self.folder / self.tables[name].path
        try:
            return read(path)
        except (OSError, ValueError) as error:
            raise self._damaged(path, error) from error

    def _damaged(self, path: Path, error: Exception) -> ReportError:
        return ReportError(f"{path} can't be read", str(error), _rebuild(self.folder))

    def schema(self, name: str) -> pyarrow.Schema:
        """The columns of a table that is there, as its file has them. Raises ReportError where it can't be read."""
        import pyarrow.parquet as pq

        return self._from(name, lambda path: pq.read_schema(path))

    def batches(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a table that is there, piece by piece. Raises ReportError where it can't be read."""
        import pyarrow.parquet as pq

        path = self.folder / self.tables[name].path
        try:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(tables.PIECE_ROWS, columns=columns)
        except (OSError, ValueError) as error:
            raise self._damaged(path, error) from error

    def contents(self) -> pandas.DataFrame:
        """What tables there are: name, rows, and what one row is."""
        import pandas as pd

        found = [(name, info.rows, tables.ROW_IS.get(name, "")) for name, info in sorted(self.tables.items())]
        return pd.DataFrame(found, columns=["name", "rows", "row_is"])

    def findings_frame(self) -> pandas.DataFrame:
        """The findings in their order, a row each; what `where` holds has columns of its own, such as where_file."""
        import pandas as pd

        left = ("where", "evidence", "sources")
        rows = [{f.name: getattr(one, f.name) for f in fields(Finding) if f.name not in left} for one in self.findings]
        places = [{f"where_{key}": value for key, value in one.where.items()} for one in self.findings]
        names = [f.name for f in fields(Finding) if f.name not in left]
        frame = pd.DataFrame([row | place for row, place in zip(rows, places, strict=True)])
        return frame if len(frame) else pd.DataFrame(columns=names)


@lru_cache(maxsize=32)
def _read(path: Path, changed_ns: int) -> pandas.DataFrame:
    """Once for each state of the file."""
    return tables.read(path)


def summary(report: Report) -> dict[str, Any]:
    """The report as the content of summary.json: JSON-able, every unknown a null."""
    return {
        "schema": SCHEMA,
        "run": asdict(report.run),
        "outcome": asdict(report.outcome),
        "machine": dict(report.machine),
        "environment": [asdict(step) for step in report.environment],
        "passes": [_pass(record) for record in report.passes],
        "captures": [capture_record(capture) for capture in report.captures],
        "tables": {name: asdict(info) for name, info in sorted(report.tables.items())},
        "metrics": {name: asdict(metric) for name, metric in sorted(report.metrics.items())},
        "headline": None if report.headline is None else asdict(report.headline),
        "findings": [asdict(finding) for finding in report.findings],
        "abstentions": [asdict(one) for one in report.abstentions],
    }


def machine_facts(report: Report) -> dict[str, Any]:
    """The content of machine.json: hardware and software, and of each environment step the settings that it found, set,
    saw while the passes ran, and left; without steps nothing of them."""
    moments = ("before", "verified", "during", "after", "restored")
    steps = [asdict(step) for step in report.environment]
    parts = [[{"name": p["name"], **{k: p[k] for k in moments if k in p}} for p in s["parts"]] for s in steps]
    settings = [
        {"use": step["use"], **{key: step[key] for key in moments}, "parts": own}
        for step, own in zip(steps, parts, strict=True)
    ]
    return {**report.machine, **({"settings": settings} if settings else {})}


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of summary.json, made from the words that it is written from."""
    from pydantic import TypeAdapter

    parts: dict[str, Any] = {
        "run": RunInfo,
        "outcome": Outcome,
        "environment": list[StepRecord],
        "passes": list[PassRecord],
        "captures": list[Capture],
        "tables": dict[str, TableInfo],
        "metrics": dict[str, Metric],
        "headline": Headline | None,
        "findings": list[Finding],
        "abstentions": list[Abstention],
    }
    mode: Literal["serialization"] = "serialization"
    adapters = [(name, mode, TypeAdapter(part)) for name, part in parts.items()]
    schemas, shared = TypeAdapter.json_schemas(adapters)
    properties = {name: schemas[name, mode] for name in parts}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "type": "object",
        "properties": {"schema": {"const": SCHEMA}, "machine": {"type": "object"}, **properties},
        "required": ["schema", "machine", *parts],
        **shared,
    }


def _pass(record: PassRecord) -> dict[str, Any]:
    run = record.run
    exit_status = run.exit.status if run and run.exit else None
    return {**asdict(record), "wall_s": run.wall_s if run else None, "exit_code": exit_status}


def capture_record(capture: Capture) -> dict[str, Any]:
    """A capture as JSON-able data, without its run (the pass has it); `command` is its first command line."""
    record = asdict(replace(capture, run=None))
    del record["root"], record["run"]
    if capture.tool:
        record["tool"]["features"] = sorted(capture.tool.features)
    return {**record, "command": list(capture.commands[0]) if capture.commands else None}


def load_report(run: str | Path) -> Report:
    """The report of a run, for programs and notebooks. run: its folder, its page, `latest`, or how its name in reports/
    begins. Raises ReportError where it is none that can be read, UsageError where several runs are meant."""
    return load(lookup(str(run)) or Path(run))


def load(folder: Path) -> Report:
    """The report in `folder`. Raises ReportError when there is none, or it is of another kind or version."""
    path = folder / "summary.json"
    try:
        data = json.loads(path.read_text("utf-8", "surrogateescape"))
    except FileNotFoundError:
        why = f"there is no {path.name} in it" if folder.is_dir() else "there is no such folder"
        raise ReportError(f"{folder} holds no report", why, "name a report folder") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} can't be read", str(error), _rebuild(folder)) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise _foreign(path, data)
    try:
        return _from_summary(data, folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"it is not as {SCHEMA} wants it: {type(error).__name__}: {error}"
        raise ReportError(f"{path} can't be read", said, _rebuild(folder)) from error


def _rebuild(folder: Path) -> str:
    return f"rebuild it: profrun report {shlex.quote(str(folder))}"


def _foreign(path: Path, data: Any) -> ReportError:
    """The error for a summary that is not ours: made by a later profrun, or no summary at all."""
    found = data.get("schema") if isinstance(data, dict) else None
    if not str(found).startswith("profrun/"):
        said = "it is no summary of profrun's"
        return ReportError(f"{path} can't be read", said, _rebuild(path.parent))
    what, why = f"{path} is of another kind", f"schema {found!r} instead of {SCHEMA!r}"
    stem, _, number = SCHEMA.rpartition("/")
    later = re.fullmatch(rf"{stem}/(\d+)", str(found))
    if not later or int(later[1]) <= int(number):
        return ReportError(what, why, "use its own profrun")
    run = data.get("run")
    version = run.get("profrun_version") if isinstance(run, dict) else None
    reader = f"profrun {version}" if version else "the profrun that wrote it"
    return ReportError(f"{path} was written by a newer profrun", why, f"read it with {reader}")


def _from_summary(data: Mapping[str, Any], folder: Path) -> Report:
    passes = tuple(pass_from(record) for record in data["passes"])
    report = Report(
        run=RunInfo(**{**data["run"], "command": tuple(data["run"]["command"])}),
        outcome=Outcome(**data["outcome"]),
        machine=data["machine"],
        environment=tuple(step_from(step) for step in data["environment"]),
        passes=passes,
        captures=tuple(captures_from(data["captures"], passes, folder)),
        tables={name: TableInfo(**info) for name, info in data["tables"].items()},
        metrics={name: _metric(metric) for name, metric in data["metrics"].items()},
        findings=tuple(_finding_from(finding) for finding in data["findings"]),
        headline=Headline(**{**told, "sources": tuple(told["sources"])}) if (told := data.get("headline")) else None,
        abstentions=tuple(Abstention(**one) for one in data.get("abstentions", ())),
        folder=folder,
    )
    for name in (report.run.id, *report.tables):
        _is_name(name)
    for info in report.tables.values():
        _is_inside(info.path)
    return report


def _is_name(text: str) -> str:
    """Raises ValueError for what would be another folder as a part of a path."""
    if text in ("", ".", "..") or set(text) & {"/", "\0"}:
        raise ValueError(f"{text!r} is no name")
    return text


_SCRATCH = re.compile(re.escape(SCRATCH) + "[a-z0-9_]{8}")
"""The names that tempfile.mkdtemp makes: a folder of a user's, profrun-main say, is none of them."""


def _is_inside(path: str) -> str:
    """Raises ValueError for a path that leads out of the report's folder, but for one into our own scratch space: where
    the report's disk was full, the tools' files are still there."""
    parts = path.split("/")
    is_scratch = any(_SCRATCH.fullmatch(part) for part in parts[:-1])
    if (path.startswith("/") and not is_scratch) or ".." in parts:
        raise ValueError(f"{path!r} is not in the report's folder")
    return path


def pass_from(data: Mapping[str, Any]) -> PassRecord:
    """A pass from its record in summary.json or raw/run.json. Raises ValueError."""
    known = {f.name: data[f.name] for f in fields(PassRecord) if f.name in data}
    _is_name(known["id"])
    tuples = {"collectors": tuple(known["collectors"]), "notes": tuple(known.get("notes", ()))}
    intervals = {name: tuple(known[name]) for name in ("slowdown_ci95", "step_slowdown_ci95") if known.get(name)}
    tasks = tuple(task_from(task) for task in known.get("tasks", ()))
    return PassRecord(**{**known, **tuples, **intervals, "run": run_from(known.get("run")), "tasks": tasks})


def task_from(data: Mapping[str, Any]) -> Task:
    """A task of a pass from its record."""
    known = {f.name: data[f.name] for f in fields(Task) if f.name in data}
    tuples = {name: tuple(known.get(name, ())) for name in ("ranks", "notes")}
    return Task(**{**known, **tuples, "run": run_from(known.get("run"))})


def step_from(data: Mapping[str, Any]) -> StepRecord:
    """An environment step from its record; what an older report does not have is unknown, and it has no parts."""
    known = {f.name: data[f.name] for f in fields(StepRecord) if f.name in data}
    return StepRecord(**{**known, "parts": tuple(Part(**part) for part in known.get("parts", ()))})


def run_from(data: Mapping[str, Any] | None) -> TargetRun | None:
    """A run of the target from its record."""
    if data is None:
        return None
    processes = {k: tuple(Process(p["pid"], tuple(p["argv"])) for p in data[k]) for k in ("leftovers", "killed")}
    end = Exit(**data["exit"]) if data["exit"] else None
    seen = tuple(SeenPython(**{**p, "argv": tuple(p["argv"])}) for p in data.get("pythons", ()))
    looked_at = tuple(Attached(**{**p, "argv": tuple(p["argv"])}) for p in data.get("attached", ()))
    rest = {"argv": tuple(data["argv"]), "notes": tuple(data["notes"]), "exit": end, "pythons": seen}
    rest |= {"attached": looked_at, "ranks": tuple(map(_rank_from, data.get("ranks", ())))}
    chosen = data.get("ranks_chosen")
    rest |= {"ranks_chosen": None if chosen is None else tuple(chosen)}
    return TargetRun(**{**data, **processes, **rest})


def _rank_from(data: Mapping[str, Any]) -> RankSeen:
    end = Exit(**data["exit"]) if data.get("exit") else None
    return RankSeen(**{**data, "exit": end, "started": tuple(data.get("started", ()))})


def capture_from(data: Mapping[str, Any], folder: Path) -> Capture:
    """A capture from its record, without its run; its files are looked for in `folder`. Raises ValueError for one that
    lies elsewhere: a report may have come from somebody else."""
    known = {f.name: data[f.name] for f in fields(Capture) if f.name in data}
    _is_name(known["id"])
    for artifact in known.get("artifacts", ()):
        _is_inside(artifact["path"])
    tool, clock = known.get("tool"), known.get("clock")
    return Capture(
        **{
            **known,
            "tool": Tool(**{**tool, "features": frozenset(tool["features"])}) if tool else None,
            "clock": Clock(**clock) if clock else None,
            "artifacts": tuple(Artifact(**a) for a in known.get("artifacts", ())),
            "commands": tuple(tuple(c) for c in known.get("commands", ())),
            "notes": tuple(known.get("notes", ())),
            "root": folder,
        }
    )


def captures_from(data: Iterable[Mapping[str, Any]], passes: Iterable[PassRecord], folder: Path) -> Iterator[Capture]:
    """The captures of a report, each with the run that it has looked at."""
    records = {record.id: record for record in passes}
    for one in data:
        capture, record = capture_from(one, folder), records.get(one["pass_id"])
        yield replace(capture, run=record.run_of(capture.id) if record else None)


def _metric(data: Mapping[str, Any]) -> Metric:
    interval = data.get("ci95")
    return Metric(
        **{**data, "ci95": tuple(interval) if interval else None, "outliers": tuple(data.get("outliers", ()))}
    )


def _finding_from(data: Mapping[str, Any]) -> Finding:
    evidence = tuple(Evidence(**item) for item in data["evidence"])
    return Finding(**{**data, "evidence": evidence, "sources": tuple(data["sources"])})
