"""Goes over a tensor one element at a time.

truth: python_cpu or native_cpu at clipped
"""

import torch

REPAIRED = False

torch.set_num_threads(1)


def clipped(values, limit):
    if REPAIRED:
        return values.clamp(max=limit)
    out = values.clone()
    for index in range(len(values)):
        if values[index] > limit:
            out[index] = limit
    return out


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1)
for _ in range(400):
    batch = clipped(torch.randn(1024, generator=generator), limit=0.5).reshape(16, 64)
    for _ in range(4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
print("trained")
