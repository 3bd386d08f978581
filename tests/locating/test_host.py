"""Where the time of threads goes, on stacks and steps whose times are known, against plain loops."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.formats.stacks import Spans
from orchestrator.locating import frames, host, windows
from orchestrator.model import Capture, TargetRun, Tool
from orchestrator.tables import Table

MS = 1_000_000
T0 = 1_700_000_000 * 1000 * MS
MAIN = (("<module> (/home/me/train.py:20)"), "work (/home/me/train.py:12)")
LIBC, PY = "/lib/libc.so.6", "/lib/libpython3.11.so.1.0"
FUTEX = (f"PyThread_acquire_lock_timed ({PY})", f"0x7f5d7d0a3f16 ({LIBC})")
GIL = (f"pthread_cond_timedwait ({LIBC})",)
QUEUE = ("Queue.get (/usr/lib/python3.11/queue.py:171)", *FUTEX)


def capture(**options: Any) -> Capture:
    run = TargetRun(("python", "train.py"), 7, T0, T0 + 1000 * MS, 1.0, None)
    tool = Tool("py-spy", "/bin/py-spy")
    return Capture(
        "p2-py-spy", "p2", "py-spy", "ok", tool=tool, run=run, options={"native": True, **options}, root=Path()
    )


def steps(first_ms: int, durations_ms: list[int], warm: int) -> Table:
    starts = [T0 + (first_ms + sum(durations_ms[:i])) * MS for i in range(len(durations_ms))]
    columns = {
        "capture": ["p2-monitor"] * len(starts),
        "pid": [7] * len(starts),
        "start_ns": starts,
        "duration_ns": [ms * MS for ms in durations_ms],
        "warmup": [i < warm for i in range(len(starts))],
    }
    return Table("steps", columns, clock="epoch")


def spans(*rows: tuple[int, int, tuple[str, ...], int, int]) -> Table:
    """(pid, tid, frames, start and duration in ms)"""
    found = Spans()
    for pid, tid, texts, start_ms, ms in rows:
        found.add((pid, tid, f"T{tid}", texts), [(T0 + start_ms * MS, ms * MS)])
    return found.table(error_ns=0).with_capture("p2-py-spy")


def located(spans_: Table, *more: Table, one: Capture | None = None) -> list[dict[str, Any]]:
    beside = Capture("p2-monitor", "p2", "monitor", "ok")
    parts = {"stack_spans": [spans_], **{table.name: [table] for table in more}}
    (table,) = host.located(parts, [one or capture(), beside], ())["host_time"]
    return [dict(row) for row in table.rows()]


def total_ms(rows: list[dict[str, Any]], **wanted: Any) -> float:
    return sum(r["total_ns"] for r in rows if all(r[k] == v for k, v in wanted.items())) / MS


def test_parts_of_the_run_are_cut_where_the_steps_begin_and_become_steady() -> None:
    rows = located(spans((7, 7, MAIN, 0, 1000)), steps(100, [200, 100, 100, 100], warm=1))
    found = {part: total_ms(rows, part=part) for part in ("start-up", "warm-up", "steady", "end")}
    assert found == {"start-up": 100, "warm-up": 200, "steady": 300, "end": 400}
    assert {row["part_ns"] / MS for row in rows if row["part"] == "steady"} == {300}


def test_without_steps_all_is_one_part_of_the_program_s_own_process() -> None:
    rows = located(spans((7, 7, MAIN, 0, 40), (9, 9, MAIN, 0, 400)))
    assert {(row["pid"], row["part"], row["role"]) for row in rows} == {(7, "all", "main"), (9, "all", "child")}


def test_the_main_thread_is_the_one_that_makes_the_steps() -> None:
    made = steps(0, [100, 100, 100], warm=1)
    made.columns["tid"] = [12, 12, 12]
    rows = located(spans((7, 7, (*MAIN, *QUEUE), 0, 300), (7, 12, ("train (/home/me/train.py:8)",), 0, 300)), made)
    assert {(row["tid"], row["role"]) for row in rows} == {(7, "thread"), (12, "main")}


def test_a_wait_is_put_to_what_the_others_did_meanwhile() -> None:
    busy, other = ("make (/home/me/data.py:5)",), ("log (/home/me/log.py:9)",)
    rows = located(
        spans((7, 7, (*MAIN, *QUEUE), 100, 50), (7, 7, MAIN, 150, 100), (7, 8, busy, 90, 60), (7, 8, other, 150, 100))
    )
    (wait,) = [row for row in rows if row["state"] == "lock"]
    assert (wait["behind"], wait["behind_state"], wait["behind_pct"]) == ("make (/home/me/data.py:5)", "python", 100)


def test_threads_that_wait_for_python_s_lock_are_one_contention_with_its_holder() -> None:
    score = ("run (/home/me/pool.py:3)", "score (/home/me/score.py:4)")
    workers = [(7, 10 + n, score if n == 0 else (*score, *GIL), 0, 100) for n in range(4)]
    rows = located(spans((7, 7, (*MAIN, *QUEUE), 0, 100), *workers))
    (wait,) = [row for row in rows if row["role"] == "main"]
    assert (wait["behind"], wait["behind_state"]) == ("score (/home/me/score.py:4)", "gil")


def test_threads_that_queue_up_at_a_lock_contend_for_it() -> None:
    lock = ("save (/home/me/save.py:4)", f"lock_PyThread_acquire_lock ({PY})", *FUTEX)
    holder = ("save (/home/me/save.py:5)", f"time_sleep ({PY})", f"clock_nanosleep ({LIBC})")
    workers = [(7, 10 + n, holder if n == 0 else lock, 0, 100) for n in range(4)]
    rows = located(spans((7, 7, (*MAIN, *QUEUE), 0, 100), *workers))
    (wait,) = [row for row in rows if row["role"] == "main"]
    assert (wait["behind"], wait["behind_state"]) == ("save (/home/me/save.py:4)", "lock")


def test_what_is_profrun_s_own_is_left_out() -> None:
    ours = (*MAIN, "Steps.put (/srv/orchestrator/inject/steps.py:91)")
    rows = located(spans((7, 7, MAIN, 0, 60), (7, 7, ours, 60, 40)))
    assert [(row["state"], row["total_ns"], row["part_ns"]) for row in rows] == [("python", 60 * MS, 60 * MS)]


@pytest.mark.parametrize("seed", range(5))
def test_time_behind_waits_equals_that_of_plain_loops(seed: int) -> None:
    chance = random.Random(seed)
    wait, others = (*MAIN, *QUEUE), [(f"f{n} (/home/me/f.py:{n + 1})",) for n in range(3)]
    rows: list[tuple[int, int, tuple[str, ...], int, int]] = []
    now = 0
    while now < 900:
        ms = chance.randint(1, 40)
        rows.append((7, 7, chance.choice([wait, MAIN]), now, ms))
        now += ms
    for tid in (8, 9):
        now = chance.randint(0, 20)
        while now < 900:
            ms = chance.randint(1, 30)
            rows.append((7, tid, chance.choice(others), now, ms))
            now += ms + chance.randint(0, 5)
    expected: dict[str, int] = defaultdict(int)
    for _, _, texts, start, ms in [row for row in rows if row[1] != 7]:
        for _, _, _, begun, length in [row for row in rows if row[1] == 7 and row[2] is wait]:
            expected[texts[0]] += max(0, min(start + ms, begun + length) - max(start, begun))
    found = located(spans(*rows))
    told = {row["behind"]: row for row in found if row["state"] == "lock"}
    assert told.keys() == expected.keys()
    for behind, row in told.items():
        assert row["behind_pct"] == pytest.approx(100 * expected[behind] / sum(expected.values()), abs=0.1)
    waited = sum(ms for _, _, texts, _, ms in rows if texts is wait)
    assert total_ms(found, state="lock") == pytest.approx(waited), "the blame is shared, and no more than the wait"


def test_every_state_that_blames_others_is_a_state() -> None:
    assert (host.BLAMES_THREADS | host.BLAMES_CHILDREN) <= frames.WAITS


def test_steps_of_another_pass_say_nothing_of_this_one() -> None:
    elsewhere = Table("steps", {**steps(0, [10], 0).columns, "capture": ["p1-timing"]})
    course = windows.of_pass({"steps": [elsewhere]}, [capture()], "p2")
    assert (course.pid, [part.name for part in course.parts]) == (None, ["all"])


def test_where_nobody_can_tell_the_warm_up_all_but_the_first_step_counts() -> None:
    unknown = steps(100, [200, 100, 100], warm=0)
    unknown = Table("steps", {**unknown.columns, "warmup": [None] * 3})
    rows = located(spans((7, 7, MAIN, 0, 1000)), unknown)
    assert total_ms(rows, part="steady") == 200
