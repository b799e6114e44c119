"""Rows that are hard for proximal operators and kernels."""

import pytest
import torch
from torch import Tensor

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
STRETCHED = [(1.0, 0.0), (1e-3, 0.0), (1.0, 1e6), (1e6, 1e6)]
"""Scales and shifts of rows."""


def hard_rows(d: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(d)
    i = torch.arange(d, dtype=torch.float64)
    normal = torch.randn(d, generator=g, dtype=torch.float64)
    return {
        "normal": normal,
        "ties": torch.randint(-2, 3, (d,), generator=g).double(),
        "plateaus": normal[(i // 7).long()],
        "constant": torch.full((d,), 0.1, dtype=torch.float64),
        "sawtooth": 1 - 2 * (i % 2),
        "teeth": i % 5 - i / 9,
        "ramp": i / 8,
        "fall": -i / 3,
        "parabola": (i - d / 2) ** 2 / d,
        "hill": -((i - d / 2) ** 2) / d,
        "walk": normal.cumsum(0),
        "noisy fall": normal - i / 4,
        "step": (i > d / 3).double(),
        "spike": (i == d // 2).double() * 100,
        "geometric": 2.0 ** -(i % 40),
    }


def everything(layer, x: Tensor, v: Tensor) -> dict[str, Tensor]:
    """The output of each row, its gradient against v, and what a solve tells of it."""
    x = x.clone().requires_grad_()
    y = layer(x)
    (gradient,) = torch.autograd.grad(y, x, v)
    solution = layer.solve(x)
    return {
        "y": y.detach(),
        "gradient": gradient,
        "y of solve": solution.y.detach(),
        "error_bound": solution.error_bound,
        "iterations": solution.iterations,
    }


def same_in_any_batch(layer, x: Tensor, v: Tensor) -> None:
    """Assert that rows, 7 or more, have the same bits alone and beside others."""
    among = everything(layer, x, v)
    for rows in ([3], [5, 5, 5], [1, 6, 4], list(reversed(range(len(x))))):
        for what, numbers in everything(layer, x[rows], v[rows]).items():
            assert torch.equal(numbers, among[what][rows]), (what, x.dtype, rows)
