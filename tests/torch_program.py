"""Small programs under torch.profiler: each leaves its trace and what key_averages() says of it.

A test calls `record`; the rest runs in a process of its own, so that no test imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def record(folder: Path, *programs: str, **metadata: Any) -> None:
    """Runs the programs of that name. Each leaves NAME.trace.json, and NAME.averages.json in the form that
    `formats.kineto.averages` reads; `metadata` is put into the traces."""
    command = [sys.executable, __file__, str(folder), json.dumps(metadata), *programs]
    environment = {**os.environ, "KINETO_LOG_LEVEL": "6", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=120)


def train(profile: Any) -> None:
    """Steps of training with ranges, on one thread."""
    import torch
    from torch.profiler import record_function

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        with record_function("forward"):
            loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 64)), torch.randint(0, 10, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        profile.step()


def threads(profile: Any) -> None:
    """Four threads that allocate and compute at the same time."""
    import torch
    from torch.profiler import record_function

    layer = torch.nn.TransformerEncoderLayer(16, 4, 32)

    def work() -> None:
        for _ in range(3):
            with record_function("work"):
                layer(torch.randn(5, 3, 16)).sum().backward()

    running = [threading.Thread(target=work) for _ in range(3)]
    for thread in running:
        thread.start()
    work()
    for thread in running:
        thread.join()


def odd(profile: Any) -> None:
    """Ranges within ranges of the same name, lists of tensors, memory that is released outside of any call."""
    import torch
    from torch.profiler import record_function
    from torch.utils.checkpoint import checkpoint

    def again(depth: int) -> None:
        with record_function("again"):
            if depth:
                again(depth - 1)
            else:
                torch.ones(2)

    for depth in (0, 1, 2, 5):
        again(depth)
    for n in (2, 3, 2):
        torch.cat([torch.ones(n) for _ in range(n)])
    kept = [torch.zeros(1000) for _ in range(5)]
    kept.clear()
    layer, inputs = torch.nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    checkpoint(layer, inputs, use_reentrant=True).sum().backward()


SHAPES, MEMORY, STACK = {"record_shapes": True}, {"profile_memory": True}, {"with_stack": True}
PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (train, {}),
    "shapes": (train, SHAPES),
    "memory": (train, MEMORY),
    "window": (train, {**SHAPES, **MEMORY, "schedule": (1, 1, 3)}),
    "stacks": (train, {**SHAPES, **MEMORY, **STACK}),
    "threads": (threads, {**SHAPES, **MEMORY}),
    "odd": (odd, {**SHAPES, **MEMORY}),
    "odd_plain": (odd, {}),
}


def row(average: Any) -> dict[str, Any]:
    """A row of key_averages() as torch has it."""
    names = ("cpu_time_total", "device_time_total", "cpu_memory_usage", "device_memory_usage")
    figures = {name: getattr(average, name) for own in names for name in (own, f"self_{own}")}
    shapes = str(average.input_shapes) if average.input_shapes else None
    device = str(average.device_type).rpartition(".")[2]
    return {"key": average.key, "device_type": device, "input_shapes": shapes, "count": average.count, **figures}


def main(folder: str, metadata: str, programs: Sequence[str]) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    for name in programs:
        body, options = PROGRAMS[name]
        more = dict(options)
        if "schedule" in more:
            wait, warmup, active = more["schedule"]
            more["schedule"] = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
        profiler = profile(activities=[ProfilerActivity.CPU], **more)
        for key, value in json.loads(metadata).items():
            profiler.preset_metadata_json(key, json.dumps(value))
        with profiler:
            body(profiler)
        stem = Path(folder) / name
        profiler.export_chrome_trace(f"{stem}.trace.json")
        averages = profiler.key_averages(group_by_input_shape=bool(options.get("record_shapes")))
        dump = {"schema": 1, "rows": [row(average) for average in averages]}
        Path(f"{stem}.averages.json").write_text(json.dumps(dump))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
