"""Takes a big buffer from the system at every step, and gives it back: each page of it is made anew.

truth: memory_management at spread
"""

import torch

REPAIRED = False

torch.set_num_threads(1)

SIZE = 24_000_000
kept = torch.empty(SIZE)


def spread(value):
    buffer = kept if REPAIRED else torch.empty(SIZE)
    buffer[::1024] = value  # a value in each page
    return buffer[:: SIZE // 64]


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(150):
    batch = spread(float(step % 5))[:64].expand(64, 64)
    for _ in range(8):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
print("trained")
