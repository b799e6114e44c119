"""Long sequences and large vocabularies: attention by chunks, and the loss of a linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import regmax
from regmax.nn import attention

from .timing import Step

SDPA = "torch SDPA default"
TWO_STEPS = "torch linear, cross_entropy"
OMEGAS = {
    "softmax": regmax.regularizer("entropy"),
    "sparsemax": regmax.regularizer("gini"),
    "entmax15": regmax.regularizer("tsallis", alpha=1.5),
}


def label(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def heads(shape: tuple[int, int, int, int], device: str) -> list[Step]:
    """Causal attention on N(0, 1): PyTorch's, and regmax's by chunks and all at once."""
    generator = torch.Generator(device=device).manual_seed(shape[2])
    *given, out = torch.randn(4, *shape, device=device, generator=generator)

    def step(name: str, mapping: str | None, chunk: int | None = None) -> Step:
        def apply(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if mapping is None:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return attention(q, k, v, mapping, is_causal=True, chunk=chunk)

        return Step(name, apply, tuple(t.detach().requires_grad_() for t in given), v=out)

    return [
        step(SDPA, None),
        *(step(f"regmax {mapping}", mapping) for mapping in OMEGAS),
        step("regmax entmax15, all at once", "entmax15", shape[2]),
    ]


def losses(shape: tuple[int, int, int], device: str) -> list[Step]:
    """A training step of the last layer. ``shape``: rows × features × classes."""
    rows, features, classes = shape
    generator = torch.Generator(device=device).manual_seed(rows)
    weight = torch.randn(classes, features, device=device, generator=generator) / features**0.5
    hidden = torch.randn(rows, features, device=device, generator=generator)
    target = torch.randint(classes, (rows,), device=device, generator=generator)

    def step(name: str, loss: Any) -> Step:
        leaves = (weight.detach().requires_grad_(), hidden.detach().requires_grad_())
        return Step(name, lambda w, h: loss(h, w), leaves)

    def two_steps(h: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w), target)

    def chunked(h: Tensor, w: Tensor) -> Tensor:
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=128, chunking_method=None)
        found: Tensor = F.linear_cross_entropy(h, w, target, options=options)
        return found

    found = [step(TWO_STEPS, two_steps), step("torch linear_cross_entropy, 128 rows", chunked)]
    for name, omega in OMEGAS.items():
        one, two = regmax.LinearFenchelYoungLoss(omega), regmax.FenchelYoungLoss(omega)
        found += [
            step(f"regmax {name}", lambda h, w, one=one: one(h, w, target)),
            step(f"regmax {name}, two steps", lambda h, w, two=two: two(F.linear(h, w), target)),
        ]
    return found
