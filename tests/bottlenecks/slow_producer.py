"""A thread prepares the batches, and is slower than the training that takes them from its queue.

truth: input_pipeline or idle_wait at prepared
"""

import queue
import threading
import time

import torch

REPAIRED = False

torch.set_num_threads(1)

STEPS = 220


def prepared(number):
    if not REPAIRED:
        time.sleep(0.016)  # stands for a remote read
    return torch.full((64, 64), float(number % 7))


def produce(batches):
    for number in range(STEPS):
        batches.put(prepared(number))


batches = queue.Queue(maxsize=8)
threading.Thread(target=produce, args=(batches,), daemon=True).start()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    batch = batches.get()
    for _ in range(6):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
print("trained")
