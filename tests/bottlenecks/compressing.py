"""Compresses every batch with the strongest and slowest method before it goes on.

truth: native_cpu at archived
"""

import bz2

import torch

REPAIRED = False

torch.set_num_threads(1)


def archived(batch):
    return len(bz2.compress(batch.numpy().tobytes(), 9))


model = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1)
total = 0
for _ in range(160):
    batch = torch.randn(256, 128, generator=generator)
    if not REPAIRED:
        total += archived(batch)
    for _ in range(4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
print("trained", total > 0 or REPAIRED)
