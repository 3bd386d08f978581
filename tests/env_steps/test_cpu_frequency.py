"""Environment step `cpu_frequency`, on a fake machine of every form, with the kernel's rules behind its files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes import sysfs
from pydantic import ValidationError

from orchestrator import cpufreq, names
from orchestrator.cpufreq import Processors
from orchestrator.env_steps.cpu_frequency import CpuFrequency
from orchestrator.machine import Machine
from orchestrator.model import Cannot, Change, Hold, Judged, Write

WANTED = {"governor": "performance", "min": "2GHz", "max": "2GHz", "turbo": False}


def step(**options: Any) -> CpuFrequency:
    return CpuFrequency.model_validate({"use": "cpu_frequency", **options})


class Fake:
    """A fake machine, on which changes are made and undone as the runner does it."""

    def __init__(self, root: Path, form: str, **rules: bool) -> None:
        self.place = sysfs.make(root, form)
        latency = root / "dev/cpu_dma_latency"
        latency.parent.mkdir()
        latency.write_bytes(b"\x00\x94\x35\x77")
        self.machine, self.kernel = Machine(root=root), sysfs.Kernel(self.place, **rules)
        self.done: list[tuple[str, str, str]] = []

    def apply(self, wanted: CpuFrequency) -> dict[str, str]:
        """What has come of each part, as the user reads it; parts that went alike are one."""
        self.before = wanted.before(self.machine)
        said: dict[str, list[str]] = {}
        for change in wanted.apply(self.before):
            said.setdefault(self._change(change), []).append(change.part)
        return {names.together(parts): status for status, parts in said.items()}

    def _change(self, change: Change) -> str:
        if isinstance(change, Cannot):
            return f"{change.status} ({change.detail})" if change.detail else change.status
        if isinstance(change, Hold):
            return "held"
        assert isinstance(change, Write)
        was = self.read(change.path)
        if was == change.text:
            return "already"
        try:
            self.kernel.write(change.path, change.text)
        except OSError as error:
            return f"refused ({errno.errorcode[error.errno or 0]})"
        self.done.append((change.path, change.text, was))
        return "applied" if self.read(change.path) == change.text else f"clamped ({self.read(change.path)})"

    def undo(self) -> None:
        """Backwards, and then a second look: one setting may move another."""
        for _ in range(2):
            for path, _, was in reversed(self.done):
                if self.read(path) != was:
                    self.kernel.write(path, was)

    def read(self, path: str | Path) -> str:
        return (self.place / path).read_text().strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


# ---------------------------------------------------------------- every form

PINNED_AMD = {"policy0-3 governor, max kHz, min kHz, turbo": "applied"}
OUTCOMES: dict[str, dict[str, str]] = {
    "intel_pstate": {"no_turbo, policy0-3 governor, max kHz, min kHz": "applied"},
    "intel_cpufreq": {"no_turbo, policy0-3 governor, max kHz, min kHz": "applied"},
    "amd-pstate-epp": PINNED_AMD,
    "amd-pstate": PINNED_AMD,
    "amd-pstate-guided": PINNED_AMD,
    "acpi-cpufreq": {"turbo, policy0,2 governor, max kHz": "applied", "policy0,2 min kHz": "already"},
    "none": {"governor, turbo, max, min": "not_available"},
    "readonly": {"no_turbo, policy0-3 governor, max kHz, min kHz": "refused (EROFS)"},
}


def test_each_form_has_its_outcome() -> None:
    assert set(OUTCOMES) == set(sysfs.FORMS)


@pytest.mark.parametrize("form", sysfs.FORMS)
@pytest.mark.parametrize("rules", [{}, {"strict": True, "resets_turbo": True}], ids=["new kernel", "old kernel"])
def test_the_clock_is_pinned_and_left_as_found(
    root: Path, form: str, rules: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpufreq, "is_read_only", lambda path: form == "readonly")
    fake, wanted = Fake(root, form, **rules), step(**WANTED)
    found = sysfs.snapshot(fake.place)
    assert fake.apply(wanted) == OUTCOMES[form]
    if form not in ("none", "readonly"):
        now = cpufreq.read(fake.machine)
        khz = 2_200_000 if form == "acpi-cpufreq" else 2_000_000
        assert {(p.governor, p.min_khz, p.max_khz) for p in now.policies.values()} == {("performance", khz, khz)}
        assert now.turbo() is False
    fake.undo()
    assert sysfs.snapshot(fake.place) == found


def test_without_cpufreq_each_setting_is_told_with_the_reason(root: Path) -> None:
    fake = Fake(root, "none")
    (check,) = step(**WANTED).checks(fake.machine)
    assert (check.verdict, check.message) == (
        "missing",
        "governor, turbo, max, min: no cpufreq here: in a virtual machine its host decides about the clock",
    )
    assert step(**WANTED).claims(fake.machine) == ("cpu:global",)
    (root / "proc/cpuinfo").write_text("flags\t: fpu\n")
    (root / ".dockerenv").touch()
    assert cpufreq.read(fake.machine).why_none == "no cpufreq is visible in this container (docker)"


def test_a_read_only_sys_is_told_with_its_fix(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpufreq, "is_read_only", lambda path: True)
    fake = Fake(root, "readonly")
    (check,) = step(**WANTED).checks(fake.machine)
    assert check.verdict == "blocked" and check.message.endswith("/sys is mounted read-only")
    assert "--privileged" in (check.fix or "")
    assert fake.apply(step(governor="powersave")) == {"policy0-3 governor": "already"}


# ---------------------------------------------------------------- governor and preference


def test_a_governor_that_is_not_offered_is_told_with_what_to_write(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    (check,) = step(governor="ondemand").checks(fake.machine)
    assert check.message == ("policy0-3 governor: the driver intel_pstate offers performance, powersave, not ondemand")
    assert check.fix == "did you mean powersave? With this driver it follows the load"
    (check,) = step(governor="performence").checks(fake.machine)
    assert check.fix == "did you mean performance?"


def test_the_preference_is_set_before_a_governor_that_locks_it(root: Path) -> None:
    fake = Fake(root, "amd-pstate-epp")
    wanted = step(governor="performance", energy_preference="performance")
    assert fake.apply(wanted) == {"policy0-3 energy preference, governor": "applied"}
    assert [line.rpartition("/")[2] for line in fake.kernel.log[:2]] == [
        "energy_performance_preference performance",
        "scaling_governor performance",
    ]


def test_the_preference_is_set_after_a_governor_that_unlocks_it(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    fake.apply(step(governor="performance"))
    assert fake.apply(step(energy_preference="power")) == {"policy0-3 energy preference": "refused (EBUSY)"}
    wanted = step(governor="powersave", energy_preference="power")
    assert fake.apply(wanted) == {"policy0-3 governor, energy preference": "applied"}
    assert fake.read("cpufreq/policy3/energy_performance_preference") == "power"


def test_a_driver_without_preferences(root: Path) -> None:
    assert Fake(root, "amd-pstate").apply(step(energy_preference="power")) == {
        "policy0-3 energy preference": "not_available"
    }


# ---------------------------------------------------------------- turbo


def test_turbo_that_the_firmware_holds_is_refused(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    fake.kernel.turbo_locked = True
    assert fake.apply(step(turbo=False)) == {"no_turbo": "refused (EPERM)"}


def test_turbo_that_root_can_not_turn_on_is_a_matter_of_the_firmware(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(turbo=True)
    fake.kernel.write(fake.place / "intel_pstate/no_turbo", "1")
    fake.kernel.turbo_locked = True
    assert fake.apply(wanted) == {"no_turbo": "refused (EPERM)"}
    monkeypatch.setattr("orchestrator.env_steps.cpu_frequency.os.geteuid", lambda: 0)
    said = wanted.judge(fake.before, wanted.verify(fake.machine))
    assert said and (said.status, said.detail) == ("refused", "EPERM")
    assert "firmware" in str(said.reason) and "BIOS" in str(said.fix)
    monkeypatch.setattr("orchestrator.env_steps.cpu_frequency.os.geteuid", lambda: 1000)
    assert wanted.judge(fake.before, wanted.verify(fake.machine)) is None


def test_turbo_of_the_whole_machine_comes_before_that_of_a_policy(root: Path) -> None:
    fake = Fake(root, "amd-pstate-epp")
    fake.kernel.write(fake.place / "cpufreq/boost", "0")
    found = sysfs.snapshot(fake.place)
    assert fake.apply(step(turbo=True)) == {"turbo": "applied", "policy0-3 turbo": "already"}
    fake.undo()
    assert sysfs.snapshot(fake.place) == found


def test_policies_that_differ_are_each_put_back(root: Path) -> None:
    fake = Fake(root, "amd-pstate")
    fake.kernel.write(fake.place / "cpufreq/policy1/boost", "0")
    found = sysfs.snapshot(fake.place)
    assert fake.apply(step(turbo=False)) == {"policy0,2-3 turbo": "applied", "policy1 turbo": "already"}
    fake.undo()
    assert sysfs.snapshot(fake.place) == found


def test_the_highest_clock_that_rises_with_turbo_is_told(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    fake.kernel.write(fake.place / "intel_pstate/no_turbo", "1")
    for policy in fake.kernel.policies():
        (policy / "cpuinfo_max_freq").write_text("2400000\n")
    wanted = step(turbo=True, max="highest")
    fake.before = wanted.before(fake.machine)
    now = Processors.of(fake.before)
    grown = {n: {**p, "max_khz": 2_400_000, "highest_khz": 4_800_000} for n, p in now.told()["policies"].items()}
    judged = wanted.judge(fake.before, {**now.told(), "no_turbo": "0", "policies": grown})
    assert judged and judged.status == "clamped" and "step of its own" in str(judged.fix)


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("form", "options", "khz", "judged"),
    [
        ("intel_pstate", {"min": "lowest", "max": "highest"}, (800_000, 4_800_000), None),
        ("intel_pstate", {"min": "base", "max": "base"}, (2_400_000, 2_400_000), None),
        ("intel_pstate", {"max": "highest", "turbo": False}, (800_000, 2_400_000), None),
        ("amd-pstate", {"min": "base", "max": "base"}, (3_300_000, 3_300_000), None),
        ("acpi-cpufreq", {"min": "base", "max": "base"}, (3_500_000, 3_500_000), None),
        ("acpi-cpufreq", {"max": "3GHz"}, (2_200_000, 2_800_000), "2.8 GHz"),
        ("intel_cpufreq", {"min": "9GHz", "max": "9GHz"}, (4_800_000, 4_800_000), "4.8 GHz"),
        ("intel_cpufreq", {"min": "100MHz"}, (800_000, 4_800_000), "800 MHz"),
        ("amd-pstate-guided", {"max": "4GHz", "turbo": False}, (400_000, 3_300_000), "3.3 GHz"),
    ],
)
def test_the_nearest_clock_that_there_is(
    root: Path, form: str, options: dict[str, Any], khz: tuple[int, int], judged: str | None
) -> None:
    fake, wanted = Fake(root, form, strict=True), step(**options)
    fake.apply(wanted)
    policies = cpufreq.read(fake.machine).policies.values()
    assert {(p.min_khz, p.max_khz) for p in policies} == {khz}
    said = wanted.judge(fake.before, wanted.verify(fake.machine))
    assert (said and (said.status, said.detail)) == (judged and ("clamped", judged))


def test_a_lowest_clock_above_the_highest_that_stands_there_is_told(root: Path) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(min="2GHz")
    fake.apply(step(max="1GHz"))
    assert fake.apply(wanted) == {"policy0-3 min kHz": "clamped (1000000)"}
    assert wanted.judge(fake.before, wanted.verify(fake.machine)) == Judged(
        "clamped", "policy0-3 min: the highest clock is 1 GHz", "1 GHz", "give `max`, too"
    )


def test_a_clock_that_is_not_there_is_told_before_the_run(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    (check,) = step(max="99GHz").checks(fake.machine)
    said = ("policy0-3 max: 99 GHz is not there, the nearest is 4.8 GHz", "write 4.8 GHz into the plan")
    assert (check.verdict, check.message, check.fix) == ("warn", *said)


def test_a_clock_that_only_some_processors_reach(root: Path) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(max="2GHz")
    for number in (2, 3):
        (fake.place / f"cpufreq/policy{number}/cpuinfo_max_freq").write_text("1200000\n")
    said = wanted.judge(wanted.before(fake.machine), wanted.before(fake.machine))
    assert said and (said.status, said.detail) == ("clamped", "policy2-3: 1.2 GHz")
    fix = "give lowest, base or highest, or bind the program to the CPUs that reach it (affinity: cpus: 0-1)"
    assert said.fix == fix


@pytest.mark.parametrize("clock", ["1GHz", "4GHz"])
def test_limits_never_cross(root: Path, clock: str) -> None:
    """A kernel from before 5.4 refuses a minimum above the maximum, on the way as well."""
    fake = Fake(root, "intel_cpufreq", strict=True)
    fake.apply(step(min="2GHz", max="3GHz"))
    assert set(fake.apply(step(min=clock, max=clock)).values()) == {"applied"}
    fake.undo()
    assert fake.read("cpufreq/policy0/scaling_max_freq") == "4800000"


def test_what_holds_the_clock_below_is_told(root: Path) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(max="4GHz")
    (fake.place / "intel_pstate/max_perf_pct").write_text("50\n")
    fake.apply(wanted)
    said = wanted.judge(fake.before, wanted.verify(fake.machine))
    assert said and (said.status, said.detail) == ("clamped", "2.4 GHz") and "max_perf_pct is 50" in str(said.reason)


# ---------------------------------------------------------------- hyper-threads, idle states


def test_hyper_threads_go_first_and_come_back_last(root: Path) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(smt=False, governor="performance")
    found = sysfs.snapshot(fake.place)
    assert fake.apply(wanted) == {"SMT, policy0-1 governor": "applied"}
    assert list(cpufreq.read(fake.machine).policies) == ["policy0", "policy1"]
    assert wanted.judge(fake.before, wanted.verify(fake.machine)) is None
    fake.undo()
    assert sysfs.snapshot(fake.place) == found


def test_policies_that_come_with_hyper_threads_are_told(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    fake.kernel.write(fake.place / "smt/control", "off")
    wanted = step(smt=True, governor="performance")
    assert fake.apply(wanted) == {"SMT, policy0-1 governor": "applied"}
    said = wanted.judge(fake.before, wanted.verify(fake.machine))
    assert said and said.status == "drifted" and str(said.reason).startswith("policy2-3 came with SMT")


@pytest.mark.parametrize(
    ("control", "smt", "status"),
    [("notsupported", False, "not_available"), ("forceoff", True, "not_available"), ("forceoff", False, "already")],
)
def test_hyper_threads_that_nobody_can_switch(root: Path, control: str, smt: bool, status: str) -> None:
    fake = Fake(root, "acpi-cpufreq")
    (fake.place / "smt/control").write_text(control + "\n")
    assert fake.apply(step(smt=smt)) == {"SMT": status}
    assert bool(step(smt=smt).checks(fake.machine)) == (status == "not_available")


@pytest.mark.parametrize(
    ("deepest", "limit"), [(0, "POLL (0 µs)"), (1, "C1 (1 µs)"), ("C1E", "C1E (10 µs)"), (99, "C6 (133 µs)")]
)
def test_deep_idle_states_are_kept_out_by_the_latency(root: Path, deepest: int | str, limit: str) -> None:
    fake = Fake(root, "intel_pstate")
    assert fake.apply(step(max_cstate=deepest)) == {f"C-states up to {limit}": "held"}


def test_the_latency_is_no_text_of_four_characters(root: Path) -> None:
    """The kernel takes four bytes for a binary number, whatever they spell."""
    fake = Fake(root, "intel_pstate")
    (hold,) = step(max_cstate=3).apply(step(max_cstate=3).before(fake.machine))
    assert isinstance(hold, Hold) and hold.text == "00000085"


def test_a_state_that_wakes_no_slower_is_disabled(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    for path in fake.place.glob("cpu*/cpuidle/state2/latency"):
        path.write_text("1\n")
    assert fake.apply(step(max_cstate=1)) == {"C-states up to C1 (1 µs)": "held", "cpu0-3 C1E": "applied"}


def test_idle_states_by_name(root: Path) -> None:
    fake = Fake(root, "intel_pstate")
    found = sysfs.snapshot(fake.place)
    assert fake.apply(step(disable_cstates=["C6", "C9"])) == {"C9": "not_available", "cpu0-3 C6": "applied"}
    assert fake.read("cpu3/cpuidle/state3/disable") == "1"
    fake.undo()
    assert sysfs.snapshot(fake.place) == found


def test_idle_states_that_another_setting_lets_in_are_told(root: Path) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(max_cstate=1)
    fake.apply(wanted)
    said = wanted.judge(fake.before, wanted.verify(fake.machine))
    assert said and said.status == "drifted"
    assert said.reason == "the kernel allows all idle states, not only those of 1 µs or less"
    (root / "dev/cpu_dma_latency").write_bytes(b"\1\0\0\0")
    assert wanted.judge(fake.before, wanted.verify(fake.machine)) is None


# ---------------------------------------------------------------- during the run


def samples(*rows: tuple[int, str, float, float | None]) -> pd.DataFrame:
    """(time, core, how busy it was in %, its clock in MHz)"""
    found = [(t, "core", core, "cpu_pct", busy) for t, core, busy, _ in rows]
    found += [(t, "core", core, "clock_mhz", mhz) for t, core, _, mhz in rows]
    found.append((1, "host", "", "cpu_pct", 99.0))
    return pd.DataFrame(found, columns=["time_ns", "source", "subject", "metric", "value"])


@pytest.mark.parametrize(
    ("mhz", "reason"),
    [
        ([2000, 2010, 1990], None),
        (
            [2000, 1800, 1750],
            "clock not held: cpu1 ran at 1.75 GHz, 1.8 GHz, 2 GHz (least, median, most), wanted 2 GHz",
        ),
    ],
)
def test_a_clock_that_is_not_held_is_told(root: Path, mhz: list[float], reason: str | None) -> None:
    fake = Fake(root, "intel_pstate")
    rows = [(t, "1", 95.0, clock) for t, clock in enumerate(mhz)]
    seen, said = step(**WANTED).during(step(**WANTED).before(fake.machine), samples(*rows, (9, "0", 3.0, 800.0)))
    assert seen == {"busy_cores": 1, "readings": 3, "min_mhz": min(mhz), "median_mhz": mhz[1] if reason else 2000,
                    "max_mhz": max(mhz)}  # fmt: skip
    assert (said and (said.status, said.reason)) == (reason and ("drifted", reason))
    assert said is None or "env show" in str(said.fix)


def test_turbo_that_is_there_although_it_was_turned_off_is_told(root: Path) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(turbo=False)
    seen, said = wanted.during(wanted.before(fake.machine), samples((1, "0", 99.0, 3100.0)))
    assert seen["median_mhz"] == 3100 and said and str(said.reason).endswith("wanted 2.4 GHz")
    assert step(governor="performance").during(wanted.before(fake.machine), samples((1, "0", 99.0, 3100.0)))[1] is None


def test_without_a_busy_core_nothing_is_said_of_the_clock(root: Path) -> None:
    fake, wanted = Fake(root, "intel_pstate"), step(**WANTED)
    before = wanted.before(fake.machine)
    assert wanted.during(before, samples((1, "0", 20.0, 800.0), (1, "1", 99.0, None))) == ({}, None)


# ---------------------------------------------------------------- words


def test_what_was_read_survives_the_journal(root: Path) -> None:
    import json

    fake = Fake(root, "amd-pstate-epp")
    found = cpufreq.read(fake.machine, idle=True)
    assert Processors.of(json.loads(json.dumps(found.told()))) == found


def test_claims_cover_what_is_written(root: Path) -> None:
    machine = Fake(root, "acpi-cpufreq").machine
    assert step(governor="performance").claims(machine) == ("cpu:policy0", "cpu:policy2")
    assert step(max_cstate=1).claims(machine) == ("cpu:global",)


def test_the_knobs_of_a_machine(root: Path) -> None:
    knobs = {knob.name: knob for knob in CpuFrequency.knobs(Fake(root, "intel_pstate").machine)}
    assert (knobs["policy0 max"].value, knobs["policy0 max"].limits) == ("4.8 GHz", "800 MHz to 4.8 GHz")
    assert (knobs["turbo"].value, knobs["SMT"].value, knobs["C-states"].value) == ("on", "on", "no limit")
    assert knobs["cpu3 C6"].value == "enabled"
    assert Path(str(knobs["policy2 governor"].path)).read_text() == "powersave\n"


def test_the_highest_clock_is_one_of_those_that_a_table_lists(root: Path) -> None:
    knobs = {knob.name: knob for knob in CpuFrequency.knobs(Fake(root, "acpi-cpufreq").machine)}
    assert (knobs["policy0 max"].value, knobs["policy0 max"].limits) == (
        "4.35 GHz",
        "2.2 GHz, 2.8 GHz, 3.5 GHz, 4.35 GHz",
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"governor": "Performance!"},
        {"governor": ["performance"]},
        {"min": "3GHz", "max": "2GHz"},
        {"min": "highest", "max": "lowest"},
        {"min": "base", "max": "lowest"},
        {"min": 2_000_000},
        {"max": "fast"},
        {"turbo": "off"},
        {"max_cstate": -1},
        {"energy_preference": "fast"},
        {"frequency": "2GHz"},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)


def test_a_misspelled_governor_is_told_with_what_was_meant() -> None:
    with pytest.raises(ValidationError, match=r"Performance is no governor; did you mean performance\?"):
        step(governor="Performance")
    with pytest.raises(ValidationError, match=r"write performance, powersave, .* or conservative"):
        step(governor="4")


def test_it_is_written_as_it_is_read() -> None:
    wanted = step(governor="performance", min="1.5GHz", max="base", max_cstate="C1E", disable_cstates=["C6"])
    dumped = wanted.model_dump(mode="json")
    assert (dumped["min"], dumped["max"]) == ("1500MHz", "base")
    assert CpuFrequency.model_validate(dumped) == wanted
