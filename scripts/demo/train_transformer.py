"""A second demo target: a small decoder-only transformer on random tokens. Knows nothing of profrun."""

import argparse
import time

import torch
from torch import nn

VOCABULARY, CONTEXT = 4096, 256


class Decoder(nn.Module):
    """Token and position embeddings, `layers` blocks of causal self-attention, a head onto the vocabulary."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        block = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [batch, length] to logits [batch, length, VOCABULARY]."""
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device)
        mixed = self.blocks(
            self.tokens(tokens) + self.positions(positions), self.mask[:length, :length], is_causal=True
        )
        return self.head(mixed)


def train(steps: int, batch: int, length: int, model: Decoder, device: torch.device) -> float:
    """Trains for that many steps and gives back how many tokens it saw per second."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    started = time.perf_counter()
    for step in range(1, steps + 1):
        tokens = torch.randint(VOCABULARY, (batch, length + 1), device=device)
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            print(f"step {step}: loss={loss.item():.4f}", flush=True)
    return steps * batch * length / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, choices=range(1, CONTEXT + 1), metavar=f"1..{CONTEXT}")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"training on {device}", flush=True)
    model = Decoder(options.width, options.layers).to(device)
    print(f"tokens_per_s={train(options.steps, options.batch, options.length, model, device):.0f}")


if __name__ == "__main__":
    main()
