"""Rules about a program that hangs: which rank is missing from which collective, and what else waits for what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.model import Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

Row = Mapping[str, Any]
"""A row of the table `threads` or `collectives`, every unknown a None."""

_ABSENT = ("gone", "not seen", "ended")
_SAME_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "all_gather_into_tensor")
"""Collectives in which every rank gives as much as the others."""
_LEAST_WAITED_NS = 1_000_000_000
"""A collective younger than this may only be late."""

_WAITS = {
    "data loader": ("input_pipeline", "waits for its data loader's workers", "Look at what the workers do, below."),
    "CUDA": ("host_sync", "waits for the GPU", "Look for a kernel that does not end: a collective's, most often."),
    "thread join": ("lock_contention", "waits for a thread to end", "Look at the other threads of this process."),
    "lock": ("lock_contention", "waits for a lock or a condition", "Look for who holds it among the other threads."),
    "queue": ("idle_wait", "waits for a queue", "Look at who should fill it: has that thread or process ended?"),
    "child": ("process_spawn", "waits for a child process", "Look at what the child does, or why it does not end."),
    "pipe": ("idle_wait", "waits for a pipe", "Look at the process at its other end: has it ended, or does it wait?"),
    "network": ("network_io", "waits for the network", "Look at the other side; set a time-out on the connection."),
    "file": ("file_io", "waits for a file", "Look at the disk or the file server that it lies on (`dmesg`, `mount`)."),
    "file lock": ("file_io", "waits for a file's lock", "Look for who holds it: `lslocks`."),
    "rendezvous": ("communication", "waits for the other ranks to come", "Look whether all were started, and whether "
                   "MASTER_ADDR and MASTER_PORT are the same and can be reached."),
    "sleep": ("idle_wait", "sleeps", "Look at what it waits for there."),
    "stopped": ("idle_wait", "is stopped", "Let it go on: kill -CONT PID, or end the debugger that holds it."),
}  # fmt: skip
"""Category, words and next step of each wait. Event loops and idle workers wait for work: nothing hangs."""

_RECORDER = (
    "Next time start it with TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_pipe_ TORCH_NCCL_DUMP_ON_TIMEOUT=1: then NCCL's flight recorder tells "
    "which collective each rank is in."
)


# ---------------------------------------------------------------- who is where


@dataclass(frozen=True)
class _Rank:
    """A rank of the job by the one of its threads that counts: the one in a collective, else the main one."""

    rank: int
    thread: Row

    @property
    def waits_in(self) -> str | None:
        """The collective in which it waits; None where it is in none, or gets on."""
        waits = self.thread["doing"] == "collective" and self.thread["moved"] is not True
        return str(self.thread["what"] or "a collective") if waits else None

    @property
    def is_absent(self) -> bool:
        return self.thread["state"] in _ABSENT

    def told(self) -> str:
        """Where it stands, as the rest of a sentence that its name begins."""
        state, moved = self.thread["state"], self.thread["moved"]
        if state in ("gone", "ended"):
            return "has ended: its process is gone"
        if state == "not seen":
            return "was not seen: it is on another machine, or outside of what was looked at"
        if self.waits_in:
            return f"is in {self.waits_in}{_at(self.thread)}"
        seconds = f"{self.thread['apart_ms'] / 1000:.0f} s"
        how = {False: f"has not moved for {seconds}", True: "goes on there, or comes to it late"}.get(moved, "may spin")
        doing = _WAITS.get(self.thread["doing"] or "")
        what = f", where it {doing[1]}{_what(self.thread)}" if doing else ""
        return f"stands in {_place(self.thread)}{what}, and {how}"


def _ranks(threads: Sequence[Row]) -> list[_Rank]:
    """Each rank of the job. What a rank has started bears its number, too: its first process is meant."""
    firsts: dict[int, Any] = {}
    for row in threads:
        if row["rank"] is not None:
            firsts.setdefault(row["rank"], row["pid"])
    found = []
    for rank, pid in sorted(firsts.items()):
        own = [row for row in threads if row["rank"] == rank and row["pid"] == pid]
        main = next((row for row in own if row["tid"] == row["pid"]), own[0])
        waiting = [row for row in own if row["stack"] and _Rank(rank, row).waits_in]
        found.append(_Rank(rank, (waiting or [main])[0]))
    return found


def _rows(frame: pandas.DataFrame | None, capture: str) -> list[Row]:
    if frame is None or frame.empty:
        return []
    here = frame[frame["capture"] == capture]
    plain = here.astype(object).where(here.notna(), None).to_dict("records")
    return [{"rank": None, **{str(name): value for name, value in row.items()}} for row in plain]


def _place(row: Row) -> str:
    """`load_batch (data.py:12)`."""
    if row["function"] is None:
        return "code that could not be read" if row["unread"] else "no Python code"
    return f"{row['function']} ({PurePath(row['file'] or '?').name}:{row['line']})"


def _at(row: Row) -> str:
    return f", called in {_place(row)}" if row["function"] else ""


def _what(row: Row) -> str:
    return f" ({row['what']})" if row["what"] and row["doing"] in ("file", "file lock", "network", "pipe") else ""


def _named(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 1, 2 and 3`."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) > 8:
        numbers = [*numbers[:7], f"{len(numbers) - 7} more"]
    joined = " and ".join(filter(None, [", ".join(numbers[:-1]), numbers[-1]]))
    return f"rank{'s' if len(numbers) > 1 else ''} {joined}"


# ---------------------------------------------------------------- collectives


@dataclass(frozen=True)
class _Behind:
    """What flight recorders say of one process group: who waits in which collective, and who has not come to it."""

    group: str
    seq: int
    op: str
    ahead: tuple[int, ...]
    behind: tuple[int, ...]
    waited_ns: int
    row: Row

    def told(self) -> str:
        return f"{self.op}, no. {self.seq} of group {self.group}"


def missing_ranks(report: Report) -> Iterator[Finding]:
    """Ranks wait in a collective to which others have not come."""
    for capture in _captures(report):
        threads, entries = _rows(report.table("threads"), capture), _rows(report.table("collectives"), capture)
        ranks, behind = _ranks(threads), list(_behind(entries))
        found = _by_stacks(ranks, behind, threads, capture)
        yield from found
        told = {rank for one in found for rank in _numbers(one)}
        yield from (_by_recorder(one, ranks, capture) for one in behind if not set(one.behind) <= told)


def _numbers(finding: Finding) -> list[int]:
    return [int(number) for number in str(finding.where.get("ranks") or "").split(", ") if number]


def _by_stacks(
    ranks: Sequence[_Rank], behind: Sequence[_Behind], threads: Sequence[Row], capture: str
) -> list[Finding]:
    waiting = [one for one in ranks if one.waits_in]
    if not waiting:
        return list(_apart(ranks, behind, capture))
    ops = [one.waits_in for one in waiting]
    op = max(dict.fromkeys(ops), key=ops.count)
    inside = [one for one in waiting if one.waits_in == op]
    missing = [one for one in ranks if one.waits_in != op]
    if not missing:
        return [_all_inside(inside, str(op), threads, capture)] if len(inside) > 1 else []
    here = [one for one in missing if one.thread["state"] != "not seen"]
    return [_missing(inside, here or missing, str(op), behind, threads, capture)]


def _apart(ranks: Sequence[_Rank], behind: Sequence[_Behind], capture: str) -> Iterator[Finding]:
    """Some ranks wait for the GPU while others do not get on: NCCL's collectives run there, and wait there."""
    inside, still = _at_gpu(ranks)
    if not inside or not still or behind:
        return
    first = still[0]
    yield Finding(
        rule="rank_apart",
        category="communication",
        severity="critical",
        title=f"Rank {first.rank} {first.told()}, while {_named(one.rank for one in inside)} "
        f"{'waits' if len(inside) == 1 else 'wait'} for the GPU: for a collective, most likely",
        advice=f"{_WAITS[first.thread['doing']][2] if first.thread['doing'] in _WAITS else 'Look at that place.'} "
        f"{_RECORDER}",
        confidence="medium",
        where={**_where(first.thread), "ranks": ", ".join(str(one.rank) for one in still)},
        evidence=tuple(map(_evidence, (*inside[:4], *still[:4]))),
        sources=(capture,),
    )


def _at_gpu(ranks: Sequence[_Rank]) -> tuple[list[_Rank], list[_Rank]]:
    """Those that wait for the GPU (they may spin), and those that stand elsewhere."""
    inside = [one for one in ranks if one.thread["doing"] == "CUDA" and one.thread["moved"] is not True]
    return inside, [one for one in ranks if one.thread["doing"] != "CUDA" and one.thread["moved"] is False]


def _missing(
    inside: Sequence[_Rank], missing: Sequence[_Rank], op: str, behind: Sequence[_Behind], threads: Sequence[Row],
    capture: str,
) -> Finding:  # fmt: skip
    gone_on = all(one.thread["moved"] is True and not one.is_absent for one in missing)
    unseen = all(one.thread["state"] == "not seen" for one in missing)
    first, names = missing[0], _named(one.rank for one in missing)
    agrees = next((b for b in behind if {one.rank for one in missing} & set(b.behind)), None)
    waited = f"{_wait(one.rank for one in inside)}{_since(inside, agrees)}"
    verb = "is" if len(missing) == 1 else "are"
    title = f"{names[0].upper()}{names[1:]} {verb} not in {op}, where {waited}: "
    title += f"it {first.told()}" if len(missing) == 1 else "; ".join(f"{m.rank} {m.told()}" for m in missing[:4])
    return Finding(
        rule="rank_missing",
        category="communication",
        severity="major" if gone_on or unseen else "critical",
        title=title,
        advice=_advice(missing, gone_on, unseen, threads, agrees),
        confidence=_confidence(len(inside) + len(missing), gone_on, unseen, agrees),
        where={**_where(first.thread), "ranks": ", ".join(str(one.rank) for one in missing)},
        evidence=(*(_evidence(one) for one in (*inside[:4], *missing[:4])), *_recorded(agrees)),
        sources=(capture,),
    )


def _wait(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return f"{_named(numbers)} {'has' if len(numbers) == 1 else 'have'} waited"


def _since(inside: Sequence[_Rank], agrees: _Behind | None) -> str:
    if agrees is not None:
        return f" for {agrees.waited_ns / 1e9:.0f} s"
    return f" for {inside[0].thread['apart_ms'] / 1000:.0f} s and more"


def _confidence(size: int, moved: bool, unseen: bool, agrees: _Behind | None) -> Literal["high", "medium", "low"]:
    """Stacks alone do not tell who belongs to the process group; of two ranks both do."""
    if unseen:
        return "low"
    if agrees is not None:
        return "high"
    return "high" if size == 2 and not moved else "medium"


def _advice(missing: Sequence[_Rank], moved: bool, unseen: bool, threads: Sequence[Row], agrees: _Behind | None) -> str:
    said = []
    if unseen:
        said.append("Run `profrun hang --pid PID` on the other machines too, with the launcher's PID.")
    elif moved:
        said.append("It may only be slow: look again for longer (--duration 60s).")
    elif any(one.is_absent for one in missing):
        said.append("Look in the job's log for why it ended; its launcher should have ended the others.")
    else:
        doing = _WAITS.get(missing[0].thread["doing"] or "")
        said.append(doing[2] if doing else "Look at that place: every rank has to call the same collectives in order.")
    if agrees is not None:
        said.append(f"The flight recorder says the same: {agrees.told()}.")
    elif not _is_recorded(threads):
        said.append(_RECORDER)
    return " ".join(said)


def _is_recorded(threads: Iterable[Row]) -> bool:
    """Whether a flight recorder could be asked, or there is none to be had: NCCL has one, Gloo's can't be asked."""
    names = [str(row["thread"]) for row in threads]
    only_gloo = any("gloo" in name for name in names) and not any("nccl" in name for name in names)
    return only_gloo or any(row["recorder"] for row in threads)


def _all_inside(inside: Sequence[_Rank], op: str, threads: Sequence[Row], capture: str) -> Finding:
    """None is missing, and none gets on: another collective than it seems, or the network."""
    places = dict.fromkeys(_place(one.thread) for one in inside)
    differ = len(places) > 1
    title = f"All {len(inside)} ranks wait in {op}, and none has moved"
    title += f": called at {len(places)} places, {' and '.join(list(places)[:3])}" if differ else ""
    advice = "Every rank has to call the same collectives in the same order: see who calls what." if differ else (
        "Look at the network between the ranks (NCCL_DEBUG=INFO tells which interface it took), and at the GPUs "
        "(`nvidia-smi`, `dmesg`)."
    )  # fmt: skip
    return Finding(
        rule="collective_stuck",
        category="communication",
        severity="critical" if differ else "major",
        title=title,
        advice=advice if _is_recorded(threads) else f"{advice} {_RECORDER}",
        confidence="medium",
        where=_where(inside[0].thread),
        evidence=tuple(map(_evidence, inside[:8])),
        sources=(capture,),
    )


def _by_recorder(behind: _Behind, ranks: Sequence[_Rank], capture: str) -> Finding:
    """Ranks that have not come to a collective, as only the flight recorders tell: NCCL's collectives do not keep the
    caller."""
    first = next((one for one in ranks if one.rank == behind.behind[0]), None)
    verb = "has" if len(behind.behind) == 1 else "have"
    names = _named(behind.behind)
    where = _where(first.thread) if first else {}
    called = f", called in {_place(behind.row)}" if behind.row["function"] else ""
    told = f"; rank {first.rank} {first.told()}" if first else ""
    return Finding(
        rule="rank_behind",
        category="communication",
        severity="critical",
        title=f"{names[0].upper()}{names[1:]} {verb} not come to {behind.told()}{called}: {_wait(behind.ahead)} for "
        f"{behind.waited_ns / 1e9:.0f} s{told}",
        advice="Every rank has to call the same collectives in order: look at what that rank does instead.",
        confidence="high" if behind.row["fresh"] else "medium",
        where={**where, "ranks": ", ".join(map(str, behind.behind))},
        evidence=_recorded(behind),
        sources=(capture,),
    )


def mismatches(report: Report) -> Iterator[Finding]:
    """Ranks have called different collectives, or with different shapes, where they should have called the same."""
    for capture in _captures(report):
        for entries in _by_group(_rows(report.table("collectives"), capture)).values():
            found = _mismatch(entries)
            if found:
                yield _differing(*found, capture)


def _mismatch(entries: Sequence[Row]) -> tuple[Row, Row, str] | None:
    """The first collective that does not end and in which two ranks differ, with what differs."""
    by_seq: dict[int, list[Row]] = {}
    for row in entries:
        by_seq.setdefault(row["seq"], []).append(row)
    for _, rows in sorted(by_seq.items()):
        for row in rows[1:]:
            if row["done"] and rows[0]["done"]:
                continue
            if row["op"] != rows[0]["op"]:
                return rows[0], row, "op"
            if row["op"] in _SAME_SIZES and row["input_sizes"] != rows[0]["input_sizes"]:
                return rows[0], row, "input_sizes"
    return None


def _differing(one: Row, other: Row, what: str, capture: str) -> Finding:
    def told(row: Row) -> str:
        value = row["op"] if what == "op" else f"{row['op']} of {row[what]}"
        return f"rank {row['rank']} {value} in {_place({**row, 'unread': None})}"

    return Finding(
        rule="collectives_differ",
        category="communication",
        severity="critical",
        title=f"Ranks differ in collective no. {one['seq']} of group {_group(one)}: {told(one)}, {told(other)}",
        advice="Every rank has to call the same collectives in the same order, and with the same shapes: see which "
        "condition has led the two apart." if what == "op" else
        "Give all ranks the same shapes: pad, or drop the last, smaller batch.",
        confidence="high",
        where={"function": other["function"], "file": other["file"], "line": other["line"]},
        evidence=tuple(Evidence("collectives", f"rank {r['rank']}, no. {r['seq']}", r[what]) for r in (one, other)),
        sources=(capture,),
    )  # fmt: skip


def _behind(entries: Sequence[Row]) -> Iterator[_Behind]:
    """For each process group: the furthest collective that some wait in, and who has not called it."""
    asked = {row["rank"] for row in entries}
    for rows in _by_group(entries).values():
        last: dict[int, int] = {}
        for row in rows:
            last[row["rank"]] = max(row["seq"], last.get(row["rank"], 0))
        members = _members(rows, asked)
        seq = max(last.values())
        waits = [row for row in rows if row["seq"] == seq and not row["done"]]
        late = tuple(sorted(rank for rank in members if last.get(rank, 0) < seq))
        waited_ns = min((row["waited_ns"] or 0 for row in waits), default=0)
        if waits and late and waited_ns >= _LEAST_WAITED_NS:
            ahead = tuple(sorted(row["rank"] for row in waits))
            yield _Behind(_group(waits[0]), seq, waits[0]["op"], ahead, late, waited_ns, waits[0])


def _by_group(entries: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Collectives by process group; equal names with other members are other groups. What is between two ranks has no
    common count."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in entries:
        if not row["is_p2p"]:
            found.setdefault((row["group"], row["ranks"]), []).append(row)
    return found


def _members(rows: Sequence[Row], asked: set[int]) -> set[int]:
    """Those of a group whose recorders were read: of others nothing is known. Where the recorder was not told the
    members, those that have ever called in it; of the first group everybody."""
    if rows[0]["ranks"]:
        return {int(rank) for rank in rows[0]["ranks"].split(",")} & asked
    return asked if rows[0]["description"] == "default_pg" else {row["rank"] for row in rows}


def _group(row: Row) -> str:
    return f"{row['group']} ({row['description']})" if row["description"] else str(row["group"])


# ---------------------------------------------------------------- what else waits


def waiting(report: Report) -> Iterator[Finding]:
    """A process whose main thread has not moved, outside of collectives."""
    for capture in _captures(report):
        threads = _rows(report.table("threads"), capture)
        ranks = _ranks(threads)
        if any(one.waits_in for one in ranks) or all(_at_gpu(ranks)):
            told = {one.thread["pid"] for one in ranks}
            threads = [row for row in threads if row["pid"] not in told]
        moving = any(row["moved"] is True and row["doing"] != "launcher" for row in threads if row["stack"])
        for process in _processes(threads):
            found = _waits(process, moving, capture)
            if found:
                yield found


def _processes(threads: Iterable[Row]) -> list[list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in threads:
        if row["pid"] is not None:
            found.setdefault(row["pid"], []).append(row)
    return list(found.values())


def _waits(threads: Sequence[Row], others_move: bool, capture: str) -> Finding | None:
    main = next((row for row in threads if row["tid"] == row["pid"]), None)
    if main is None or main["moved"] is not False or main["doing"] not in _WAITS:
        return None
    if main["stack"] is None and main["doing"] != "stopped":
        return None
    if main["doing"] in ("child", "pipe", "queue", "data loader") and others_move:
        return None  # what it waits for gets on
    locked = [row for row in threads if row["doing"] == "lock" and row["moved"] is False and row["stack"]]
    if main["doing"] in ("thread join", "lock") and len(locked) > 1:
        return _deadlock(main, locked, capture)
    category, words, advice = _WAITS[main["doing"]]
    if main["doing"] == "thread join" and any(row["moved"] is not False for row in threads if row["stack"]):
        return None
    seconds = f"{main['apart_ms'] / 1000:.0f} s"
    who = f"rank {main['rank']}" if main["rank"] is not None else f"process {main['pid']}"
    return Finding(
        rule="main_thread_waits",
        category=category,
        severity="major",
        title=f"The main thread of {who} {words}{_what(main)} in {_place(main)}, and has not moved for {seconds}",
        advice=advice.replace("PID", str(main["pid"])),
        confidence="high" if main["doing"] in ("stopped", "file lock") else "medium",
        where=_where(main),
        evidence=(_evidence_of(main),),
        sources=(capture,),
    )


def _deadlock(main: Row, locked: Sequence[Row], capture: str) -> Finding:
    places = "; ".join(f"{row['thread']} in {_place(row)}" for row in locked[:4])
    return Finding(
        rule="threads_locked",
        category="lock_contention",
        severity="major",
        title=f"{len(locked)} threads of process {main['pid']} wait for locks, and none has moved for "
        f"{main['apart_ms'] / 1000:.0f} s: {places}",
        advice="It looks like a deadlock: see which lock each of them holds already, and take them in one order "
        "everywhere.",
        confidence="medium",
        where=_where(locked[0]),
        evidence=tuple(map(_evidence_of, locked[:4])),
        sources=(capture,),
    )


# ---------------------------------------------------------------- parts of findings


def _captures(report: Report) -> list[str]:
    return [capture.id for capture in report.captures if capture.collector == "dumps"]


def _where(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("function", "file", "line", "thread") if row.get(name) is not None}


def _evidence(one: _Rank) -> Evidence:
    place = f"{_place(one.thread)}: " if one.thread["function"] else ""
    doing = one.waits_in or one.thread["doing"] or one.thread["state"]
    return Evidence("threads", f"rank {one.rank}", f"{place}{doing}")


def _evidence_of(row: Row) -> Evidence:
    return Evidence("threads", f"{row['pid']}/{row['tid']}", row["cpu_ms"], "ms of CPU time")


def _recorded(behind: _Behind | None) -> tuple[Evidence, ...]:
    if behind is None:
        return ()
    return (Evidence("collectives", behind.told(), round(behind.waited_ns / 1e9, 1), "s waited"),)


RULES = (missing_ranks, mismatches, waiting)
