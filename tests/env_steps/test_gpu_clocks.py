"""env_steps/gpu_clocks.py over GPUs that are played: what is locked, what the user is told, what is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fakes.gpus import FakeGpus
from pydantic import ValidationError

from orchestrator import gpus, journal, restoring
from orchestrator.env_steps.gpu_clocks import GpuClocks, lock_seen
from orchestrator.environment import Environment
from orchestrator.gpus import Gpu
from orchestrator.machine import Machine, Permission
from orchestrator.model import Judged, StepRecord

MakeFake = Callable[..., FakeGpus]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeFake:
    """Makes the GPUs of this test's machine, and has its journals in a folder of its own."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))

    def make(count: int = 1, **settings: Any) -> FakeGpus:
        made = FakeGpus(tmp_path, count, **settings)
        for name, text in made.env.items():
            monkeypatch.setenv(name, text)
        return made

    return make


def step(**options: Any) -> GpuClocks:
    return GpuClocks.model_validate({"use": "gpu_clocks", **options})


def machine(**env: str) -> Machine:
    here = Machine()
    here.target_env = {**os.environ, **env}
    return here


class Applied:
    """A step that was applied, and how to end it."""

    def __init__(self, wanted: GpuClocks, here: Machine) -> None:
        self._environment = Environment(here, journal.create(journal.about("run", "reports/run", ())))
        self._environment.apply((wanted,))

    @property
    def record(self) -> StepRecord:
        (only,) = self._environment.records
        return only

    def statuses(self) -> dict[str, str]:
        return {part.name: part.status for part in self.record.parts}

    def restore(self) -> StepRecord:
        self._environment.restore()
        return self.record


def apply(options: dict[str, Any], **env: str) -> Applied:
    return Applied(step(**options), machine(**env))


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options",
    [{"persistence": None}, {"graphics": "fast"}, {"graphics": "15"}, {"memory": True},
     {"graphics": "-1GHz"}, {"graphics": 1530}, {"applications": "maybe"}, {"device": [0]}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"graphics": "1530MHz", "memory": "max"},
        {"graphics": "1.53GHz", "devices": [0, "GPU-1"]},
        {"persistence": False},
        {},
    ],
)
def test_options_survive_the_report(options: dict[str, Any]) -> None:
    assert step(**step(**options).model_dump(mode="json", by_alias=True)) == step(**options)


# ---------------------------------------------------------------- locked and put back


def test_clocks_are_locked_and_put_back(fake: MakeFake) -> None:
    made = fake()
    before = made.changeable()
    applied = apply({"graphics": "1530MHz", "memory": "max"})
    assert applied.record.status == "applied", applied.record
    assert applied.statuses() == {
        "GPU 0 persistence": "applied",
        "GPU 0 graphics": "applied",
        "GPU 0 memory": "applied",
    }
    assert (made.get(0, "pm"), made.get(0, "lgc"), made.get(0, "lmc")) == ("1", "1530", "2619")
    record = applied.restore()
    assert made.changeable() == before and record.restored is True
    uuid = FakeGpus.uuid(0)
    assert made.changes() == [
        f"-i {uuid} -pm 1", f"-i {uuid} -lgc 1530,1530", f"-i {uuid} -lmc 2619,2619",
        f"-i {uuid} -rmc", f"-i {uuid} -rgc", f"-i {uuid} -pm 0",
    ]  # fmt: skip
    graphics = next(part for part in record.parts if part.name == "GPU 0 graphics")
    assert "reset, former lock unknown" in (graphics.reason or "")
    assert record.before["gpus"][uuid]["pstate"] == 8 and record.after["gpus"][uuid]["persistence"] is False


@pytest.mark.parametrize(
    ("asked", "locked", "status", "detail"),
    [("1530MHz", "1530", "applied", None), ("1.5GHz", "1500", "applied", None),
     ("1536MHz", "1530", "clamped", "1530 MHz"),
     ("3GHz", "1980", "clamped", "1980 MHz"), ("100MHz", "345", "clamped", "345 MHz"), ("max", "1980", "applied", None),
     ("min", "345", "applied", None), ("base", "1200", "applied", None)],
)  # fmt: skip
def test_the_nearest_clock_is_taken(fake: MakeFake, asked: str, locked: str, status: str, detail: str | None) -> None:
    made = fake(default_gr=1200, ac_gr=1200, pm=1)
    record = apply({"graphics": asked}).record
    assert (record.status, record.detail, made.get(0, "lgc")) == (status, detail, locked)


def test_persistence_is_left_as_it_was(fake: MakeFake) -> None:
    made = fake(pm=1)
    applied = apply({"graphics": "max"})
    assert applied.statuses()["GPU 0 persistence"] == "already"
    applied.restore()
    assert made.get(0, "pm") == "1" and not made.calls("-pm")


def test_only_the_targets_gpus_are_touched(fake: MakeFake) -> None:
    """D16."""
    made = fake(4)
    env = {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert step().claims(machine(**env)) == (f"gpu:{FakeGpus.uuid(2)}", f"gpu:{FakeGpus.uuid(3)}")
    applied = apply({"graphics": "1530MHz", "memory": "max"}, **env)
    record = applied.restore()
    assert {call.split()[1] for call in made.changes()} == {FakeGpus.uuid(2), FakeGpus.uuid(3)}
    seen = record.before["gpus"].values()
    assert [(one["cuda"], one["gpu"], one["pci"]) for one in seen] == [
        (0, 2, "00000000:03:00.0"),
        (1, 3, "00000000:04:00.0"),
    ]


def test_devices_of_the_plan_come_before_those_of_the_target(fake: MakeFake) -> None:
    made = fake(3)
    apply({"graphics": "max", "devices": [2]}, CUDA_VISIBLE_DEVICES="0")
    assert {call.split()[1] for call in made.changes()} == {FakeGpus.uuid(2)}


def test_unlike_gpus_by_number_are_warned_of(fake: MakeFake) -> None:
    fake(2).set(1, name="NVIDIA Other")
    checks = step(graphics="max").checks(machine(CUDA_VISIBLE_DEVICES="1"))
    assert [check.verdict for check in checks] == ["ok", "warn"] and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in checks[1].message


# ---------------------------------------------------------------- refused, ignored, not there


def test_not_supported_with_exit_0_is_not_available(fake: MakeFake) -> None:
    made = fake(lgc_way="unsupported", pm=1)
    applied = apply({"graphics": "1530MHz"})
    assert applied.record.status == "not_available"
    assert applied.record.reason == "GPU 0 graphics: nvidia-smi: Setting locked GPU clocks is not supported"
    assert applied.restore().restored is None and not made.calls("-rgc"), "there is nothing to reset"


def test_without_permission_it_is_refused_with_the_way_out(fake: MakeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fake(deny=1)
    monkeypatch.setattr("orchestrator.folder.made_state", lambda _place: made.folder)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    applied = apply({"graphics": "1530MHz"})
    record = applied.record
    assert (record.status, record.detail) == ("refused", "EPERM"), record
    assert "does not have permission" in (record.reason or "") and "root-helper" in (record.fix or "")
    assert applied.restore().restored is None and not made.calls("-rgc", "-rmc")


@pytest.mark.parametrize(
    ("way", "status", "reason"),
    [
        (
            "refuse",
            "refused",
            "GPU 0-1 persistence: nvidia-smi: Unable to set persistence mode: Insufficient Permissions; "
            "GPU 0-1 graphics, memory: nvidia-smi: The current user does not have permission to change clocks",
        ),
        (
            "unsupported",
            "not_available",
            "GPU 0-1 persistence: nvidia-smi: Unable to set persistence mode: Not Supported; "
            "GPU 0-1 graphics: nvidia-smi: Setting locked GPU clocks is not supported; "
            "GPU 0-1 memory: nvidia-smi: Setting locked Memory clocks is not supported",
        ),
        ("ignore", "drifted", "GPU 0-1: persistence mode is off"),
    ],
)
def test_what_two_gpus_say_alike_is_told_once(fake: MakeFake, way: str, status: str, reason: str) -> None:
    fake(2, lgc_way=way, lmc_way=way, pm_way=way)
    record = apply({"graphics": "1530MHz", "memory": "max"}).record
    assert (record.status, record.reason) == (status, reason)
    way_out = {"refuse": "on the host", "unsupported": "leave the setting out", "ignore": "nvidia-smi -q"}[way]
    assert way_out in (record.fix or "")


def test_a_lock_that_was_there_can_not_be_put_back_and_is_told(fake: MakeFake) -> None:
    made = fake(2, pm=1, lgc="1200,1200", lock_at_idle=1)
    record = apply({"graphics": "1530MHz", "memory": "max"}).restore()
    assert (record.status, record.restored, made.get(0, "lgc")) == ("applied", True, "0")
    assert record.reason == (
        "GPU 0-1 memory: reset, former lock unknown; GPU 0-1 graphics: reset, former lock unknown; found before the "
        "run: its clock is held at 1200 MHz by a setting, which looks like a lock"
    )
    assert record.fix == "if that was a lock, set it again: nvidia-smi -i 1 -lgc 1200,1200"


def test_each_gpu_stands_for_itself(fake: MakeFake) -> None:
    made = fake(3, pm=1)
    made.set(1, lgc_way="unsupported")
    applied = apply({"graphics": "1530MHz"})
    assert applied.record.status == "not_available" and (applied.record.reason or "").startswith("GPU 1 graphics: ")
    done = {name: status for name, status in applied.statuses().items() if "graphics" in name}
    assert done == {"GPU 0 graphics": "applied", "GPU 1 graphics": "not_available", "GPU 2 graphics": "applied"}
    applied.restore()
    assert {made.get(n, "lgc") for n in range(3)} == {"0"}


def test_a_hanging_command_has_a_limit(fake: MakeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    """D25."""
    fake(pm=1, lgc_way="hang")
    monkeypatch.setenv("PROFRUN_GPU_LIMIT_S", "0.5")
    record = apply({"graphics": "1530MHz"}).record
    assert record.status == "failed" and "no answer in 0.5 s" in (record.reason or "")


def test_a_command_that_hangs_costs_its_limit_once_there_and_once_back(
    fake: MakeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D25: questions are answered, changes are not. Two GPUs, three changes each."""
    made = fake(2, lgc_way="hang", lmc_way="hang", pm_way="hang")
    monkeypatch.setenv("PROFRUN_GPU_LIMIT_S", "0.5")
    applied = apply({"graphics": "1530MHz", "memory": "max"})
    assert applied.record.status == "failed" and applied.record.reason == (
        "GPU 0 persistence: nvidia-smi: no answer in 0.5 s; GPU 1 persistence, GPU 0-1 graphics, memory: "
        "not tried: nvidia-smi has not answered before"
    )
    assert made.changes() == [f"-i {FakeGpus.uuid(0)} -pm 1"]
    record = applied.restore()
    assert "; not put back: GPU 0 persistence: nvidia-smi: no answer in 0.5 s" in (record.reason or "")
    assert (
        "reboot" in (record.fix or "")
        and record.restored is False
        and made.changes()[1:] == [f"-i {FakeGpus.uuid(0)} -pm 0"]
    )
    assert [left.state for left in journal.left()] == ["alive"], "it is kept"


def test_of_undos_that_hang_one_is_tried_by_itself_and_all_by_env_restore(
    fake: MakeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fake(2, pm=1)
    monkeypatch.setenv("PROFRUN_GPU_LIMIT_S", "0.5")
    environment = Environment(machine(), journal.create(journal.about("run", "reports/run", ())))
    environment.apply((step(graphics="1530MHz"),))
    made.set(1, lgc_way="hang")
    verdicts = environment.restore()
    assert [(v.part, v.how, v.reason) for v in verdicts] == [
        ("GPU 1 graphics", "failed", "nvidia-smi: no answer in 0.5 s"),
        ("GPU 0 graphics", "failed", "not tried: nvidia-smi has not answered before"),
    ]
    assert environment.journal and made.get(0, "lgc") == "1530"
    environment.journal.close()
    done = restoring.restore(None)
    assert done.exit_code == 5 and made.get(0, "lgc") == "0", "the GPU that answers is put back"
    made.set(1, lgc_way="")
    assert restoring.restore(None).exit_code == 0 and made.get(1, "lgc") == "0"


@pytest.mark.parametrize("settings", [{"nvml_hang": 1}, {"smi_hang": 1}, {"smi_hang": 1, "nvml": False}])
def test_a_hanging_driver_costs_the_limit_once(
    fake: MakeFake, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fake(2, **settings)
    monkeypatch.setenv("PROFRUN_GPU_LIMIT_S", "0.5")
    record = apply({"graphics": "1530MHz", "memory": "max"}).record
    assert record.status == "failed" and "no answer" in (record.reason or "") and record.fix == gpus.WAKE
    assert not made.changes() and len(made.calls()) <= 1


def test_persistence_that_is_ignored_is_seen(fake: MakeFake) -> None:
    fake(pm_way="ignore")
    record = apply({"graphics": "max"}).record
    assert (record.status, record.reason) == ("drifted", "GPU 0: persistence mode is off")


def test_a_single_look_is_no_evidence_of_a_lock(fake: MakeFake) -> None:
    """The driver's utilisation looks back over a second, its clock does not: the monitor's samples tell."""
    fake(lgc_way="ignore", util=90, sm_sequence="345")
    assert apply({"graphics": "1530MHz", "on_fail": "fail"}).record.status == "applied"


def test_persistence_can_be_turned_off_alone(fake: MakeFake) -> None:
    made = fake(pm=1)
    applied = apply({"persistence": False})
    assert (applied.record.status, made.get(0, "pm")) == ("applied", "0")
    assert applied.restore().restored is True and made.get(0, "pm") == "1"


def test_each_setting_has_its_values(fake: MakeFake) -> None:
    fake(options="-lgc -rgc -lmc -rmc -ac -rac", pm_way="ignore")
    record = apply({"graphics": "1536MHz"}).restore()
    values = {p.name: (p.wanted, p.before, p.verified, p.after) for p in record.parts}
    assert values == {
        "GPU 0 persistence": ("on", "off", "off", "off"),
        "GPU 0 graphics": ("1536 MHz", "345 MHz", "1530 MHz", "reset"),
    }
    fake_ac = apply({"graphics": "max", "applications": "always"}).restore().parts[-1]
    values_ac = (fake_ac.wanted, fake_ac.before, fake_ac.verified, fake_ac.after)
    assert values_ac == ("2619,1980 MHz", "2619,1980 MHz", "2619,1980 MHz", "2619,1980 MHz")


def test_a_gpu_of_the_plan_that_is_not_there(fake: MakeFake) -> None:
    made = fake(2, pm=1)
    options = {"graphics": "max", "devices": ["0", "7"]}
    checks = step(**options).checks(machine())
    assert [(check.verdict, check.message) for check in checks[:2]] == [
        ("ok", f"GPU 0 ({FakeGpus.uuid(0)}), read through NVML"),
        ("missing", "there is no GPU 7; there are 0-1"),
    ]
    record = apply(options).record
    assert (record.status, record.reason) == ("not_available", "GPU 7: there is no GPU 7; there are 0-1")
    assert "nvidia-smi -L" in (record.fix or "") and made.get(0, "lgc") == "1980"


def test_an_nvidia_smi_that_is_not_there_is_known_beforehand(fake: MakeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that got the driver's `compute` only."""
    fake(smi=False)
    monkeypatch.setattr(Machine, "find", lambda _self, _probe: None)
    monkeypatch.setattr(Machine, "in_container", lambda _self: "docker")
    monkeypatch.setattr("orchestrator.gpus._no_driver", lambda _machine: None)
    (check,) = step(graphics="max").checks(machine())
    assert check.verdict == "missing" and "clocks are set through it" in check.message
    assert "NVIDIA_DRIVER_CAPABILITIES" in (check.fix or "")
    record = apply({"graphics": "max"}).record
    assert (record.status, record.reason) == ("not_available", f"GPUs: {check.message}") and record.fix == check.fix


def test_the_lock_of_a_split_gpu_is_that_of_all_its_parts(fake: MakeFake) -> None:
    made = fake(1, pm=1, mig=2)
    record = apply({"graphics": "1530MHz"}, CUDA_VISIBLE_DEVICES=FakeGpus.mig_uuid(0, 1)).record
    assert record.status == "applied" and made.get(0, "lgc") == "1530"
    assert "is split (MIG): its clocks are those of all its parts" in (record.reason or "")


def test_of_a_program_whose_environment_is_hidden_all_gpus_are_meant(fake: MakeFake) -> None:
    made = fake(2, pm=1)
    here = machine()
    here.target_env, here.target_env_unknown = {}, "the environment of 7 can't be read from here, so all GPUs are meant"
    record = Applied(step(graphics="1530MHz"), here).record
    assert {made.get(n, "lgc") for n in (0, 1)} == {"1530"}
    assert (record.status, record.reason) == ("applied", here.target_env_unknown)


def test_without_gpus_it_is_not_available(fake: MakeFake) -> None:
    fake(no_driver=1)
    record = apply({"graphics": "max"}).record
    assert record.status == "not_available" and "couldn't communicate" in (record.reason or "")
    (check,) = step(graphics="max").checks(machine())
    assert check.verdict == "missing"


def test_a_target_without_gpus_has_no_clocks(fake: MakeFake) -> None:
    made = fake()
    record = apply({"graphics": "max"}, CUDA_VISIBLE_DEVICES="-1").record
    assert record.status == "not_available" and "shows the program no GPU" in (record.reason or "")
    assert not made.changes()


def test_wsl_has_its_clocks_in_windows(fake: MakeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fake()
    read = Machine.read
    monkeypatch.setattr(Machine, "read", lambda self, name: "5.15-microsoft-standard-WSL2" if name.endswith("osrelease") else read(self, name))  # fmt: skip # noqa: E501
    record = apply({"graphics": "max"}).record
    assert record.status == "not_available" and "Windows" in (record.reason or "") and not made.changes()


# ---------------------------------------------------------------- applications' clocks


def test_an_old_driver_has_applications_clocks(fake: MakeFake) -> None:
    """With a getter, so the former ones come back."""
    made = fake(options="-ac -rac", ac_gr=1410, pm=1)
    before = made.changeable()
    applied = apply({"graphics": "1530MHz"})
    assert applied.record.status == "applied", applied.record
    assert (made.get(0, "ac_gr"), made.get(0, "lgc")) == ("1530", "0")
    applied.restore()
    assert made.changeable() == before and made.changes()[-1].endswith("-ac 2619,1410")


def test_applications_clocks_at_their_default_are_reset(fake: MakeFake) -> None:
    made = fake(compute_cap="6.1", default_gr=1410, pm=1)
    applied = apply({"graphics": "1530MHz", "memory": "max"})
    assert made.get(0, "ac_gr") == "1530", "a GPU older than Volta"
    applied.restore()
    assert made.changes()[-1].endswith("-rac") and made.get(0, "ac_gr") == "0"


def test_without_ac_there_is_no_way_to_insist_on_it(fake: MakeFake) -> None:
    fake(options="-lgc -rgc -lmc -rmc", pm=1)
    record = apply({"graphics": "max", "applications": "always"}).record
    assert record.status == "not_available" and "has no -ac" in (record.reason or "")
    assert "applications: auto" in (record.fix or "")


def test_what_the_driver_does_not_confirm_has_drifted(fake: MakeFake) -> None:
    fake(options="-ac -rac", ac_way="ignore", pm=1)
    record = apply({"graphics": "1530MHz"}).record
    assert (record.status, record.reason) == (
        "drifted",
        "GPU 0: the applications' graphics clock is 1980 MHz, not 1530 MHz",
    )


def test_an_nvidia_smi_without_a_memory_lock(fake: MakeFake) -> None:
    fake(options="-lgc -rgc", pm=1)
    statuses = apply({"graphics": "max", "memory": "max"}).statuses()
    assert (statuses["GPU 0 graphics"], statuses["GPU 0 memory"]) == ("applied", "not_available")


# ---------------------------------------------------------------- a lock that seems to be there


@pytest.mark.parametrize(
    ("settings", "seen"),
    [({"graphics_mhz": 345, "clock_reasons": 1}, False), ({"graphics_mhz": 1410, "clock_reasons": 2}, True),
     ({"graphics_mhz": 1095, "clock_reasons": 2, "default_applications_graphics_mhz": 1095}, False),
     ({"graphics_mhz": 1410, "clock_reasons": 0, "utilization_pct": (0,)}, True),
     ({"graphics_mhz": 1980, "clock_reasons": 0, "utilization_pct": (0,)}, False),
     ({"graphics_mhz": 1410, "clock_reasons": 0, "utilization_pct": (80,)}, False), ({"graphics_mhz": 1410}, False)],
)  # fmt: skip
def test_signs_of_a_lock(settings: dict[str, Any], seen: bool) -> None:
    gpu = Gpu(0, "GPU-0", max_graphics_mhz=1980, supported={2619: (345, 1410, 1980)}, **settings)
    assert bool(lock_seen(gpu)) == seen


def test_a_former_lock_is_told_before_and_after(fake: MakeFake) -> None:
    made = fake(lgc=1200, lock_at_idle=1, pm=1)
    checks = step(graphics="max").checks(machine())
    assert checks[-1].verdict == "warn" and "1200 MHz" in checks[-1].message
    record = apply({"graphics": "1530MHz"}).restore()
    (graphics,) = (part for part in record.parts if part.name == "GPU 0 graphics")
    assert "former lock unknown" in (graphics.reason or "") and "1200 MHz" in (graphics.reason or "")
    assert made.get(0, "lgc") == "0"


# ---------------------------------------------------------------- during the run


def samples(uuid: str, clocks: list[int], use: list[int] | None = None, power_capped: int = 0) -> pd.DataFrame:
    """A reading every 200 ms; the first so many of them under the power cap."""
    rows = []
    for n, mhz in enumerate(clocks):
        values = {"sm_clock_mhz": mhz, "memory_clock_mhz": 2619, "gpu_util_pct": (use or [90] * len(clocks))[n],
                  "throttle_sw_power_cap": float(n < power_capped), "throttle_gpu_idle": 0.0}  # fmt: skip
        rows += [("p1-monitor", n * 200_000_000, "gpu", uuid, metric, float(v)) for metric, v in values.items()]
    rows.append(("p1-monitor", 0, "host", "", "cpu_pct", 12.0))
    return pd.DataFrame(rows, columns=["capture", "time_ns", "source", "subject", "metric", "value"])


@pytest.fixture
def before(fake: MakeFake) -> dict[str, Any]:
    fake()
    return step(graphics="1830MHz").before(machine())


def test_a_lock_that_does_not_hold_is_told_with_its_numbers(before: dict[str, Any]) -> None:
    """D31."""
    seen, judged = step(graphics="1830MHz").during(before, samples(FakeGpus.uuid(0), [1830, 1830, 1750, 1620, 1750, 1830], power_capped=3))  # fmt: skip # noqa: E501
    assert judged and judged.status == "drifted"
    assert judged.reason == (
        "clock lock not held: wanted 1830 MHz, saw 1620 / 1750 / 1830 MHz (min/median/max) under load, "
        "3 of 5 samples off; sw_power_cap in 33 % of these"
    )
    assert "power limit" in (judged.fix or "")
    assert seen[FakeGpus.uuid(0)]["graphics_mhz"] == {
        "wanted": 1830,
        "min": 1620,
        "median": 1750,
        "max": 1830,
        "off": 3,
    }
    assert seen[FakeGpus.uuid(0)]["held_down_pct"] == {"sw_power_cap": 33.3}


@pytest.mark.parametrize("clocks", [[1500] * 100, [1830] * 50 + [1500] * 50])
def test_what_was_there_too_seldom_is_not_blamed(before: dict[str, Any], clocks: list[int]) -> None:
    """Or only while the clock was as wanted."""
    seen, judged = step(graphics="1830MHz").during(before, samples(FakeGpus.uuid(0), clocks, power_capped=3))
    assert judged and "power" not in (judged.reason or "") and "DCGM" in (judged.fix or "")
    assert f"{clocks[1:].count(1500)} of 99 samples off" in (judged.reason or "")
    assert not seen[FakeGpus.uuid(0)]["held_down_pct"]


@pytest.mark.parametrize(
    ("clocks", "use"),
    [([1830] * 10, None), ([1830, 1815, 1830, 1845], None), ([345, 345, 345, 1830, 1830, 345], [0, 0, 50, 90, 90, 0]),
     ([1830] * 40 + [1200], None)],
)  # fmt: skip
def test_a_lock_that_holds_is_not_complained_of(
    before: dict[str, Any], clocks: list[int], use: list[int] | None
) -> None:
    """Within 2 %; at rest and while work begins a clock says nothing."""
    seen, judged = step(graphics="1830MHz").during(before, samples(FakeGpus.uuid(0), clocks, use))
    assert judged is None and seen[FakeGpus.uuid(0)]["graphics_mhz"]["median"] == 1830


def test_nothing_is_said_of_a_gpu_that_did_not_work(before: dict[str, Any]) -> None:
    wanted = step(graphics="1830MHz")
    said = "nvidia-smi said so; a lock can't be read back, and"
    idle = samples(FakeGpus.uuid(0), [345] * 9, [0] * 9)
    never = f"{said} GPU 0 was never 10 % busy in two samples running, of 9"
    assert wanted.during(before, idle) == ({}, Judged("applied", never))
    other = samples(FakeGpus.uuid(5), [345] * 9)
    assert wanted.during(before, other) == ({}, Judged("applied", f"{said} GPU 0 was not watched"))
    _, judged = wanted.during(before, idle[:0])
    assert judged and judged.reason == f"{said} no monitor watched it" and judged.fix
    assert step(persistence=True).during(step().before(machine()), idle) == ({}, None), "there is no lock"


# ---------------------------------------------------------------- `profrun env show`


def test_every_gpu_has_its_knobs(fake: MakeFake) -> None:
    fake(2, ac_gr=1410, ac_mem=2619)
    knobs = {knob.name: knob for knob in GpuClocks.knobs(Machine())}
    assert knobs["GPU 1 persistence"].value == "off" and knobs["GPU 0 graphics clock"].limits == "345-1980 MHz"
    assert knobs["GPU 0 applications' clocks"].value == "2619,1410 MHz" and knobs["GPU 0 persistence"].writer


def test_a_silent_driver_has_one_knob(fake: MakeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(nvml_hang=1)
    monkeypatch.setenv("PROFRUN_GPU_LIMIT_S", "0.5")
    (knob,) = GpuClocks.knobs(Machine())
    assert knob.value is None and knob.note == "no answer of the GPUs' driver in 0.5 s"


def test_a_step_knows_its_gpus_by_uuid(fake: MakeFake) -> None:
    fake(2)
    here = machine(CUDA_VISIBLE_DEVICES=FakeGpus.uuid(1)[:12])
    assert list(step(graphics="max").before(here)["gpus"]) == [FakeGpus.uuid(1)]
    assert gpus.selected(here.gpu_look, here.target_env).gpus[0].index == 1


def test_an_ordinary_user_learns_it_before_the_run(fake: MakeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    missing = Permission(False, "the root helper is not installed", "sudo install it")
    monkeypatch.setattr("orchestrator.privileged.available", lambda: missing)
    check = step(graphics="max").checks(machine())[-1]
    assert (check.verdict, check.fix) == ("warn", "sudo install it") and "only root may set clocks" in check.message
