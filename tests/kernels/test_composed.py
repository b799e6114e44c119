"""The kernel of base + λR, next to the prox of all entries and then the kernel of the base."""

from __future__ import annotations

import pytest
import torch
from omegas import Cubic, omega_of

import regmax
from regmax.mapping.methods.kernel import ProxThenBase, kernel_of
from regmax.testing.inputs import hard_values

F64 = torch.float64
PENALTIES = {"tv": 0.1, "oscar": 0.02}
BASES = {
    "tsallis 1.5": regmax.regularizer("tsallis", alpha=1.5),
    "tsallis 3": regmax.regularizer("tsallis", alpha=3.0),
    "tsallis 0.5": regmax.regularizer("tsallis", alpha=0.5),
    "pnorm": regmax.regularizer("pnorm", p=1.5),
    "entropy": regmax.regularizer("entropy"),
}


def rows(scale: float, ties: bool) -> torch.Tensor:
    x = torch.randn(24, 37, generator=torch.Generator().manual_seed(0), dtype=F64) * scale
    return x.round() if ties else x


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", PENALTIES)
def test_it_is_the_prox_and_then_the_base(name, base):
    penalty, smooth = regmax.penalty(name), BASES[base]
    g = torch.Generator().manual_seed(1)
    for lam in (0.0, PENALTIES[name], 3.0, 1e6):
        for scale in (0.3, 5.0, 1e6):
            for gamma in (1.0, 0.3):
                # with λ = 1e6 ties of integers are ties up to rounding of λ
                x = rows(scale, ties=lam in (0.0, 3.0))
                mask = torch.rand(x.shape, generator=g) < 0.8
                mask[:, 0] = True
                v = torch.randn(x.shape, generator=g, dtype=F64)
                for on in (None, mask):
                    compare(smooth, penalty, lam, gamma, x, v, on)


def compare(smooth, penalty, lam, gamma, x, v, mask):
    x = x.clone().requires_grad_()
    weight = torch.tensor(lam, dtype=F64, requires_grad=True)
    omega = smooth + weight * penalty
    assert isinstance(kernel_of(omega, x), ProxThenBase)
    y = regmax.RegularizedMax(omega, gamma=gamma)(x, mask)
    got = torch.autograd.grad(y, [x, weight], v)
    s = omega.composed(x.detach(), gamma, mask).detach().requires_grad_()
    expected = regmax.RegularizedMax(smooth, gamma=gamma)(s, mask)
    (w,) = torch.autograd.grad(expected, [s], v)
    w = penalty.average(w, s.detach(), mask)
    w = w if mask is None else torch.where(mask, w, 0)
    u = penalty.any_subgradient(s.detach(), mask)
    u = u - u.gather(-1, s.argmax(-1, keepdim=True))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(got[0], w, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(got[1], -gamma * (w * u).sum(), rtol=1e-8, atol=1e-8)
    if mask is None:
        ids, zeros = penalty.groups(s.detach()), torch.zeros_like(y)
        ends = (
            zeros.scatter_reduce(-1, ids, y, end, include_self=False) for end in ("amin", "amax")
        )
        assert torch.equal(*ends)


@pytest.mark.parametrize("penalty", ["tv", "oscar", "clique_tv"])
def test_a_steep_base_multiplies_averages(penalty):
    """α > 2, equal entries next to 0: J is up to 1e16 there, and magnifies what cancels in P v."""
    omega = regmax.regularizer("tsallis", alpha=3.0) + 0.03 * regmax.penalty(penalty)
    x = hard_values("borders", 400, 6, F64, seed=6).requires_grad_()
    v = torch.randn(x.shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    (g,) = torch.autograd.grad(regmax.RegularizedMax(omega)(x), x, v)
    assert (g.sum(-1).abs() <= 1e-12 * (1 + g.abs().sum(-1))).all()


def taken(monkeypatch):
    """What the kernels from the value computed after a prox, None for nothing."""
    from regmax.mapping.methods.from_value import FromValue

    found, own = [], FromValue.forward_after
    monkeypatch.setattr(
        FromValue, "forward_after", lambda *args: found.append(own(*args)) or found[-1]
    )
    return found


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("masked", [False, True])
def test_a_prox_is_a_step_of_an_omega_by_its_value(masked, dtype, monkeypatch):
    found, g = taken(monkeypatch), torch.Generator().manual_seed(2)
    x = (torch.randn(48, 70, generator=g, dtype=F64) * 2).to(dtype).requires_grad_()
    v = torch.randn(48, 70, generator=g, dtype=F64).to(dtype)
    mask = torch.rand(48, 70, generator=g) < 0.7 if masked else None
    weight = torch.tensor(0.1, dtype=dtype, requires_grad=True)
    results = []
    for base in (omega_of(lambda y: (y**1.5).sum(-1) / 0.375), 2.0 * BASES["tsallis 1.5"]):
        for _ in range(3):  # the numbers come again
            y = regmax.RegularizedMax(base + weight * regmax.penalty("tv"), gamma=0.7)(x, mask)
            got = torch.autograd.grad(y, [x, weight], v)
        results.append((y.detach(), *got))
    assert found[-1] is not None
    for ours, theirs in zip(*results, strict=True):
        close = (1e-6, 1e-5) if dtype == torch.float32 else (1e-11, 1e-9)
        torch.testing.assert_close(ours, theirs, atol=close[0], rtol=close[1])


def test_a_table_follows_a_prox(monkeypatch):
    found, g = taken(monkeypatch), torch.Generator().manual_seed(3)
    x = (torch.randn(20, 50, generator=g, dtype=F64)).requires_grad_()
    x.data[:, ::7] = -torch.inf
    omega = Cubic() + 0.2 * regmax.penalty("tv")
    v = torch.randn(20, 50, generator=g, dtype=F64)
    for _ in range(3):
        y = regmax.RegularizedMax(omega)(x)
        (dx,) = torch.autograd.grad(y, x, v)
    assert found[-1] is not None
    on = x != -torch.inf
    moved = omega.composed(x.detach().clamp_min(-1e6), 1.0, on).requires_grad_()
    expected = regmax.RegularizedMax(Cubic())(moved, on)
    (w,) = torch.autograd.grad(expected, moved, v)
    w = torch.where(on, omega.penalty.average(w, moved.detach(), on), 0)
    torch.testing.assert_close(y, expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(dx, w, atol=1e-6, rtol=0)


@pytest.mark.parametrize("learns", [False, True])
def test_the_reach_of_a_base_by_its_value(learns):
    """It is that of the base: the kernel's θ is what was read of the value, here w²."""

    class Own(regmax.Regularizer):
        hyperparameters = ("w",)

        def __init__(self, w):
            super().__init__()
            self.w = w

        def value(self, y):
            return (self.w.square() * y.square()).sum(-1) / 2

        def support_radius(self):
            return self.w.square().reshape(-1)

    x = torch.randn(5, 30, dtype=torch.float64)
    w = torch.tensor(0.3, dtype=torch.float64, requires_grad=learns)
    penalty = 0.05 * regmax.penalty("tv")
    y = regmax.RegularizedMax(Own(w) + penalty)(x)
    expected = regmax.RegularizedMax(0.09 * regmax.regularizer("gini") + penalty)(x)
    torch.testing.assert_close(y.detach(), expected, atol=1e-12, rtol=0)
