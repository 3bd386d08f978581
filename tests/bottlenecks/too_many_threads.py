"""Asks for many more threads than the machine has processors, for work that needs few.

truth: cpu_oversubscription
"""

import os

import torch

REPAIRED = False

torch.set_num_threads(os.cpu_count() if REPAIRED else 12 * os.cpu_count())


def train(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(1024, 128)
for _ in range(60):
    train(model, optimizer, batch)
print("trained")
