"""Starts a pool of processes at every step, for a moment's work.

truth: process_spawn at scores
"""

import multiprocessing

import torch

REPAIRED = False

torch.set_num_threads(1)


def score(number):
    return number * number % 17


def scores(numbers):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(score, numbers)


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(70):
        numbers = range(step, step + 64)
        batch = torch.tensor([[float(score(n)) for n in numbers] if REPAIRED else scores(numbers)])
        for _ in range(20):
            optimizer.zero_grad()
            model(batch * 0.1).square().mean().backward()
            optimizer.step()
    print("trained")
