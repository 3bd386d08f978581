"""Collects garbage at every step, with many objects alive.

truth: memory_management at tidy
"""

import gc

import torch

REPAIRED = False

torch.set_num_threads(1)


def tidy():
    return gc.collect()


index = {number: [number, {"name": str(number)}] for number in range(6000)}
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(40):
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(64, 64)).square().mean().backward()
        optimizer.step()
    if not REPAIRED:
        tidy()
print(len(index), "entries")
