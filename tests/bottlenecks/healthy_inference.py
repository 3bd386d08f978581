"""Classifies batch after batch, without gradients.

truth: healthy
"""

import torch

torch.set_num_threads(1)


@torch.inference_mode()
def classified(net, batches):
    return [net(batch).argmax(1) for batch in batches]


net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).eval()
batches = [torch.randn(64, 512) for _ in range(40)]
answers = []
for _ in range(30):
    answers += classified(net, batches)
print(len(answers), "batches")
