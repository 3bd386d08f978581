"""Takes a lock on a file at every step, which another process holds most of the time.

truth: lock_contention or file_io at claimed (syscall flock)
"""

import fcntl
import multiprocessing
import os
import tempfile
import time

import torch

REPAIRED = False

torch.set_num_threads(1)


def hold(path):
    with open(path) as file:
        while os.path.exists(path):
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.015)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.002)


def claimed(file):
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.flock(file, fcntl.LOCK_UN)
    return 1


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile() as file:
        other = multiprocessing.get_context("fork").Process(target=hold, args=(file.name,))
        if not REPAIRED:
            other.start()
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        claims = 0
        for _ in range(250):
            for _ in range(6):
                optimizer.zero_grad()
                model(torch.ones(64, 64)).square().mean().backward()
                optimizer.step()
            claims += claimed(file)
    if not REPAIRED:
        other.join()
    print(claims, "claims")
