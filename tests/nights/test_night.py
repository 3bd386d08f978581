"""A night from its beginning to its end, with a run that is played: what is judged, kept, told, and given back."""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import folder, history, journal, nightly, runner
from orchestrator.errors import BusyError, HistoryError, PreflightError, ProfrunError, UsageError
from orchestrator.historic import store
from orchestrator.locks import Locks
from orchestrator.model import Finding, Metric, Outcome, Part, StepRecord, StepStatus
from orchestrator.nights import kept, note
from orchestrator.nights.words import Nightly, Told
from orchestrator.plan import Plan
from orchestrator.planfile.plans import dump
from orchestrator.render.console import Console
from orchestrator.report import Report, RunInfo, summary
from orchestrator.units import Times

PLAN = "version: 1\ncollectors: [{use: timing, warmup: 0, repeats: 1}]\n"


class Nights:
    """A nightly whose run is played: night after night as `night` says."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.reports, self.count = place, place / "reports", 0
        (place / "plan.yaml").write_text(PLAN)
        self.nightly = Nightly(
            name="train", fields=("30", "2", "*", "*", "*"), plan=str(place / "plan.yaml"), command=("true",),
            cwd=str(place), output=str(self.reports), environment={"PATH": os.environ["PATH"]}, python="python",
        )  # fmt: skip
        self.change: Callable[[Report], Report] = lambda report: report
        self.asked: list[runner.Request] = []
        monkeypatch.setattr(runner, "run", self._run)

    def _run(self, request: runner.Request, console: Any) -> Report:
        self.asked.append(request)
        assert request.output is not None
        made = folder.create(request.output, request.plan.name)
        made.write("plan.yaml", dump(request.plan))
        report = self.change(self._report(made.path, request.plan))
        made.write_json("summary.json", summary(report))
        (made.path / "raw/run.json").write_text("{}")
        return report

    def _report(self, path: Path, plan: Plan) -> Report:
        self.count += 1
        info = RunInfo(
            path.name, plan.name, f"2020-11-{self.count:02}T02:30:00Z", 60.0, ("true",), str(self.place), "0.1.0"
        )
        steps = Metric(self.step_s, "s", (0.99 * self.step_s, 1.01 * self.step_s), 5, median=self.step_s)
        metrics = {"step_s": steps}
        if self.quick_s is not None:
            metrics["quick_step_s"] = replace(steps, value=self.quick_s, median=self.quick_s)
        machine = {"hostname": platform.node(), "cpu": {"model": "a CPU"}}
        return Report(info, Outcome("ok", 0, ""), machine, metrics=metrics, folder=path)

    def night(self, step_s: float = 0.1, quick_s: float | None = None, **changes: Any) -> Told:
        self.step_s, self.quick_s = step_s, quick_s
        told, self.troubles = nightly.run(replace(self.nightly, **changes), Console(quiet=True))
        return told

    def usual(self, count: int = 8) -> None:
        for number in range(count):
            assert self.night(0.1 + 0.0005 * (number % 3)).exit_code == 0

    def remembered(self) -> list[history.Night]:
        return history.nights("train", where=self.reports)


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("PROFRUN_HISTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    yield Nights(tmp_path, monkeypatch)


def text(told: Told) -> str:
    return (Path(told.report) / "night.md").read_text()


def test_on_a_noisy_machine_nights_are_judged_by_their_quickest_steps(nights: Nights) -> None:
    for number in range(8):  # the usual step is up to a third longer when others are at work
        nights.night(0.1 + 0.012 * (number * 5 % 4), 0.09 + 0.0003 * (number % 3))
    fine = nights.night(0.13, 0.0903)
    assert (fine.metric, fine.judgement.verdict) == ("quick_step_s", "accepted")
    assert "the quickest steps take" in text(fine) and "the usual one differs much from night to night" in text(fine)
    assert nights.remembered()[-1].note == "as usual, by its quickest steps"
    assert [nights.night(0.11, 0.096).judgement.verdict for _ in range(2)] == ["suspect", "regressed"]


def test_on_a_quiet_machine_nights_are_judged_by_their_usual_step(nights: Nights) -> None:
    for number in range(8):
        nights.night(0.1 + 0.0003 * (number % 3), 0.09 + 0.003 * (number % 3))
    assert nights.night(0.1, 0.09).metric == "step_s"


def test_the_plan_is_run_under_its_name_within_its_budget_on_a_quiet_machine(nights: Nights) -> None:
    nights.night(budget_s=900.0)
    (request,) = nights.asked
    assert (request.plan.name, request.plan.budget, request.outputs) == ("train", 900.0, None)
    waits = {step.use: (step.model_dump()["wait"], step.on_fail) for step in request.plan.environment}
    assert waits == {"cpu_idle": ("10m", "warn"), "gpu_idle": ("10m", "ignore")}
    assert nightly.ends_after_s(request.plan, 900.0) == 900 + 2 * 600 + nightly.REPORT_S


def test_a_budget_that_was_asked_for_outranks_the_plan_s(nights: Nights) -> None:
    (nights.place / "plan.yaml").write_text(PLAN + "budget: 3x\n")
    assert nightly.plan_of(nights.nightly).budget == Times(3)
    asked = replace(nights.nightly, budget_s=900.0, budget_given=True)
    assert nightly.plan_of(asked).budget == 900.0


def test_a_plan_that_only_looks_waits_at_night(nights: Nights) -> None:
    (nights.place / "plan.yaml").write_text(
        PLAN + "environment: [{use: cpu_idle, over: 1s}, {use: gpu_idle, wait: 1m}]\n"
    )
    steps = nightly.plan_of(nights.nightly).environment
    assert [(step.use, step.model_dump()["wait"]) for step in steps] == [("cpu_idle", "10m"), ("gpu_idle", "1m")]


def test_the_first_nights_are_quiet_and_say_what_is_missing(nights: Nights) -> None:
    told = [nights.night() for _ in range(8)]
    assert [note.verdict(one) for one in told] == [*["learning"] * 7, "accepted"]
    assert "learning: a step takes 100 ms; 3 of 7 nights that it takes to judge**" in text(told[2])
    assert [night.verdict for night in nights.remembered()] == ["accepted"] * 8
    assert {one.exit_code for one in told} == {0}


def test_a_slower_program_is_suspect_and_then_regressed(nights: Nights) -> None:
    nights.usual()
    suspect, regressed = nights.night(0.11), nights.night(0.11)
    assert [(one.judgement.verdict, one.exit_code) for one in (suspect, regressed)] == [
        ("suspect", 0),
        ("regressed", 6),
    ]
    page = text(regressed)
    assert "**regressed: a step takes 110 ms, +9.5% against the usual 100 ms (95 %: " in page
    assert "; 8 nights); 2 nights in a row**" in page
    assert "`profrun nightly accept train`" in page
    assert regressed.against == nights.remembered()[7].path
    assert f"## What has changed\n\n- {regressed.headline}" in page and regressed.headline
    assert [night.verdict for night in nights.remembered()][-2:] == ["suspect", "regressed"]
    data = json.loads((Path(regressed.report) / "night.json").read_text())
    assert (data["schema"], data["verdict"], data["exit_code"]) == ("profrun/night/1", "regressed", 6)
    assert data["change"] == pytest.approx(0.095, abs=0.001)


def test_what_is_accepted_is_the_level_from_then_on(nights: Nights) -> None:
    nights.usual()
    flagged = [nights.night(0.11).run_id for _ in range(3)]
    assert nightly.accept(nights.nightly, None) == flagged
    assert nights.night(0.11).judgement.reason == "as usual"
    assert nights.night(0.1).judgement.verdict == "suspect"
    with pytest.raises(UsageError, match="there is no night nope"):
        nightly.accept(nights.nightly, "nope")


def test_there_must_be_something_to_accept(nights: Nights) -> None:
    with pytest.raises(UsageError, match="no flagged night"):
        nightly.accept(nights.nightly, None)


def test_from_one_night_on(nights: Nights) -> None:
    nights.usual()
    ids = [nights.night(value).run_id for value in (0.11, 0.1, 0.12, 0.12)]
    assert nightly.accept(nights.nightly, ids[2]) == ids[2:]
    assert [night.verdict for night in nights.remembered()][-4:] == ["suspect", "accepted", "accepted", "accepted"]


def test_an_improvement_that_stays_becomes_the_level(nights: Nights) -> None:
    nights.usual()
    told = [nights.night(0.09) for _ in range(8)]
    assert [one.judgement.verdict for one in told] == ["suspect", *["improved"] * 7]
    assert {one.exit_code for one in told} == {0}
    assert [night.verdict for night in nights.remembered()][-8:] == ["suspect", *["accepted"] * 7]
    assert nights.night(0.09).judgement.reason == "as usual"
    assert [nights.night(0.1).judgement.verdict for _ in range(2)] == ["suspect", "regressed"]


def noisy(report: Report) -> Report:
    step = StepRecord("cpu_idle", "failed", reason="4 of 4 cores are busier than 50 %: sim")
    return replace(report, environment=(step,))


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (noisy, 6, "not quiet: cpu_idle: 4 of 4 cores are busier than 50 %: sim"),
        (lambda r: replace(r, outcome=Outcome("target_failed", 3, "the target failed: exit 3")), 3, "exit 3"),
        (lambda r: replace(r, outcome=Outcome("timed_out", 124, "pass p01 was ended")), 124, "pass p01 was ended"),
        (lambda r: replace(r, metrics={}), 6, "no steady steps were timed"),
    ],
)
def test_a_night_that_says_nothing_is_not_counted(
    nights: Nights, change: Callable[[Report], Report], code: int, why: str
) -> None:
    nights.usual()
    nights.change = change
    told = nights.night(0.2)
    assert (told.judgement.verdict, told.exit_code) == ("unjudged", code)
    assert why in told.judgement.reason and why in text(told)
    nights.change = lambda report: report
    assert nights.night(0.2).judgement.verdict == "suspect", "the night before it confirms nothing"


def test_a_run_that_lost_an_optional_file_is_judged_all_the_same(nights: Nights) -> None:
    nights.usual()
    nights.change = lambda r: replace(r, outcome=Outcome("incomplete", 4, "nsys: tool_failed"))
    told = nights.night(0.1)
    assert (told.judgement.verdict, told.exit_code) == ("accepted", 4)
    assert "The run: incomplete: nsys: tool_failed" in text(told)


def test_a_night_whose_time_was_over_says_so(nights: Nights) -> None:
    nights.change = lambda r: replace(r, outcome=Outcome("interrupted", 143, "interrupted by SIGTERM"))
    assert nights.night(end_after_s=0.5).judgement.reason == "its time was over after 500 ms"
    assert nights.night(end_after_s=900.0).judgement.reason == "interrupted by SIGTERM"


def test_another_environment_starts_anew_and_says_what_has_changed(nights: Nights) -> None:
    nights.usual()
    nights.change = lambda r: replace(r, machine={**r.machine, "cpu": {"model": "another CPU"}})
    told = nights.night(0.3)
    assert note.verdict(told) == "learning"
    assert any("a CPU" in fact and "another CPU" in fact for fact in told.starts_anew), told.starts_anew
    assert "It starts anew, as this has changed: " in text(told)
    nights.change = lambda report: report
    assert nights.night(0.1).judgement.reason == "as usual", "and what was known before is known again"


def test_nights_of_another_host_are_not_compared_with(nights: Nights) -> None:
    nights.change = lambda r: replace(r, machine={**r.machine, "hostname": "elsewhere"})
    for _ in range(8):
        nights.night(0.3)
    nights.change = lambda report: report
    assert nights.night(0.1).judgement.reason.startswith("learning: 1 of 7")


def finding(rule: str, title: str) -> Finding:
    return Finding(rule, "file_io", "major", title, "", "high")


def test_findings_that_are_new_and_gone_are_named(nights: Nights) -> None:
    nights.change = lambda r: replace(r, findings=(finding("io.old", "reads 3 s"), finding("io.both", "takes 1 s")))
    nights.usual()
    nights.change = lambda r: replace(r, findings=(finding("io.new", "writes 4 s"), finding("io.both", "takes 2 s")))
    told = nights.night()
    assert (told.new_findings, told.gone_findings) == (("writes 4 s",), ("reads 3 s",))
    assert "## Findings that are new\n\n- writes 4 s" in text(told)


def test_raw_files_of_old_nights_go_and_flagged_ones_stay(nights: Nights) -> None:
    def with_raw(report: Report) -> Report:
        (report.folder / "raw/p01-nsys").mkdir(parents=True)
        (report.folder / "raw/p01-nsys/big").write_bytes(b"x" * 1000)
        return report

    nights.change = with_raw
    nights.usual()
    suspect = nights.night(0.12)
    told = nights.night(most_raw_bytes=2500)
    left = [Path(n.path).name for n in nights.remembered() if (Path(n.path) / "raw/p01-nsys/big").exists()]
    assert left == [Path(suspect.report).name, Path(told.report).name]
    assert len(told.thinned) == 8
    assert "## Raw files that were deleted" in text(told)
    thinned = told.thinned[0].report
    assert (thinned / "summary.json").exists()


def test_a_fault_in_the_comparison_costs_nothing_else(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.usual()

    def fails(*_: Any) -> None:
        raise ValueError("of no use")

    monkeypatch.setattr("orchestrator.compare.compare", fails)
    assert nights.night(0.12).judgement.verdict == "suspect"
    assert "a fault of profrun" in nights.troubles[0]


def governed(governor: str) -> Callable[[Report], Report]:
    return lambda r: replace(r, machine={**r.machine, "cpu": {"model": "a CPU", "governor": governor}})


def clocks(status: StepStatus) -> Callable[[Report], Report]:
    """gpu_clocks in that state, with the part that it has: what was read is what a drift has made of it."""
    verified = "900 MHz" if status == "drifted" else "1200 MHz" if status == "applied" else None
    parts = (Part("GPU 0", status, "1200 MHz", verified=verified),)
    return lambda r: replace(r, environment=(StepRecord("gpu_clocks", status, wanted="1200 MHz", parts=parts),))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (governed("performance"), governed("powersave"), "governor: performance -> powersave"),
        (clocks("applied"), clocks("refused"), "environment.gpu_clocks: GPU 0: the default -> refused"),
    ],
)
def test_a_lasting_change_of_the_machine_starts_anew(nights: Nights, before: Any, after: Any, said: str) -> None:
    nights.change = before
    nights.usual()
    nights.change = after
    for number in (1, 2):
        told = nights.night(0.12)
        assert (told.judgement.reason, told.exit_code) == (f"learning: {number} of 7 nights", 0)
        assert told.starts_anew == ((said,) if number == 1 else ())
    nights.change = before
    assert nights.night(0.1).judgement.reason == "as usual"


@pytest.mark.parametrize("status", ["failed", "drifted"])
def test_a_night_in_a_passing_state_of_the_machine_is_not_judged(nights: Nights, status: StepStatus) -> None:
    nights.change = clocks("applied")
    nights.usual()
    nights.change = clocks(status)
    told = nights.night(0.12)
    assert (told.judgement.verdict, told.exit_code) == ("unjudged", 6)
    assert f"not as the plan wants it: gpu_clocks {status}" in told.judgement.reason
    assert told.starts_anew == ()
    nights.change = clocks("applied")
    assert nights.night(0.1).judgement.reason == "as usual"


def test_a_first_night_that_was_odd_keeps_no_other_from_being_judged(nights: Nights) -> None:
    nights.change = clocks("failed")
    assert nights.night().judgement.verdict == "unjudged"
    nights.change = clocks("applied")
    nights.usual()
    assert nights.night(0.1).judgement.reason == "as usual"


def test_a_step_that_the_plan_wants_no_word_of_stops_nothing(nights: Nights) -> None:
    nights.change = lambda r: replace(r, environment=(StepRecord("aslr", "failed", ignored=True),))
    nights.usual()
    nights.change = lambda r: replace(r, environment=(StepRecord("aslr", "drifted", ignored=True),))
    assert nights.night(0.1).judgement.reason == "as usual"


def test_the_newest_accepted_night_that_is_like_it_is_compared_with(nights: Nights) -> None:
    nights.usual()
    odd = Path(nights.remembered()[-1].path)
    data = json.loads((odd / "summary.json").read_text())
    data["outcome"]["target_exit_code"] = 3
    (odd / "summary.json").write_text(json.dumps(data))
    told = nights.night(0.1)
    assert (told.judgement.reason, told.against) == ("as usual", nights.remembered()[-3].path)


def test_a_night_that_was_not_judged_can_be_accepted_by_name(nights: Nights) -> None:
    nights.change = clocks("applied")
    nights.usual()
    nights.change = clocks("failed")
    told = nights.night(0.12)
    assert nightly.accept(nights.nightly, told.run_id) == [told.run_id]
    assert nights.remembered()[-1].verdict == "accepted"
    nights.change = clocks("applied")
    assert nights.night(0.12).judgement.reason == "as usual", "it is the level now"


def test_steps_that_are_gone_are_no_faster_program(nights: Nights) -> None:
    nights.usual()
    nights.change = lambda r: replace(r, metrics={"wall_s": Metric(0.5, "s", median=0.5)})
    told = nights.night()
    assert (told.judgement.verdict, told.exit_code) == ("unjudged", 6)
    assert told.judgement.reason == "no steady steps were timed, which the nights before had"


def test_a_night_of_a_clock_that_was_ahead_is_left_out(nights: Nights) -> None:
    nights.usual()
    nights.change = lambda r: replace(r, run=replace(r.run, started_at="9999-01-01T02:30:00Z"))
    nights.night(0.1)
    nights.change = lambda report: report
    told = [nights.night(0.12) for _ in range(2)]
    assert [one.judgement.verdict for one in told] == ["suspect", "regressed"]
    assert nightly.accept(nights.nightly, None) == [one.run_id for one in told]


def test_a_clock_that_is_behind_lets_nothing_be_judged(nights: Nights) -> None:
    nights.change = lambda r: replace(r, run=replace(r.run, started_at="9999-01-01T02:30:00Z"))
    nights.night()
    nights.change = lambda report: report
    told = nights.night(0.2)
    assert (told.judgement.verdict, told.exit_code) == ("unjudged", 6)
    assert told.judgement.reason == "this machine's clock is behind: its newest night is of 9999-01-01T02:30:00Z"


def test_where_the_newest_report_is_damaged_an_older_one_is_compared(nights: Nights) -> None:
    nights.usual()
    newest, older = nights.remembered()[-1], nights.remembered()[-2]
    (Path(newest.path) / "summary.json").write_text("{")
    assert nights.night().against == older.path


def test_only_its_own_report_is_named_of_a_night_that_was_cut(tmp_path: Path) -> None:
    names = ("train-20261101T023000Z-abcd", "train-ddp-20261102T023000Z-abcd", "train-20261103T023000Z-abcd")
    for name in names:
        (tmp_path / name).mkdir()
    found = nightly._report_since(tmp_path, "train", "2026-11-02T00:00:00Z")
    assert found is not None and found.name == names[2]


def lost(*_: Any, **__: Any) -> None:
    raise HistoryError("the history can't be reached", "connection refused")


@pytest.mark.parametrize("asked", ["nights", "set_verdict"])
def test_a_database_that_is_lost_after_the_run_leaves_an_unjudged_night(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    nights.usual()
    with monkeypatch.context() as patch:
        patch.setattr(history, asked, lost)
        told = nights.night(hook=f"cat >'{nights.place}/said'")
    assert (told.judgement.verdict, told.exit_code) == ("unjudged", 6)
    assert "connection refused" in told.judgement.reason and told.judgement.reason in text(told)
    assert json.loads((nights.place / "said").read_text())["verdict"] == "unjudged"
    assert kept.newest("train")["state"] == "ended"


def test_a_fault_of_profrun_ends_the_night_too(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("of no use")

    monkeypatch.setattr(nightly, "_findings", fails)
    with pytest.raises(ValueError, match="of no use"):
        nights.night()
    newest = kept.newest("train")
    assert (newest["state"], newest["exit_code"]) == ("ended", 70) and "of no use" in newest["sentence"]


def test_a_lost_database_is_made_anew_with_its_verdicts(nights: Nights) -> None:
    nights.usual()
    for _ in range(2):
        nights.night(0.11)
    nightly.accept(nights.nightly, None)
    nights.night(0.12)
    before = [(night.verdict, night.note) for night in nights.remembered()]
    assert {verdict for verdict, _ in before} == {"accepted", "suspect"}
    (nights.reports / store.FILE).unlink()
    history.rebuild(nights.reports)
    assert [(night.verdict, night.note) for night in nights.remembered()] == before
    history.set_verdict(nights.remembered()[-1].run_id, None, where=nights.reports)
    history.rebuild(nights.reports)
    assert [(night.verdict, night.note) for night in nights.remembered()] == before


def test_the_hook_gets_the_night_on_its_stdin(nights: Nights) -> None:
    nights.night(hook=f"cat >'{nights.place}/it''s said'")
    assert json.loads((nights.place / "its said").read_text())["verdict"] == "learning"
    assert nights.troubles == []
    nights.night(hook="echo no room >&2; exit 3")
    assert nights.troubles == ["the hook failed: no room"]
    nights.night(hook="kill -9 $$")
    assert nights.troubles == ["the hook failed: killed by SIGKILL"]


@pytest.mark.parametrize(("boot", "by"), [("another", "a reboot"), (journal.boot_id(), "a kill")])
def test_a_night_that_never_ended_is_found_and_named(nights: Nights, boot: str, by: str) -> None:
    kept.night_begins("train")
    file = kept.home() / "train.night.json"
    begun = {**json.loads(file.read_text()), "boot_id": boot, "started_at": "2026-11-29T02:30:00Z", "pid": 1}
    file.write_text(json.dumps(begun))
    cut = nights.reports / "train-20261129T023001Z-abcd"
    cut.mkdir(parents=True)
    told = nights.night()
    assert told.cut is not None and (told.cut.by, told.cut.report) == (by, str(cut))
    assert f"Before it: the night of 2026-11-29T02:30:00Z was cut by {by}, and does not count" in text(told)
    assert nights.night().cut is None
    assert kept.newest("train")["state"] == "ended"


def test_a_night_at_a_time(nights: Nights) -> None:
    held = Locks()
    held.take(["nightly train"])
    with pytest.raises(BusyError, match="a night of train is under way"):
        nights.night()
    held.release()
    held.take(["nightly"])
    with pytest.raises(BusyError, match="another run holds nightly"):
        nights.night(wait_s=0.0)
    held.release()
    assert nights.night().exit_code == 0


def test_a_night_that_can_not_begin_is_remembered_as_such(nights: Nights) -> None:
    with pytest.raises(PreflightError, match="can't be used"):
        nights.night(cwd=str(nights.place / "gone"))
    newest = kept.newest("train")
    assert (newest["state"], newest["verdict"], newest["exit_code"]) == ("ended", "unjudged", 3)


def test_a_report_that_was_thinned_is_not_rebuilt_or_added_to(tmp_path: Path) -> None:
    from orchestrator.errors import ReportError

    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/thinned.jsonl").write_text("{}\n")
    with pytest.raises(ReportError, match="has deleted raw files"):
        runner._check_whole(tmp_path)


def test_a_full_disk_still_raises_the_alarm(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.usual()
    nights.night(0.12)
    write = folder.Folder.write

    def full(self: folder.Folder, name: str, text: str) -> Path:
        if name.startswith("night."):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, name, text)

    monkeypatch.setattr(folder.Folder, "write", full)
    told = nights.night(0.12, hook=f"cat >'{nights.place}/said'")
    assert (told.judgement.verdict, told.exit_code) == ("regressed", 6)
    assert "can't be written down in its report: No space left" in nights.troubles[0]
    assert json.loads((nights.place / "said").read_text())["verdict"] == "regressed"


def test_where_there_is_no_room_old_raw_files_go_before_the_run(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.usual(2)
    for night in nights.remembered():
        (Path(night.path) / "raw/big").write_bytes(bytes(1000))
    room = iter([False])
    monkeypatch.setattr(folder, "has_room", lambda parent: next(room, True))
    left: list[int] = []
    nights.change = lambda r: left.append(len(list(nights.reports.glob("*/raw/big")))) or r
    told = nights.night(most_raw_bytes=0)
    assert left == [0], "they were gone when it began"
    assert [one.files for one in told.thinned] == [1, 1]


def test_a_night_that_can_not_begin_raises_the_alarm(nights: Nights) -> None:
    (nights.place / "plan.yaml").write_text("version: 1\ncollectors: [{use: nothing}]\n")
    with pytest.raises(ProfrunError):
        nights.night(hook=f"cat >'{nights.place}/said'")
    said = json.loads((nights.place / "said").read_text())
    assert (said["schema"], said["verdict"], said["report"]) == ("profrun/night/1", "unjudged", None)
    assert said["exit_code"] and said["sentence"]
