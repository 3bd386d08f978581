"""What the target reads and what the user sees of its output."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TextIO, cast

import pytest

from orchestrator.stdio import Lenient, Relay, Stdin


@pytest.fixture
def stdin_pipe(monkeypatch: pytest.MonkeyPatch) -> int:
    """Puts a pipe in the place of stdin; gives its write end."""
    saved = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    yield write_end  # type: ignore[misc]
    os.dup2(saved, 0)


def test_a_pipe_is_passed_on_and_replayed(tmp_path: Path, stdin_pipe: int) -> None:
    stdin = Stdin(tmp_path / "spool", passes=3)
    first = stdin.open()
    os.write(stdin_pipe, b"one ")
    stdin.pump()
    assert os.read(first, 99) == b"one "
    os.write(stdin_pipe, b"two")
    os.close(stdin_pipe)
    stdin.pump()
    stdin.pump()
    assert os.read(first, 99) == b"two"
    assert os.read(first, 99) == b""
    for _ in range(2):
        assert os.read(stdin.open(), 99) == b"one two"


def test_more_than_a_pipe_holds_arrives_whole(tmp_path: Path, stdin_pipe: int) -> None:
    data = os.urandom(1 << 20)

    def feed() -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(stdin_pipe, view) :]
        os.close(stdin_pipe)

    threading.Thread(target=feed, daemon=True).start()
    stdin, got = Stdin(tmp_path / "spool", passes=2), b""
    first = stdin.open()
    os.set_blocking(first, False)
    while len(got) < len(data):
        stdin.pump()
        try:
            got += os.read(first, 1 << 16)
        except BlockingIOError:
            continue
    assert got == data
    assert (tmp_path / "spool").read_bytes() == data


def test_a_target_that_stops_reading_is_no_error(tmp_path: Path, stdin_pipe: int) -> None:
    stdin = Stdin(tmp_path / "spool", passes=2)
    os.close(stdin.open())
    os.write(stdin_pipe, b"unread")
    stdin.pump()
    stdin.pump()
    os.close(stdin_pipe)
    assert stdin.watched() == ([], []), "there is nothing left to hand on"


def test_a_file_is_read_from_where_it_stood_by_every_pass(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"header\nbody")
    saved = os.dup(0)
    fd = os.open(tmp_path / "in", os.O_RDONLY)
    try:
        os.dup2(fd, 0)
        os.lseek(0, 7, os.SEEK_SET)
        stdin = Stdin(tmp_path / "spool", passes=2)
        assert [os.read(stdin.open(), 99) for _ in range(2)] == [b"body", b"body"]
    finally:
        os.dup2(saved, 0)


def test_the_relay_passes_on_everything_once(tmp_path: Path) -> None:
    log, shown = tmp_path / "log", tmp_path / "shown"
    log.write_bytes(b"")
    out = os.open(shown, os.O_WRONLY | os.O_CREAT)
    relay = Relay(log, out)
    for part in (b"one\n", b"\xff\x00", b"x" * 3_000_000):
        with log.open("ab") as file:
            file.write(part)
        relay.forward()
    relay.close()
    assert shown.read_bytes() == log.read_bytes() + b"\n", "what profrun says next begins a line of its own"


def test_the_relay_tells_before_it_writes_to_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    main, other = os.openpty()
    told: list[bool] = []
    relay = Relay(tmp_path / "log", other, told.append)
    for part in (b"step 1\n", b"bar 10 %"):
        (tmp_path / "log").open("ab").write(part)
        relay.forward()
    assert told == [False, True]
    relay.close()
    assert told == [False, True, False]
    shown = b""
    while not shown.endswith(b"bar 10 %\r\n"):
        shown += os.read(main, 99)
    os.close(main)
    os.close(other)


def test_a_reader_that_does_not_read_never_blocks_the_relay(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 1_000_000)
    read_end, write_end = os.pipe()
    relay = Relay(tmp_path / "log", write_end)
    relay.forward()  # fills the pipe and comes back
    os.close(read_end)
    relay.close()  # the reader has gone: no error
    assert relay._open is False


def test_stdin_that_can_not_be_kept_is_given_to_the_first_pass_only(tmp_path: Path, stdin_pipe: int) -> None:
    stdin = Stdin(tmp_path / "missing" / "spool", passes=2)
    first = stdin.open()
    os.write(stdin_pipe, b"data")
    stdin.pump()
    assert os.read(first, 99) == b"data"
    assert "could not be kept: No such file" in str(stdin.lost)
    os.close(stdin_pipe)


def test_a_file_that_is_not_ours_to_open_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "in").write_bytes(b"header\nbody")
    saved, fd = os.dup(0), os.open(tmp_path / "in", os.O_RDONLY)
    try:
        os.dup2(fd, 0)
        os.lseek(0, 7, os.SEEK_SET)
        stdin = Stdin(tmp_path / "spool", passes=2)
        monkeypatch.setattr(os, "open", refuse)
        assert [os.read(stdin.open(), 99) for _ in range(2)] == [b"body", b"body"]
    finally:
        os.dup2(saved, 0)


def test_a_target_that_reads_fast_is_waited_for_and_not_polled(tmp_path: Path, stdin_pipe: int) -> None:
    stdin = Stdin(tmp_path / "spool", passes=2)
    assert stdin.watched() == ([], [])
    read_end = stdin.open()
    assert stdin.watched() == ([0], [])
    for _ in range(2):  # the second does not fit into the pipe
        os.write(stdin_pipe, bytes(1 << 16))
        stdin.pump()
    assert [len(fds) for fds in stdin.watched()] == [0, 1]
    os.close(read_end)
    os.close(stdin_pipe)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_reader_that_has_stopped_is_given_up(tmp_path: Path, kind: str) -> None:
    (tmp_path / "log").write_bytes(b"x" * 1_000_000)
    read_end, write_end = os.pipe() if kind == "pipe" else os.openpty()
    looks = iter([False, True])
    relay = Relay(tmp_path / "log", write_end)
    relay.close(lambda: next(looks, True))
    assert len(os.read(read_end, 1 << 20)) > 0


def test_somebodys_non_blocking_stdout_gets_everything(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    (tmp_path / "log").write_bytes(data)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(read_end, 1 << 16), b"")))
    reader.start()
    Relay(tmp_path / "log", write_end).close()
    os.close(write_end)
    reader.join()
    assert b"".join(got).startswith(data)


def test_a_stream_without_a_reader_is_no_reason_to_stop() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    plain = os.fdopen(write_end, "w", buffering=1)
    stream = Lenient(plain)
    print("gone", file=cast(TextIO, stream), flush=True)
    assert isinstance(stream.error, BrokenPipeError)
    assert not stream.isatty()
    with pytest.raises(BrokenPipeError):
        plain.close()
