"""Signals that profrun gets: each wish counted once, none lost."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from orchestrator import signals
from orchestrator.signals import Signals

now = SimpleNamespace(s=1000.0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now.s))


def get(*numbers: int, apart_s: float = signals.TWINS_S + 0.02) -> None:
    for number in numbers:
        signal.raise_signal(number)
        now.s += apart_s


def test_what_is_held_is_only_noted() -> None:
    with Signals() as got:
        got.held = True
        get(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        assert got.received == (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def test_the_second_ends_profrun_with_its_number() -> None:
    with Signals(), pytest.raises(KeyboardInterrupt) as raised:
        get(signal.SIGINT, signal.SIGTERM)
    assert raised.value.args == (signal.SIGTERM,)


def test_two_at_once_are_one_wish() -> None:
    """A closing terminal sends SIGHUP twice, `timeout` SIGTERM to the command and then to its group."""
    with Signals() as got:
        get(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, apart_s=signals.TWINS_S - 0.02)
        assert got.received == (signal.SIGHUP,)


def test_what_schedulers_send_is_for_the_target() -> None:
    with Signals() as got:
        get(signal.SIGUSR1, signal.SIGUSR2, apart_s=0)
        assert (got.for_target(), got.for_target()) == ([signal.SIGUSR1, signal.SIGUSR2], [])
        assert got.received == ()


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as got:
            get(signal.SIGHUP, apart_s=0)
            assert got.received == ()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_child_before_its_exec_takes_no_part() -> None:
    with Signals() as got:
        pid = os.fork()
        if pid == 0:
            get(signal.SIGINT, signal.SIGTERM)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert got.received == ()
