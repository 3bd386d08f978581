"""Trains on what two worker processes load, sooner than it is needed.

truth: healthy
"""

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Rows(Dataset):
    def __init__(self, count):
        self.rows = torch.randn(count, 512)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] * 2 - 1, index % 10


if __name__ == "__main__":
    net = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for rows, labels in DataLoader(Rows(3840), batch_size=64, num_workers=2, prefetch_factor=4):
        for _ in range(8):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(rows), labels).backward()
            optimizer.step()
    print("trained")
