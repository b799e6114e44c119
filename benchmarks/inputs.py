"""Scores: random, and of shapes that are hard for some algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Draw = Callable[[Tensor, Tensor], Tensor]
"""From N(0, 1) draws (rows, d) and positions (d,) in [0, 1) to scores."""


def _masked(n: Tensor, t: Tensor) -> Tensor:
    """Half of the scores are −inf, never a whole row."""
    out = n[:, torch.randperm(n.shape[-1], generator=torch.Generator().manual_seed(0))] < 0
    out.scatter_(-1, n.argmax(-1, keepdim=True), False)
    return n.masked_fill(out, -torch.inf)


KINDS: dict[str, tuple[str, Draw]] = {
    "normal": ("N(0, 1)", lambda n, t: n),
    "normal4": ("4·N(0, 1)", lambda n, t: 4 * n),
    "equal": ("all equal", lambda n, t: torch.ones_like(n)),
    "ties": ("N(0, 1) in steps of ½", lambda n, t: (2 * n).round() / 2),
    "ramp": ("ramp from 0 to 4", lambda n, t: 4 * t + 0 * n),
    "sawtooth": ("teeth of 16", lambda n, t: (t * len(t)).round().remainder(16) / 16 + 0 * n),
    "parabola": ("parabola, 4 high", lambda n, t: (2 * t - 1).square() * 4 + 0 * n),
    "onehot": (
        "one score far above",
        lambda n, t: (n / 100).scatter(-1, n.argmax(-1, keepdim=True), 20.0),
    ),
    "masked": ("N(0, 1), half of it masked", _masked),
}
"""Name on the page, and scores."""


def label(kind: str) -> str:
    return KINDS[kind][0]


@dataclass(frozen=True)
class Case:
    """Scores, a gradient with respect to y, and one α per row."""

    x: Tensor
    v: Tensor
    alpha: Tensor

    def head(self, rows: int) -> Case:
        """The first rows, in float64."""
        return Case(*(t[:rows].double() for t in (self.x, self.v, self.alpha)))


def case(
    kind: str, rows: int, d: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Case:
    """The same scores every time."""
    generator = torch.Generator(device=device).manual_seed(rows + 31 * d)
    n = torch.randn(rows, d, device=device, generator=generator)
    t = torch.arange(d, device=device, dtype=torch.float64) / d
    x = KINDS[kind][1](n, t).to(dtype)
    v = torch.randn(rows, d, device=device, generator=generator).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    alpha = torch.linspace(1.25, 1.75, rows, device=device, dtype=wide)
    # sorted, rows beside each other would have supports of about one size
    order = torch.randperm(rows, device=device, generator=generator)
    return Case(x, v, alpha[order].unsqueeze(-1))
