"""Saves the whole state at every step, and waits until the disk has it.

truth: file_io at keep
"""

import os
import tempfile

import torch

REPAIRED = False

torch.set_num_threads(1)


def keep(state, path):
    with open(path + ".new", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


class Trainer:
    def __init__(self, folder):
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.table = torch.ones(20000, 64)
        self.path = folder + "/state.pt"

    def step(self, number):
        for _ in range(5):
            self.optimizer.zero_grad()
            self.model(self.table[:64]).square().mean().backward()
            self.optimizer.step()
        if not REPAIRED or number % 100 == 99:
            keep({"model": self.model.state_dict(), "table": self.table}, self.path)


with tempfile.TemporaryDirectory(dir=".") as folder:
    trainer = Trainer(folder)
    for number in range(200):
        trainer.step(number)
print("kept")
