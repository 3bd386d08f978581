"""Reads and parses its settings anew at every step.

truth: native_cpu or python_cpu at settings
"""

import json
import tempfile

import torch

REPAIRED = False

torch.set_num_threads(1)


def settings(path):
    with open(path) as file:
        return json.load(file)


def main():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"rate": 1e-3, "classes": [{"name": f"class {n}", "weight": n / 7} for n in range(12000)]}, file)
        file.flush()
        known = settings(file.name)
        for _ in range(250):
            if not REPAIRED:
                known = settings(file.name)
            optimizer = torch.optim.SGD(model.parameters(), lr=known["rate"])
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(64, 64)).square().mean().backward()
                optimizer.step()
    return len(known["classes"])


print(main(), "classes")
