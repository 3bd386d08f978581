"""Sleeps at every step, so as not to exceed a rate.

truth: idle_wait at pace
"""

import time

import torch

REPAIRED = False

torch.set_num_threads(1)


def pace(per_second):
    time.sleep(1 / per_second)


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(1200):
    optimizer.zero_grad()
    model(torch.ones(64, 64)).square().mean().backward()
    optimizer.step()
    if not REPAIRED:
        pace(per_second=500)
print("trained")
