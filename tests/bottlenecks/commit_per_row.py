"""Commits each row of its results to a database by itself.

truth: file_io at note (syscall fdatasync or fsync)
"""

import sqlite3
import tempfile

import torch

REPAIRED = False

torch.set_num_threads(1)


def note(database, step, loss):
    database.execute("insert into losses values (?, ?)", (step, loss))
    database.commit()


class Run:
    def __init__(self, path):
        self.database = sqlite3.connect(path)
        self.database.execute("create table losses (step integer, loss real)")
        self.rows = []

    def told(self, step, loss):
        if REPAIRED:
            self.rows.append((step, loss))
        else:
            note(self.database, step, loss)

    def close(self):
        self.database.executemany("insert into losses values (?, ?)", self.rows)
        self.database.commit()
        count = self.database.execute("select count(*) from losses").fetchone()[0]
        self.database.close()
        return count


with tempfile.TemporaryDirectory(dir=".") as folder:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = Run(folder + "/losses.sqlite")
    for step in range(500):
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(64, 64)).square().mean()
            loss.backward()
            optimizer.step()
        run.told(step, loss.item())
    print(run.close(), "rows")
