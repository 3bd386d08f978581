"""Two worker processes load the data, and each sample takes them long.

truth: input_pipeline at Scans.__getitem__
"""

import time

import torch
from torch.utils.data import DataLoader, Dataset

REPAIRED = False

torch.set_num_threads(1)


class Scans(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not REPAIRED:
            time.sleep(0.008)  # stands for a slow disk
        return torch.full((64,), float(index % 11))


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Scans(1280), batch_size=16, num_workers=2):
        for _ in range(60):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    print("trained")
