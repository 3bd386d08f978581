"""formats/sniff.py: told by content; whatever the bytes, there is an answer or a ParseError."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ParseError
from orchestrator.formats.sniff import HEAD_BYTES, kinds, sniff
from orchestrator.imported import KINDS


def of(path: Path, data: bytes | str) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return sniff(path).kind


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("perf-data", b"PERFILE2\x01\x02"),
        ("zip", b"PK\x03\x04...."),
        ("program", b"\x7fELF\x02"),
        ("pickle", b"\x80\x04\x95\x00."),
        ("binary", b"\x00\x01\x02\x03"),
        ("html", "<!DOCTYPE html><title>x</title>"),
        ("json", '{"a": 1}'),
        ("json", "[1, 2]"),
        ("text", "[3/8] some progress\n"),
        ("text", "hello world\n"),
        ("text", "epoch,loss,acc,lr,time\n1,0.5,0.3,0.1,12\n2,0.4,0.4,0.1,12\n"),
        ("json", '{"ph": "X"}'),
        ("kineto", '{"traceEvents": []}'),
        ("kineto", '[{"ph": "X", "cat": "Operator", "ts": 1}]'),
        ("speedscope", '{"profiles":[{"type":"sampled","samples":[]}],"shared":{"frames":[]}}'),
        ("perf-stat", '{"counter-value" : "1.0", "unit" : "msec", "event" : "task-clock"}\n'),
        ("perf-stat", "1.00;msec;task-clock;1002907;100.00;;\n"),
        ("perf-stat", "3.1,Joules,power/energy-pkg/,1002907,100.00,,\n"),
        ("perf-script", "python 12 cycles: \n\t          4141 main (/bin/python)\n"),
        ("strace-log", 'execve("/bin/true", ["true"], 0x7ff /* 3 vars */) = 0\n'),
        ("strace-log", '[pid 12] <... read resumed>"", 10) = 0\n'),
        ("strace-summary", "% time     seconds  usecs/call     calls    errors syscall\n------ -----\n"),
        ("folded", "a;b;c 12\n"),
        ("folded", "run (gevent/hub.py:582) 499\n"),
        ("ncu-csv", '==PROF== Connected\n"ID","Process ID","Process Name"\n'),
        ("ncu-log", "==PROF== Connected to process 1\n"),
        ("ncu-log", '"Process ID","Metric Name","Metric Unit","Minimum","Maximum","Average"\n'),
        ("ncu-log", '"#","Address","Source"\n'),
    ],
)
def test_by_content(tmp_path: Path, kind: str, data: bytes | str) -> None:
    assert of(tmp_path / "misleading.sqlite", data) == kind


def test_what_is_inside_of_gzip_counts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"a;b 1\n"))
    assert (sniff(path).kind, sniff(path).packed) == ("folded", True)


def test_databases_are_told_apart(tmp_path: Path) -> None:
    for table, kind in (("StringIds", "nsys-sqlite"), ("expert_systems_feedback", "dlprof"), ("other", "sqlite")):
        path = tmp_path / kind
        with sqlite3.connect(path) as db:
            db.execute(f"CREATE TABLE {table} (id INTEGER)")
        assert sniff(path).kind == kind
    damaged = tmp_path / "damaged"
    damaged.write_bytes((tmp_path / "nsys-sqlite").read_bytes()[:1000])
    assert sniff(damaged).kind == "nsys-sqlite", "its reader has to say what is left of it"


def test_only_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a;b 1\n" * HEAD_BYTES)
    with path.open("r+b") as file:
        file.truncate(1 << 34)  # sparse: 16 GiB, which nobody reads
    assert sniff(path).kind == "folded"


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "is empty"), (b" \n ", "nothing but blanks"), (b"\x1f\x8b\x00", "gzip")]
)
def test_nothing_to_look_at(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        of(tmp_path / "file", data)


def test_each_kind_is_either_read_or_refused_with_a_next_step() -> None:
    for kind in kinds():
        assert (kind.instead is None) == (kind.name in KINDS), kind.name


STARTS = st.sampled_from([b"", b"{", b"[", b"<", b"SQLite format 3\0", b"\x1f\x8b\x08\0", b"\x80\x04", b"==PROF== "])


@given(STARTS, st.binary(max_size=300))
def test_any_bytes_have_an_answer(tmp_path_factory: pytest.TempPathFactory, start: bytes, rest: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(start + rest)
    try:
        assert sniff(path).words
    except ParseError as error:
        assert "any" in str(error)
