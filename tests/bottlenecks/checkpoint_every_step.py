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
        self.model = torch.nn.Sequential(torch.nn.Embedding(20000, 64), torch.nn.Linear(64, 8))
        self.optimizer = torch.optim.SGD(self.model[1].parameters(), lr=1e-3)
        self.path = folder + "/state.pt"

    def step(self, number):
        self.optimizer.zero_grad()
        self.model(torch.arange(512) + number).square().mean().backward()
        self.optimizer.step()
        if not REPAIRED or number % 100 == 99:
            keep(self.model.state_dict(), self.path)


with tempfile.TemporaryDirectory(dir=".") as folder:
    trainer = Trainer(folder)
    for number in range(200):
        trainer.step(number)
print("kept")
