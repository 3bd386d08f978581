"""`profrun env show`: what is read, what is told as one, and what the user sees."""

from __future__ import annotations

import fcntl
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import journal, kernel, knobs, privileged, registry
from orchestrator.env_steps.base import Step
from orchestrator.machine import Machine, Permission
from orchestrator.model import Knob

CPU = "/sys/devices/system/cpu"


def machine(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root=root)


def values(found: Iterator[Knob]) -> dict[str, tuple[str | None, str | None, str | None]]:
    return {knob.name: (knob.value, knob.limits, knob.note) for knob in found}


# ---------------------------------------------------------------- what no step sets


def test_the_kernels_numbers_come_with_their_meaning(tmp_path: Path) -> None:
    here = machine(
        tmp_path,
        {
            "proc/sys/kernel/perf_event_paranoid": "4\n",
            "proc/sys/kernel/yama/ptrace_scope": "1\n",
            "proc/sys/kernel/randomize_va_space": "2\n",
            "proc/sys/kernel/osrelease": "6.1.0-9-amd64\n",
            "boot/config-6.1.0-9-amd64": "CONFIG_HZ_250=y\nCONFIG_HZ=250\n",
        },
    )
    assert values(kernel.kernel(here)) == {
        "perf_event_paranoid": ("4 (only root may use perf)", "-1, 0, 1, 2, 3, 4", None),
        "ptrace_scope": ("1 (a program may trace what it has started)", "0, 1, 2, 3", None),
        "address randomisation": ("2 (stack, libraries and heap move)", "0, 1, 2", None),
        "timer": ("250 Hz", None, None),
    }


def test_the_kernel_keeps_its_own_configuration(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(b"CONFIG_HZ=1000\n"))
    assert values(kernel.kernel(Machine(root=tmp_path))) == {"timer": ("1000 Hz", None, None)}
    (tmp_path / "proc/config.gz").write_bytes(b"no gzip")
    assert values(kernel.kernel(Machine(root=tmp_path))) == {}


def test_memory(tmp_path: Path) -> None:
    here = machine(
        tmp_path,
        {
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "proc/sys/kernel/numa_balancing": "1\n",
            "proc/sys/vm/swappiness": "60\n",
            "proc/meminfo": "MemTotal: 100 kB\nSwapTotal:  8000000 kB\nSwapFree:   6000000 kB\n",
        },
    )
    found = values(kernel.memory(here))
    assert found["huge pages"] == ("madvise", "always, madvise, never", None)
    assert found["NUMA balancing"][0] == "1 (pages move to where they are used)"
    assert found["swap"][0] == "2.05 GB of 8.19 GB in use"
    assert values(kernel.memory(machine(tmp_path, {"proc/meminfo": "SwapTotal: 0 kB\nSwapFree: 0 kB\n"})))["swap"] == (
        "none",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
          "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, "1.5 CPUs"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, "0.5 CPUs"),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/job\n0::/\n", "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "400000\n",
          "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n"}, "4 CPUs"),
        ({"proc/self/cgroup": "4:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_smallest_quota_on_the_way_up_counts(tmp_path: Path, files: dict[str, str], quota: str | None) -> None:
    found = values(kernel.processors(machine(tmp_path, files)))
    assert found.get("CPU quota", (None,))[0] == quota


def test_processors(tmp_path: Path) -> None:
    clock = "sys/devices/system/clocksource/clocksource0"
    here = machine(
        tmp_path,
        {
            "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3\n",
            "sys/devices/system/cpu/online": "0-7\n",
            "sys/devices/system/cpu/isolated": "6-7\n",
            f"{clock}/current_clocksource": "hpet\n",
            f"{clock}/available_clocksource": "tsc hpet acpi_pm\n",
        },
    )
    assert values(kernel.processors(here)) == {
        "usable CPUs": ("0-3", "0-7", "fewer than there are"),
        "isolated CPUs": ("6-7", None, "set at boot: nothing runs there unless it is told to"),
        "clock source": ("hpet", "tsc, hpet, acpi_pm", "reading the time takes a system call"),
    }


def test_services_that_change_settings_are_named(tmp_path: Path) -> None:
    rest = " ".join(["0"] * 30)
    files = {
        f"proc/{pid}/stat": f"{pid} ({name}) S 1 {rest}\n"
        for pid, name in ((9, "tuned"), (10, "power-profiles-"), (11, "python"), (12, "mytuned"))
    }
    assert [(knob.name, knob.value) for knob in kernel.services(machine(tmp_path, files))] == [
        ("tuned", "runs, pid 9"),
        ("power-profiles-", "runs, pid 10"),
    ]


def test_what_this_kernel_lacks_is_left_out(tmp_path: Path) -> None:
    here = Machine(root=tmp_path)
    assert [*kernel.processors(here), *kernel.memory(here), *kernel.kernel(here), *kernel.services(here)] == []


def test_a_setting_that_nobody_may_write_says_so(tmp_path: Path) -> None:
    here = machine(tmp_path, {"proc/sys/kernel/nmi_watchdog": "0"})
    (tmp_path / "proc/sys/kernel/nmi_watchdog").chmod(0o444)
    assert next(kernel.kernel(here)).writer == "nobody: read-only"


# ---------------------------------------------------------------- all together


class Fine(Step):
    use: str = "cpu_frequency"

    @classmethod
    def knobs(cls, machine: Machine) -> list[Knob]:
        return [
            Knob(f"policy{n} governor", "powersave", "performance, powersave", "root",
                 f"{CPU}/cpufreq/policy{n}/scaling_governor") for n in range(4)
        ]  # fmt: skip


class Odd(Step):
    use: str = "odd"

    @classmethod
    def knobs(cls, machine: Machine) -> list[Knob]:
        raise RuntimeError("no such bus")


class Own(Step):
    use: str = "fan"

    @classmethod
    def knobs(cls, machine: Machine) -> list[Knob]:
        return [Knob("fan 1 speed", None, writer="nobody: the firmware sets it", note="[bold] is no markup")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    steps: dict[str, type[Step]] = {"cpu_frequency": Fine, "fan": Own, "odd": Odd}
    monkeypatch.setattr(registry, "environment_names", lambda: list(steps))
    monkeypatch.setattr(registry, "environment_step", steps.__getitem__)
    monkeypatch.setattr(privileged, "available", lambda: Permission(False, "not installed", privileged.fix()))
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    return machine(tmp_path / "root", {"proc/sys/vm/swappiness": "60\n"})


def test_what_there_is_by_groups(here: Machine) -> None:
    found = knobs.collect(here)
    assert [(group.name, len(group.knobs)) for group in found.groups] == [("CPU", 4), ("memory", 1), ("fan", 1)]
    assert found.troubles == ("odd: its settings can't be read: RuntimeError: no such bus",)


def test_the_text(here: Machine) -> None:
    text = knobs.as_text(knobs.collect(here), width=100)
    assert text.splitlines()[:9] == [
        "                      now        set by  possible",
        "CPU",
        "  policy0-3 governor  powersave  root    performance, powersave",
        "",
        "memory",
        "  swappiness          60         you     0 to 200",
        "",
        "fan",
        "  fan 1 speed         unknown    nobody  [bold] is no markup; the firmware sets it",
    ]
    assert "What could not be read:\n  odd: its settings" in text
    assert "not installed; an administrator can change that once and for all:\n  sudo install -D" in text
    assert "\x1b" not in text
    assert "\x1b" in knobs.as_text(knobs.collect(here), width=100, color=True)


def test_on_a_narrow_terminal_lines_wrap_and_no_word_is_cut() -> None:
    limits = "default, performance, balance_performance, balance_power, power"
    knob = Knob("policy0 energy preference", "balance_performance", limits, "nobody: read-only file system")
    text = knobs.as_text(knobs.Found((knobs.Group("CPU", (knob,)),)), width=80)
    assert "…" not in text and text.count("balance_performance") == 2
    assert max(map(len, text.splitlines())) <= 80


def test_with_the_root_helper_it_is_who_sets_them(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileged, "available", lambda: Permission(True, "it answers"))
    found = knobs.collect(here)
    assert {knob.writer for knob in found.groups[0].knobs} == {"the root helper"}
    assert found.why_not_root is None


def test_the_data_is_what_was_read_knob_by_knob(here: Machine) -> None:
    data = json.loads(knobs.as_json(knobs.collect(here)))
    assert data["schema"] == "profrun/knobs/1"
    assert [knob["name"] for knob in data["groups"][0]["knobs"]] == [f"policy{n} governor" for n in range(4)]
    assert data["groups"][2]["knobs"][0]["value"] is None


@pytest.mark.parametrize(
    ("names", "values_", "shown"),
    [
        (["cpu0 C1", "cpu1 C1", "cpu3 C1"], "aaa", ["cpu0-1,3 C1"]),
        (["policy0 max", "policy1 max", "policy2 max"], "aba", ["policy0,2 max", "policy1 max"]),
        (["cpu0 C1", "cpu0 C6", "cpu1 C1", "cpu1 C6"], "aaaa", ["cpu0-1 C1", "cpu0-1 C6"]),
        (["GPU 0 persistence", "GPU 1 persistence"], "aa", ["GPU 0-1 persistence"]),
        (["GPU 0", "GPU 0 pm", "GPU 1", "GPU 1 pm"], "abcb", ["GPU 0", "GPU 1", "GPU 0-1 pm"]),
        (["turbo", "SMT"], "aa", ["turbo", "SMT"]),
    ],
)
def test_equal_rows_are_told_once(names: list[str], values_: str, shown: list[str]) -> None:
    rows = [Knob(name, value, path=f"/{name}") for name, value in zip(names, values_, strict=True)]
    assert [knob.name for knob in knobs.fold(rows)] == shown


def test_runs_that_hold_something_and_runs_that_died_are_named(here: Machine, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    live = journal.create(journal.about("live", "/r/live", ["cpu:policy0", "cpu:policy1"]))
    dead: Any = journal.create(journal.about("dead", "/r/dead\x1b[2J", ["cpu:policy2"]))
    dead.close()
    found = knobs.collect(here)
    assert [line.partition(" (")[0] for line in found.held] == ["cpu:policy0-1: /r/live"]
    assert [line.partition(" (")[0] for line in found.left] == ["/r/dead\x1b[2J"]
    assert "put back by `profrun env restore`:\n  /r/dead?[2J (" in knobs.as_text(found, width=100)
    with dead.path.open() as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was let go: the next start can mend it
    live.close()


def test_this_machine_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: nothing raises, and what is shown is what the kernel says."""
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path))  # without what runs of other tests could not undo
    text = knobs.as_text(knobs.collect(Machine()), width=110)
    swappiness = Path("/proc/sys/vm/swappiness").read_text().strip()
    assert any(line.split()[:2] == ["swappiness", swappiness] for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 110 or "sudo install" in text
