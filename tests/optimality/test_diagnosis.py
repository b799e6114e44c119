"""Ω that break their contract are refused or flagged, defect and all: never wrong in silence."""

import warnings

import pytest
import torch
from bad_omegas import NOT_CONVEX, NOT_FINITE, NOT_SMOOTH, entropy, everywhere, square
from omegas import omega_of

import regmax
from regmax import ConvergenceError, ConvergenceWarning, RegularizedMax, RegularizerError
from regmax.optimality.premises import contradicted
from regmax.optimality.problem import Problem
from regmax.regularizers.curvature import Dense

F64 = torch.float64
ITERATIONS = 10


def scores(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.cat(
        [s * torch.randn(rows, 3, generator=generator, dtype=F64) for s in (0.05, 0.3, 1, 4)]
    )


def outcomes(omega, x):
    """What became of each row: refused or flagged with what was said, right, or wrong."""
    found = []
    for row in x:
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                sol = RegularizedMax(omega, max_iter=ITERATIONS).solve(row)
        except RegularizerError as error:
            found.append(("refused", str(error)))
            continue
        said = [str(w.message) for w in seen if w.category is ConvergenceWarning]
        assert bool(said) == (not sol.converged.item())
        if said:
            found.append(("flagged", said[0]))
            continue
        best, where = everywhere(omega, row)
        mine = (sol.y @ row - omega.value(sol.y.clamp_min(1e-31))).item()
        right = best <= mine + 1e-9 * (1 + abs(best))
        found.append(("right" if right else "wrong", f"{row}: {sol.y}, not {where}"))
    return found


@pytest.mark.parametrize("name", NOT_CONVEX)
def test_not_convex(name):
    found = outcomes(omega_of(NOT_CONVEX[name]), scores(3))
    assert "wrong" not in [verdict for verdict, _ in found], found
    said = [text for verdict, text in found if verdict == "refused"]
    assert all("Mine" in text and "convex" in text for text in said), said
    if "away" not in name and "vertices" not in name:
        assert len(said) == len(found), found  # refused at the start, whatever the solver
        for solver in ("interior", "fista"):
            with pytest.raises(RegularizerError, match=r"Mine.*(convex|curvature)"):
                RegularizedMax(omega_of(NOT_CONVEX[name]), solver=solver)(scores(3))


@pytest.mark.parametrize("name", NOT_SMOOTH)
def test_not_smooth(name):
    found = outcomes(omega_of(NOT_SMOOTH[name]), scores(2, seed=1))
    assert "wrong" not in [verdict for verdict, _ in found], found
    flagged = [text for verdict, text in found if verdict != "right"]
    named = [text for text in flagged if "differentiable" in text or "convex" in text]
    assert len(named) >= len(flagged) / 2, flagged


@pytest.mark.parametrize("name", NOT_FINITE)
def test_not_finite(name):
    found = outcomes(omega_of(NOT_FINITE[name]), scores(3, seed=2))
    assert "wrong" not in [verdict for verdict, _ in found], found
    said = [text for verdict, text in found if verdict == "refused"]
    assert all("finite" in text or "convex" in text for text in said), said


def test_a_kink_is_named_where_it_is():
    omega = omega_of(NOT_SMOOTH["|y − c|"])
    x = torch.tensor([0.2, 0.0, -0.1], dtype=F64)
    with pytest.warns(
        ConvergenceWarning, match=r"Mine: Ω is not differentiable at y = .*0\.3.*Pen"
    ):
        RegularizedMax(omega, max_iter=ITERATIONS)(x)
    with pytest.raises(ConvergenceError, match="not differentiable"):
        RegularizedMax(omega, max_iter=ITERATIONS, on_failure="raise")(x)


def test_a_kink_by_where_is_led_to_relu():
    """A second penalty is no advice where Ω has one; written by relu, the kink is solved."""

    def bent(y, above):
        return y.square().sum(-1) / 2 + above(y - 0.3).sum(-1)

    where = omega_of(lambda y: bent(y, lambda t: torch.where(t > 0, t, 0)))
    torch.manual_seed(0)
    x = 3 * torch.randn(3, 6)
    for omega, words in (
        (where, r"gap [^)]*\)\. Mine: .*\(a where by relu\), the norm .* as a regmax\.Penalty, or"),
        (where + 0.1 * regmax.penalty("tv"), r"\(a where by relu\), or smooth it"),
    ):
        with pytest.warns(ConvergenceWarning, match=words):
            RegularizedMax(omega)(x)
    solution = RegularizedMax(omega_of(lambda y: bent(y, torch.relu))).solve(x)
    assert bool(solution.converged.all())


def test_the_norm_of_a_group_is_led_to_a_penalty():
    def groups(y):
        return y.square().sum(-1) / 2 + 2 * y.unflatten(-1, (2, -1)).norm(dim=-1).sum(-1)

    torch.manual_seed(0)
    x = torch.randn(12, 6)
    with pytest.warns(ConvergenceWarning, match=r"norm of a group.* as a regmax\.Penalty$"):
        RegularizedMax(omega_of(groups))(x)


# -- no false alarm --------------------------------------------------------------------------------


SOUND = {
    "entropy": entropy,
    "entropies of both ends": lambda y: entropy(y) + torch.xlogy(1 - y, 1 - y).sum(-1),
    "barrier": lambda y: -(y + 1e-6).log().sum(-1),
    "1/y": lambda y: (1 / y).sum(-1),
    "nearly |y − 0.3|": lambda y: square(y) + ((y - 0.3).square() + 1e-4).sqrt().sum(-1),
    "large": lambda y: 1e6 * square(y - 0.7),
    "small": lambda y: 1e-6 * square(y) + 100,
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_omega_is_accused_of_nothing(name):
    """Not even in rows that did not converge: one iteration is all they get."""
    omega = omega_of(SOUND[name])
    for scale in (1e-3, 1, 1e3):
        x = (scale * scores(1, seed=3)).to(torch.float32 if scale == 1 else F64)
        for max_iter in (1, 20):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                RegularizedMax(omega, max_iter=max_iter).solve(x)
            for warning in seen:
                assert "Ω is not" not in str(warning.message), (scale, max_iter)


# -- methods that contradict the value -------------------------------------------------------------


def coupled(d=5):
    b = torch.randn(d, d, generator=torch.Generator().manual_seed(5), dtype=F64)
    return b @ b.T / d + 0.5 * torch.eye(d, dtype=F64)


class Mine(regmax.Regularizer):
    """½yᵀQy + Σ y log y, written down without a slip."""

    def __init__(self):
        self.q = coupled()

    def value(self, y):
        return ((y @ self.q) * y).sum(-1) / 2 + torch.xlogy(y, y).sum(-1)

    def grad(self, y):
        return y @ self.q + y.log() + 1

    def hessian(self, y):
        return self.q + torch.diag_embed(1 / y)

    def curvature(self, y):
        return Dense(self.hessian(y))


def with_slip(method, slip):
    right = getattr(Mine, method)
    return type("Mine", (Mine,), {method: lambda self, y: slip(right(self, y))})()


def hessian_with(slip):
    return type("Mine", (Mine,), {"curvature": lambda self, y: Dense(slip(self.hessian(y)))})()


WRONG_GRADS = {
    "twice": lambda g: 2 * g,
    "off by 1e-6 of it": lambda g: g * (1 + 1e-6),
    "the last entry": lambda g: g + 0.01 * torch.eye(g.shape[-1], dtype=g.dtype)[-1],
    "of the wrong sign": lambda g: -g,
    "NaN": lambda g: g * torch.nan,
}
WRONG_CURVATURES = {
    "half": lambda h: h / 2,
    "of the wrong sign": lambda h: -h,
    "zero": lambda h: 0 * h,
    "too large": lambda h: 1e4 * h,
}
FIVE = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=F64)


def blame(omega, x=FIVE, max_iter=20):
    """What is said of a solve of Ω that fails."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            RegularizedMax(omega, max_iter=max_iter).solve(x)
        except RegularizerError as error:
            return str(error)
    (said,) = [str(w.message) for w in seen if w.category is ConvergenceWarning]
    return said


def every(y):
    return torch.ones_like(y[..., 0], dtype=torch.bool)


@pytest.mark.parametrize("name", WRONG_GRADS)
def test_a_wrong_gradient_is_named(name):
    said = blame(with_slip("grad", WRONG_GRADS[name]))
    assert "Mine.grad contradicts Mine.value: at y = [" in said
    assert "off by" in said
    assert "Mine.curvature" not in said


@pytest.mark.parametrize("name", WRONG_CURVATURES)
def test_a_wrong_curvature_is_named(name):
    said = blame(hessian_with(WRONG_CURVATURES[name]), max_iter=5)
    assert "Mine.curvature contradicts Mine.value: at y = [" in said
    assert "Mine.grad contradicts" not in said


def test_the_size_of_the_slip_and_the_row_are_told():
    slip = torch.tensor([0, 0, 0.25, 0, 0], dtype=F64)
    said = blame(with_slip("grad", lambda g: g + slip))
    assert "off by 0.2 " in said + " "  # a fifth of it is a constant
    assert "(row (0,))" in said
    said = blame(with_slip("grad", lambda g: g.float().nan_to_num(0).to(g) * 1.5), FIVE[:1].float())
    assert "Mine.grad contradicts" in said


def test_the_term_at_fault_is_named():
    omega = 2 * (regmax.regularizer("entropy") + 0.5 * with_slip("grad", WRONG_GRADS["twice"]))
    said = blame(omega)
    assert "Mine.grad contradicts Mine.value" in said
    assert "Entropy.grad" not in said


def test_a_method_of_the_parent_class_is_named():
    """The value is redefined, the gradient is still that of the class it comes from."""

    class Steeper(Mine):
        def value(self, y):
            return super().value(y) + y.pow(3).sum(-1)

    assert "Steeper.grad contradicts Steeper.value" in blame(Steeper())


def test_a_false_claim_of_separability_is_named():
    class Apart(regmax.Regularizer):
        separable = True

        def value(self, y):
            q = torch.full((5, 5), 0.9, dtype=y.dtype).fill_diagonal_(1)
            return ((y @ q) * y).sum(-1) * 3 + torch.xlogy(y, y).sum(-1)

    y = torch.full_like(FIVE, 0.2)
    said = contradicted(Problem(Apart(), FIVE), y, every(y))
    assert said.startswith("Apart.separable contradicts Apart.value: at y = [")
    assert contradicted(Problem(Apart(), FIVE), y, ~every(y)) is None  # it was asked of no row


HONEST = {
    "as written": Mine,
    "entropy without the 1": lambda: with_slip("grad", lambda g: g - 1),
    "another constant": lambda: with_slip("grad", lambda g: g + 3 * g.sum(-1, keepdim=True)),
    "a sum of built-ins": lambda: regmax.regularizer("tsallis", alpha=1.3) + Mine(),
    "a penalty": lambda: Mine() + 0.1 * regmax.penalty("tv"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_method_is_accused_of_nothing(name, dtype):
    mask = torch.tensor([True, True, False, True, True])
    for x, on in ((FIVE, None), (30 * FIVE, mask), (1e3 * FIVE, None)):
        on = None if on is None else on.expand_as(x)
        problem = Problem(HONEST[name](), x.to(dtype), on).widened()
        for point in (problem.z, 0 * problem.z, 3 * problem.z.sin()):
            y = regmax.functional.sparsemax(point, mask=on)
            assert contradicted(problem, y, every(y)) is None


def test_a_kink_is_no_contradiction():
    """At y with ties either subgradient is one; Ω is looked at elsewhere."""

    class Kinked(regmax.Regularizer):
        def value(self, y):
            return y.square().sum(-1) / 2 + 0.3 * y.diff(dim=-1).abs().sum(-1)

        def grad(self, y):
            s = torch.where(y.diff(dim=-1) >= 0, 1.0, -1.0).to(y)
            zero = torch.zeros_like(y[..., :1])
            return y + 0.3 * (torch.cat([zero, s], -1) - torch.cat([s, zero], -1))

    said = blame(Kinked(), max_iter=5)
    assert "contradicts" not in said
    assert "not differentiable" in said or "not strictly convex" in said


@pytest.mark.parametrize("x", [FIVE[0], FIVE])
def test_a_value_that_sums_over_rows_is_named_for_one_row_too(x):
    with pytest.raises(RegularizerError, match=r"must return one number per row.*last dimension"):
        RegularizedMax(omega_of(lambda y: y.square().sum()))(x)


def test_a_value_in_float32_is_named():
    with pytest.warns(ConvergenceWarning, match="value computes in float32"):
        RegularizedMax(omega_of(lambda y: y.float().square().sum(-1))).solve(FIVE)


def test_a_change_in_place_is_named():
    with pytest.raises(RegularizerError, match="changes y in place"):
        RegularizedMax(omega_of(lambda y: y.mul_(2).square().sum(-1)))(FIVE)


def test_a_separable_omega_is_asked_once_for_the_slopes_of_a_long_row(monkeypatch):
    omega, asked = regmax.regularizer("gini"), []
    grad = type(omega).grad
    monkeypatch.setattr(type(omega), "grad", lambda self, y: (asked.append(1), grad(self, y))[1])
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    assert RegularizedMax(omega).solve(x).converged
    assert 0 < len(asked) < 50
