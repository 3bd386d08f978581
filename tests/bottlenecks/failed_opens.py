"""Tries hundreds of places for a table that is in the last of them, at every step.

truth: file_io at find_table (syscall open or openat)
"""

import os
import tempfile

import torch

REPAIRED = False

torch.set_num_threads(1)


def find_table(folders):
    for folder in folders:
        try:
            fd = os.open(folder + "/share/tables/v1/weights.tbl", os.O_RDONLY)
        except FileNotFoundError:
            continue
        os.close(fd)
        return folder
    return None


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64)
        self.second = torch.nn.Linear(64, 8)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


with tempfile.TemporaryDirectory() as root:
    folders = [f"{root}/{number}" for number in range(600)]
    for folder in folders:
        os.makedirs(folder + "/share/tables/v1")
    with open(folders[-1] + "/share/tables/v1/weights.tbl", "w") as table:
        table.write("1 2 3\n")
    model = Weighted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    found = find_table(folders)
    for _ in range(1000):
        if not REPAIRED:
            found = find_table(folders)
        optimizer.zero_grad()
        model(torch.ones(64, 64)).square().mean().backward()
        optimizer.step()
print("found", found is not None)
