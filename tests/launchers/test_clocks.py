"""The line between the hosts of a job: clocks compared, words passed on, and each side noticing the other's end."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from orchestrator.launchers.clocks import GONE, Line, Reading, addresses, between
from orchestrator.model import Task
from orchestrator.standalone import hub
from orchestrator.tables import Table

HERE = ("127.0.0.1",)


@dataclass
class Meeting:
    """A running hub."""

    program: subprocess.Popen[str]
    port: int
    token: str

    def line(self, room: str) -> Line:
        found = Line.to(HERE, self.port, self.token, room)
        assert found is not None
        return found


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    program = subprocess.Popen([sys.executable, "-I", "-S", hub.__file__], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    port, token = program.stdout.readline().split()
    yield Meeting(program, int(port), token)
    program.terminate()
    program.wait(60)


def heard(line: Line) -> list[str]:
    """The next words, once there are some."""
    return until(line.heard)


def test_two_clocks_of_one_host_agree_within_the_error(meeting: Meeting) -> None:
    found = meeting.line("p01").reading()
    assert found is not None
    assert abs(found.offset_ns) <= found.error_ns


def test_what_is_said_reaches_a_room_also_those_who_come_later(meeting: Meeting) -> None:
    leader, first, other = meeting.line("leader"), meeting.line("p01"), meeting.line("p02")
    leader.say("say p01 stop 2 1")
    assert heard(first) == ["stop 2 1"]
    late = meeting.line("p01")
    assert heard(late) == ["stop 2 1"]
    leader.say("say p02 end")
    assert heard(other) == ["end"]


def test_what_is_said_amid_a_comparison_is_not_lost(meeting: Meeting) -> None:
    meeting.line("leader").say("say p01 stop 15 1")
    task = meeting.line("p01")
    assert task.reading() is not None
    assert heard(task) == ["stop 15 1"]


def test_all_hear_when_all_are_done(meeting: Meeting) -> None:
    first, second = meeting.line("p01"), meeting.line("p01")
    first.say("done 2")
    assert first.reading() is not None, "the hub has heard it by then"
    assert first.heard() == []
    second.say("done 2")
    assert heard(first) == heard(second) == ["done"]


def test_nobody_gets_in_without_the_token(meeting: Meeting) -> None:
    assert Line.to(HERE, meeting.port, "0" * 32, "p01") is None
    assert meeting.line("p01").reading() is not None, "and the others are served on"


def test_an_address_that_does_not_answer_is_passed_over(meeting: Meeting) -> None:
    assert Line.to(("no-such-host.invalid", *HERE), meeting.port, meeting.token, "p01") is not None


def test_only_on_the_leaders_host_the_hub_is_looked_for_there() -> None:
    assert addresses({"hostname": socket.gethostname(), "addresses": ["a"]}) == ["a", "127.0.0.1"]
    assert addresses({"hostname": "another", "addresses": ["a"]}) == ["a"]


def test_without_descriptors_nobody_is_let_in_and_those_inside_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    place = hub.Hub()
    monkeypatch.setattr(hub, "PAUSE_S", 0.0)
    with socket.create_connection(("127.0.0.1", place.port)) as knocking:
        listening, place._listening = place._listening, Full(place._listening)  # type: ignore[assignment]
        place.serve(60)
        assert place._open_at is not None, "the listener is set aside"
        place._listening = listening
        place.serve(60)
        knocking.sendall(f"{place.token} room\nt\n".encode())
        place.serve(60)
        assert knocking.recv(100).startswith(b"t ")
    place.close()


class Full:
    """A listener of a process that has no descriptor left."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real

    def fileno(self) -> int:
        return self._real.fileno()

    def accept(self) -> None:
        raise OSError(errno.EMFILE, "Too many open files")


def test_the_end_of_the_hub_is_heard_once(meeting: Meeting) -> None:
    line = meeting.line("p01")
    meeting.program.terminate()
    assert heard(line) == [GONE]
    assert line.heard() == []
    assert line.reading() is None


# ---------------------------------------------------------------- offsets


def test_without_a_reading_nothing_is_known() -> None:
    assert between([], 5) is None


def test_what_lies_within_the_errors_is_no_drift() -> None:
    found = between([Reading(0, 100, 30), Reading(10**9, 140, 10)], 5 * 10**8)
    assert found is not None
    assert (found.offset_ns, found.error_ns, found.drift) == (140, 30, 0.0)


clocks = st.tuples(
    st.integers(-(10**15), 10**15), st.floats(-5e-4, 5e-4), st.integers(10**9, 10**13), st.integers(1, 10**6)
)


@given(clocks)
def test_a_clock_that_runs_evenly_is_followed(clock: tuple[int, float, int, int]) -> None:
    """offset, drift, length of the pass, error: within it every moment is told to within the readings' errors."""
    offset_ns, drift, span_ns, error_ns = clock
    begin = 1_700_000_000_000_000_000

    def true_ns(at: int) -> int:
        return offset_ns + round(drift * (at - begin))

    ends = (begin, begin + span_ns)
    found = between([Reading(at, true_ns(at), error_ns) for at in ends], begin + span_ns // 2)
    assert found is not None
    task = Task(
        0, clock_offset_ns=found.offset_ns, clock_error_ns=found.error_ns, clock_drift=found.drift,
        clock_at_ns=found.at_ns,
    )  # fmt: skip
    for at in (*ends, begin + span_ns // 3):
        assert abs((task.led(at) or 0) - at - true_ns(at)) <= 2 * error_ns + 2


def test_tables_of_a_task_come_onto_the_leaders_clock() -> None:
    numpy = pytest.importorskip("numpy")
    task = Task(1, clock_offset_ns=1000, clock_error_ns=7, clock_drift=0.5, clock_at_ns=100)
    table = Table.of("steps", [(0, 100, 5), (1, 300, 5)], ("step", "start_ns", "duration_ns"), clock="epoch")
    table = replace(table, clock_error_ns=3)
    assert list(table.led_by(task).rows()) == [
        {"step": 0, "start_ns": 1100, "duration_ns": 5},
        {"step": 1, "start_ns": 1400, "duration_ns": 5},
    ]
    assert table.led_by(task).clock_error_ns == 7 + 3, "the two have nothing to do with each other"
    arrays = Table("steps", {"start_ns": numpy.array([100, 300])}, clock="epoch")
    assert arrays.led_by(task).columns["start_ns"].tolist() == [1100, 1400]
    relative = Table.of("gpu_kernels", [(5, 1)], ("start_ns", "duration_ns"))
    assert relative.led_by(task) is relative
    assert table.led_by(Task(1)) is table, "clocks that were not compared are left alone"


def test_a_clock_that_was_set_meanwhile_is_no_drift() -> None:
    found = between([Reading(0, 0, 50_000), Reading(10**10, 500_000_000, 50_000)], 5 * 10**9)
    assert found is not None and found.was_set and found.drift == 0
    assert found.error_ns == 500_050_000, "each moment lies within it, whenever that was"


def test_what_the_readings_errors_explain_is_no_clock_that_was_set() -> None:
    found = between([Reading(0, 0, 500_000), Reading(10**9, 1_050_000, 500_000)], 5 * 10**8)
    assert found is not None and not found.was_set
