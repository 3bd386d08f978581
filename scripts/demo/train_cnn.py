"""The demo target: the textbook's small CNN, trained by SGD on random 28x28 images. Knows nothing of profrun."""

import argparse
import time

import torch
from torch import nn


def network() -> nn.Module:
    """28x28 images to 10 classes: conv 20, conv 50, each with max-pooling, then 500 hidden units."""
    return nn.Sequential(
        nn.Conv2d(1, 20, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(50 * 4 * 4, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


def random_batch(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 1, 28, 28, device=device), torch.randint(10, (size,), device=device)


def train(steps: int, batch_size: int, device: torch.device) -> float:
    """Trains for that many steps and gives back how many it did per second."""
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    started = time.perf_counter()
    for step in range(1, steps + 1):
        images, labels = random_batch(batch_size, device)
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps:
            print(f"step {step}: loss={loss.item():.4f}", flush=True)
    return steps / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"training on {device}", flush=True)
    print(f"steps_per_s={train(options.steps, options.batch, device):.1f}")


if __name__ == "__main__":
    main()
