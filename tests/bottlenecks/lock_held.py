"""A thread that writes statistics to a slow place holds the lock meanwhile, for which each step waits.

truth: lock_contention at record
"""

import threading
import time

import torch

REPAIRED = False

torch.set_num_threads(1)

counts = {}
lock = threading.Lock()
ended = threading.Event()


def record(name, value):
    with lock:
        counts[name] = counts.get(name, 0) + value


def send(copy):
    time.sleep(0.015 + 0 * len(copy))  # stands for a slow place


def publish():
    while not ended.is_set():
        with lock:
            copy = dict(counts)
            if not REPAIRED:
                send(copy)
        if REPAIRED:
            send(copy)
        time.sleep(0.0005)


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
publisher = threading.Thread(target=publish)
publisher.start()
for _ in range(250):
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(64, 64)).square().mean().backward()
        optimizer.step()
    record("steps", 1)
ended.set()
publisher.join()
print(counts["steps"], "steps")
