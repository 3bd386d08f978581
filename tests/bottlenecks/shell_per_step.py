"""Runs a shell command at every step.

truth: process_spawn at free_space
"""

import os
import tempfile

import torch

REPAIRED = False

torch.set_num_threads(1)


def free_space(folder):
    with os.popen(f"df --output=avail '{folder}' | tail -n 1") as told:
        return int(told.read())


with tempfile.TemporaryDirectory() as folder:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    space = free_space(folder)
    for _ in range(200):
        if not REPAIRED:
            space = free_space(folder)
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.ones(32, 64)).square().mean().backward()
            optimizer.step()
print("space left", space > 0)
