"""Parses its text in pure Python once, and then trains on what it found.

truth: healthy
"""

import torch

torch.set_num_threads(1)


def tokens(text):
    word = ""
    for letter in text + " ":
        if letter.isalnum():
            word += letter
        elif word:
            yield word
            word = ""


text = " ".join(f"word{number * number % 211}," for number in range(60_000))
places = {}
numbers = torch.tensor([places.setdefault(token, len(places)) for token in tokens(text)])
model = torch.nn.Sequential(torch.nn.Embedding(len(places), 64), torch.nn.Flatten(), torch.nn.Linear(512, len(places)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
windows = numbers[: 8 * 7000].reshape(7000, 8)
for start in range(0, 6400, 16):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(windows[start : start + 16]), numbers[start : start + 16]).backward()
    optimizer.step()
print(len(places), "words")
