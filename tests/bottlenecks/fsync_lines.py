"""Puts each line of its journal on the disk before it goes on.

truth: file_io at Journal.line (syscall fsync)
"""

import os
import tempfile

import torch

REPAIRED = False

torch.set_num_threads(1)


class Journal:
    def __init__(self, folder):
        self.fd = os.open(folder + "/journal", os.O_WRONLY | os.O_CREAT)

    def line(self, text):
        os.write(self.fd, text.encode() + b"\n")
        if not REPAIRED:
            os.fsync(self.fd)


with tempfile.TemporaryDirectory(dir=".") as folder:
    journal = Journal(folder)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(1200):
        optimizer.zero_grad()
        loss = model(torch.ones(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        journal.line(f"step {step}: {loss.item()}")
    os.close(journal.fd)
print("trained")
