"""A thread beside the training computes in pure Python all the time, and so holds the interpreter's lock.

truth: gil_contention at tally
"""

import threading

import torch

REPAIRED = False

torch.set_num_threads(1)

ended = False


def tally(numbers):
    total = 0
    for number in numbers:
        total = (total * 31 + number) % 65521
    return total


def watch():
    while not ended:
        tally(range(50_000))


model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
watcher = threading.Thread(target=watch)
if not REPAIRED:
    watcher.start()
for _ in range(120):
    optimizer.zero_grad()
    model(torch.ones(256, 256)).square().mean().backward()
    optimizer.step()
ended = True
if not REPAIRED:
    watcher.join()
print("trained")
