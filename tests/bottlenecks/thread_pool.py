"""Spreads pure Python work over threads, of which only one can run at a time.

truth: gil_contention at checksum
"""

from concurrent.futures import ThreadPoolExecutor

import torch

REPAIRED = False

torch.set_num_threads(1)


def checksum(row):
    low, high = 1, 0
    for value in row:
        low = (low + value) % 65521
        high = (high + low) % 65521
    return high << 16 | low


rows = [list(range(start, start + 30_000)) for start in range(4)]
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with ThreadPoolExecutor(4) as pool:
    sums = [checksum(row) for row in rows]
    for _ in range(200):
        if not REPAIRED:
            sums = list(pool.map(checksum, rows))
        batch = torch.tensor([sums]) / 2**32
        for _ in range(12 if REPAIRED else 2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
print(len(sums), "sums")
