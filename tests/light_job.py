"""A small training job on several ranks, gloo on the processor, for tests that look at one while it runs.

    torchrun --nproc-per-node 2 light_job.py FOLDER

Each rank writes its pid to FOLDER/rankN.pid once it trains, and its step to FOLDER/rankN.step. FOLDER/stop ends all,
rank 1 with exit status 7."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def forward(weights: list[float]) -> float:
    end = time.perf_counter() + 0.005
    while time.perf_counter() < end:
        weights = [weight * 0.5 for weight in weights]
    return weights[0]


def main(folder: Path) -> int:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, step, done = distributed.get_rank(), 0, torch.zeros(1)
    (folder / f"rank{rank}.pid").write_text(str(os.getpid()))
    while not done:
        forward([1.0] * 1000)
        done = torch.tensor([float((folder / "stop").exists())])
        distributed.all_reduce(done)
        step += 1
        (folder / f"rank{rank}.step").write_text(str(step))
    distributed.destroy_process_group()
    return 7 * rank


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
