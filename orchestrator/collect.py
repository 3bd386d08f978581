"""One pass -> captures: runs it, then says from what is there how each tool fared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from orchestrator import folder
from orchestrator.formats import injected
from orchestrator.launchers import told
from orchestrator.live import Context, LivePass, Member, tail
from orchestrator.model import Artifact, Capture, Expect, Pass, PassRecord, Process, RankSeen, Status, TargetRun

Found = list[tuple[Expect, Path]]


def run_pass(planned: Pass, context: Context, attempt: int = 1) -> tuple[PassRecord, list[Capture]]:
    """Runs one pass to its end. Whatever a tool does becomes the status of its capture; nothing is raised for it.

    Raises OSError only when profrun's own scratch can't be written."""
    live = LivePass(planned, context, attempt)
    refused = live.prepare()
    if refused:
        live.notes += [] if live.members else [refused[1]]
        folder.remove(live.dir)
        return _record(live, None), [_capture(live, member, None, *refused, []) for member in live.members]
    try:
        live.start()
        live.follow()
        live.finish()
    except BaseException:
        live.abandon()
        raise
    run = _run(live)
    live.notes += told.notes(run)
    said = tail(live.dir / "stderr.log") + tail(live.dir / "stdout.log")
    captures = [_judged(live, member, run, said) for member in live.members]
    _move(context, live.dir)
    return _record(live, run), captures


def _record(live: LivePass, run: TargetRun | None) -> PassRecord:
    return PassRecord(
        id=live.planned.id,
        role=live.planned.role,
        collectors=tuple(member.collector.use for member in live.members),
        repeat=live.planned.repeat,
        run=run,
        attempts=live.attempt,
        notes=tuple(live.notes),
    )


def _run(live: LivePass) -> TargetRun:
    """The target's own figures. Under a tool that starts it, CPU time and memory would be the tool's as well:
    unknown."""
    started, wrapped = live.started, live.is_wrapped()
    usage = None if started is None or wrapped else started.usage
    return TargetRun(
        argv=live.context.redact(live.target.argv),
        pid=live.main_pid(),
        started_ns=live.started_ns,
        ended_ns=live.ended_ns,
        wall_s=_wall_s(live),
        exit=live.inner.exit or (None if live.exit_is_the_tools() or started is None else started.exit),
        user_s=usage.ru_utime if usage else None,
        sys_s=usage.ru_stime if usage else None,
        max_rss_bytes=started.max_rss_bytes() if started and not wrapped else None,
        ended_by=live.ended_by,
        start_error=started.start_error if started and not live.tool_start_error else None,
        leftovers=_shown(live, live.leftovers),
        killed=_shown(live, live.killed),
        pythons=tuple(live.pythons),
        attached=tuple(replace(one, argv=live.context.redact(one.argv)) for one in live.visit.found),
        ranks=_ranks(live),
        ranks_expected=live.ranks.expected,
        ranks_chosen=live.context.ranks,
        notes=tuple(live.notes),
    )


def _ranks(live: LivePass) -> tuple[RankSeen, ...]:
    """As they were seen from outside, and those that were there too shortly for that but signed in by themselves."""
    found = live.ranks.close(live.ended_ns)
    seen = {one.rank for one in found}
    more = {}
    for signed in reversed(injected.read(live.dir / "python").processes):  # the first one of a rank is that rank's own
        local_rank, size = signed.start.get("local_rank"), signed.start.get("world_size")
        if signed.rank is None or signed.rank in seen or live.ranks.is_ours(signed.rank, local_rank, size):
            continue
        end = signed.first("end") or {}
        more[signed.rank] = RankSeen(
            signed.rank, pid=signed.pid, host=signed.start.get("host"), started_ns=signed.start.get("time_ns"),
            ended_ns=end.get("time_ns"), local_rank=local_rank, world_size=size,
        )  # fmt: skip
    return tuple(sorted((*found, *more.values()), key=lambda one: one.rank))


def _wall_s(live: LivePass) -> float:
    """Of the target alone where it was seen under its tool, else with the tool's own start and end (and that is
    noted)."""
    if live.started is None:
        return (live.ended_ns - live.started_ns) / 1e9
    if live.is_wrapped() and live.inner.wall_s is not None:
        return live.inner.wall_s
    if live.is_wrapped():
        live.notes.append("wall time includes the start and end of the tool around the target")
    return live.started.wall_s or 0.0


def _shown(live: LivePass, processes: Iterable[Process]) -> tuple[Process, ...]:
    return tuple(Process(p.pid, live.context.redact(p.argv)) for p in processes)


# ---------------------------------------------------------------- how a tool fared


def _judged(live: LivePass, member: Member, run: TargetRun, said: str) -> Capture:
    found = [(expect, path) for expect in member.launch.artifacts for path in _files(member.dir, expect)]
    missing = [e for e in member.launch.artifacts if e.required and not any(f is e for f, _ in found)]
    status, reason = _verdict(live, member, run, missing, said)
    return _capture(live, member, run, status, reason, found)


def _verdict(
    live: LivePass, member: Member, run: TargetRun, missing: list[Expect], said: str
) -> tuple[Status, str | None]:
    if live.tool_start_error:
        return "tool_failed", f"the tool around the target could not be started: {live.tool_start_error}"
    if run.start_error:
        return "target_failed", f"the target could not be started: {run.start_error}"
    if member.failure:
        return "tool_failed", member.failure
    if missing and live.planned.window and not live.window_opened and run.ended_by == "itself":
        return "empty", _unopened(live)
    died = _died(live, member)
    if died:
        return ("tool_failed", f"{died}; it left no data") if missing else ("degraded", f"{died}; the rest is missing")
    if missing:
        return _why_missing(live, member, missing, run, said)
    if member.launch.artifacts:
        return _with_data(live, member, run)
    return _without_tool(run, live.context.ok_exit_codes)


def _unopened(live: LivePass) -> str:
    """Why a window never opened."""
    window = live.planned.window
    said = f"the run had ended before the window opened, {window.describe() if window else ''}"
    if window is None or window.steps is None:
        return said
    counts = [len(process.steps or ()) for process in injected.read(live.dir / "python").stepping()]
    return f"{said}: " + (f"it made {max(counts)}" if counts else "no training or inference step was seen in it")


def _files(directory: Path, expect: Expect) -> list[Path]:
    """An empty file is no data: tools leave one behind when the disk is full or they were killed."""
    return sorted(path for path in directory.glob(expect.glob) if path.is_file() and path.stat().st_size)


def _died(live: LivePass, member: Member) -> str | None:
    """How a tool of the member came to an end that nobody had asked for; None when none did."""
    started = live.started
    around = [started.exit.describe()] if member.wrap and live.inner.outlived and started and started.exit else []
    hows = [*around, *(how for aide in member.aides if (how := aide.helper.mishap()))]
    return f"the tool itself was {hows[0]} while the target ran" if hows else None


def _why_missing(
    live: LivePass, member: Member, missing: list[Expect], run: TargetRun, said: str
) -> tuple[Status, str]:
    """The exit status of a tool proves nothing; what it printed may."""
    data = {aide.helper.logs[0] for aide in member.aides if aide.beside.name}
    logs = "".join(tail(path) for path in sorted(member.dir.glob("*.log")) if path not in data)
    texts = [logs, *([said] if member.wrap else [])]
    tools = [aide.helper for aide in member.aides if not aide.beside.name]
    asked = ["asked to end"] * (not tools or any(tool.asked_to_stop for tool in tools))
    ours = "\n".join(("", *asked, *member.notes, *live.mishaps))
    for sign in member.launch.signs:
        hit = next(filter(None, (re.search(sign.pattern, text) for text in (*texts, *(t + ours for t in texts)))), None)
        if hit:
            return sign.status, sign.reason.format(*hit.groups(default="?"))
    names = ", ".join(expect.glob for expect in missing)
    if run.ended_by == "timeout":
        return "timed_out", f"the pass was ended after {run.wall_s:.1f} s; the tool had not written {names}"
    if run.ended_by == "interrupt":
        return "cancelled", f"interrupted; the tool had not written {names}"
    words = next(filter(None, map(_last_line, texts)), "it said nothing")
    told = (f"the tool left no {names}: {words}", *_ends(member, run), *member.notes, *live.mishaps)
    return "tool_failed", "; ".join(told)


def _ends(member: Member, run: TargetRun) -> Iterator[str]:
    """How the tool came to an end that nobody had asked for, and the target to one that was not well."""
    unasked = [a.helper.status() for a in member.aides if not (a.beside.name or a.helper.asked_to_stop)]
    yield from (f"it ended with exit {status}" for status in dict.fromkeys(unasked) if status is not None)
    if run.exit and run.exit.status and run.ended_by == "itself":
        how = f"was {run.exit.describe()}" if run.exit.signal else f"ended with {run.exit.describe()}"
        yield f"{'the run under it' if member.wrap else 'the target'} {how}"


def _with_data(live: LivePass, member: Member, run: TargetRun) -> tuple[Status, str | None]:
    if live.disk_full:
        return "degraded", f"the disk of {live.context.scratch} was full: what the tool wrote may be cut"
    if member.truncated:
        return "degraded", "the log had reached its size or time limit; the rest of the run is not in it"
    if any(aide.helper.killed for aide in member.aides):
        return "degraded", "the tool did not end when it was asked to, and was killed: its data may be cut"
    if run.ended_by in ("timeout", "interrupt"):
        return "degraded", f"the pass was ended by {'its time-out' if run.ended_by == 'timeout' else 'a signal'}"
    return "ok", None


def _without_tool(run: TargetRun, fine: frozenset[int]) -> tuple[Status, str | None]:
    """A capture that is nothing but the run itself."""
    if run.ended_by == "timeout":
        return "timed_out", f"ended by the time-out after {run.wall_s:.1f} s"
    if run.ended_by == "interrupt":
        return "cancelled", f"interrupted after {run.wall_s:.1f} s"
    if run.exit and run.ended_by == "itself" and run.exit.status not in fine:
        return "target_failed", f"the target failed: {run.exit.describe()}"
    return "ok", None


# ---------------------------------------------------------------- what it left


def _capture(
    live: LivePass, member: Member, run: TargetRun | None, status: Status, reason: str | None, found: Found
) -> Capture:
    """Moves the member's files into the report and describes them."""
    home, note = _move(live.context, member.dir)
    wrap = (member.wrap.argv,) if member.wrap else ()
    options = member.collector.model_dump(mode="json", by_alias=True)
    picks = {"picks": asdict(member.job.picks)} if member.job.picks else {}
    return Capture(
        id=member.name,
        pass_id=live.planned.id,
        collector=member.collector.use,
        status=status,
        reason=reason,
        tool=member.tool,
        commands=tuple(live.context.redact(argv) for argv in (*wrap, *member.commands)),
        options={**options, "role": live.planned.role, "repeat": live.planned.repeat, **picks},
        artifacts=tuple(_artifact(expect, path, home / path.relative_to(member.dir), member) for expect, path in found),
        started_ns=member.started_ns,
        ended_ns=member.ended_ns or (run.ended_ns if run else None),
        flush_s=member.flush_s,
        helper_exits={str(i): aide.helper.status() for i, aide in enumerate(member.aides)},
        run=run,
        attempt=live.attempt,
        required=member.collector.required,
        notes=(*member.launch.notes, *member.notes, *([note] if note else [])),
        root=live.context.folder.path,
    )


def _move(context: Context, directory: Path) -> tuple[Path, str | None]:
    """Into raw/. When the disk does not take it, it stays where it is and the note says where."""
    try:
        return context.folder.move_in(directory, directory.name), None
    except OSError as error:
        return directory, f"its files could not be moved into the report ({error.strerror}); they are in {directory}"


def _artifact(expect: Expect, old: Path, place: Path, member: Member) -> Artifact:
    facts = place.stat()
    inside = place.parent != old.parent
    return Artifact(
        role=expect.role,
        path=f"raw/{member.name}/{old.relative_to(member.dir)}" if inside else str(place),
        format=expect.format,
        bytes=facts.st_size,
        sha256=folder.fingerprint(place),
        mtime_ns=facts.st_mtime_ns,
        derived_from=expect.derived_from,
        holds_env=expect.holds_env,
        truncated=member.truncated,
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
