"""Trains a small convolutional network.

truth: healthy
"""

import torch

torch.set_num_threads(1)


def train(net, optimizer, images, labels):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
    torch.nn.Linear(32, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
for _ in range(250):
    loss = train(net, optimizer, images, labels)
print("trained", bool(loss > 0))
