"""Counts the words of each batch's text in pure Python.

truth: python_cpu at counted
"""

import torch

REPAIRED = False

torch.set_num_threads(1)


def counted(text, vocabulary):
    counts = [0] * len(vocabulary)
    word = ""
    for letter in text:
        if letter != " ":
            word += letter
            continue
        place = vocabulary.get(word, 0)
        counts[place] += 1
        word = ""
    return counts


vocabulary = {f"w{number}": number for number in range(64)}
text = " ".join(f"w{number * number % 97}" for number in range(20_000))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
counts = counted(text, vocabulary)
for _ in range(200):
    if not REPAIRED:
        counts = counted(text, vocabulary)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.tensor([counts]) / 1000).square().mean().backward()
        optimizer.step()
print(sum(counts), "words")
