"""sparsemax: against a sort-free projection; gradients; the common properties."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import references
import torch
from mapping_checks import normal
from precision_checks import check_printed
from torch import Tensor

from regmax.functional import entmax15, softmax, sparsemax


def test_known_values() -> None:
    x = torch.tensor([[0.5, 0.2, -3.0], [2.0, 0.0, 0.0], [0.1, 0.1, 0.1]], dtype=torch.float64)
    expected = [[0.65, 0.35, 0.0], [1.0, 0.0, 0.0], [1 / 3] * 3]
    np.testing.assert_allclose(sparsemax(x).numpy(), expected, atol=1e-15)


def hard_rows(d: int) -> dict[str, Tensor]:
    i = torch.arange(d, dtype=torch.float64)
    plateaus = normal(d // 50 + 1, seed=d)[(i // 50).long()]
    return {
        "normal": normal(d, seed=d + 1),
        "small": normal(d, seed=d + 2) * 1e-7,
        "large": normal(d, seed=d + 3) * 1e9,
        "shifted": normal(d, seed=d + 4) + 1e6,
        "denormal": normal(d, seed=d + 5) * 1e-41,
        "equal": torch.full_like(i, 0.37),
        "plateaus": plateaus * 0.01,
        "two levels": (i % 2) * 1e-6,
        "one above": (i == 0) * 0.5,
        "sawtooth": (i % 7) * 1e-5,
        "ramp": -i / d,
    }


def check_float32(f: Callable[..., Tensor], x: Tensor, gamma: float = 1.0) -> None:
    """Next to the float64 mapping of the same scores; rows sum to 1."""
    y, expected = f(x, gamma=gamma), f(x.double(), gamma=gamma)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=2e-7)
    for row in (y, expected):
        slack = 2 * torch.finfo(row.dtype).eps * math.sqrt(len(row))
        assert abs(math.fsum(row.tolist()) - 1) <= slack


@pytest.mark.parametrize("f", [sparsemax, entmax15])
@pytest.mark.parametrize("gamma", [1e-6, 1.0, 1e6])
def test_hard_rows(f: Callable[..., Tensor], gamma: float) -> None:
    for d in (2, 100, 10_000):
        for x in hard_rows(d).values():
            check_float32(f, x.float(), gamma)


@pytest.mark.parametrize("f", [sparsemax, entmax15, softmax])
@pytest.mark.parametrize("kind", ["equal", "one above", "small"])
def test_a_million_scores(f: Callable[..., Tensor], kind: str) -> None:
    x = hard_rows(1_000_000)[kind].float()
    check_float32(f, x)
    if kind == "equal" and f is not softmax:
        assert torch.equal(f(x), torch.full_like(x, 1e-6))


def test_jacobian() -> None:
    """2019, Prop. 1 with α = 2: s is the support's indicator."""
    check_printed(sparsemax, references.sparsemax, lambda y: (y > 0).astype(float), 0.8)
