"""What is deleted of old nights, and above all what is not."""

from __future__ import annotations

import calendar
import errno
import json
import os
import time
from pathlib import Path

import pytest

from orchestrator.nights.thin import thin

DAY_S = 86400.0
NOW_S = float(calendar.timegm((2026, 11, 30, 12, 0, 0)))


def report(parent: Path, days_old: int, name: str = "train", size: int = 1000, verdict: str = "accepted") -> Path:
    """A report of that age, whose raw files have that size."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(NOW_S - days_old * DAY_S))
    path = parent / f"{name}-{stamp}-abcd"
    for folder in ("tables", "raw/p01-nsys/deep", "raw/p01-target"):
        (path / folder).mkdir(parents=True)
    (path / "raw/run.json").write_text("{}")
    (path / "raw/p01-nsys/command.json").write_text("{}")
    (path / "raw/p01-nsys/out.nsys-rep").write_bytes(b"x" * size)
    (path / "raw/p01-nsys/deep/more.log").write_bytes(b"x" * (2 << 20))
    (path / "raw/p01-target/stdout.log").write_text("loss=1\n")
    for kept in ("summary.json", "index.html", "tables/steps.parquet", "timeline.perfetto-trace"):
        (path / kept).write_text("kept")
    (path / "night.json").write_text(json.dumps({"name": name, "remembered": {"verdict": verdict, "note": ""}}))
    return path


def files(path: Path) -> set[str]:
    return {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() or one.is_symlink()}


KEPT = {
    "raw/run.json", "raw/p01-nsys/command.json", "raw/p01-target/stdout.log", "summary.json", "index.html",
    "tables/steps.parquet", "timeline.perfetto-trace", "night.json",
}  # fmt: skip
RAW = {"raw/p01-nsys/out.nsys-rep", "raw/p01-nsys/deep/more.log"}


def test_raw_files_go_by_age_and_the_rest_stays(tmp_path: Path) -> None:
    old, young = report(tmp_path, 20), report(tmp_path, 3)
    done, more = thin(tmp_path, "train", (), 14 * DAY_S, 10**9, NOW_S)
    assert files(old) == {*KEPT, "raw/thinned.jsonl"}
    assert files(young) == KEPT | RAW
    assert [(one.report, one.files, one.bytes) for one in done] == [(old, 2, 1000 + (2 << 20))]
    assert more is None


def test_what_was_deleted_is_written_down_in_the_report(tmp_path: Path) -> None:
    old = report(tmp_path, 20)
    thin(tmp_path, "train", (), 14 * DAY_S, 10**9, NOW_S)
    (line,) = (old / "raw/thinned.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert {one["path"]: one["bytes"] for one in entry["deleted"]} == {
        "p01-nsys/out.nsys-rep": 1000, "p01-nsys/deep/more.log": 2 << 20
    }  # fmt: skip
    assert entry["why"] == "older than 336 h"
    assert thin(tmp_path, "train", (), 14 * DAY_S, 10**9, NOW_S) == ([], None), "once is enough"


def test_by_size_the_oldest_go_first_until_it_is_enough(tmp_path: Path) -> None:
    nights = [report(tmp_path, days, size=1 << 20) for days in (5, 4, 3, 2)]
    one = (1 << 20) + (2 << 20)
    done, more = thin(tmp_path, "train", {nights[0].name}, None, 2 * one, NOW_S)
    assert [thinned.report for thinned in done] == nights[1:3], "the first is flagged"
    assert more is None


def test_flagged_nights_stay_whole_also_when_they_are_too_many(tmp_path: Path) -> None:
    nights = [report(tmp_path, days) for days in (30, 20)]
    done, more = thin(tmp_path, "train", {night.name for night in nights}, DAY_S, 10, NOW_S)
    assert done == []
    assert more is not None and "flagged nights stay whole" in more
    assert all(files(night) == KEPT | RAW for night in nights)


def test_what_a_night_says_of_itself_counts_too(tmp_path: Path) -> None:
    flagged, running, by_hand, of_another = (report(tmp_path, days) for days in (30, 29, 28, 27))
    (flagged / "night.json").write_text('{"name": "train", "remembered": {"verdict": "regressed"}}')
    (running / "night.json").unlink()
    (by_hand / "night.json").write_text("no JSON")
    (of_another / "night.json").write_text('{"name": "other"}')
    assert thin(tmp_path, "train", (), DAY_S, 0, NOW_S)[0] == []
    assert all(files(path) >= RAW for path in (flagged, running, by_hand, of_another))


def test_for_ever_is_for_ever(tmp_path: Path) -> None:
    old = report(tmp_path, 4000)
    assert thin(tmp_path, "train", (), None, 10**9, NOW_S) == ([], None)
    assert files(old) == KEPT | RAW


def test_nothing_of_others_is_touched(tmp_path: Path) -> None:
    others = [report(tmp_path, 99, name) for name in ("train-big", "other", "trai")]
    strange = tmp_path / "train-of-thought"
    strange.mkdir()
    (strange / "raw").mkdir()
    (strange / "raw/data").write_text("mine")
    thin(tmp_path, "train", (), DAY_S, 0, NOW_S)
    assert all(files(other) == KEPT | RAW for other in others)
    assert files(strange) == {"raw/data"}


def test_no_link_leads_out(tmp_path: Path) -> None:
    reports, precious = tmp_path / "reports", tmp_path / "precious"
    reports.mkdir()
    precious.mkdir()
    for name in ("data", "run.json"):
        (precious / name).write_text("mine")
    (precious / "raw").mkdir()
    (precious / "raw/data").write_text("mine")
    (reports / "train-20260101T000000Z-aaaa").symlink_to(precious)
    linked = reports / "train-20260101T000000Z-bbbb"
    linked.mkdir()
    (linked / "raw").symlink_to(precious)
    inner = report(reports, 99)
    (inner / "raw/p02").symlink_to(precious)
    (inner / "raw/p01-nsys/one").symlink_to(precious / "data")
    os.link(precious / "data", inner / "raw/p01-nsys/two")
    thin(reports, "train", (), DAY_S, 0, NOW_S)
    assert (precious / "data").read_text() == (precious / "raw/data").read_text() == "mine"
    assert files(inner) == {*KEPT, "raw/thinned.jsonl", "raw/p02", "raw/p01-nsys/one"}


def test_a_record_that_can_not_be_written_keeps_everything(tmp_path: Path) -> None:
    old = report(tmp_path, 20)
    (old / "raw/thinned.jsonl").symlink_to(tmp_path / "elsewhere")
    done, _ = thin(tmp_path, "train", (), 14 * DAY_S, 10**9, NOW_S)
    assert done == []
    assert files(old) == {*KEPT, *RAW, "raw/thinned.jsonl"}
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        thin(tmp_path / "none", "train", (), None, 0, NOW_S)


def test_a_full_disk_does_not_stay_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, write = report(tmp_path, 20), os.write
    room = iter([False])

    def full(fd: int, data: bytes) -> int:
        if not next(room, True):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    (done,), _ = thin(tmp_path, "train", (), 14 * DAY_S, 10**9, NOW_S)
    assert done.files == len(RAW) and files(old) == {*KEPT, "raw/thinned.jsonl"}
    assert len((old / "raw/thinned.jsonl").read_text().splitlines()) == 1, "it is written down once there is room"
