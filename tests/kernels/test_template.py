"""Rows of a user's Ω = Σ e(y) by the template of threshold mappings, against a solver."""

import pytest
import torch
from omegas import omega_of
from row_checks import same_in_any_batch

import regmax

pytest.importorskip("numba")
from regmax.kernels.from_value import template

F64 = torch.float64

VALUES = {
    "cubic": lambda y: y**2 / 2 + y**3 / 6,
    "power": lambda y: y**1.3 + 0.1 * y**2,
    "log": lambda y: y * y.log() + y**2 / 2,
    "steep": lambda y: y**3 + 0.2 * y**2,
}
POWERS = {
    "gini": (lambda y: 3 * y * y, 6.0, 2.0),
    "sqrt": (lambda y: y * y.sqrt(), 0.75, 1.5),
    "1.3": (lambda y: y**1.3, 1.3 * 0.3, 1.3),
    "4": (lambda y: y**4 / 12, 1.0, 4.0),
    "entropy": (lambda y: 2 * torch.special.entr(y).neg(), 2.0, 1.0),
    "0.5": (lambda y: -y.sqrt(), 0.25, 0.5),
}


def summed(e):
    """Ω = Σ e(y)."""
    return omega_of(lambda y: e(y).sum(-1))


@pytest.fixture
def used(monkeypatch):
    """The templates that were called, and their bounds."""
    calls, plain = [], template.Template.forward

    def forward(self, x, gamma, mask):
        y, bound = plain(self, x, gamma, mask)
        calls.append((type(self).__name__, x.dtype, bound))
        return y, bound

    monkeypatch.setattr(template.Template, "forward", forward)
    return calls


def rows(d, dtype):
    """Scores of all kinds: normal, ties, lattices, next to each other, far apart, points of Δ."""
    torch.manual_seed(d)
    x = torch.randn(12, d, dtype=dtype)
    x[1] *= 10
    x[2] *= 0.01
    x[3] = (x[3] * 4).round() / 4
    x[4] = 1 + x[4].sign() * torch.finfo(dtype).eps
    x[5] = 0
    x[6] = (3 * x[6]).softmax(-1)
    x[7] = regmax.functional.sparsemax(x[7])
    x[8, 0] += 100
    x[9] = 0
    x[9, -1] = 1.5
    return x


@pytest.mark.parametrize("d", [1, 7, 200])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", VALUES)
def test_an_e_that_is_no_power(name, dtype, d, used):
    own = regmax.RegularizedMax(summed(VALUES[name]))
    own(torch.randn(2, d, dtype=dtype))
    used.clear()
    x = rows(d, dtype)
    y = own(x)
    assert [call[:2] for call in used] == [("Implicit", dtype)]
    assert used[0][2] <= 1e-8
    tol = 3e-7 if dtype == torch.float32 else 1e-11
    with regmax.kernels.reference():
        known = own(x.double())
    assert (y.double() - known).abs().max() < tol
    if name != "log":  # which has no zeros, and numbers below those of a dtype
        least = 1e-20 if name == "power" else 1e-12  # what rounding makes of a tie
        assert torch.equal(y > least, known > least)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", POWERS)
def test_a_power(name, dtype, used, monkeypatch):
    e, c, alpha = POWERS[name]
    own = regmax.RegularizedMax(summed(e), gamma=0.7)
    own(torch.randn(2, 33, dtype=dtype))
    found, plain = [], template.Power.forward

    def forward(self, *given):
        found.append((self.scale, self.alpha))
        return plain(self, *given)

    monkeypatch.setattr(template.Power, "forward", forward)
    x = rows(33, dtype)
    y = own(x)
    assert found[0] == (pytest.approx(c, rel=1e-12), pytest.approx(alpha, rel=1e-12))
    known = regmax.functional.entmax(x, alpha=alpha, gamma=0.7 * c)
    assert (y - known).abs().max() < (3e-7 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("name", ["cubic", "log"])
def test_a_row_has_the_same_bits_in_any_batch(name):
    own = regmax.RegularizedMax(summed(VALUES[name]))
    for dtype in (torch.float32, F64):
        own(torch.randn(2, 70, dtype=dtype))  # the first call compares with the solver
        same_in_any_batch(own, rows(70, dtype), torch.randn(12, 70, dtype=dtype))


def test_v_is_not_read_where_y_is_0():
    own = regmax.RegularizedMax(summed(VALUES["cubic"]))
    own(torch.randn(2, 40))
    x, v = torch.randn(5, 40, requires_grad=True), torch.randn(5, 40)
    y = own(x)
    (g,) = torch.autograd.grad(y, x, v, retain_graph=True)
    assert torch.equal(torch.autograd.grad(y, x, v.masked_fill(y == 0, torch.nan))[0], g)


def test_numbers_that_change_at_each_call_need_no_table(used):
    """A table takes longer than a few rows; the numbers that came before have one."""
    e = VALUES["cubic"]
    c = torch.tensor(0.2, dtype=F64, requires_grad=True)
    omega = omega_of(lambda y, c: (e(y) + c * y**3).sum(-1), c=c)
    layer, x = regmax.RegularizedMax(omega), torch.randn(4, 11, dtype=F64)
    layer(x)
    assert used  # what answers are compared of, when the kernel is made
    used.clear()
    with torch.no_grad():
        c.add_(0.01)
    once = layer(x)
    assert not used
    twice = layer(x)
    assert [call[0] for call in used] == ["Implicit"]
    assert (once - twice).abs().max() < 1e-12
