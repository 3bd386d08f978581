"""The history: what is remembered of a run, what makes runs comparable, when they changed, and what goes wrong."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sample_report
from cli import environment, profrun, write_plan
from hypothesis import given
from hypothesis import strategies as st
from waiting import LIMIT_S

from orchestrator import commands, history
from orchestrator.errors import HistoryError, ProfrunError
from orchestrator.folder import Folder
from orchestrator.historic import changes, facts, plot, shown, store, trend
from orchestrator.historic.night import Night
from orchestrator.model import Metric
from orchestrator.report import Report, load, summary
from orchestrator.tables import Table

PLAN = "version: 1\nname: {name}\ncollectors:\n  - {{use: timing, repeats: {repeats}}}\nreport: {{directory: {at}}}\n"
FACTS: Mapping[str, Any] = {"cpu": "EPYC", "cores": 8, "driver": "535.104", "cuda": None, "plan": {"passes": []}}


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(history.VARIABLE, raising=False)


def kept(folder: Path, name: str = "train", stamp: str = "20260921T101320Z-kdmw", repeats: int = 5) -> Report:
    """A report of a run in a folder as profrun leaves it."""
    path = folder / f"{name}-{stamp}"
    path.mkdir(parents=True)
    sample = sample_report.diagnosed(path)
    iso = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}Z"
    report = replace(sample, run=replace(sample.run, id=path.name, name=name, started_at=iso))
    (path / "plan.yaml").write_text(PLAN.format(name=name, repeats=repeats, at=folder))
    Folder(path).write_json("summary.json", summary(report))
    return load(path)


def night(number: int, step_s: float | None = 0.1, *, name: str = "train", **more: Any) -> Night:
    """Night `number` of a series, from 2026-01-01 on."""
    month, day = divmod(number, 28)
    known = {} if step_s is None else {"step_s": Metric(step_s, "s", (step_s * 0.99, step_s * 1.01), 5, step_s)}
    plain = {
        "run_id": f"{name}-{number:04d}",
        "name": name,
        "started_at": f"{2026 + month // 12}-{month % 12 + 1:02d}-{day + 1:02d}T02:17:00Z",
        "path": f"/reports/{name}-{number:04d}",
        "fingerprint": "a" * 16,
        "environment": dict(FACTS),
        "status": "ok",
        "exit_code": 0,
        "metrics": known,
    }
    return Night(**{**plain, **more})


def remember(where: Path | str, nights: Sequence[Night], contexts: Sequence[Mapping[str, str]] | None = None) -> None:
    with store.writing(store.place(where)) as connection:
        store.save(
            connection, [store.Row(n, 60.0, c) for n, c in zip(nights, contexts or [{}] * len(nights), strict=True)]
        )


def rows(nights: Sequence[Night]) -> list[store.Row]:
    return [store.Row(one) for one in nights]


# ---------------------------------------------------------------- what is remembered


def test_a_row_says_what_the_summary_says(tmp_path: Path) -> None:
    report = kept(tmp_path)
    history.record(report)
    told = json.loads((report.folder / "summary.json").read_text())
    (found,) = history.nights("train", where=tmp_path)
    assert (found.run_id, found.name, found.started_at) == (told["run"]["id"], "train", told["run"]["started_at"])
    assert (found.status, found.exit_code) == (told["outcome"]["status"], told["outcome"]["exit_code"])
    assert found.path == str(report.folder) and found.host == told["machine"]["hostname"] and not found.gone
    assert json.loads(json.dumps({name: asdict(one) for name, one in found.metrics.items()})) == told["metrics"]
    keys = ("rule", "category", "severity", "cost_pct", "title")
    assert list(found.findings) == [{key: one[key] for key in keys} for one in told["findings"]]
    assert (found.fingerprint, found.environment) == history.fingerprint(report)
    assert found.verdict is None and found.note == ""


def test_the_real_example_has_its_shares(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "reports" / "example"
    shutil.copytree(example, tmp_path / "example")
    history.record(load(tmp_path / "example"))
    (found,) = history.nights("example", where=tmp_path)
    title = found.findings[0]
    assert title["rule"] == "where_the_time_goes"
    beside = found.shares[title["category"]] - title["cost_pct"]
    assert -0.1 <= beside < 5, "one place has nearly all of that category's share"
    assert sum(found.shares.values()) == pytest.approx(100, abs=0.5)


def test_a_run_with_steps_and_no_samples_has_the_loaders_share(tmp_path: Path) -> None:
    report = sample_report.build(tmp_path)
    columns = ("capture", "pid", "kind", "step", "start_ns", "duration_ns", "data_wait_ns", "warmup")
    steps = [("p02-timing", 7, "train", n, n * 100, 100, 99 if n < 2 else 25, n < 2) for n in range(8)]
    written = sample_report.write(tmp_path, Table.of("steps", steps, columns, clock="epoch"))
    assert facts.shares(replace(report, tables={"steps": written})) == {"input_pipeline": 25.0}
    assert facts.shares(replace(report, tables={})) == {}


def test_what_is_recorded_again_takes_the_place_and_keeps_its_verdict(tmp_path: Path) -> None:
    report = kept(tmp_path)
    history.record(report)
    history.set_verdict(report.run.id, "suspect", "3.1 sd above", where=tmp_path)
    history.record(replace(report, metrics={"wall_s": Metric(2.0, "s")}, findings=()))
    (found,) = history.nights("train", where=tmp_path)
    assert (found.verdict, found.note) == ("suspect", "3.1 sd above")
    assert found.metrics == {"wall_s": Metric(2.0, "s")} and found.findings == ()


def test_nights_by_name_and_fingerprint_the_oldest_first(tmp_path: Path) -> None:
    made = [night(n, fingerprint="b" * 16 if n % 2 else "a" * 16) for n in (3, 1, 2, 0)]
    remember(tmp_path, [*made, night(9, name="other")])
    assert [one.run_id[-1] for one in history.nights("train", where=tmp_path)] == ["0", "1", "2", "3"]
    assert [one.run_id[-1] for one in history.nights("train", "b" * 16, tmp_path)] == ["1", "3"]
    assert [one.run_id[-1] for one in history.nights("train", where=tmp_path, last=2)] == ["2", "3"]
    assert history.nights("nobody", where=tmp_path) == []
    assert history.nights("train", where=tmp_path / "empty") == []
    assert history.nights("train", where=tmp_path)[0] == made[3]


def test_a_verdict_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="nobody-1 is not in the history"):
        history.set_verdict("nobody-1", "accepted", where=tmp_path)


def test_a_run_whose_tables_are_damaged_is_remembered_without_its_shares(tmp_path: Path) -> None:
    report = kept(tmp_path)
    for path in (report.folder / "tables").iterdir():
        path.write_bytes(b"PAR1")
    assert history.rebuild(tmp_path).damaged == ()
    (found,) = history.nights("train", where=tmp_path)
    assert found.shares == {} and found.metrics == report.metrics


def test_imported_files_are_no_runs(tmp_path: Path) -> None:
    report = kept(tmp_path)
    history.record(replace(report, run=replace(report.run, imported=True)))
    assert not (tmp_path / store.FILE).exists()


def test_bytes_that_are_no_text_are_kept_in_some_form(tmp_path: Path) -> None:
    report = kept(tmp_path)
    odd = replace(report.findings[0], title="a\0b \udcff \u202e")
    run = replace(report.run, command=("x", "\udcff"))
    history.record(replace(report, run=run, findings=(odd,)), warn=_never)
    (found,) = history.nights("train", where=tmp_path)
    assert found.findings[0]["title"] == "a\\x00b \\udcff \u202e"
    assert found.environment["command"].endswith("\udcff'")


def _never(text: str) -> None:
    raise AssertionError(text)


# ---------------------------------------------------------------- what makes runs comparable


def test_names_and_folders_make_no_difference_and_the_rest_does(tmp_path: Path) -> None:
    first = kept(tmp_path / "a")
    name, known = history.fingerprint(first)
    assert history.fingerprint(kept(tmp_path / "b", "other", "20261001T000000Z-abcd"))[0] == name
    spelled = (first.folder / "plan.yaml").read_text().replace("repeats: 5", "repeats: 5, warmup: 1, required: true")
    (first.folder / "plan.yaml").write_text(spelled)
    assert history.fingerprint(first)[0] == name, "a default that is spelled out is no other plan"
    other, unlike = history.fingerprint(kept(tmp_path / "c", repeats=7))
    assert other != name
    assert facts.differences(known, unlike) == [("plan.passes[0][0].repeats", "the default", "7")]


@pytest.mark.parametrize(
    ("change", "fact", "before", "after"),
    [
        ({"cpu": {"model": "Xeon"}}, "cpu", "AMD EPYC 7763", "Xeon"),
        ({"memory_bytes": 1 << 35}, "memory", "63 GiB", "32 GiB"),
        ({"gpus": [{"name": "H100", "driver": "550.1"}] * 2}, "gpu", "none", "2 x H100"),
        ({"gpus": [{"name": "H100", "driver": "550.1"}]}, "driver", "none", "550.1"),
        ({"gpus": None}, "gpus", "0", "unknown"),
        ({"target": {"python": "3.11.7", "torch": "2.4.0+cu121"}}, "cuda", "unknown", "12.1"),
        ({"target": {"python": "3.11.7", "torch": "2.4.0"}}, "torch", "unknown", "2.4.0"),
        ({"target": {"python": "3.11.7", "torch": None}}, "torch", "unknown", "none"),
    ],
)  # fmt: skip
def test_each_fact_of_the_machine_is_told(
    tmp_path: Path, change: dict[str, Any], fact: str, before: str, after: str
) -> None:
    report = kept(tmp_path)
    a, b = history.fingerprint(report), history.fingerprint(replace(report, machine={**report.machine, **change}))
    assert a[0] != b[0]
    assert (fact, before, after) in facts.differences(a[1], b[1])


def test_what_is_unknown_is_named(tmp_path: Path) -> None:
    report = sample_report.bare(tmp_path)
    _, known = history.fingerprint(report)
    assert {"cpu", "cores", "memory", "gpu", "driver", "python", "torch", "cuda", "plan"} <= set(facts.unknown(known))
    assert "command" not in facts.unknown(known)
    assert facts.differences(known, {**known, "plan": {"passes": []}}) == [("plan", "unknown", "known")]


# ---------------------------------------------------------------- from the folders


def test_rebuilt_from_the_folders_it_is_the_same(tmp_path: Path) -> None:
    reports = [kept(tmp_path, stamp=f"2026092{n}T101320Z-kdm{'abc'[n]}") for n in range(3)]
    for report in reports:
        history.record(report)
    history.set_verdict(reports[1].run.id, "accepted", "calm", where=tmp_path)
    before = history.nights("train", where=tmp_path)
    for _ in range(2):
        done = history.rebuild(tmp_path)
        assert (done.found, done.gone, done.forgotten, done.damaged) == (3, 0, 0, ())
        assert history.nights("train", where=tmp_path) == before
    (tmp_path / store.FILE).unlink()
    history.rebuild(tmp_path)
    assert history.nights("train", where=tmp_path) == [replace(one, verdict=None, note="") for one in before]


def test_deleted_folders_are_marked_damaged_ones_named_and_imported_ones_left_out(tmp_path: Path) -> None:
    first, second, third, fourth = (kept(tmp_path, stamp=f"2026092{n}T101320Z-kdma") for n in range(4))
    history.rebuild(tmp_path)
    shutil.rmtree(first.folder)
    (second.folder / "summary.json").write_text("{")
    Folder(third.folder).write_json("summary.json", summary(replace(third, run=replace(third.run, imported=True))))
    done = history.rebuild(tmp_path)
    assert (done.found, done.gone, done.imported) == (1, 1, 1)
    ((name, why),) = done.damaged
    assert name == second.folder.name and "profrun report" in why
    assert [one.gone for one in history.nights("train", where=tmp_path)] == [True, False, False, False]
    assert history.rebuild(tmp_path).gone == 0, "it is told once"
    assert history.rebuild(tmp_path, prune=True).forgotten == 1
    assert history.nights("train", where=tmp_path)[0].run_id == second.run.id
    assert fourth.run.id in {one.run_id for one in history.nights("train", where=tmp_path)}


def test_moved_reports_are_found_where_they_are(tmp_path: Path) -> None:
    kept(tmp_path / "before")
    history.rebuild(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    history.rebuild(tmp_path / "after")
    (found,) = history.nights("train", where=tmp_path / "after")
    assert Path(found.path).parent == tmp_path / "after" and not found.gone


def test_only_in_the_folder_s_own_database_runs_of_elsewhere_are_looked_for(tmp_path: Path) -> None:
    kept(tmp_path / "reports")
    team = tmp_path / "team.sqlite"
    remember(team, [night(1, host="elsewhere")])
    assert history.rebuild(tmp_path / "reports", team, prune=True).forgotten == 0
    remember(tmp_path / "reports", [night(1, host="elsewhere")])
    assert history.rebuild(tmp_path / "reports", prune=True).forgotten == 1


def test_a_history_that_is_off_is_not_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(history.VARIABLE, history.OFF)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HistoryError, match="the history is off"):
        history.rebuild(tmp_path)
    assert not Path(history.OFF).exists()


def test_what_only_limits_a_run_does_not_keep_runs_apart(tmp_path: Path) -> None:
    report = kept(tmp_path)
    before = history.fingerprint(report)
    file = report.folder / "plan.yaml"
    plan = file.read_text()
    file.write_text(f"{plan}budget: 9m\nleftovers: keep\ntarget: {{timeout: 9m}}\n")
    assert history.fingerprint(report) == before
    prints = []
    for wait in ("1m", "2m"):
        file.write_text(f"{plan}environment: [{{use: cpu_idle, wait: {wait}}}]\n")
        prints.append(history.fingerprint(report))
    assert prints[0] == prints[1] != before


def test_rebuild_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="there is no folder"):
        history.rebuild(tmp_path / "nowhere")


# ---------------------------------------------------------------- several at once, and what goes wrong


def _records(place: str, who: int, many: int) -> None:
    for n in range(many):
        report = _bare(Path(place), f"train-{who}-{n}")
        history.record(report, place, _never)


def _bare(place: Path, run_id: str) -> Report:
    report = sample_report.bare(place / run_id)
    return replace(report, run=replace(report.run, id=run_id, name="train"), metrics=sample_report.METRICS)


def test_runs_that_end_at_once_are_all_remembered(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_records, args=(str(tmp_path), who, 6)) for who in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LIMIT_S)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(history.nights("train", where=tmp_path)) == 24


def test_a_writer_waits_for_another_and_readers_wait_for_none(tmp_path: Path) -> None:
    history.record(_bare(tmp_path, "train-1"), tmp_path, _never)
    other = sqlite3.connect(tmp_path / store.FILE, isolation_level=None)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.execute("BEGIN IMMEDIATE")
    writer = threading.Thread(target=history.record, args=(_bare(tmp_path, "train-2"), tmp_path, _never))
    writer.start()
    assert len(history.nights("train", where=tmp_path)) == 1
    other.execute("COMMIT")
    writer.join(LIMIT_S)
    assert len(history.nights("train", where=tmp_path)) == 2
    other.close()


def test_it_is_for_its_owner_only(tmp_path: Path) -> None:
    history.record(_bare(tmp_path, "train-1"), tmp_path, _never)
    assert (tmp_path / store.FILE).stat().st_mode & 0o777 == 0o600


def warned(report: Report, where: str | Path | None) -> str:
    said: list[str] = []
    history.record(report, where, said.append)
    (one,) = said
    assert "\n" not in one
    return one


def test_a_damaged_database_is_one_warning_with_the_way_out(tmp_path: Path) -> None:
    report = kept(tmp_path)
    (tmp_path / store.FILE).write_bytes(b"no database at all " * 100)
    said = warned(report, None)
    assert "damaged" in said and f"mv {tmp_path / store.FILE}" in said and "profrun history rebuild" in said
    with pytest.raises(HistoryError, match="damaged"):
        history.nights("train", where=tmp_path)
    (tmp_path / store.FILE).rename(tmp_path / "aside")
    assert history.rebuild(tmp_path).found == 1


def test_a_newer_profruns_database_is_left_alone(tmp_path: Path) -> None:
    report = kept(tmp_path)
    history.record(report)
    with sqlite3.connect(tmp_path / store.FILE) as connection:
        connection.execute("UPDATE profrun_history SET schema = 99")
    assert "newer profrun" in warned(report, None)
    with pytest.raises(HistoryError, match="newer profrun"):
        history.nights("train", where=tmp_path)


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_place_that_can_not_be_written_is_one_warning(tmp_path: Path, where: str) -> None:
    report = kept(tmp_path / "reports")
    if where == "file":
        (tmp_path / "no-folder").write_text("no database, and longer than the header of one: " * 9)
    else:
        (tmp_path / "no-folder" / store.FILE).mkdir(parents=True)
    said = warned(report, tmp_path / "no-folder")
    assert "can't be used" in said and "PROFRUN_HISTORY" in said


def test_where_nothing_may_be_written_it_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(tmp_path, [night(1)])
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and real(path, mode))
    assert len(history.nights("train", where=tmp_path)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [store.FILE], "nothing was made beside it"


def test_none_means_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = kept(tmp_path)
    history.record(report, "none", _never)
    monkeypatch.setenv(history.VARIABLE, "none")
    history.record(report, None, _never)
    assert not (tmp_path / store.FILE).exists()
    with pytest.raises(HistoryError, match="PROFRUN_HISTORY is none"):
        history.nights("train")


def test_the_variable_outranks_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert history.asked("planned") == "planned" and history.asked(None) is None
    monkeypatch.setenv(history.VARIABLE, str(tmp_path / "mine.sqlite"))
    assert history.asked("planned") == str(tmp_path / "mine.sqlite")
    history.record(_bare(tmp_path / "elsewhere", "train-1"), None, _never)
    assert len(history.nights("train")) == 1 and (tmp_path / "mine.sqlite").exists()


@pytest.mark.parametrize(
    ("url", "shown_as"),
    [
        ("postgresql://ada:ge%40heim@db.example:5433/perf", "postgresql+psycopg://ada:***@db.example:5433/perf"),
        ("postgres://ada:geheim@db.example/perf", "postgresql+psycopg://ada:***@db.example/perf"),
        ("sqlite:////data/h.sqlite", "/data/h.sqlite"),
        ("/data/reports", "/data/reports/history.sqlite"),
        ("/data/own.db", "/data/own.db"),
    ],
)  # fmt: skip
def test_the_place_that_is_meant(url: str, shown_as: str) -> None:
    assert store.place(url).shown == shown_as


@pytest.mark.parametrize("url", ["mysql://ada:geheim@db/perf", "://geheim@x", "postgresql://ada:geheim@db:port/x"])
def test_another_place_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(HistoryError) as caught:
        store.place(url)
    assert "geheim@" not in caught.value.text().replace("://geheim@x", "") and "postgresql://user@host" in str(
        caught.value
    )


def test_a_server_that_is_not_there_is_one_warning_without_the_password(tmp_path: Path) -> None:
    said = warned(_bare(tmp_path, "train-1"), "postgresql://ada:geheim@127.0.0.1:1/perf")
    assert "ada:***@127.0.0.1:1/perf" in said and "geheim" not in said


MOUNTS = """22 1 0:21 / / rw - ext4 /dev/vda rw
40 22 0:40 / /net/home rw - nfs4 server:/home rw
41 40 0:41 / /net/home/ada/local rw - xfs /dev/vdb rw
42 22 0:42 / /mnt/with\\040space rw - fuse.sshfs x rw
"""


@pytest.mark.parametrize(
    ("path", "is_shared"),
    [("/data/h", False), ("/net/home/ada/h", True), ("/net/homes/h", False), ("/net/home/ada/local/h", False),
     ("/mnt/with space/h", True)],
)  # fmt: skip
def test_file_systems_of_networks_are_known(path: str, is_shared: bool) -> None:
    assert store.on_network(Path(path), MOUNTS) is is_shared


def test_on_the_file_system_of_a_network_the_older_journal_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "on_network", lambda path: True)
    remember(tmp_path, [night(1)])
    with sqlite3.connect(tmp_path / store.FILE) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


# ---------------------------------------------------------------- when it changed


def noisy(levels: Sequence[float], seed: int = 1, spread: float = 0.015) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, spread)) for level in levels]


def test_a_change_has_its_date_its_size_and_an_interval() -> None:
    (found,) = changes.shifts(noisy([0.1] * 20 + [0.106] * 10))
    assert abs(found.at - 20) <= 1
    assert found.low < 1.06 < found.high and 1.03 < found.ratio < 1.09
    assert (found.n_before + found.n_after) == pytest.approx(30, abs=2)


def test_two_changes_and_a_way_back() -> None:
    found = changes.shifts(noisy([0.1] * 20 + [0.12] * 8 + [0.1] * 20))
    assert [round(one.at, -1) for one in found] == [20, 30] and found[0].ratio > 1 > found[1].ratio


def test_one_disturbed_night_is_no_level_and_two_in_a_row_are_one_at_the_end() -> None:
    calm = noisy([0.1] * 30)
    assert changes.shifts([*calm[:15], 0.2, *calm[16:]]) == []
    assert changes.shifts([*calm, 0.115]) == []
    assert [one.at for one in changes.shifts([*calm, 0.115, 0.116])] == [30]


def test_small_and_unsure_changes_are_not_told() -> None:
    assert changes.shifts(noisy([0.1] * 30 + [0.101] * 30, spread=0.001)) == [], "1 % is not worth a date"
    assert changes.shifts([0.1, 0.2, 0.1, 0.2]) == [], "too few"
    assert changes.shifts([0.1] * 50) == []
    assert changes.shifts([0.0] * 10) == [] and changes.shifts([]) == []


def test_false_alarms_are_rare_and_a_step_of_five_percent_is_caught() -> None:
    """As the nights in the README: 1.5 % from night to night, one of 33 disturbed by 15 %."""
    chance = random.Random(3)

    def nights(step: float, last: int) -> list[float]:
        found = noisy([0.1] * (60 - last) + [0.1 * (1 + step)] * last, seed=chance.randrange(1 << 30))
        return [one * (1.15 if chance.random() < 0.03 else 1.0) for one in found]

    assert sum(len(changes.shifts(nights(0, 0))) for _ in range(60)) <= 18  # 0.5 of 100 nights
    caught = sum(any(abs(one.at - 55) <= 2 for one in changes.shifts(nights(0.05, 5))) for _ in range(40))
    assert caught >= 28


@given(st.lists(st.floats(1e-6, 1e6), max_size=40))
def test_any_series_can_be_looked_at(values: list[float]) -> None:
    for found in changes.shifts(values):
        assert 0 < found.at < len(values)
        assert found.low <= found.ratio <= found.high and not found.low <= 1 <= found.high


def test_another_environment_is_told_as_such_and_never_mixed() -> None:
    quick = [night(n, value) for n, value in enumerate(noisy([0.1] * 12))]
    newer = {**FACTS, "driver": "550.54"}
    slow = [night(12 + n, v, fingerprint="b" * 16, environment=newer) for n, v in enumerate(noisy([0.13] * 12, 2))]
    told = trend.trend("train", "step_s", 24, rows([*quick, *slow]))
    assert [len(one.rows) for one in told.series] == [12, 12]
    assert [one.changes for one in told.series] == [(), ()]
    assert told.series[1].unlike == (("driver", "535.104", "550.54"),) and not told.series[1].beside
    assert told.series[0].unknown == ["cuda"]


def test_two_machines_in_turn_are_two_series() -> None:
    both = [night(n, 0.1, fingerprint="ab"[n % 2] * 16, environment={**FACTS, "cpu": "AB"[n % 2]}) for n in range(10)]
    told = trend.trend("train", "step_s", 10, rows(both))
    assert [len(one.rows) for one in told.series] == [5, 5]
    assert told.series[1].beside and told.series[1].unlike == (("cpu", "A", "B"),)


def test_a_change_names_what_else_was_new_and_failed_runs_do_not_count() -> None:
    values = noisy([0.1] * 15 + [0.12] * 10)
    made = [night(n, value) for n, value in enumerate(values)]
    made[3] = replace(made[3], status="target_failed", exit_code=1)
    made[4] = replace(made[4], metrics={})
    known = [{"kernel": "6.1" if n < 15 else "6.5", "host": "a"} for n in range(25)]
    remembered = [store.Row(one, 1.0, context) for one, context in zip(made, known, strict=True)]
    (own,) = trend.trend("train", "step_s", 25, remembered).series
    assert own.left_out == {"target failed": 1, "no step_s": 1} and len(own.rows) == 23
    (change,) = own.changes
    assert (change.date, change.last_before) == ("2026-01-16T02:17:00Z", "2026-01-15T02:17:00Z")
    assert change.beside == (("kernel", "6.1", "6.5"),)
    said = shown.sentence(change, "s")
    assert said.startswith("changed on 2026-01-16, after the run of 2026-01-15: ") and "95 %: +" in said


# ---------------------------------------------------------------- how it is shown


def drawn(points: Sequence[plot.Point], glyphs: plot.Glyphs = plot.ASCII, height: int = 5) -> list[str]:
    low, high = plot.bounds(points)
    return ["".join(mark for mark, _ in row) for row in plot.chart(points, low, high, glyphs, height)]


def test_a_plot_shows_values_intervals_levels_and_what_lies_outside() -> None:
    points = [plot.Point(1.0, 0.9, 1.1), plot.Point(1.2), plot.Point(1.2, first=True), plot.Point(9.0)]
    assert drawn(points) == [
        " o:o^",
        "| :  ",
        "| :  ",
        "o :  ",
        "| :  ",
    ]  # fmt: skip


def test_lines_and_columns_of_many() -> None:
    assert plot.line([0.0, 0.5, 1.0, None], 0.0, 1.0, plot.ASCII) == "_+@ "
    assert plot.line([3.0, 3.0], 3.0, 3.0, plot.UNICODE) == "▅▅"
    merged, each = plot.binned([plot.Point(float(n), first=n == 7) for n in range(10)], 4)
    assert each == 3 and [(p.value, p.low, p.high) for p in merged] == [(1, 0, 2), (4, 3, 5), (7, 6, 8), (9, 9, 9)]
    assert [p.first for p in merged] == [False, False, True, False]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30))
def test_any_values_can_be_drawn(values: list[float]) -> None:
    points = [plot.Point(value, value - 1, value + 1) for value in values]
    lines = drawn(points, plot.UNICODE)
    assert [len(line) for line in lines] == [len(values)] * 5


@pytest.fixture
def year(tmp_path: Path) -> Path:
    """A hundred nights with a change, a new driver, shares, and verdicts."""
    values = noisy([0.1] * 40 + [0.108] * 30 + [0.108] * 30)
    newer = {**FACTS, "driver": "550.54"}
    made = [night(n, value, shares={"file_io": 40.0, "gpu: computing": 12.5}) for n, value in enumerate(values)]
    made = [*made[:70], *(replace(one, fingerprint="b" * 16, environment=newer) for one in made[70:])]
    made[-1] = replace(made[-1], verdict="regressed", note=sample_report.EVIL)
    remember(tmp_path / "reports", [*made, night(3, name="other")])
    return tmp_path


def test_history_lists_the_names(year: Path) -> None:
    result = profrun("history", cwd=year)
    lines = result.stdout.splitlines()
    assert result.code == 0 and lines[0].startswith("Runs in ") and lines[0].endswith("history.sqlite")
    assert [line.split()[:2] for line in lines[2:4]] == [["train", "100"], ["other", "1"]]
    listed = json.loads(profrun("history", "--json", cwd=year).stdout)
    assert [(one["name"], one["runs"], one["newest"]["status"]) for one in listed] == [
        ("train", 100, "ok"),
        ("other", 1, "ok"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_history_shows_the_trend_of_a_name(year: Path, encoding: str) -> None:
    result = profrun("history", "train", cwd=year, env=environment(PYTHONIOENCODING=encoding, COLUMNS="100"))
    text = result.stdout
    assert result.code == 0, result.stderr
    assert "changed on 2026-02-1" in text and "+8" in text and "95 %: +" in text
    assert "not compared with the one before: driver 535.104 -> 550.54" in text
    assert "not known, and so not known to be equal: cuda" in text
    assert "no change of the level by 2 % or more can be told" in text
    assert "file io" in text and "40.0 %" in text
    assert ("a run a column; │ its 95 % interval; ┊ before a new level" in text) == (encoding == "utf-8")
    assert ("●" in text) == (encoding == "utf-8")
    assert max(map(len, text.splitlines())) <= 100


def test_history_as_data_says_the_same(year: Path) -> None:
    told = json.loads(profrun("history", "tra", "--json", "--last", "90", cwd=year).stdout)
    assert (told["name"], told["metric"], told["unit"], told["runs"], told["shown"]) == (
        "train",
        "step_s",
        "s",
        100,
        90,
    )
    first, second = told["environments"]
    assert [len(first["nights"]), len(second["nights"])] == [60, 30]
    (change,) = first["changes"]
    assert change["low"] < 1.08 < change["high"] and change["date"] > change["last_before"]
    assert second["unlike_the_one_before"] == [{"fact": "driver", "before": "535.104", "here": "550.54"}]
    assert second["nights"][-1]["verdict"] == "regressed" and second["changes"] == []


def test_a_page_of_the_same(year: Path) -> None:
    result = profrun("history", "train", "--html", "trend.html", cwd=year)
    text = (year / "trend.html").read_text()
    assert result.stdout == "trend.html\n" and text.startswith("<!doctype html>")
    assert "driver" in text and "550.54" in text and "changed on 2026-02-1" in text
    assert sample_report.EVIL not in text and "default-src &#39;none&#39;" in text
    assert text.count('class="night') == 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["history", "nobody"], "there are no runs of nobody"),
        (["history", "train", "--metric", "loss"], "have no metric loss"),
        (["history", "train", "--last", "0"], "is no number of runs"),
        (["history", "--prune"], "--prune goes with"),
        (["history", "train", "there"], "DIR goes with"),
        (["history", "--metric", "step_s"], "--metric is for the runs of one name"),
        (["history", "train", "--html", "file/page.html"], "file/page.html can't be written"),
        (["history", "rebuild", "nowhere"], "there is no folder"),
    ],
)  # fmt: skip
def test_mistakes_are_told(
    year: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(year)
    (year / "file").write_text("")
    with pytest.raises((ProfrunError, SystemExit)) as caught:
        commands.run(words)
    told = caught.value.text() if isinstance(caught.value, ProfrunError) else capsys.readouterr().err
    assert said in told
    assert caught.value.exit_code == 2 if isinstance(caught.value, ProfrunError) else caught.value.code == 2


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    result = profrun("history", cwd=tmp_path)
    assert result.code == 0 and result.stdout.startswith("no runs yet in ") and "rebuild" in result.stderr
    result = profrun("history", "train", cwd=tmp_path)
    assert result.code == 2 and "has no runs at all" in result.stderr


# ---------------------------------------------------------------- whole runs

TIMING = "{use: timing, warmup: 0, repeats: 2}"


def test_every_run_is_remembered_and_rebuilt(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, report="{formats: []}")
    first = profrun(plan, "--", "true", cwd=tmp_path)
    second = profrun(plan, "--", "sh", "-c", "exit 3", cwd=tmp_path)
    assert (first.code, second.code) == (0, 3), first.stderr
    names = {first.folder.name: first.summary, second.folder.name: second.summary}
    found = history.nights("test", where=tmp_path / "reports")
    assert {one.run_id for one in found} == set(names)
    for one in found:
        told = names[one.run_id]
        assert (one.status, one.exit_code) == (told["outcome"]["status"], told["outcome"]["exit_code"])
        assert one.metrics["wall_s"].value == told["metrics"]["wall_s"]["value"]
    done = profrun("history", "rebuild", cwd=tmp_path)
    assert done.code == 0 and "2 runs" in done.stdout
    assert history.nights("test", where=tmp_path / "reports") == found
    listed = profrun("history", "test", "--metric", "wall_s", cwd=tmp_path)
    assert "not counted: 1 run (target failed)" in listed.stdout


def test_trouble_with_the_history_is_a_warning_of_a_run_that_goes_well(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, report="{formats: [], history: no-folder/x.sqlite}")
    (tmp_path / "no-folder").write_text("")
    result = profrun(plan, "--", "true", cwd=tmp_path)
    assert result.code == 0 and result.stderr.count("this run is not in the history") == 1
    assert "this run is not in the history" in (result.folder / "run.log").read_text()
    result = profrun(plan, "--", "true", cwd=tmp_path, env=environment(PROFRUN_HISTORY=str(tmp_path / "mine.sqlite")))
    assert result.code == 0 and "history" not in result.stderr
    assert len(history.nights("test", where=tmp_path / "mine.sqlite")) == 1


# ---------------------------------------------------------------- many


def test_the_benchmarks_nights_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "scripts"))
    import benchhistory

    names = benchhistory.history_rows(1100, tmp_path, names=2)
    listed, total = history.overview(tmp_path)
    assert total == 2 and [one.runs for one in listed] == [550, 550] and len(listed[0].newest) == 20
    found = history.series(names[0], None, 550, tmp_path)
    told = trend.trend(found.name, found.metric, found.total, found.rows)
    assert [len(one.rows) for one in told.series] == [400, 150]
    dates = [change.shift.at for change in told.series[0].changes]
    assert [round(at / 10) * 10 for at in dates] == [150, 300]


def test_a_folder_that_may_not_be_looked_into_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, **_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)
    assert [*history._lost([("r1", "/home/ada/reports/r1", None, False)], set(), of_folder=True)] == []
