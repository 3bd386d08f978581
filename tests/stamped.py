"""A training program that notes with its own clock when it does what tools record; run as a target, it leaves its notes
in the file that it is given."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MISSING = "/nowhere/at-all"
"""Looked for in each step: a system call like no other."""
RANGE, RECORDED = "the program's own range", "the program's own function"
SLEEP_S, BUSY_S = 0.03, 0.3
BYTES = 96 << 20
"""In use while it is busy, and given back."""
STEPS, FIRST, LAST = 8, 3, 5
"""So many steps; the first and last of those that are noted."""

notes: list[tuple[str, int, int]] = []
"""What was done, and the times before and after it (ns since the Unix epoch)."""


@contextmanager
def noted(what: str) -> Iterator[None]:
    before = time.time_ns()
    yield
    notes.append((what, before, time.time_ns()))


def nvtx() -> ctypes.CDLL:
    """NVIDIA's library of ranges, where pip puts it."""
    files = (Path(place, "nvidia", "nvtx", "lib", "libnvtx3interop.so.1") for place in sys.path)
    return ctypes.CDLL(str(next(file for file in files if file.is_file())))


def busy() -> None:
    """Python code for a while."""
    end = time.perf_counter() + BUSY_S
    while time.perf_counter() < end:
        sum(range(1000))


def step(ranges: ctypes.CDLL) -> None:
    from torch.profiler import record_function

    with noted("open"), suppress(OSError):
        os.open(MISSING, os.O_RDONLY)
    with noted("range"):
        ranges.nvtxRangePushA(RANGE.encode())
        with noted("sleep"):
            time.sleep(SLEEP_S)
        ranges.nvtxRangePop()
    with noted("function"), record_function(RECORDED):
        time.sleep(SLEEP_S)
    held = bytearray(b"x") * BYTES
    with noted("busy"):
        busy()
    del held
    time.sleep(SLEEP_S)


def main(file: str) -> None:
    # without its compiler, torch takes half as long to start
    keep = {"disable": lambda function, *_, **__: function, "graph_break": lambda: None}
    sys.modules["torch._dynamo"] = types.SimpleNamespace(**keep)  # type: ignore[assignment]
    import torch

    torch.set_num_threads(1)
    ranges = nvtx()
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(STEPS):
        optimizer.zero_grad()
        model(torch.rand(8, 16)).sum().backward()
        if FIRST <= number <= LAST:
            step(ranges)
        else:
            time.sleep(SLEEP_S)
        optimizer.step()
    Path(file).write_text(json.dumps(notes))


if __name__ == "__main__":
    main(sys.argv[1])
