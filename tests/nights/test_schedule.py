"""When a night begins: what a user may write, what cron and systemd are told, and when that is next."""

from __future__ import annotations

from datetime import datetime

import pytest

from orchestrator.nights import schedule


def test_a_time_of_day_comes_later_by_minutes_that_are_always_the_same_for_a_host() -> None:
    hosts = [schedule.read("02:30", f"node{n}", 15) for n in range(40)]
    assert {one.later_min for one in hosts} == set(range(16))
    assert hosts[7] == schedule.read("02:30", "node7", 15)
    assert hosts[7].fields == (str(30 + hosts[7].later_min), "2", "*", "*", "*")
    assert (
        hosts[7].says()
        == f"every night at 02:{30 + hosts[7].later_min}, {hosts[7].later_min} min of which are for this host"
    )
    assert schedule.read("02:30", "node7", 0).says() == "every night at 02:30"


def test_no_host_comes_so_late_that_it_is_another_day() -> None:
    assert {schedule.read("23:58", f"node{n}", 15).fields for n in range(40)} == {
        ("58", "23", "*", "*", "*"), ("59", "23", "*", "*", "*")
    }  # fmt: skip


def test_days_of_the_week_and_cron_s_own_fields() -> None:
    assert schedule.read("Mon-Fri 2:05", "a", 0).fields == ("5", "2", "*", "*", "mon-fri")
    assert schedule.read("*/10 1-3 * jan,jul 0", "a", 15).fields == ("*/10", "1-3", "*", "jan,jul", "0")
    assert schedule.read("* * * * *", "a", 15).says() == "at `* * * * *` (cron)"


@pytest.mark.parametrize(
    "text", ["", "2", "24:00", "2:60", "noon", "mo 02:30", "60 * * * *", "* * 0 * *", "5-1 * * * *", "*/0 * * * *",
             "* * * * * *", "x * * * *", "1,,2 * * * *", "02:30\n03:30"],
)  # fmt: skip
def test_what_is_no_time_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write 02:30, 'mon-fri 02:30'"):
        schedule.read(text, "a", 0)


@pytest.mark.parametrize(
    ("fields", "following"),
    [
        ("30 2 * * *", "2026-12-01 02:30"),
        ("0 13 * * *", "2026-11-30 13:00"),
        ("*/20 * * * *", "2026-11-30 12:20"),
        ("30 2 * * sun", "2026-12-06 02:30"),
        ("30 2 * * 7", "2026-12-06 02:30"),
        ("30 2 1 jan *", "2027-01-01 02:30"),
        ("30 2 13 * fri", "2026-12-04 02:30"),
        ("30 2 29 2 *", "2028-02-29 02:30"),
        ("5/30 2 * * *", "2026-12-01 02:05"),
        ("30 2 30 2 *", None),
    ],
)
def test_when_cron_starts_it_next(fields: str, following: str | None) -> None:
    when = schedule.next_after(fields.split(), datetime(2026, 11, 30, 12, 0, 30))
    assert (when and f"{when:%Y-%m-%d %H:%M}") == following


@pytest.mark.parametrize(
    ("fields", "calendar"),
    [
        ("30 2 * * *", "*-*-* 02:30:00"),
        ("30 2 * * mon-fri", "Mon,Tue,Wed,Thu,Fri *-*-* 02:30:00"),
        ("*/30 1-2 * * *", "*-*-* 01,02:00,30:00"),
        ("0 0 1 jan,jul *", "*-01,07-01 00:00:00"),
        ("0 0 * * 7", "Sun *-*-* 00:00:00"),
    ],
)
def test_systemd_is_told_the_same(fields: str, calendar: str) -> None:
    assert schedule.calendar(fields.split()) == calendar


def test_what_systemd_can_not_say() -> None:
    with pytest.raises(ValueError, match="two timers"):
        schedule.calendar(("30", "2", "13", "*", "fri"))
