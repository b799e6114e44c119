"""Promises of Π_Ω and max_Ω: they are optimal for Ω's value, and every method agrees."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..optimality.certificates import certify, penalty_subgradient
from ..regularizers.errors import ConvergenceWarning
from ..regularizers.penalty import Penalty
from .backends.conic import lacks_program, quiet
from .crosscheck import crosscheck
from .inputs import normal
from .layout import closed
from .promise import Broken, Skipped, agree, fixed, searched, worst
from .search import Case
from .subject import Subject, exact

EPS = torch.finfo(torch.float64).eps
REACHED = 1e-7
"""The certified error that an answer in float64 must have."""


@searched(exact, costly=True)
def check_optimality(s: Subject, case: Case) -> None:
    """y maximises ⟨y, x⟩ − γΩ(y), certified from Ω's value, and the solver does not warn."""
    layer = RegularizedMax(s.omega, case.gamma, on_failure="warn")
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always", ConvergenceWarning)
        y = layer.solve(case.x, case.mask).y
    late = [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]
    if late:
        raise Broken("a solver that converges", late[0], s.where("value"))
    problem = s.problem(case.x, case.gamma, case.mask)
    certificate = certify(problem.at(y))
    # with almost no curvature the error bound is large: accept a gap at rounding level
    near = certificate.gap <= 64 * EPS * (1 + problem.z.abs().amax(-1))
    near = near & ((y.sum(-1) - 1).abs() <= 64 * EPS)
    wrong = ~((certificate.error_bound <= REACHED) | near)
    if bool(wrong.any()):
        raise Broken(
            f"‖y − Π(x)‖ ≤ {REACHED:g}, certified by Ω's value",
            f"at most {certificate.error_bound.tolist()} for y = {y.tolist()}, "
            f"duality gap {certificate.gap.tolist()}",
            closed(s),
        )


@searched(lambda s: exact(s) and s.has_formula, costly=True)
def check_closed_form(s: Subject, case: Case) -> None:
    """The closed form gives what a solver finds from Ω's value."""
    y = s.pi(case.x, case.gamma, case.mask)
    solved = s.generic(case.x, case.gamma, case.mask)
    slack = s.slack(case.x, case.gamma, case.mask).squeeze(-1)
    off = (y - solved.y).norm(dim=-1)
    sure = solved.error_bound <= REACHED
    if bool((sure & ~(off <= solved.error_bound + slack)).any()):
        raise Broken(
            f"{solved.y.tolist()}, by a solver that is certified to {solved.error_bound.tolist()}",
            f"{y.tolist()}, off by {off.tolist()}",
            closed(s),
        )


@searched(lambda s: s.omega.declares("inverse"))
def check_inverse(s: Subject, case: Case) -> None:
    """inverse(∇Ω(y)) = y for every entry y of an answer above 0.001, and inverse(−∞) = 0."""
    y = s.pi(case.x, case.gamma, case.mask).double().clamp_min(1e-3)
    with torch.no_grad():
        back = s.omega.inverse(s.omega.grad(y))
        zero = s.omega.inverse(torch.full_like(y, -torch.inf))
    agree(back, y, 1e-9, "y", "inverse(∇Ω(y))", s.where("inverse"))
    agree(zero, torch.zeros_like(zero), 0.0, "0", "inverse(−∞)", s.where("inverse"))


@searched(exact)
def check_zeros_exact(s: Subject, case: Case) -> None:
    """y_i > 0 only where x_i/γ − ∂Ω/∂y_i = τ: an entry with a smaller value is exactly 0."""
    for dtype, noise in ((torch.float64, 1e-7), (torch.float32, 1e-3)):
        y = s.pi(case.x.to(dtype), case.gamma, case.mask).double()
        slope, size = _slope(s, case, y)
        on = case.participants()
        tau = torch.where(on, y * slope, 0).sum(-1, keepdim=True)
        wrong = on & (y > 0) & (slope < tau - noise * (1 + size)) & (y < 1e-3)
        if bool(wrong.any()):
            raise Broken(
                "y_i = 0 exactly where x_i/γ − ∂Ω/∂y_i < τ",
                f"y_i = {y[wrong].tolist()} where it is "
                f"{(tau - slope)[wrong].tolist()} below τ, in {dtype}",
                closed(s),
                y=y,
            )


def _slope(s: Subject, case: Case, y: Tensor) -> tuple[Tensor, Tensor]:
    """x/γ − ∇Ω(y) − λu with u ∈ ∂R(y), and the size of its terms."""
    problem = s.problem(case.x, case.gamma, case.mask)
    with torch.no_grad():
        if s.penalty is not None and not s.fuses:
            u, p = penalty_subgradient(problem.at(y))
            slope = problem.base_slope(p) - u
            return slope, problem.z.abs() + slope.abs()
        gradient = s.truth.grad(s.smooth.lifted(y))
        slope, size = problem.z - gradient, problem.z.abs() + gradient.abs()
        if s.penalty is not None:
            lam = s.lam
            v = y + slope
            u = s.penalty.subgradient(y, v - s.penalty.prox(v, lam, case.mask), lam, case.mask)
            slope, size = slope - u, size + u.abs()
    return slope, size


@searched(exact)
def check_max(s: Subject, case: Case) -> None:
    """max_Ω(x) = ⟨y, x⟩ − γΩ(y) at y = Π_Ω(x), and its gradient is Π_Ω(x)."""
    x = case.x.clone().requires_grad_()
    best = s.layer(case.gamma).max(x, case.mask)
    expected = s.maximum(case.x, case.gamma, case.mask)
    look = f"{s.where('conjugate')}, {s.where('value')}"
    allowed = 1e-10 * (1 + worst(case.x))
    agree(best, expected, allowed, "max(x) = ⟨y, x⟩ − γΩ(y)", "max(x)", look)
    (g,) = torch.autograd.grad(best.sum(), x)
    agree(g, s.pi(case.x, case.gamma, case.mask), 1e-10, "∇max(x) = Π(x)", "∇max(x)", look)


@searched(lambda s: exact(s) and s.omega.declares("conjugate"))
def check_conjugate(s: Subject, case: Case) -> None:
    """conjugate(x) = max_y ⟨y, x⟩ − γΩ(y)."""
    method, mask = s.omega.conjugate, case.mask
    _is_the_maximum(s, case, "conjugate", lambda x, y, gamma: method(x, gamma, mask))


@searched(lambda s: exact(s) and s.omega.declares("conjugate_at"))
def check_conjugate_at(s: Subject, case: Case) -> None:
    """conjugate_at(x, y) = max_y ⟨y, x⟩ − γΩ(y), where y = Π_Ω(x)."""
    method, mask = s.omega.conjugate_at, case.mask
    _is_the_maximum(s, case, "conjugate_at", lambda x, y, gamma: method(x, y, gamma, mask))


def _is_the_maximum(s: Subject, case: Case, method: str, declared: Callable[..., Any]) -> None:
    """``declared(x, Π_Ω(x), gamma)`` is max_Ω(x)."""
    x = s.problem(case.x, 1.0, case.mask).z
    y = s.pi(x, case.gamma, case.mask)
    expected = s.maximum(x, case.gamma, case.mask)
    for gamma in (case.gamma, torch.full_like(x[:, :1], case.gamma)):
        with torch.no_grad():
            found = declared(x, y, gamma)
        if found is None:
            return
        near, right = 1e-9 * (1 + worst(x)), "⟨y, x⟩ − γΩ(y) at y = Π(x)"
        agree(found, expected, near, right, method, s.where(method), y=y)


def _has_program(s: Subject) -> bool:
    described = s.penalty is None or type(s.penalty).as_cvxpy is not Penalty.as_cvxpy
    return exact(s) and described and lacks_program(s.omega) is None


@fixed(_has_program)
def check_as_cvxpy(s: Subject) -> None:
    """as_cvxpy(y) is convex and equal to Ω(y), and its program gives the layer's answer."""
    try:
        import cvxpy
    except ImportError as error:
        raise Skipped("check_as_cvxpy needs cvxpy: pip install regmax[validate]") from error
    look = s.where("as_cvxpy")
    for d in s.sizes[-2:]:
        variable = cvxpy.Variable(d, nonneg=True)
        with quiet():
            expression = s.omega.as_cvxpy(variable)
            if not expression.is_convex():
                raise Broken("a convex expression", f"{expression.curvature}", look)
            for y in (normal(4, d, seed=d) * 2).softmax(-1):
                variable.value = y.numpy()
                found, expected = float(expression.value), float(s.omega.value(y))
                if not abs(found - expected) <= 1e-8 * (1 + abs(expected)):
                    raise Broken(
                        f"Ω(y) = {expected!r}", f"as_cvxpy(y).value = {found!r}", look, y=y
                    )
        x = normal(2, d, seed=30 + d)
        pairs = crosscheck(s.omega, x, against=("cvxpy",), gamma=0.5).pairs
        if not all(pair.ok for pair in pairs):
            raise Broken(
                "the layer's answer from the convex program",
                "; ".join(f"{p.a} and {p.b} differ by {p.max_dy:.3g}" for p in pairs),
                f"{look}, {closed(s)}",
                x=x,
            )
