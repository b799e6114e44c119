"""A language model of characters on long sequences, by chunks of queries and all at once.

    python -m examples.long_characters TEXT [--omega entmax15] [--length 4096] [--steps 40]

Two layers of causal attention are trained on the characters of a text file. ``--chunk`` is that of
:func:`regmax.nn.attention`; without it attention chooses, and ``--chunk 4096`` computes all queries
at once. Prints the loss in nats per character, the seconds of a step and the peak memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regmax.nn import attention


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a normalization and added to its input."""

    def __init__(self, width: int, heads: int, omega: str, chunk: int | None) -> None:
        super().__init__()
        self.heads, self.omega, self.chunk = heads, omega, chunk
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (t.transpose(-2, -3) for t in parts.unbind(-3))
        y = attention(q, k, v, self.omega, is_causal=True, chunk=self.chunk)
        x = x + self.out(y.transpose(-2, -3).flatten(-2))
        out: Tensor = x + self.wide(self.norms[1](x))
        return out


class Model(nn.Module):
    """Logits of the next character."""

    def __init__(self, symbols: int, length: int, omega: str, chunk: int | None) -> None:
        super().__init__()
        width, heads = 64, 4
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, omega, chunk) for _ in range(2)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, symbols))

    def forward(self, ids: Tensor) -> Tensor:
        places = self.places.weight[: ids.shape[-1]]
        out: Tensor = self.head(self.blocks(self.symbols(ids) + places))
        return out


def train(
    text: str, omega: str, length: int, steps: int, chunk: int | None
) -> tuple[list[float], float]:
    """The losses of the steps, and the median seconds of one."""
    torch.manual_seed(0)
    known = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([known[c] for c in text])
    model = Model(len(known), length, omega, chunk)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        at = int(torch.randint(len(ids) - length, ()))
        loss = F.cross_entropy(model(ids[at : at + length]), ids[at + 1 : at + length + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, sorted(seconds)[steps // 2]


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = made.add_argument
    add("text", type=Path, help="a text file of more than LENGTH characters")
    add("--omega", default="entmax15", help="name of a mapping (%(default)s)")
    add("--length", type=int, default=4096, help="characters of a sequence (%(default)s)")
    add("--steps", type=int, default=40, help="of training (%(default)s)")
    add("--chunk", type=int, help="queries at a time (chosen by attention)")
    args = made.parse_args()
    text = args.text.read_text()
    if len(text) <= args.length + 1:
        made.error(f"text must have more than {args.length + 1} characters; got {len(text)}")
    losses, seconds = train(text, args.omega, args.length, args.steps, args.chunk)
    for i in range(0, args.steps, max(args.steps // 8, 1)):
        print(f"step {i:4d}  loss {losses[i]:.6f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"last loss {losses[-1]:.6f}, {seconds:.2f} s a step, peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
