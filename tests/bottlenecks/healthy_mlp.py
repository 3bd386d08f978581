"""Trains a small network on a batch that is there.

truth: healthy
"""

import torch

torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 512), torch.nn.GELU(), torch.nn.Linear(512, 10))

    def forward(self, x):
        return self.layers(x)


net = Net(width=256)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
inputs, labels = torch.randn(128, 256), torch.arange(128) % 10
for _ in range(400):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(inputs), labels).backward()
    optimizer.step()
print("trained")
