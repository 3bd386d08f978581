"""Quantities are read as people write them, and written so that they read back as the same value."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from orchestrator import units
from orchestrator.units import Budget, Duration, Frequency, Percent, Size, Times


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30s", 30.0), ("5m", 300.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("200ms", 0.2), ("7", 7.0), (7, 7.0),
     (0.25, 0.25), ("10 min", 600.0), ("2d", 172800.0), ("3us", 3e-6), ("3µs", 3e-6), ("9ns", 9e-9), (0, 0.0)],
)  # fmt: skip
def test_durations(written: object, seconds: float) -> None:
    assert units.duration(written) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("read", "written", "message"),
    [
        (units.duration, "30 parsecs", "'parsecs' is no unit here; use one of ns, us, ms, s, m, min, h, d"),
        (units.duration, "soon", "'soon' is no quantity; write it like 30s or 5m"),
        (units.duration, "-5s", "'-5s' is no quantity; write it like 30s or 5m"),
        (units.duration, True, "write it like 30s or 5m"),
        (units.duration, None, "write it like 30s or 5m"),
        (units.duration, ["5s"], "write it like 30s or 5m"),
        (units.duration, "9" * 400, "the number is too large"),
        (units.duration, float("nan"), "nan is no quantity; write it like 30s or 5m"),
        (units.size, "9" * 400 + "MB", "the number is too large"),
        (units.frequency, "100rpm", "'rpm' is no unit here; use one of Hz, kHz, MHz, GHz"),
        (units.percent, "30", "'30' has no unit; write it like 3%"),
        (units.percent, 0.3, "0.3 has no unit; write it like 3%"),
        (units.percent, "130%", "'130%' is more than 100%"),
        (units.budget, "9" * 400 + "x", "the number is too large"),
        (units.budget, "0x", "a budget must be more than 0"),
        (units.budget, "0", "a budget must be more than 0"),
        (units.budget, "tenx", "'tenx' is no quantity; write it like 30s or 5m"),
    ],
)
def test_what_is_no_quantity_is_told(read: Callable[[object], object], written: object, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        read(written)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("type_", "written", "value", "back"),
    [
        (Duration, "90s", 90.0, "90s"),
        (Duration, "0s", 0.0, "0s"),
        (Duration, "1.53s", 1.53, "1530ms"),
        (Duration, "5ns", 5e-9, "5ns"),
        (Duration, "1234567.891s", 1234567.891, "1234567891ms"),
        (Frequency, "100Hz", 100.0, "100Hz"),
        (Frequency, "1.53GHz", 1.53e9, "1530MHz"),
        (Frequency, 0.5, 0.5, "0.5Hz"),
        (Size, "512MiB", 512 * 2**20, "512MiB"),
        (Size, "1.5KiB", 1536, "1536B"),
        (Size, 0, 0, "0B"),
        (Percent, "30%", 30.0, "30%"),
        (Budget, "2h", 7200.0, "2h"),
        (Budget, "10x", Times(10.0), "10x"),
        (Budget, "2.5×", Times(2.5), "2.5x"),
    ],
)
def test_a_value_is_written_in_human_units(type_: object, written: object, value: object, back: str) -> None:
    adapter = TypeAdapter(type_)
    assert adapter.validate_python(written) == value
    assert adapter.dump_python(value, mode="json") == back
    assert adapter.validate_python(back) == value


_POSITIVE = st.floats(min_value=1e-9, max_value=1e9, allow_nan=False)


@settings(deadline=None, max_examples=50)
@given(_POSITIVE)
def test_every_duration_reads_back_as_the_same(seconds: float) -> None:
    assert units.duration(units.write_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(_POSITIVE)
def test_every_frequency_reads_back_as_the_same(hertz: float) -> None:
    adapter = TypeAdapter(Frequency)
    assert adapter.validate_python(adapter.dump_python(hertz, mode="json")) == pytest.approx(hertz, rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.integers(min_value=0, max_value=2**60))
def test_every_size_reads_back_as_the_same(count: int) -> None:
    adapter = TypeAdapter(Size)
    assert adapter.validate_python(adapter.dump_python(count, mode="json")) == pytest.approx(count, rel=1e-15)


@settings(deadline=None, max_examples=50)
@given(st.one_of(_POSITIVE, st.builds(Times, _POSITIVE)))
def test_every_budget_reads_back_as_the_same(value: float | Times) -> None:
    adapter = TypeAdapter(Budget)
    back = adapter.validate_python(adapter.dump_python(value, mode="json"))
    assert type(back) is type(value)
    assert getattr(back, "factor", back) == pytest.approx(getattr(value, "factor", value), rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.one_of(st.text(max_size=30), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_nothing_but_a_validation_error_escapes(value: object) -> None:
    for type_ in (Duration, Frequency, Size, Percent, Budget):
        try:
            result = TypeAdapter(type_).validate_python(value)
        except ValidationError:
            continue
        assert math.isfinite(getattr(result, "factor", result))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1.534, "1.53 s"),
        (125, "2 m 5 s"),
        (11400, "3 h 10 m"),
        (0.0002, "200 us"),
        (0, "0 s"),
        (float("inf"), "unknown"),
    ],
)
def test_durations_are_shown_short(seconds: float, shown: str) -> None:
    assert units.show_duration(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(912, "912 B"), (1_400_000, "1.4 MB"), (2_000, "2 kB"), (0, "0 B")])
def test_bytes_are_shown_in_decimal_units(count: int, shown: str) -> None:
    assert units.show_bytes(count) == shown
