"""Environment step `quiet_services`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.proc import FakeProc
from pydantic import ValidationError

from orchestrator.env_steps.quiet_services import QuietServices
from orchestrator.machine import Machine
from orchestrator.model import Judged, Wait

US = os.getpid()


def step(**options: Any) -> QuietServices:
    return QuietServices.model_validate({"use": "quiet_services", **options})


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    """A machine with the daemons that are always there."""
    found = FakeProc(tmp_path)
    found.process(2, "kthreadd", parent=0)
    found.process(20, "cron", "/usr/sbin/cron", "-f")
    found.process(21, "snapd", "/usr/lib/snapd/snapd")
    found.process(22, "unattended-upgr", "/usr/bin/python3", "unattended-upgrade-shutdown", "--wait-for-signal")
    found.process(30, "python", "python", "rsync_free.py")
    return found


@pytest.fixture
def meanwhile(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What happens while the step sleeps."""

    def happens(**what: Any) -> None:
        monkeypatch.setattr(
            "orchestrator.env_steps.quiet_services.time.sleep", lambda seconds: fake.passes(seconds, **what)
        )

    happens()
    return happens


def running(one: QuietServices, machine: Machine) -> list[tuple[str, int]]:
    return [(found["what"], found["pid"]) for found in one.look(machine)["running"]]


def test_daemons_at_rest_are_no_noise(fake: FakeProc, meanwhile: Callable[..., None]) -> None:
    one = step(wait="5m")
    seen = one.look(fake.machine)
    assert seen == {"running": [], "processes": 6, "notes": [], "soon": []}
    assert one.judge(seen, seen) == Judged("already")
    assert one.apply(seen) == (Wait(300.0, 1.0),)


def test_a_daemon_counts_while_it_works(fake: FakeProc, meanwhile: Callable[..., None]) -> None:
    fake.write("proc/21/cgroup", "1:cpu:/elsewhere\n0::/system.slice/snapd.service\n")
    meanwhile(used={21: 0.4})
    one = step()
    busy = one.look(fake.machine)
    assert one.judge(busy, busy) == Judged(
        "failed",
        "at work now: package update: pid 21 (root, /usr/lib/snapd/snapd) 40 % of a core",
        fix="wait for it (`wait: 10m`), or stop it for the run: `systemctl stop snapd.service`, or let it be by name "
        "(`allow: [NAME]`)",
    )
    meanwhile()
    assert one.judge(busy, one.verify(fake.machine)) == Judged("applied")


def test_a_job_of_cron_with_all_it_started_is_told_once(fake: FakeProc, meanwhile: Callable[..., None]) -> None:
    fake.process(40, "CRON", "/usr/sbin/CRON", "-f", parent=20)
    fake.process(41, "sh", "/bin/sh", "-c", "updatedb; DB_PASSWORD=hunter22 backup", parent=40)
    fake.process(42, "updatedb.plocat", "updatedb.plocate", parent=41)
    meanwhile(used={41: 0.1, 42: 0.8})
    (found,) = step().look(fake.machine)["running"]
    assert found == {
        "what": "cron job",
        "pid": 41,
        "user": "root",
        "command": "/bin/sh -c updatedb; DB_PASSWORD=[redacted] backup",
        "core_pct": 90.0,
        "unit": None,
    }


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("updatedb", "file index"),
        ("apt-get", "package update"),
        ("dpkg", "package update"),
        ("mandb", "manual index"),
        ("restic", "backup"),
        ("rsync", "backup"),
        ("fstrim", "disk upkeep"),
        ("btrfs", "disk upkeep"),
        ("dkms", "driver build"),
    ],
)
def test_jobs_count_as_long_as_they_are_there(
    fake: FakeProc, meanwhile: Callable[..., None], name: str, what: str
) -> None:
    fake.process(50, name, f"/usr/bin/{name}")
    assert running(step(), fake.machine) == [(what, 50)]
    assert running(step(allow=[f"{name}$"]), fake.machine) == []


def test_a_run_that_cron_started_is_not_in_its_own_way(fake: FakeProc, meanwhile: Callable[..., None]) -> None:
    fake.process(40, "cron", "/usr/sbin/CRON", parent=20)
    fake.process(41, "sh", "/bin/sh", "-c", "profrun nightly", parent=40)
    fake.process(US, "python", "python", "profrun", parent=41)
    fake.process(US + 1, "rsync", "rsync", parent=US)
    fake.process(43, "rsync", "rsync", "of the target")
    fake.machine.target_pids = (43,)
    assert running(step(), fake.machine) == []
    fake.process(44, "sh", "/bin/sh", "-c", "another job", parent=40)
    assert running(step(), fake.machine) == [("cron job", 44)]


MDSTAT = """Personalities : [raid1]
md1 : active raid1 sdb2[1] sda2[0]
      1048512 blocks [2/2] [UU]
      resync=DELAYED
md0 : active raid1 sdb1[1] sda1[0]
      976630464 blocks super 1.2 [2/2] [UU]
      [==>..................]  check = 12.6% (123456/976630464) finish=82.2min speed=164000K/sec
unused devices: <none>
"""


def test_an_array_that_is_checked(fake: FakeProc, meanwhile: Callable[..., None]) -> None:
    fake.write("proc/mdstat", MDSTAT)
    judged = step().objection(step().look(fake.machine))
    assert judged and judged.reason == "at work now: RAID check of md0, 12.6 % done"


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        ("0::/system.slice/apt-daily.service", "apt-daily.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/tracker.service", "--user tracker.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
    ],
)
def test_the_unit_to_stop(fake: FakeProc, meanwhile: Callable[..., None], group: str, unit: str | None) -> None:
    fake.process(50, "rsync", "rsync")
    fake.write("proc/50/cgroup", group + "\n")
    assert step().look(fake.machine)["running"][0]["unit"] == unit


# ---------------------------------------------------------------- what is about to begin


@pytest.fixture
def systemctl(fake: FakeProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a systemctl into PATH that prints a text, on a machine with systemd."""
    (fake.root / "run/systemd/system").mkdir(parents=True)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def prints(text: str) -> None:
        program = folder / "systemctl"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == ['list-timers', '--all', '--output=json']\n"
            f"print({text!r})\n"
        )
        program.chmod(0o755)

    return prints


def test_timers_of_the_next_hour(
    fake: FakeProc, meanwhile: Callable[..., None], systemctl: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time())
    monkeypatch.setattr("orchestrator.env_steps.quiet_services.time.time", lambda: float(now))
    due = {"apt-daily.timer": now + 720, "fstrim.timer": now + 86_400, "late.timer": now - 5}
    listed = [{"unit": unit, "next": at * 10**6, "left": 1} for unit, at in due.items()]
    systemctl(json.dumps([*listed, {"unit": "never.timer", "next": None}, "what"]))
    one = step()
    seen = one.look(fake.machine)
    assert seen["soon"] == [{"timer": "apt-daily.timer", "in_s": 720}]
    assert one.judge(seen, one.verify(fake.machine)) == Judged(
        "already",
        "due within the hour: apt-daily.timer in 12 m",
        fix="stop it for the run: {use: shell, run: [systemctl, stop, apt-daily.timer], undo: [systemctl, start, "
        "apt-daily.timer]}",
    )


@pytest.mark.parametrize("text", ["NEXT LEFT LAST", "", "{}", "null"])
def test_a_systemctl_without_json(
    fake: FakeProc, meanwhile: Callable[..., None], systemctl: Callable[[str], None], text: str
) -> None:
    systemctl(text)
    assert step().look(fake.machine)["soon"] == []


# ---------------------------------------------------------------- where nothing can be seen


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.env_steps.quiet_services.time.sleep", lambda _: None)
    one, machine = step(), Machine(root=tmp_path / "nowhere")
    seen = one.look(machine)
    assert one.judge(seen, seen) == Judged("not_available", "/proc does not list the processes of this machine")
    assert [check.verdict for check in one.checks(machine)] == ["missing"]


def test_what_hides_is_said(fake: FakeProc, meanwhile: Callable[..., None]) -> None:
    fake.ends(1)
    seen = step().look(fake.machine)
    assert step().judge(seen, seen) == Judged(
        "already", "processes of other users can't be seen from here (/proc is mounted with hidepid)"
    )


def test_this_machine() -> None:
    one = step(over="0.1s")
    assert one.checks(Machine()) == []
    seen = one.look(Machine())
    assert json.loads(json.dumps(seen)) == seen
    assert one.judge(seen, seen) is not None


@pytest.mark.parametrize("options", [{"allow": ["["]}, {"over": "30s"}, {"stop": True}])
def test_what_is_no_option(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)
