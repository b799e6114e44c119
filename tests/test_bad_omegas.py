"""Ω that break their contract are refused or flagged, defect and all: never wrong in silence."""

import warnings

import pytest
import torch
from bad_omegas import NOT_CONVEX, NOT_FINITE, NOT_SMOOTH, entropy, everywhere, omega_of, square

import regmax
from regmax import ConvergenceError, ConvergenceWarning, RegularizedMax, RegularizerError
from regmax.diagnosis import refuted
from regmax.optimality import Problem

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
        assert len(said) == len(found), found  # refused at the start


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


def test_as_a_penalty_the_kink_is_no_fault():
    x = scores(2)
    for name, written in (("total variation", ("tv", 0.3)), ("max y", ("oscar", 0.05))):
        omega = regmax.regularizer("gini") + written[1] * regmax.penalty(written[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert RegularizedMax(omega).solve(x).converged.all(), name


# -- no false alarm --------------------------------------------------------------------------------


SOUND = {
    "square": square,
    "entropy": entropy,
    "entropies of both ends": lambda y: entropy(y) + torch.xlogy(1 - y, 1 - y).sum(-1),
    "barrier": lambda y: -(y + 1e-6).log().sum(-1),
    "1/y": lambda y: (1 / y).sum(-1),
    "y^4": lambda y: y.pow(4).sum(-1),
    "nearly |y − 0.3|": lambda y: square(y) + ((y - 0.3).square() + 1e-4).sqrt().sum(-1),
    "large": lambda y: 1e6 * square(y - 0.7),
    "small": lambda y: 1e-6 * square(y) + 100,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_omega_is_accused_of_nothing(name, dtype):
    """Not even in rows that did not converge: one iteration is all they get."""
    omega = omega_of(SOUND[name])
    for scale in (1e-3, 1, 1e3):
        x = (scale * scores(1, seed=3)).to(dtype)
        for max_iter in (1, 20):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                RegularizedMax(omega, max_iter=max_iter).solve(x)
            for warning in seen:
                assert "Ω is not" not in str(warning.message), (scale, max_iter)


def test_refuted_sees_what_is_better():
    """A saddle: y = ½, ½ of two equal scores is stationary, each vertex is better."""
    omega = omega_of(lambda y: -square(y))
    x = torch.zeros(2, 2, dtype=F64)
    y, gap = torch.full_like(x, 0.5), torch.zeros(2, dtype=F64)
    assert "not convex" in refuted(Problem(omega, x), y, gap)
    assert refuted(Problem(omega_of(square), x), y, gap) is None
    mask = torch.tensor([[True, False], [False, True]])
    alone = mask.to(F64)
    assert refuted(Problem(omega, x, mask), alone, gap) is None
