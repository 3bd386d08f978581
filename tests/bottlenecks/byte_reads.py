"""Reads its records from an unbuffered file, a few bytes at a time.

truth: file_io at records (syscall read)
"""

import tempfile

import torch

REPAIRED = False

torch.set_num_threads(1)


def records(path):
    total = 0
    with open(path, "rb", buffering=-1 if REPAIRED else 0) as file:
        while piece := file.read(1 << 18 if REPAIRED else 8):
            total += piece[0]
    return total


with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(range(256)) * 1024)
    file.flush()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(120):
        batch = torch.full((32, 64), float(records(file.name) % 7))
        for _ in range(12):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
print("trained")
