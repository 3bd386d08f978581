"""The runs so far: each is remembered in a database beside the reports, or in one that a team shares.

`where` names that database: a folder of reports (`history.sqlite` in it), a database's URL, or None for what
PROFRUN_HISTORY says, else for the folder `reports`."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HistoryError, ProfrunError
from orchestrator.folder import REPORTS, reports
from orchestrator.historic.night import VERDICTS as VERDICTS
from orchestrator.historic.night import Night as Night
from orchestrator.historic.night import NightVerdict as NightVerdict

if TYPE_CHECKING:
    from orchestrator.historic.store import Row
    from orchestrator.report import Report

VARIABLE = "PROFRUN_HISTORY"
"""The environment variable that names the database of every run."""
OFF = "none"
"""In place of a database: nothing is remembered."""
_BATCH = 100


def record(report: Report, where: str | Path | None = None, warn: Callable[[str], None] | None = None) -> None:
    """Remembers the run, or what has come of it since; a verdict that a night has got stays. where: None is
    PROFRUN_HISTORY, else the folder that the report lies in. Never raises: trouble is one warning (else on stderr).
    Reports of imported files are no runs."""
    target = where or os.environ.get(VARIABLE) or report.folder.absolute().parent
    if report.run.imported or str(target) == OFF:
        return
    try:
        from orchestrator.historic import store

        row = row_of(report)
        with store.writing(store.place(target)) as connection:
            store.save(connection, [row])
    except Exception as error:  # a run that has been measured must not fail for this
        said = error.text() if isinstance(error, ProfrunError) else f"{type(error).__name__}: {error}"
        said = "; ".join(line.strip() for line in said.splitlines())
        (warn or _to_stderr)(f"this run is not in the history: {said}")


def _to_stderr(text: str) -> None:
    print(f"profrun: {text}", file=sys.stderr)


def asked(planned: str | None) -> str | None:
    """The database for a run whose plan names `planned`: PROFRUN_HISTORY outranks it, as passwords belong there."""
    return os.environ.get(VARIABLE) or planned


def fingerprint(report: Report) -> tuple[str, dict[str, Any]]:
    """What must be equal for two runs to be compared: (fingerprint, the facts it is made of). None: unknown."""
    from orchestrator.historic import facts

    return facts.fingerprint(report)


def row_of(report: Report) -> Row:
    """The run as it is remembered."""
    from orchestrator.historic import facts, store

    name, environment = facts.fingerprint(report)
    night = Night(
        run_id=report.run.id,
        name=report.run.name,
        started_at=report.run.started_at,
        path=str(report.folder.absolute()),
        fingerprint=name,
        environment=environment,
        status=report.outcome.status,
        exit_code=report.outcome.exit_code,
        metrics=dict(report.metrics),
        findings=tuple({key: getattr(one, key) for key in _OF_FINDINGS} for one in report.findings),
        shares=facts.shares(report),
        host=report.machine.get("hostname"),
    )
    return store.Row(night, report.run.duration_s, facts.context(report))


_OF_FINDINGS = ("rule", "category", "severity", "cost_pct", "title")


# ---------------------------------------------------------------- asking it


def nights(
    name: str, fingerprint: str | None = None, where: str | Path | None = None, last: int | None = None
) -> list[Night]:
    """The runs of that name (and of that fingerprint), the oldest first; last: only so many of the newest. Raises
    HistoryError where the database can't be read; where there is none yet, there are none."""
    from orchestrator.historic import store

    with store.reading(_place(where)) as connection:
        return [] if connection is None else [row.night for row in store.nights(connection, name, fingerprint, last)]


def set_verdict(run_id: str, verdict: NightVerdict | None, note: str = "", where: str | Path | None = None) -> None:
    """What has been made of a run. Raises HistoryError where it is not remembered, or the database can't be written."""
    from orchestrator.historic import store

    place = _place(where)
    with store.writing(place) as connection:
        known = store.set_verdict(connection, run_id, verdict, note)
    if not known:
        raise HistoryError(
            f"{run_id} is not in the history", f"{place.shown} does not have it", "profrun history rebuild"
        )


def shown(where: str | Path | None = None) -> str:
    """The database's name, without a password."""
    return str(_place(where).shown)


@dataclass(frozen=True)
class Named:
    """The runs of one name: how many there are, and the newest of them, the oldest first."""

    name: str
    runs: int
    newest: tuple[Row, ...]


def overview(where: str | Path | None = None, last: int = 20, most: int = 50) -> tuple[list[Named], int]:
    """(the names with the newest runs, how many names there are), the newest first; with the metrics of `MAIN`."""
    from orchestrator.historic import store

    with store.reading(_place(where)) as connection:
        if connection is None:
            return [], 0
        counts = store.counts(connection)
        shown = list(counts)[:most]
        rows = store.newest(connection, MAIN, last, shown)
        return [Named(name, counts[name], tuple(rows[name])) for name in shown], len(counts)


MAIN = ("step_s", "wall_s")
"""The metrics by which a run is known, the first that it has."""


@dataclass(frozen=True)
class Asked:
    """The runs of one name with one metric and the shares; total: how many runs of that name there are."""

    name: str
    metric: str
    total: int
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]


def series(name: str, metric: str | None = None, last: int | None = None, where: str | Path | None = None) -> Asked:
    """The newest `last` runs of a name, or of the only name that begins so, the oldest first; metric: else the first of
    `MAIN` that they have. Raises HistoryError where there is no such name or metric."""
    from orchestrator.historic import store

    place = _place(where)
    with store.reading(place) as connection:
        known = {} if connection is None else store.counts(connection)
        full = _meant(name, list(known), place.shown)
        assert connection is not None  # there is a name
        metrics = store.metric_names(connection, full)
        chosen = _metric(metric, metrics, full)
        rows = store.nights(connection, full, None, last, [chosen], findings=False)
    return Asked(full, chosen, known[full], tuple(rows), tuple(metrics))


def _meant(name: str, known: Sequence[str], shown: str) -> str:
    if name in known:
        return name
    likely = [one for one in known if one.startswith(name)]
    if len(likely) == 1:
        return likely[0]
    if not known:
        next_step = "a run is remembered when it ends; for runs of before: profrun history rebuild"
        raise HistoryError(f"there are no runs of {name}", f"{shown} has no runs at all", next_step)
    what = f"runs of {len(likely)} names begin with {name}" if likely else f"there are no runs of {name}"
    raise HistoryError(what, f"{shown} has {_some(likely or known)}", "profrun history lists them")


def _metric(asked: str | None, known: Sequence[str], name: str) -> str:
    found = asked or next((one for one in MAIN if one in known), None)
    if found in known and found is not None:
        return found
    what = f"the newest runs of {name} have no metric " + (asked or " or ".join(MAIN))
    raise HistoryError(what, f"they have {_some(known) or 'none'}", "choose one with --metric NAME")


def _some(words: Sequence[str], most: int = 12) -> str:
    return ", ".join(words[:most]) + (" ..." if len(words) > most else "")


def _place(where: str | Path | None) -> Any:
    from orchestrator.historic import store

    target = where or os.environ.get(VARIABLE) or REPORTS
    if str(target) == OFF:
        raise HistoryError("the history is off", f"{'--db' if where else VARIABLE} is {OFF}", "name one with --db")
    return store.place(target)


# ---------------------------------------------------------------- from the folders


@dataclass(frozen=True)
class Rebuilt:
    """What has become of the database: runs that are in it by now, of which the folders were found, newly marked as
    gone, or forgotten. damaged: (folder, why) for those that can't be read, and are as they were. shown: its name."""

    shown: str
    found: int
    gone: int
    forgotten: int
    imported: int
    damaged: tuple[tuple[str, str], ...]


def rebuild(
    where: str | Path | None = None,
    database: str | Path | None = None,
    prune: bool = False,
    tick: Callable[[int, int], None] | None = None,
) -> Rebuilt:
    """Remembers every run whose report lies in the folder `where`; verdicts stay, and where there is none it is that
    which the night has left in its report. Runs whose folder is gone are marked so; prune: forgotten. database: None is
    PROFRUN_HISTORY, else that folder's own. Raises HistoryError."""
    from orchestrator.historic import store

    parent = Path(where or REPORTS).absolute()
    if not parent.is_dir():
        raise HistoryError(
            f"there is no folder {parent}", "runs are remembered by their reports", "name another folder"
        )
    place = _place(database or (None if os.environ.get(VARIABLE) else parent))
    own = place.file is not None and place.file.absolute() == parent / store.FILE
    found, imported, damaged = set(), 0, []
    names = reports(parent)
    for at in range(0, len(names), _BATCH):
        rows = []
        for name in names[at : at + _BATCH]:
            row, why = _read(parent / name)
            imported += row is None and why is None
            damaged += [(name, why)] if why else []
            rows += [row] if row else []
        with store.writing(place) as connection:
            store.save(connection, rows)
            store.add_verdicts(connection, [row.night for row in rows])
        found |= {row.night.run_id for row in rows}
        if tick:
            tick(min(at + _BATCH, len(names)), len(names))
    with store.writing(place) as connection:
        lost = list(_lost(store.paths(connection), found, of_folder=own))
        (store.forget if prune else store.mark_gone)(connection, [run_id for run_id, _ in lost])
    newly = sum(not known for _, known in lost)
    return Rebuilt(place.shown, len(found), 0 if prune else newly, len(lost) * prune, imported, tuple(damaged))


def _read(path: Path) -> tuple[Row | None, str | None]:
    """(the run, why it can't be read); neither of a report that is of imported files."""
    from orchestrator.report import load

    try:
        report = load(path)
        return (None if report.run.imported else _with_verdict(row_of(report), path)), None
    except ProfrunError as error:
        return None, "; ".join(part for part in (error.why or error.what, error.next_step) if part)
    except Exception as error:  # one report that nobody has thought of must not keep the others out
        return None, f"{type(error).__name__}: {error}"


def _with_verdict(row: Row, path: Path) -> Row:
    """As the night's own note in the report says; none where it was no night."""
    from orchestrator.nights.words import remembered

    try:
        data = json.loads((path / "night.json").read_text())
    except (OSError, ValueError):
        return row
    verdict, note = remembered(data)
    return replace(row, night=replace(row.night, verdict=verdict, note=note))


def _lost(
    known: Sequence[tuple[str, str, str | None, bool]], found: set[str], of_folder: bool
) -> Iterator[tuple[str, bool]]:
    """(run id, whether that was known) of runs whose folder is gone. In any other database than that of the folder only
    those of this host can be looked for here."""
    here = platform.node() or None
    for run_id, path, host, was_gone in known:
        if run_id not in found and (of_folder or host == here) and _is_gone(Path(path)):
            yield run_id, was_gone


def _is_gone(path: Path) -> bool:
    """A folder that we may not look into may be there."""
    try:
        return not path.exists()
    except OSError:
        return False
