"""Copies its whole history at every step, to keep a snapshot that nobody looks at.

truth: python_cpu at Snapshots.take
"""

import copy

import torch

REPAIRED = False

torch.set_num_threads(1)


class Snapshots:
    def __init__(self):
        self.last = None

    def take(self, history):
        self.last = copy.deepcopy(history)


history = [{"step": number, "losses": [number / 10, number / 20]} for number in range(1000)]
snapshots = Snapshots()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(300):
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(64, 64)).square().mean().backward()
        optimizer.step()
    if not REPAIRED:
        snapshots.take(history)
print(len(history), "entries")
