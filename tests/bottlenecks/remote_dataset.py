"""Fetches each sample on the main process, from a place that answers late.

truth: input_pipeline at Remote.__getitem__
"""

import time

import torch
from torch.utils.data import DataLoader, Dataset

REPAIRED = False

torch.set_num_threads(1)


class Remote(Dataset):
    def __len__(self):
        return 900

    def __getitem__(self, index):
        if not REPAIRED:
            time.sleep(0.005)
        return torch.full((64,), index / 900), index % 8


def train(model, optimizer, batches):
    for rows, labels in batches:
        for _ in range(25 if REPAIRED else 10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
train(model, torch.optim.SGD(model.parameters(), lr=1e-3), DataLoader(Remote(), batch_size=10))
print("trained")
