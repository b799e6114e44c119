"""Arrays in generated source, whose sizes and places are arguments of the code."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Whole(int):
    """A number that the source has by a name."""

    name: str


class Array:
    """A tensor in the source: an array with an offset and strides."""

    def __init__(
        self, name: str, shape: Sequence[int], offset: int, strides: Sequence[int]
    ) -> None:
        self.name, self.shape, self.offset = name, tuple(shape), offset
        self.strides = tuple(strides)

    def at(self, sizes: Sequence[int] | None = None, names: Sequence[str] | None = None) -> str:
        """The number at the indices i0, i1, …, or ``names``, of a tensor with these sizes, to which
        this one broadcasts."""
        sizes = self.shape if sizes is None else sizes
        names = names or [f"i{k}" for k in range(len(sizes))]
        missing = len(sizes) - len(self.shape)
        parts = [shown(self.offset)] if self.offset else []
        for k, (own, stride) in enumerate(zip(self.shape, self.strides, strict=True), missing):
            if own > 1 and stride:
                parts.append(names[k] if stride == 1 else f"{shown(stride)} * {names[k]}")
        return f"{self.name}[{' + '.join(parts) or '0'}]"

    def flat(self) -> Array:
        """The last dimension alone."""
        return Array(self.name, self.shape[-1:], self.offset, self.strides[-1:])

    def places(self) -> Tensor:
        """Where each number is after the first, in the order of its indices."""
        total = torch.zeros((), dtype=torch.int64, device="cpu")
        for own, stride in zip(self.shape, self.strides, strict=True):
            total = total.unsqueeze(-1) + stride * torch.arange(own, device="cpu")
        return total.flatten()


def shown(n: int) -> str:
    """A number in the source."""
    return n.name if isinstance(n, Whole) else str(n)
