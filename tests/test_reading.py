"""reading.py: captures that belong together are read together; large ones by copies of this process, and what such a
copy costs when it dies."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas
import pyarrow.parquet as pq
import pytest

from orchestrator import kernel, normalise, process, reading, runner, tables
from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.folder import Folder
from orchestrator.locate import across
from orchestrator.model import IMPORT, Artifact, Capture, Exit, PassRecord, TargetRun
from orchestrator.planfile import plans
from orchestrator.report import captures_from, pass_from
from orchestrator.tables import Stored, Table

NOW = 1_800_000_000_000_000_000
RUN = TargetRun(("python", "train.py"), 10, NOW, NOW + 10**9, 1.0, Exit(0))
RECORD = PassRecord("p01", "profiled", ("nsys",), run=RUN)
ROWS = 50


def kernels(first: int) -> Table:
    columns = {"pid": [10] * ROWS, "start_ns": [NOW + first + n for n in range(ROWS)], "duration_ns": [1] * ROWS}
    return Table("gpu_kernels", {**columns, "name": [f"k{n % 3}" for n in range(ROWS)]}, clock="epoch")


REBUILT = reading.rebuilt


class Made(Collector):
    """A collector whose captures hold what a test says."""

    use: str = "nsys"

    def parse(self, capture: Capture) -> Parsed:
        return WHAT[capture.id.partition("@")[0]](capture)


WHAT: dict[str, Callable[[Capture], Parsed]] = {
    "good": lambda capture: Parsed((kernels(1000 * (capture.rank or 0)),), ("read",)),
    "bad": lambda capture: (_ for _ in ()).throw(ParseError("it is no export")),
    "buggy": lambda capture: Parsed(notes=(1 // 0,)),  # type: ignore[arg-type]
    "killed": lambda capture: os.kill(os.getpid(), signal.SIGKILL),  # type: ignore[dict-item,return-value]
    "hungry": lambda capture: (_ for _ in ()).throw(MemoryError()),
}


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "rebuilt", lambda capture: Made())


def capture(name: str, rank: int | None = None, size: int = reading.HEAVY_BYTES, **more: object) -> Capture:
    id_ = name if rank is None else f"{name}@n0.r{rank}"
    file = Artifact("sqlite", "raw/x", "sqlite", size, "", 0)
    given = {"pass_id": "p01", "run": RUN, "artifacts": (file,), "rank": rank, **more}
    return Capture(id_, collector="nsys", status="ok", **given)  # type: ignore[arg-type]


def read(folder: Path, *captures: Capture) -> tuple[reading.Reading, list[str]]:
    logged: list[str] = []
    found = reading.Reader(captures, [RECORD], {}, Folder(folder).store).read(logged.append)
    return found, logged


def frame(folder: Path, parts: object, name: str = "gpu_kernels") -> pandas.DataFrame:
    Folder(folder).write_table(name, parts)  # type: ignore[arg-type]
    return tables.read(folder / "tables" / f"{name}.parquet")


def test_captures_of_a_pass_and_rank_belong_together() -> None:
    some = [capture("a", 0), capture("b", 1), capture("c", 0), replace(capture("d"), pass_id="p02")]
    assert [[one.id for one in group.captures] for group in reading.groups(some)] == [
        ["a@n0.r0", "c@n0.r0"], ["b@n0.r1"], ["d"],
    ]  # fmt: skip


def test_of_imported_files_large_ones_of_one_tool_stand_alone() -> None:
    one, other, small = (capture(name, pass_id=IMPORT, run=None) for name in "abc")
    small = replace(small, artifacts=(), collector="py-spy")
    assert len(reading.groups([one, small])) == 1
    assert [len(group.captures) for group in reading.groups([one, other, small])] == [1, 1, 1]


@pytest.mark.parametrize("large_rows", [1, 10**6])
def test_a_copy_of_this_process_finds_what_this_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_rows: int
) -> None:
    monkeypatch.setattr(reading, "LARGE_ROWS", large_rows)
    beside, _ = read(tmp_path / "beside", *(capture("good", rank) for rank in range(3)))
    here, _ = read(tmp_path / "here", *(capture("good", rank, 1) for rank in range(3)))
    assert beside.found == here.found and set(beside.found) == {f"good@n0.r{rank}" for rank in range(3)}
    stored = [isinstance(part, Stored) for part in beside.parts["gpu_kernels"]]
    assert stored == [large_rows == 1] * 3 and not any(isinstance(p, Stored) for p in here.parts["gpu_kernels"])
    one, other = (
        frame(tmp_path / name, found.parts["gpu_kernels"]) for name, found in (("beside", beside), ("here", here))
    )
    pandas.testing.assert_frame_equal(one, other)
    assert one.attrs == other.attrs and one["rank"].tolist() == [0] * ROWS + [1] * ROWS + [2] * ROWS
    assert not list((tmp_path / "beside").rglob("*.aside/*.parquet"))


def test_what_lacks_the_rank_gets_it_beside_what_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGE_ROWS", 1)
    found, _ = read(tmp_path, capture("good"), capture("good", 1), capture("good", 2, 1))
    whole = frame(tmp_path, found.parts["gpu_kernels"])
    assert whole["rank"].isna().sum() == ROWS and whole["rank"].max() == 2 and len(whole) == 3 * ROWS


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad", "it is no export"),
        ("buggy", "its parser failed, which is a bug: ZeroDivisionError"),
        ("hungry", "there was not enough memory to read it"),
        ("killed", "the process that read it was lost (killed by SIGKILL, most likely for want of memory"),
    ],
)
def test_what_can_not_be_read_costs_its_own_capture(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/x").touch()
    some = [replace(one, root=tmp_path) for one in (capture("good", 0), capture(name, 0), capture("good", 1))]
    found, logged = read(tmp_path, *some)
    why = found.found[f"{name}@n0.r0"]
    assert isinstance(why, str) and why.startswith(said)
    assert all(isinstance(found.found[f"good@n0.r{rank}"], Parsed) for rank in (0, 1))
    assert sum(map(len, found.parts["gpu_kernels"])) == 2 * ROWS
    assert bool(logged) == (name == "buggy")
    unreadable = reading.updated(some[1], why)
    assert (unreadable.status, unreadable.reason) == ("unreadable", why)


def test_a_copy_that_dies_after_reading_loses_its_largest_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies_of_two(self: reading.Reader, name: str, parts: list[Table], aside: bool) -> list[Table]:
        if len(parts) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return list(parts)

    monkeypatch.setattr(reading.Reader, "_kept", dies_of_two)
    large = replace(capture("good", 0, 2 * reading.HEAVY_BYTES), id="good@large")
    found, _ = read(tmp_path, large, capture("good", 0))
    assert isinstance(found.found["good@large"], str) and isinstance(found.found["good@n0.r0"], Parsed)


def test_no_copy_is_left_when_this_process_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(workers: list[process.Worker]) -> process.Worker:
        seen.extend(worker.pid for worker in workers)
        raise KeyboardInterrupt

    seen: list[int] = []
    monkeypatch.setattr(process, "first_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(tmp_path, capture("good", 0))
    assert seen and not any(process.alive(pid) for pid in seen)


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Folder, table: Table) -> Stored:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reading, "LARGE_ROWS", 1)
    monkeypatch.setattr(Folder, "store", full)
    with pytest.raises(OSError, match="No space left") as raised:
        read(tmp_path, capture("good", 0))
    assert raised.value.errno == errno.ENOSPC


def test_where_no_process_can_be_started_this_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refused)
    found, _ = read(tmp_path, capture("good", 0), capture("good", 1))
    assert sum(map(len, found.parts["gpu_kernels"])) == 2 * ROWS


def test_what_a_copy_can_not_hand_over_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(told: tuple[str, object], answer: object) -> None:
        if told[0] == "done":
            raise TypeError("cannot pickle it")
        really(told, answer)  # type: ignore[arg-type]

    really = process._hand_over
    monkeypatch.setattr(process, "_hand_over", refused)
    found, _ = read(tmp_path, capture("good", 0), capture("good", 1))
    assert sum(map(len, found.parts["gpu_kernels"])) == 2 * ROWS


def test_as_many_copies_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    gigabyte = 1 << 30
    for room, most in ((None, reading.MOST_WORKERS), (0, 1), (14 * gigabyte, 2), (10**15, reading.MOST_WORKERS)):
        for free, limit in ((room, None), (10**15, room)):  # of the machine, of our control group
            monkeypatch.setattr(process, "room_bytes", lambda free=free: free)
            monkeypatch.setattr(kernel, "tightest", lambda machine, what, limit=limit: limit)
            assert reading._workers([gigabyte, 1]) == most


def test_a_fault_in_what_compares_ranks_costs_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.locating import ranks

    logged: list[str] = []
    monkeypatch.setattr(ranks, "together", lambda *_: 1 // 0)
    parts = {"gpu_kernels": [kernels(0)], "ranks": [Table("ranks", {"capture": ["x"], "rank": [0]})]}
    assert list(across(parts, [], [], logged.append)) == ["gpu_kernels"] and "ZeroDivisionError" in logged[0]


def test_a_job_of_many_ranks_becomes_one_report_however_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of scripts/bench scale, small: each rank's export and steps, the last of four kinds of ranks slower."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    import scalebench

    monkeypatch.setattr(reading, "rebuilt", REBUILT)
    kinds = [scalebench.kind(tmp_path, number, 24_000) for number in range(scalebench.KINDS)]
    beside = made_of(scalebench.run_folder(tmp_path / "beside", kinds, [0, 1, 3]), monkeypatch, 1)
    here = made_of(scalebench.run_folder(tmp_path / "here", kinds, [0, 1, 3]), monkeypatch, 1 << 40)
    assert set(beside) == set(here) > {"gpu_kernels", "gpu_gaps", "cuda_calls", "ranks", "rank_steps", "steps"}
    for name, frame_ in beside.items():
        pandas.testing.assert_frame_equal(frame_, here[name], obj=name)
        assert frame_.attrs == here[name].attrs
    assert len(beside["gpu_kernels"]) == 3 * 24_000 and pq_groups(tmp_path / "beside", "gpu_kernels") == 3
    told = beside["ranks"].set_index("rank")
    assert told["judged_by"].unique().tolist() == ["own work"] and told["host"].tolist() == ["n0", "n1", "n3"]
    assert told["slowest_steps"].tolist() == [0, 0, 12] and told["behind_ns"].idxmax() == 2


def made_of(place: Path, monkeypatch: pytest.MonkeyPatch, heavy_bytes: int) -> dict[str, pandas.DataFrame]:
    """The tables that `profrun report` makes of a run."""
    monkeypatch.setattr(reading, "HEAVY_BYTES", heavy_bytes)
    raw, folder = runner.read_raw(place), Folder(place)
    passes = [pass_from(one) for one in raw["passes"]]
    captures = list(captures_from(raw["captures"], passes, place))
    result = normalise.normalise(captures, passes, plans.load(place / "plan.yaml"), place, print, (), folder.store)
    assert {one.status for one in result.captures} == {"ok"}
    parts = across(result.parts, result.captures, result.passes, print)
    for name, pieces in parts.items():
        folder.write_table(name, pieces)
    folder.clear_aside()
    return {name: tables.read(place / "tables" / f"{name}.parquet") for name in sorted(parts)}


def pq_groups(place: Path, name: str) -> int:
    return int(pq.read_metadata(place / "tables" / f"{name}.parquet").num_row_groups)
