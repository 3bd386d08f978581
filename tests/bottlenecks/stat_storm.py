"""Looks at every file of a folder before each step, to see whether one has changed.

truth: file_io at newest (syscall stat or newfstatat or statx)
"""

import os
import tempfile
from pathlib import Path

import torch

REPAIRED = False

torch.set_num_threads(1)


def newest(paths):
    return max(os.stat(path).st_mtime for path in paths)


def train(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


with tempfile.TemporaryDirectory() as folder:
    deep = Path(folder, *"abcdefgh")
    deep.mkdir(parents=True)
    paths = [str(deep / f"{number}.txt") for number in range(1000)]
    for path in paths:
        Path(path).touch()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = newest(paths)
    for step in range(1200):
        if not REPAIRED or step % 200 == 0:
            seen = newest(paths)
        train(model, optimizer, torch.ones(64, 64))
print("trained", seen > 0)
