"""When a night begins: `02:30`, `mon-fri 02:30` or cron's five fields; and by how much later on this host."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_RANGES: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()), ("hour", 0, 23, ()), ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("", *_MONTHS)), ("day of the week", 0, 7, _DAYS),
)  # fmt: skip
_CLOCK = re.compile(r"(?:(?P<days>[a-z,-]+)\s+)?(?P<hour>\d{1,2}):(?P<minute>\d{2})", re.I)
_HOW = "write 02:30, 'mon-fri 02:30', or cron's five fields in quotes"
_LOOK_AHEAD_DAYS = 4 * 366 + 1
"""Until the next 29th of February has come, at the latest."""


@dataclass(frozen=True)
class Schedule:
    """Cron's five fields, in the machine's local time; later_min: what of that is for this host."""

    fields: tuple[str, ...]
    later_min: int = 0

    def text(self) -> str:
        return " ".join(self.fields)

    def says(self) -> str:
        """For people: the time, and the minutes that are for this host."""
        minute, hour, *rest = self.fields
        if not (minute.isdigit() and hour.isdigit() and rest[:2] == ["*", "*"]):
            return f"at `{self.text()}` (cron)"
        days = "every night" if rest[2] == "*" else f"on {rest[2]}"
        later = f", {self.later_min} min of which are for this host" if self.later_min else ""
        return f"{days} at {int(hour):02}:{int(minute):02}{later}"


def read(text: str, host: str, jitter_min: int) -> Schedule:
    """The schedule that a user means. A time of day is moved by up to `jitter_min` minutes, always the same for a host,
    so that many hosts don't come at once; cron's own fields are taken as they are. Raises ValueError."""
    words = tuple(text.split())
    if len(words) == len(_RANGES):
        for word, about in zip(words, _RANGES, strict=True):
            _values(word, *about)
        return Schedule(words)
    found = _CLOCK.fullmatch(text.strip())
    if not found or int(found["hour"]) > 23 or int(found["minute"]) > 59:
        raise ValueError(f"{text!r} is no time: {_HOW}")
    days = (found["days"] or "*").lower()
    _values(days, *_RANGES[-1])
    at = 60 * int(found["hour"]) + int(found["minute"])
    later = min(of_host(host, jitter_min), 24 * 60 - 1 - at)  # beyond midnight it would be another day's
    return Schedule((str((at + later) % 60), str((at + later) // 60), "*", "*", days), later)


def of_host(host: str, most_min: int) -> int:
    """0 to `most_min` minutes, from the host's name alone."""
    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big") % (most_min + 1)


def next_after(fields: Sequence[str], now: datetime) -> datetime | None:
    """When cron starts it next, in local time; None: never (the 30th of February)."""
    minutes, hours, days, months, weekdays = (_values(f, *about) for f, about in zip(fields, _RANGES, strict=True))
    either = not fields[2].startswith("*") and not fields[4].startswith("*")  # cron(5): then one of the two is enough
    for day in _days(now):
        in_month, in_week = day.day in days, (day.weekday() + 1) % 7 in {number % 7 for number in weekdays}
        if day.month not in months or not (in_month or in_week if either else in_month and in_week):
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                if (when := day.replace(hour=hour, minute=minute)) > now:
                    return when
    return None


def _days(now: datetime) -> Iterator[datetime]:
    first = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=n) for n in range(_LOOK_AHEAD_DAYS))


def _values(field: str, what: str, low: int, high: int, names: Sequence[str]) -> frozenset[int]:
    """The numbers that a field stands for. Raises ValueError."""
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        try:
            a = low if span == "*" else _number(first, names)
            b = high if span == "*" or (slash and not dash) else _number(last, names) if dash else a
            numbers = range(a, b + 1, int(step) if slash else 1)
        except ValueError:
            numbers = range(0)
        if not numbers or numbers[0] < low or numbers[-1] > high:
            raise ValueError(f"{part!r} is no {what}: {_HOW}")
        found |= set(numbers)
    return frozenset(found)


def _number(word: str, names: Sequence[str]) -> int:
    return names.index(word.lower()) if word and word.lower() in names else int(word)


def calendar(fields: Sequence[str]) -> str:
    """The same for systemd's OnCalendar= (systemd.time(7)). Raises ValueError for what that can't say."""
    minute, hour, day, month, weekday = fields
    if not day.startswith("*") and not weekday.startswith("*"):
        raise ValueError("systemd has no `on this day of the month or of the week`: write two timers")
    numbers = {number % 7 for number in _values(weekday, *_RANGES[-1])}
    days = "" if len(numbers) == 7 else ",".join(_DAYS[n].capitalize() for n in sorted(numbers)) + " "
    months, dates, hours, minutes = (
        _listed(field, about) for field, about in zip((month, day, hour, minute), (3, 2, 1, 0), strict=True)
    )
    return f"{days}*-{months}-{dates} {hours}:{minutes}:00"


def _listed(field: str, about: int) -> str:
    return "*" if field == "*" else ",".join(f"{number:02}" for number in sorted(_values(field, *_RANGES[about])))
