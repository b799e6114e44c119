"""What holds for every mapping: a class of tests to inherit, checks of values and gradients.

A subclass says which mapping (``name``) and with which hyperparameters (``hyper``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
from references import Row, rows
from torch import Tensor

import regmax
from regmax import functional
from regmax.testing.backends.generic import definition

SIZES = [1, 2, 3, 7, 30, 200]
SCALES = [0.05, 1.0, 6.0]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def cases(sizes: list[int] = SIZES) -> list[Tensor]:
    """Scores of many sizes, scales, shifts, with ties, and a 3-d one."""
    found = []
    for k, d in enumerate(sizes):
        for scale in SCALES:
            for shift in (0.0, 5.0, -5.0, 1e3):
                found.append(normal(1, d, seed=k) * scale + shift)
    found.append(torch.round(normal(3, 12, seed=9) * 2) / 2)  # exact ties
    found.append(torch.zeros(1, 5, dtype=torch.float64))
    found.append(normal(2, 2, 6, seed=10) * 2)
    return found


def check_values(f: Callable[..., Tensor], reference: Callable[[Row], Row]) -> None:
    """float64 within 1e-9 of the reference and float32 within 5e-6, for every γ and dim."""
    for gamma in (0.5, 1.0, 3.0):
        worst, worst32 = 0.0, 0.0
        for x in cases():
            worst = max(worst, error(f(x, gamma=gamma), rows(reference, x, gamma)))
            if float(x.abs().max()) < 100:
                x32 = x.float()
                got = f(x32, gamma=gamma)
                assert got.dtype == torch.float32
                worst32 = max(worst32, error(got, rows(reference, x32, gamma)))
        assert worst < 1e-9, f"float64, gamma={gamma}: {worst}"
        assert worst32 < 5e-6, f"float32, gamma={gamma}: {worst32}"
    x = normal(3, 4, 5, seed=3) * 2
    for dim in (-3, -2, -1, 0, 1, 2):
        assert error(f(x, dim=dim), rows(reference, x, dim=dim)) < 1e-9
    turned = x.transpose(0, 2)  # any strides
    assert error(f(turned), rows(reference, turned)) < 1e-9


def error(y: Tensor, expected: Row) -> float:
    assert y.shape == expected.shape
    return float(np.abs(y.detach().double().numpy() - expected).max(initial=0))


def pattern(y: Tensor) -> tuple[list[bool], list[bool]]:
    """The support, and which pairs are equal."""
    pairs = y.unsqueeze(-1) == y.unsqueeze(-2)
    return (y > 0).flatten().tolist(), pairs.flatten().tolist()


def away_from_kinks(f: Callable[[Tensor], Tensor], *shape: int, scale: float = 1.0) -> Tensor:
    """The first seed's scores around which the support and the fused groups of f do not change."""
    for seed in range(200):
        x = normal(*shape, seed=seed) * scale
        here = pattern(f(x))
        moved = [x + 2e-3 * normal(*shape, seed=1000 + k) for k in range(24)]
        if all(pattern(f(m)) == here for m in moved):
            return x
    raise AssertionError("no scores away from kinks")


def check_solver_choice(name: str, hyper: dict[str, float], solver: str, declared: bool) -> None:
    """A solver's values, gradients and second gradients in x, γ and every hyperparameter are those
    of the closed form, with and without a mask. ``declared=False``: Ω is given by its value alone.
    """
    mask = torch.tensor([True, True, False, True])
    for per_head in (False, True):
        values = _values(hyper, per_head)
        x = away_from_kinks(_layer(name, hyper, values), 2, 2, 4)
        for takes_part in (None, mask):
            found = _derivatives(name, hyper, x, values, takes_part, solver, declared)
            right = _derivatives(name, hyper, x, values, takes_part)
            for got, expected in zip(found, right, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


def _derivatives(
    name: str,
    hyper: dict[str, float],
    x: Tensor,
    values: list[Tensor],
    mask: Tensor | None,
    solver: str = "auto",
    declared: bool = True,
) -> list[Tensor]:
    """y, its first derivatives against one vector, and theirs against another."""
    v, w = normal(*x.shape, seed=21), normal(*x.shape, seed=22)
    inputs = [t.clone().requires_grad_() for t in (x, *values)]
    y = _layer(name, hyper, inputs[1:], solver, declared)(inputs[0], mask)
    first = torch.autograd.grad(y, inputs, v, create_graph=True)
    total = sum(((g * w).sum() for g in first[1:]), (first[0] * w).sum())
    second = torch.autograd.grad(total, inputs, materialize_grads=True)
    return [y, *first, *second]


def _layer(
    name: str,
    hyper: dict[str, float],
    values: Sequence[Tensor],
    solver: str = "auto",
    declared: bool = True,
) -> regmax.RegularizedMax:
    omega = regmax.regularizer(name, **dict(zip(hyper, values[1:], strict=True)))
    return regmax.RegularizedMax(omega if declared else definition(omega), values[0], solver=solver)


def _values(hyper: dict[str, float], per_head: bool) -> list[Tensor]:
    """γ and the hyperparameters."""
    spread = torch.tensor([[[1.0]], [[0.97]]] if per_head else 1.0, dtype=torch.float64)
    return [value * spread for value in (0.8, *hyper.values())]


class MappingChecks:
    """Inherit and set ``name``, ``mapping``, ``hyper``.

    What the conformance kit promises of every regularizer is in testing/test_builtins.py, and what
    holds on hard inputs in mapping/test_hard_inputs.py.
    """

    name: ClassVar[str]
    mapping: ClassVar[str]
    hyper: ClassVar[dict[str, float]] = {}

    @property
    def f(self) -> Callable[..., Tensor]:
        return functools.partial(getattr(functional, self.mapping), **self.hyper)

    def parameters(self) -> dict[str, Tensor]:
        """γ and the hyperparameters as tensors that require grad."""
        values = {**self.hyper, "gamma": 1.3}
        return {k: torch.tensor(v, dtype=torch.float64).requires_grad_() for k, v in values.items()}

    def test_what_a_masked_entry_holds_does_not_matter(self) -> None:
        x = normal(4, 6, seed=2)
        mask = torch.ones(4, 6, dtype=torch.bool)
        mask[:, 1] = mask[0, 4] = False
        for garbage in (torch.nan, torch.inf, -torch.inf, 1e30, -1e300):
            dirty = x.masked_fill(~mask, garbage).requires_grad_()
            clean = x.masked_fill(~mask, 0).requires_grad_()
            y, expected = self.f(dirty, mask=mask), self.f(clean, mask=mask)
            assert torch.equal(y, expected)
            v = normal(4, 6, seed=3)
            (g,) = torch.autograd.grad(y, dirty, v)
            (h,) = torch.autograd.grad(expected, clean, v)
            assert torch.equal(g, h)
            assert (g[~mask] == 0).all()

    @pytest.mark.parametrize("gamma", [0.5, 2.0])
    def test_the_lowest_number_is_a_low_score(self, gamma: float) -> None:
        """Additive masks hold finfo.min; over γ < 1 that overflows."""
        theta = {k: t.detach().float().requires_grad_() for k, t in self.parameters().items()}
        theta["gamma"] = torch.tensor(gamma, requires_grad=True)
        f = getattr(functional, self.mapping)
        x, at = normal(3, 6, seed=18, dtype=torch.float32), torch.tensor([1, 4])
        lowest, low = (
            x.index_fill(1, at, v).requires_grad_() for v in (torch.finfo(x.dtype).min, -1e4)
        )
        y = f(lowest, **theta)
        torch.testing.assert_close(y, f(low, **theta), rtol=0, atol=_few_ulp(x.dtype))
        for g in torch.autograd.grad(y[:, 0].sum(), [lowest, *theta.values()]):
            assert torch.isfinite(g).all()


def _few_ulp(dtype: torch.dtype) -> float:
    return 16 * torch.finfo(dtype).eps
