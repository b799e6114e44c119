"""The kernel between bounds against PyTorch, in float64."""

import itertools

import numpy as np
import pytest
import torch
from omegas import omega_of

import regmax
from regmax import AtMost, Box, RegularizedMax, Simplex, kernels
from regmax.kernels.from_value.kernel import NumbaKernel
from regmax.regularizers.curvature import Diagonal
from regmax.testing.inputs import VALUES, hard_values

F64 = torch.float64
OMEGAS = {
    "gini": lambda: regmax.regularizer("gini"),
    "entropy": lambda: regmax.regularizer("entropy"),
    "tsallis 0.5": lambda: regmax.regularizer("tsallis", alpha=0.5),
    "tsallis 1.04": lambda: regmax.regularizer("tsallis", alpha=1.04),
    "tsallis 1.5": lambda: regmax.regularizer("tsallis", alpha=1.5),
    "tsallis 1.8": lambda: regmax.regularizer("tsallis", alpha=1.8),
    "by row": lambda: regmax.regularizer(
        "tsallis", alpha=torch.tensor([[0.9], [1.0], [1.2], [1.5], [2.0]], dtype=F64)
    ),
}


SUMS = ("a small cap", "subsets", "large subsets", "between", "by row")


def bounds(kind, rows, d, dtype):
    share = torch.rand(rows, d, generator=torch.Generator().manual_seed(d)).to(dtype) + 0.1
    share = share / share.sum(-1, keepdim=True)
    return {
        "a small cap": (1.0, 0.0, 1.5 / d),
        "subsets": (max(1.0, d // 3), 0.0, 1.0),
        "large subsets": (max(1.0, d - 2.5), 0.0, 1.0),
        "from below": (2.0, 0.5 / d, 0.9),
        "a total": (3.0, 0.0, None),
        "caps": (1.3, 0.0, 3 * share),
        "between": (1.3, 0.4 * share, 2 * share),
        "by row": (torch.full((rows, 1), 1.25, dtype=dtype), 0.0, share[:, :1] + 1.3 / d),
    }[kind]


def product(y, x, v):
    return torch.autograd.grad(y, x, v)[0]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("name", OMEGAS)
def test_caps_that_almost_add_up_on_the_upper_levels_of_scores(name, each):
    """Between two levels p' is next to 0: a step by it leaves every number behind."""
    omega, levels = OMEGAS[name](), torch.arange(5, dtype=F64).repeat_interleave(8)
    high = torch.linspace(1, 1.5, 40, dtype=F64).roll(7) if each else torch.tensor(0.7, dtype=F64)
    full = high.expand(40)[:24].sum().item()
    for gap in (30.0, 1e3):
        x = (-gap * levels).expand(5, 40)
        for part in (0.0, 1e-3, 1e-6, 1e-8, 1e-11, -1e-3, -1e-8):
            total = torch.full((5, 1), full * (1 - part), dtype=F64)
            layer = RegularizedMax(omega, domain=Simplex(total, 0.0, high if each else 0.7))
            with kernels.reference():
                expected = layer(x)
            y = layer(x)
            torch.testing.assert_close(y.sum(-1, keepdim=True), total, rtol=1e-14, atol=0)
            torch.testing.assert_close(y, expected, rtol=0, atol=1e-11)
            small = layer(x.float()).double()
            torch.testing.assert_close(small, expected, rtol=0, atol=3e-7 * full)


@pytest.mark.parametrize("kind", [*SUMS, "from below", "a total", "caps"])
@pytest.mark.parametrize("name", OMEGAS)
def test_it_agrees_with_pytorch(name, kind):
    rows, omega = 5, OMEGAS[name]()
    for values, d in zip(VALUES, (3, 16, 17, 40, 100, 7, 33, 300) * 3, strict=False):
        for dtype in (torch.float32, F64):
            x = hard_values(values, rows, d, dtype).requires_grad_()
            total, low, high = bounds(kind, rows, d, dtype)
            y = RegularizedMax(omega, gamma=0.7, domain=Simplex(total, low, high))(x)
            v = torch.linspace(-1, 1, d, dtype=dtype).sin().expand(rows, d)
            wide = x.detach().double().requires_grad_()
            low, high = (t.double() if torch.is_tensor(t) else t for t in (low, high))
            with kernels.reference():
                layer = RegularizedMax(omega, gamma=0.7, domain=Simplex(total, low, high))
                expected = layer(wide)
            eps = torch.finfo(dtype).eps
            k = total.double() if torch.is_tensor(total) else total
            slack = 30 if dtype == torch.float32 else 500  # of e' as written, 25 at α = 1.04
            assert (y - expected).abs().max() <= slack * eps, (values, d, dtype)
            assert ((y.double().sum(-1, keepdim=True) - k).abs() <= 2 * eps * d**0.5 * k).all()
            face = (y > low) & (y < (k if high is None else high))
            same = (face == ((expected > low) & (expected < (k if high is None else high)))).all(-1)
            off = (product(y, x, v) - product(expected, wide, v.double())).abs().amax(-1)
            assert (off[same] <= 1e4 * eps).all(), (values, d, dtype, off, same)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", OMEGAS)
def test_a_row_does_not_depend_on_the_rows_it_is_computed_with(name, dtype):
    """Easy rows beside hard ones: scales, lattices, ties, ulps, vertices, wide supports, masks."""
    rows, d = 40, 560
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, d, generator=generator, dtype=F64)
    x = x * torch.logspace(-2, 4, rows, dtype=F64).unsqueeze(-1)
    x[::5] = x[::5].round()
    x[1::7] = 1 + x[1::7].sign() * torch.finfo(dtype).eps
    x[2::11] = x[2::11, :1]
    x[3], x[4], x[5, 20:] = x[3] * 1e30, x[4] * 1e-30, -torch.inf
    x, mask = x.to(dtype), torch.rand(rows, d, generator=generator) > 0.2
    omega = OMEGAS[name]()
    if name == "by row":
        omega = regmax.regularizer("tsallis", alpha=omega.alpha.repeat(rows // 5, 1))
    for total, high in ((1.0, 0.1), (8.0, 1.0), (150.0, 0.9), (0.5, None)):
        total = torch.full((rows, 1), total, dtype=dtype)
        total[5] = total[5].clamp_max(5 * (high or 1))
        layer = RegularizedMax(omega, domain=Simplex(total, upper=high))
        y = layer(x, mask)
        for r in range(0 if name == "by row" else rows):  # one α has another kernel
            alone = RegularizedMax(omega, domain=Simplex(total[r : r + 1], upper=high))
            assert torch.equal(alone(x[r : r + 1], mask[r : r + 1])[0], y[r]), (r, high)
        with kernels.reference():
            expected = RegularizedMax(omega, domain=Simplex(total.double(), upper=high))(
                x.double(), mask
            )
        assert (y - expected).abs().amax() <= 500 * torch.finfo(dtype).eps


def test_entries_at_a_bound_are_told_from_those_next_to_it():
    """y_1 is next to its cap: rounded, it does not reach it, as J would be another one."""
    x = torch.tensor([[1.0, 0.4000001, -0.2]], requires_grad=True)
    y = regmax.functional.softmax(x, domain=Simplex(upper=0.5))
    assert y[0, 0] == 0.5
    x = torch.tensor([[1.0, 1.0 - 2e-7, 1.0 - 3e-7]], dtype=torch.float32)
    y = regmax.functional.sparsemax(x, domain=Simplex(total=1.5, upper=0.5 + 2e-7))
    assert (y < torch.tensor(0.5 + 2e-7)).all()


def test_dim_mask_half_precision_and_rows_without_an_answer():
    x = torch.randn(4, 9, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    x[0, 2, 0], x[1, 3, 1], x[2, :, 2] = -torch.inf, torch.nan, -torch.inf
    mask = torch.ones(4, 9, 3, dtype=torch.bool)
    mask[3, 4:] = False
    caps = torch.linspace(0.2, 0.6, 9, dtype=F64).unsqueeze(-1)
    for upper in (0.4, caps):
        layer = RegularizedMax(regmax.regularizer("tsallis"), dim=1, domain=Simplex(upper=upper))
        y = layer(x, mask)
        with kernels.reference():
            expected = layer(x, mask)
        assert torch.allclose(y, expected, rtol=0, atol=1e-14, equal_nan=True)
        assert y[1, :, 1].isnan().all()
        assert (y[2, :, 2] == 0).all()
        assert (y[3, 4:] == 0).all()
    half = RegularizedMax(regmax.regularizer("gini"), domain=Simplex(upper=0.25))
    y = half(torch.randn(5, 20).to(torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert (y <= 0.25).all()


# -- an Ω by its value -------------------------------------------------------------------------


def known(value, inverse, grad=None, bend=None):
    """The classes of Ω = Σ value(y) by its value alone, and with its inverse, ∇Ω and curvature."""
    more = {"inverse": lambda self, u: inverse(u)}
    if grad is not None:
        more["grad"] = lambda self, y: grad(y)
        more["curvature"] = lambda self, y: Diagonal(bend(y))
    return [type(omega_of(lambda y: value(y).sum(-1), **m)) for m in ({}, more)]


OWN = {
    "cubic": known(
        lambda y: y.square() / 2 + y.pow(3) / 6, lambda u: (1 + 2 * u.clamp_min(0)).sqrt() - 1
    ),
    "root": known(
        lambda y: y.pow(1.5) / 1.5 + y.square() / 2,
        lambda u: (((1 + 4 * u.clamp_min(0)).sqrt() - 1) / 2).square(),
    ),
    "jensen": known(
        lambda y: torch.xlogy(y, y) - (1 + y) * (1 + y).log(),
        lambda u: 1 / torch.expm1(u.clamp_max(0).abs()),  # not −0
        lambda y: -torch.log1p(1 / y),
        lambda y: 1 / (y * (1 + y)),
    ),
}
Cubic, CubicInverse = OWN["cubic"]


def test_scores_too_far_apart_for_a_solver_get_no_bound():
    """A solver raises scores below −1e12. Here some of these entries are above 0."""
    x = torch.tensor([[0.0, -3e12, -5e12, -9e12]], dtype=F64)
    domain = Simplex(upper=0.4)
    solver = RegularizedMax(Cubic(), domain=domain, solver="interior", on_failure="ignore")
    assert solver.solve(x).error_bound == torch.inf
    own = RegularizedMax(Cubic(), domain=domain).solve(x)
    assert own.error_bound < 1e-8
    assert own.y.tolist() == [[0.4, 0.4, own.y[0, 2].item(), 0.0]]


# its linear term counts where no sum is fixed
FREE = OWN | {
    "tilted": known(
        lambda y: torch.xlogy(y, y) + 0.3 * y,
        lambda u: (u - 1.3).exp(),
        lambda y: y.log() + 1.3,
        lambda y: 1 / y,
    ),
    "power": known(lambda y: y.pow(1.5) / 1.5 - 0.2 * y, lambda u: (u + 0.2).clamp_min(0).square()),
}


def free(kind, rows, d):
    share = torch.rand(rows, d, generator=torch.Generator().manual_seed(d), dtype=F64)
    return {
        "box": Box(),
        "box of entries": Box(0.3 * share, 0.3 + 0.7 * share),
        "at most 1": AtMost(),
        "at most, capped": AtMost(0.2 * d, 0.4),
        "at most by row": AtMost(torch.linspace(0, 2, rows, dtype=F64).unsqueeze(-1), share),
        "slack": AtMost(2.0 * d, 1.0),
    }[kind]


KINDS = ("box", "box of entries", "at most 1", "at most, capped", "at most by row", "slack")


@pytest.mark.parametrize(
    ("name", "kind"), [*itertools.product(OWN, SUMS), *itertools.product(FREE, KINDS)]
)
def test_an_omega_by_its_value_agrees_with_its_inverse_in_pytorch(name, kind):
    rows, (own, closed) = 5, FREE[name]
    for values, d in zip(VALUES, (3, 16, 17, 40, 100, 7, 33, 200) * 3, strict=False):
        x = hard_values(values, rows, d, F64)
        domain = Simplex(*bounds(kind, rows, d, F64)) if kind in SUMS else free(kind, rows, d)
        solution = RegularizedMax(own(), 0.7, domain=domain, on_failure="ignore").solve(x)
        with kernels.reference():
            expected = RegularizedMax(closed(), gamma=0.7, domain=domain)(x)
        off = (solution.y - expected).abs().amax(-1)
        assert (off <= torch.where(solution.error_bound < 1e-8, 1e-12, solution.error_bound)).all()
        if "scales" not in values:
            assert (solution.error_bound < 1e-8).all()
        if kind != "between":  # where some caps are above 1
            assert solution.path.startswith("kernel from the value"), (values, d, solution)


@pytest.mark.parametrize("kind", ["box", "at most by row", "total"])
def test_rows_of_a_value_have_the_same_bits_alone(kind):
    """By its kernel, whose steps end where all entries are done, and coupled, by the solver."""
    values = {
        "separable": lambda y: (torch.xlogy(y, y) + y * y).sum(-1),
        "coupled": lambda y: (y * y.sqrt()).sum(-1).square() + y.square().sum(-1),
    }
    for name, value in values.items():
        omega = omega_of(value)
        for d in (6, 9):
            generator = torch.Generator().manual_seed(d)
            x = torch.randn(16, d, generator=generator, dtype=F64)
            high = torch.rand(d, generator=generator, dtype=F64)
            share = torch.rand(16, 1, generator=generator, dtype=F64) * high.sum()

            def mapping(rows, omega=omega, x=x, high=high, share=share):
                domain = {
                    "box": Box(0.0, high),
                    "at most by row": AtMost(share[rows], high),
                    "total": Simplex(share[rows], 0.0, high),
                }[kind]
                return RegularizedMax(omega, gamma=0.1, domain=domain)(x[rows])

            each = torch.cat([mapping([r]) for r in range(len(x))])
            assert torch.equal(mapping(slice(None)), each), (name, d)


@pytest.mark.parametrize("name", FREE)
def test_entries_next_to_0_and_at_bounds_are_exact(name):
    """Against bisection in numbers of 64 bits or more."""
    own, closed = FREE[name]
    zero, one, half = (closed().grad(torch.full((1,), t, dtype=F64)) for t in (1e-300, 1.0, 0.5))
    u = torch.cat(
        [
            torch.tensor([-1e12, -60.0, -1.0, 0.0, 1e-9, 0.1, 0.1, 0.5, 1e12], dtype=F64),
            *(zero, zero - 1e-9, one, one + 1e-9, half),
        ]
    )
    u = u.detach().clamp_min(-1e12)
    y = RegularizedMax(own(), domain=Box(0.0, 0.9))(u)
    slopes = {
        "cubic": lambda t: t + t * t / 2,
        "root": lambda t: np.sqrt(t) + t,
        "jensen": lambda t: -np.log1p(1 / t),
        "tilted": lambda t: np.log(t) + np.longdouble(1.3),
        "power": lambda t: np.sqrt(t) - np.longdouble(0.2),
    }[name]
    wide = u.numpy().astype(np.longdouble)
    low, high = np.full_like(wide, np.log(1e-300)), np.log(np.full_like(wide, 0.9))
    for _ in range(120):
        middle = (low + high) / 2
        under = slopes(np.exp(middle)) < wide
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    expected = np.where(low > np.log(1e-299), np.exp(high), 0).astype(np.float64)
    expected = torch.from_numpy(np.where(slopes(0.9 + 0 * wide) <= wide, 0.9, expected))
    assert torch.allclose(y, expected, rtol=1e-13, atol=1e-15)
    assert ((y == 0) == (expected == 0)).all()
    assert ((y == 0.9) == (expected == 0.9)).all()


@pytest.mark.parametrize("name", FREE)
def test_the_bound_of_such_an_answer_holds_for_points_beside_it(name, monkeypatch):
    bound, given = NumbaKernel.between_bound, []
    monkeypatch.setattr(NumbaKernel, "between_bound", lambda *t: given.append(t) or bound(*t))
    for kind, d in (("a small cap", 40), ("subsets", 12), ("by row", 33), ("box", 30)):
        domain = Box(0.05, 0.8) if kind == "box" else Simplex(*bounds(kind, 5, d, F64))
        x = torch.randn(5, d, generator=torch.Generator().manual_seed(d), dtype=F64) * 3
        best = RegularizedMax(FREE[name][0](), domain=domain)(x)
        kernel, at, z, y, low, high, total, on = given[-1]
        assert (total is None) == (kind == "box")
        assert (bound(*given[-1]) < 1e-11).all()
        for size in (1e-12, 1e-9, 1e-6, 1e-3):
            step = size * torch.randn(5, d, generator=torch.Generator().manual_seed(1), dtype=F64)
            moved = torch.minimum(torch.maximum(y + step, low), high)
            if total is not None:
                moved = moved * total / moved.sum(-1, keepdim=True)
                moved = torch.minimum(torch.maximum(moved, low), high)
            found = bound(kernel, at, z, moved, low, high, total, on)
            assert (found >= 0.99 * (moved - best).norm(dim=-1)).all(), (kind, size, found)


def test_a_sum_next_to_its_limit_is_certified():
    """On both sides of where the sum becomes active; τ is 0 but for rounding there."""
    x = torch.randn(1, 40, generator=torch.Generator().manual_seed(0), dtype=F64)
    whole = RegularizedMax(CubicInverse(), domain=Box())(x).sum().item()
    for shift in (-1e-6, -1e-9, -1e-13, -1e-16, 0.0, 1e-16, 1e-13, 1e-9, 1e-6):
        domain = AtMost(whole * (1 + shift), 1.0)
        solution = RegularizedMax(Cubic(), domain=domain).solve(x)
        with kernels.reference():
            expected = RegularizedMax(CubicInverse(), domain=domain)(x)
        assert (solution.y - expected).abs().max() < 1e-13, shift
        assert solution.path == "kernel from the value"
        assert solution.error_bound < 1e-8


def test_bounds_above_1_are_for_the_solver():
    x = torch.linspace(-1, 3, 8, dtype=F64)
    solution = RegularizedMax(Cubic(), domain=Box(0.0, 2.0)).solve(x)
    assert solution.path.startswith("solver")
    assert torch.allclose(solution.y, CubicInverse().inverse(x).clamp(0, 2), rtol=0, atol=1e-8)
