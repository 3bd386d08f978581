"""formats/speedscope.py against a real file of py-spy, and small files with each of the format's shapes."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ParseError
from orchestrator.formats import speedscope
from orchestrator.render import flamegraph

FRAMES = [{"name": "main", "file": "a.py", "line": 1}, {"name": "work", "file": "a.py", "line": 5}, {"name": "c"}]


def write(path: Path, *profiles: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"shared": {"frames": FRAMES}, "profiles": profiles, **more}))
    return path


def stacks(path: Path) -> dict[str, tuple[Any, Any]]:
    return {row["stack"]: (row["samples"], row["weight_ns"]) for row in speedscope.read(path).tables[0].rows()}


def test_a_real_file(shared: Path) -> None:
    content = speedscope.read(shared / "data/pyspy/speedscope_0.4.1_3threads_1000hz.json.gz")
    assert (content.exporter, content.frames) == ("py-spy@0.4.1", 4086)
    assert [(unit, count, round(s, 6)) for _, unit, count, s in content.profiles] == [
        ("seconds", 5060, 5.06), ("seconds", 1, 0.001), ("seconds", 30, 0.03),
    ]  # fmt: skip
    table, functions = content.tables
    assert set(table.columns["thread"]) == {"thread 725838", "MLflowTelemetryConsumer-0", "GetTelemetryConfig"}
    assert sum(table.columns["samples"]) == 5091
    assert (
        max(functions.rows(), key=lambda row: row["self_samples"])["function"] == "_vectorized_ray_segment_intersection"
    )


def test_samples_in_time(tmp_path: Path) -> None:
    profile = {"type": "sampled", "unit": "milliseconds", "name": "t", "samples": [[0, 1], [0], [0, 1]]}
    path = write(tmp_path / "f", {**profile, "weights": [1, 2, 3]})
    assert stacks(path) == {"main (a.py:1);work (a.py:5)": (2, 4_000_000), "main (a.py:1)": (1, 2_000_000)}


def test_samples_without_a_unit_have_no_time(tmp_path: Path) -> None:
    path = write(tmp_path / "f", {"type": "sampled", "unit": "none", "samples": [[0, 2], [0]], "weights": [7, 1]})
    assert stacks(path) == {"main (a.py:1);c": (7, None), "main (a.py:1)": (1, None)}


def test_opened_and_closed_frames(tmp_path: Path) -> None:
    events = [("O", 0, 0), ("O", 1, 2), ("C", 1, 5), ("O", 2, 5), ("C", 0, 9)]
    profile = {"type": "evented", "unit": "microseconds", "name": 'Process 3 Thread 4 "x"'}
    listed = [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events]
    path = write(tmp_path / "f", {**profile, "events": listed})
    times = {"main (a.py:1)": 2000, "main (a.py:1);work (a.py:5)": 3000, "main (a.py:1);c": 4000}
    assert stacks(path) == {stack: (None, ns) for stack, ns in times.items()}
    row = next(iter(speedscope.read(path).tables[0].rows()))
    assert (row["pid"], row["thread"]) == (3, "x")


def test_our_own_files_come_back(tmp_path: Path) -> None:
    threads = {"python [7];MainThread": [("f (a.py:1);g (a.py:2)", 5_000_000), ("f (a.py:1)", 3_000_000)]}
    path = tmp_path / "f"
    path.write_text(flamegraph.speedscope(flamegraph.Stacks.of(threads), "x"))
    assert {stack: ns for stack, (_, ns) in stacks(path).items()} == dict(threads["python [7];MainThread"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no speedscope file"),
        ('{"shared": {"frames": []}, "profiles": []}', "no samples"),
        ('{"shared":{"frames":[]},"profiles":[{"type":"sampled","samples":[[3]],"weights":[1]}]}', "damaged"),
        (
            '{"shared":{"frames":[{"name":"a"}]},"profiles":[{"type":"sampled","samples":[[-1]],"weights":[1]}]}',
            "damaged",
        ),
        ('{"shared":{"frames":[]},"profiles":[{"type":"sampled","samples":[[]],"weights":[]}]}', "damaged"),
        ('{"shared":{"frames":[]},"profiles":[{"type":"sampled","unit":"bytes"}]}', "counts bytes"),
        ('{"shared":{"frames":[]},"profiles":[{"type":"sampled"},{"type":"sampled","unit":"seconds"}]}', "added up"),
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "f"
    path.write_text(text)
    with pytest.raises(ParseError, match=said):
        speedscope.read(path)


def test_a_cut_file_is_refused(tmp_path: Path, shared: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes((shared / "data/pyspy/speedscope_0.4.1_3threads_1000hz.json.gz").read_bytes()[:30_000])
    with pytest.raises(ParseError, match="damaged"):
        speedscope.read(path)
    path.write_bytes(gzip.compress(b"{}")[:-3] + b"xyz")
    with pytest.raises(ParseError):
        speedscope.read(path)


GOOD = json.dumps(
    {
        "shared": {"frames": FRAMES},
        "profiles": [
            {"type": "sampled", "unit": "seconds", "samples": [[0, 1]], "weights": [1.5]},
            {"type": "evented", "unit": "seconds", "events": [{"type": "O", "frame": 0, "at": 1}]},
        ],
    }
).encode()


@given(st.integers(0, len(GOOD)), st.binary(max_size=6), st.integers(0, 6))
def test_damage_is_a_parse_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, at: int, new: bytes, gone: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.speedscope"
    path.write_bytes(GOOD[:at] + new + GOOD[at + gone :])
    with suppress(ParseError):
        speedscope.read(path)
