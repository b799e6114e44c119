"""What holds for every mapping: a class of tests to inherit, checks of values and gradients.

A subclass says which mapping (``name``), with which hyperparameters (``hyper``), and what is out of
their range (``refused``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import Row, rows
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

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


def check_gradients(name: str, hyper: dict[str, float], scale: float = 1.0) -> None:
    """gradcheck and gradgradcheck in x, γ and every hyperparameter, scalars and one per head."""
    for per_head in (False, True):
        values = _values(hyper, per_head)
        x = away_from_kinks(_layer(name, hyper, values), 2, 2, 4, scale=scale)

        def f(x: Tensor, *values: Tensor) -> Tensor:
            return _layer(name, hyper, values)(x)

        inputs = [t.clone().requires_grad_() for t in (x, *values)]
        assert gradcheck(f, inputs)
        assert gradgradcheck(f, inputs, fast_mode=True, atol=1e-4)


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
    """Inherit and set ``name``, ``mapping``, ``hyper``, ``refused``."""

    name: ClassVar[str]
    mapping: ClassVar[str]
    hyper: ClassVar[dict[str, float]] = {}
    refused: ClassVar[dict[str, tuple[float, ...]]] = {}
    solvers: ClassVar[tuple[str, ...]] = ()
    sparse: ClassVar[bool] = True

    @property
    def f(self) -> Callable[..., Tensor]:
        return functools.partial(getattr(functional, self.mapping), **self.hyper)

    def parameters(self) -> dict[str, Tensor]:
        """γ and the hyperparameters as tensors that require grad."""
        values = {**self.hyper, "gamma": 1.3}
        return {k: torch.tensor(v, dtype=torch.float64).requires_grad_() for k, v in values.items()}

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_zeros_are_zero_and_rows_sum_to_one(self, dtype: torch.dtype) -> None:
        zeros = 0
        for x in cases():
            y = self.f(x.to(dtype))
            assert (y >= 0).all()
            for row in y.flatten(0, -2).tolist():
                slack = 2 * torch.finfo(dtype).eps * math.sqrt(len(row))
                assert abs(math.fsum(row) - 1) <= slack
                zeros += row.count(0.0)
        assert bool(zeros) == self.sparse or not self.sparse

    def test_one_score(self) -> None:
        assert self.f(normal(3, 1)).tolist() == [[1.0]] * 3

    def test_empty_batch(self) -> None:
        x = torch.zeros(0, 5, requires_grad=True)
        y = self.f(x)
        assert y.shape == (0, 5)
        y.sum().backward()
        assert x.grad is not None

    @pytest.mark.parametrize("d", [2, 5, 8, 17, 64, 100])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_row_does_not_depend_on_its_batch(self, d: int, dtype: torch.dtype) -> None:
        x = normal(9, d, seed=d, dtype=dtype) * 2
        whole = self.f(x)
        for i in range(len(x)):
            assert torch.equal(whole[i : i + 1], self.f(x[i : i + 1]))
            assert torch.equal(whole[i], self.f(x[i]))
        assert torch.equal(whole[2:7], self.f(x[2:7]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_solvers_row_does_not_depend_on_its_batch(self, dtype: torch.dtype) -> None:
        x = normal(6, 7, seed=1, dtype=dtype) * 2
        for solver in self.solvers:
            omega = regmax.regularizer(self.name, **self.hyper)
            layer = regmax.RegularizedMax(omega, solver=solver, on_failure="ignore")
            whole = layer(x)
            for i in range(len(x)):
                assert torch.equal(whole[i : i + 1], layer(x[i : i + 1])), solver

    def test_a_shift_changes_nothing(self) -> None:
        @settings(deadline=None, max_examples=15, derandomize=True, database=None)
        @given(st.lists(st.integers(-64, 64), min_size=1, max_size=12), st.integers(-800, 800))
        def check(sixteenths: list[int], shift: int) -> None:  # sums are exact
            x = torch.tensor([sixteenths], dtype=torch.float64) / 16
            assert torch.equal(self.f(x), self.f(x + shift / 16))

        check()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_masked_row_is_the_shorter_row(self, dtype: torch.dtype) -> None:
        x = normal(6, 3, 11, seed=5, dtype=dtype) * 2
        mask = torch.rand(6, 3, 11, generator=torch.Generator().manual_seed(1)) < 0.6
        mask[..., 4] = True
        y = self.f(x, mask=mask)
        assert (y[~mask] == 0).all()
        for at in np.ndindex(6, 3):
            short = self.f(x[at][mask[at]])
            torch.testing.assert_close(y[at][mask[at]], short, rtol=0, atol=_few_ulp(dtype))

    def test_a_mask_broadcasts(self) -> None:
        x = normal(2, 3, 5)
        mask = torch.tensor([True, False, True, True, False])
        expected = self.f(x, mask=mask.expand(2, 3, 5))
        assert torch.equal(self.f(x, mask=mask), expected)
        assert torch.equal(self.f(x.masked_fill(~mask, -torch.inf)), expected)
        ragged = torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
        y = self.f(x, mask=ragged)
        assert y[0, 2].tolist() == [1, 0, 0, 0, 0]
        assert (y[:, 1, 2:] == 0).all()
        turned = self.f(x.transpose(1, 2), mask=ragged.t(), dim=1)
        torch.testing.assert_close(turned.transpose(1, 2), y, rtol=0, atol=_few_ulp(y.dtype))
        with pytest.raises(ValueError, match=r"mask.*\(4,\).*\(2, 3, 5\)"):
            self.f(x, mask=torch.ones(4, dtype=torch.bool))
        with pytest.raises(TypeError, match="mask must be bool"):
            self.f(x, mask=torch.ones(5))

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

    def test_a_row_without_participants_is_zero(self) -> None:
        theta = self.parameters()
        f = getattr(functional, self.mapping)
        x = normal(3, 5, seed=4)
        x[1] = -torch.inf
        x.requires_grad_()
        mask = torch.ones(3, 5, dtype=torch.bool)
        mask[2] = False
        y = f(x, mask=mask, **theta)
        assert (y[1:] == 0).all()
        v = normal(3, 5, seed=6)
        first = torch.autograd.grad(y, [x, *theta.values()], v, create_graph=True)
        assert (first[0][1:] == 0).all()
        alone = x.detach()[:1].clone().requires_grad_()
        other = torch.autograd.grad(f(alone, **theta), [alone, *theta.values()], v[:1])
        for a, b in zip(first, other, strict=True):
            assert torch.isfinite(a).all()
            torch.testing.assert_close(a[:1] if a.ndim else a, b, rtol=1e-12, atol=1e-12)
        total = sum(g.square().sum() for g in first)
        if total.requires_grad:
            second = torch.autograd.grad(total, [x, *theta.values()], allow_unused=True)
            assert all(g is None or bool(torch.isfinite(g).all()) for g in second)

    def test_a_spoilt_row_stays_alone(self) -> None:
        x = normal(5, 6, seed=7)
        x[1, 2], x[3, 0] = torch.nan, torch.inf
        y = self.f(x)
        assert torch.isnan(y[[1, 3]]).all()
        good = [0, 2, 4]
        assert torch.equal(y[good], self.f(x[good]))
        x.requires_grad_()
        (g,) = torch.autograd.grad(self.f(x), x, normal(5, 6, seed=8))
        assert torch.isfinite(g[good]).all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_computes_in_float32(self, dtype: torch.dtype) -> None:
        x = (normal(4, 33, seed=11) * 2).to(dtype).requires_grad_()
        y = self.f(x)
        assert y.dtype == dtype
        x32 = x.detach().float().requires_grad_()
        y32 = self.f(x32)
        assert torch.equal(y, y32.to(dtype))
        v = normal(4, 33, seed=12).to(dtype)
        (g,) = torch.autograd.grad(y, x, v)
        (g32,) = torch.autograd.grad(y32, x32, v.float())
        assert g.dtype == dtype
        assert torch.equal(g, g32.to(dtype))

    def test_half_precision_rows_sum_to_one(self) -> None:
        for dtype in (torch.float16, torch.bfloat16):
            y = self.f((normal(8, 200, seed=13)).to(dtype))
            slack = 2 * torch.finfo(dtype).eps * math.sqrt(200)
            assert (y.double().sum(-1) - 1).abs().max() <= slack

    def test_out_of_range_is_refused(self) -> None:
        f, x = getattr(functional, self.mapping), normal(2, 3, 4)
        for key, values in {"gamma": (0.0, -1.0), **self.refused}.items():
            for value in (*values, math.nan, math.inf):
                with pytest.raises(ValueError, match=rf"{key} must be .*; got {value:g}"):
                    f(x, **{key: value})
                bad = torch.full((3, 1), self.hyper.get(key, 1.0))
                bad[1, 0] = value
                with pytest.raises(ValueError, match=rf"{key} must be .*got .* at index \(1, 0\)"):
                    f(x, **{key: bad})
            for value in ("1.5", True, None):
                with pytest.raises(TypeError, match=rf"{key} must be "):
                    f(x, **{key: value})
            with pytest.raises(TypeError, match=rf"{key} must be .*int64"):
                f(x, **{key: torch.tensor([[2]])})

    def test_a_wrong_shape_is_refused(self) -> None:
        f, x = getattr(functional, self.mapping), normal(2, 3, 4)
        for key in ("gamma", *self.hyper):
            value = self.hyper.get(key, 1.0)
            for shape in ((4,), (2, 1), (2, 3, 4), (1, 2, 3, 1)):
                with pytest.raises(ValueError, match=f"{key} must broadcast") as caught:
                    f(x, **{key: torch.full(shape, value)})
                assert str(tuple(shape)) in str(caught.value)
                assert "(2, 3, 4)" in str(caught.value)

    def test_one_value_per_row(self) -> None:
        """A tensor of hyperparameters gives each row what a float would."""
        f, x = getattr(functional, self.mapping), normal(2, 3, 5, seed=14)
        for key in ("gamma", *self.hyper):
            value = self.hyper.get(key, 1.0)
            many = (value * torch.linspace(0.9, 1.1, 3, dtype=torch.float64)).reshape(3, 1)
            y = f(x, **{**self.hyper, key: many})
            for i in range(3):
                one = f(x[:, i], **{**self.hyper, key: many[i].item()})
                torch.testing.assert_close(y[:, i], one, rtol=0, atol=1e-13)
            turned = f(x.transpose(1, 2), dim=1, **{**self.hyper, key: many.t()})
            torch.testing.assert_close(turned.transpose(1, 2), y, rtol=0, atol=1e-14)

    def test_no_point_of_the_simplex_is_better(self) -> None:
        """By strong convexity f(y) ≥ f(t) + γβ/2 ‖y − t‖² for every t, with Ω's value alone."""
        omega = regmax.regularizer(self.name, **self.hyper)
        beta = omega.strong_convexity or 0.0
        x = normal(20, 6, seed=15) * 2
        y = self.f(x, gamma=0.7)

        def objective(t: Tensor) -> Tensor:
            return (t * x).sum(-1) - 0.7 * omega.value(t)

        top = objective(y)
        generator = torch.Generator().manual_seed(16)
        for k in range(60):
            t = torch.rand(x.shape, generator=generator, dtype=x.dtype).pow(1 + k % 5)
            t = t / t.sum(-1, keepdim=True)
            t = y + (t - y) * 10.0 ** -(k % 6)
            drop = top - objective(t)
            assert (drop >= 0.35 * beta * (y - t).square().sum(-1) - 1e-14).all()


def _few_ulp(dtype: torch.dtype) -> float:
    return 16 * torch.finfo(dtype).eps
