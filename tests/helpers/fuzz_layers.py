"""What RegularizedMax promises of expressions of regularizers, on one case. A finding raises."""

import math
from dataclasses import dataclass

import fuzz_truth as truth
import numpy as np
import torch
from fuzz_cases import HALF, ONE, Mask, Number, Scores
from fuzz_checks import (
    check_gradients,
    check_layout,
    check_simplex,
    flat,
    optimal,
    penalized,
    per_row,
)
from fuzz_truth import Term

import regmax


@dataclass(frozen=True)
class Expression:
    """c·(a sum of multiples of regularizers) + λ·penalty; γ, c and λ may be tensors."""

    terms: tuple[Term, ...]
    c: Number = ONE
    penalty: str | None = None
    lam: Number = ONE

    def make(self, c, lam, d):
        parts = [term.c * by_name(term) for term in self.terms]
        omega = sum(parts)
        if self.c.is_tensor or self.c.value != 1:
            omega = c * omega
        return omega if self.penalty is None else omega + lam * made_penalty(self.penalty, d)

    @property
    def judged(self):
        """Whether :mod:`fuzz_truth` knows the penalty."""
        return self.penalty in (None, "tv", "oscar", "clique_tv")

    def truth(self, c, lam):
        terms = tuple(Term(t.name, t.theta, t.c * c) for t in self.terms)
        kind = "oscar" if self.penalty == "clique_tv" else self.penalty
        # on Δ, Σ|y_i − y_j| = 2 Σ max(y_i, y_j) but for a constant
        return penalized(terms, kind, 2 * lam if self.penalty == "clique_tv" else lam)


def by_name(term):
    key = {"tsallis": "alpha", "pnorm": "p"}.get(term.name)
    return regmax.regularizer(term.name, **({key: term.theta} if key else {}))


def made_penalty(name, d):
    if name == "owl":
        return regmax.penalty(name, weights=[float(d - k) ** 0.5 for k in range(d)])
    if name == "graph_tv":
        edges = [(i, (i * 2 + 1) % d) for i in range(d) if (i * 2 + 1) % d != i]
        return regmax.penalty(name, edges=edges, nodes=d)
    if name == "grid_tv":
        h = next(h for h in (3, 2, 1) if d % h == 0)
        return regmax.penalty(name, shape=(h, d // h))
    return regmax.penalty(name)


@dataclass(frozen=True)
class Layered:
    """A call of RegularizedMax."""

    omega: Expression
    x: Scores
    gamma: Number = ONE
    mask: Mask | None = None
    solver: str = "auto"


def check_layer(case):
    """RegularizedMax: call, max, solve, gradients."""
    dim, d = case.x.dim, case.x.d
    x = case.x.make()
    mask = None if case.mask is None else case.mask.make(x, dim)
    given = {"gamma": case.gamma, "c": case.omega.c, "lam": case.omega.lam}
    given = {k: n.make(x, dim, learns=True) for k, n in given.items()}

    def made(dim, gamma, c, lam):
        omega = case.omega.make(c, lam, d)
        return regmax.RegularizedMax(
            omega, gamma, dim, case.solver, on_failure="ignore", max_iter=300
        )

    layer = made(dim, **given)
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    try:
        y = layer(leaf, mask)
    except ValueError as error:
        if "cannot take" in str(error) and case.solver != "auto":
            return
        raise
    solution = layer.solve(x, mask)
    x = x.detach()
    good, on = check_simplex(y.detach(), x, mask, dim)
    # a kernel shifts the scores itself, and may round another bit
    close = (solution.y - y).nan_to_num(0).abs().max() if y.numel() else 0
    assert close <= 16 * torch.finfo(y.dtype).eps, f"solve gives another answer: {solution.y}"
    if case.x.dtype in HALF:
        return
    check_layout(
        lambda x, dim, mask, **numbers: made(dim, **numbers)(x, mask),
        x,
        y.detach(),
        {**given, "dim": dim, "mask": mask},
        dim,
        batched(solution),
    )
    dtype = x.dtype
    numbers = {k: per_row(t, x, dim, dtype) for k, t in given.items()}
    rows, scores = flat(y, dim), flat(x, dim)
    omegas = [case.omega.truth(c, lam) for c, lam in zip(numbers["c"], numbers["lam"], strict=True)]
    formula = "closed form" in solution.path or "empty" in solution.path
    bound = solution.error_bound.detach().flatten().tolist()
    right = good if formula else good & solution.converged.flatten()
    if dtype == torch.float64 and case.solver == "auto":
        z = (scores - torch.where(on, scores, -torch.inf).amax(-1, keepdim=True)).abs()
        largest = torch.where(on, z, 0).amax(-1) / torch.tensor(numbers["gamma"])
        weight = torch.tensor(numbers["c"]) * max(term.c for term in case.omega.terms)
        if case.omega.penalty is not None:
            largest = largest + d * torch.tensor(numbers["lam"])
        sure = good & (
            largest <= 1e4 * weight
        )  # 64 ε of what is larger is beyond the tolerance, 1e-8
        assert bool(solution.converged.flatten()[sure].all()), (
            f"not certified: {bound} by {solution.path}, y = {rows.tolist()}"
        )
    if case.omega.judged:
        optimal(
            omegas, scores, on, rows, numbers["gamma"], right, dtype, None if formula else bound
        )
    check_max(layer, case, omegas, leaf, mask, y, numbers, right, on)
    some = [t for t in given.values() if isinstance(t, torch.Tensor)]
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )
    found = torch.autograd.grad(y, [leaf, *some], v, materialize_grads=True, allow_unused=True)
    rank_ones = sum(t.name == "pnorm" for t in case.omega.terms)
    # entries that differ in their last bit are fused or not as rounding has it, and so they are
    # where a tensor λ is 0
    lam = case.omega.lam
    open_ = case.omega.penalty is not None and (
        case.x.kind == "near ties" or (lam.is_tensor and lam.value == 0)
    )
    if case.omega.judged and rank_ones < 2 and not open_:
        k = 64 if formula else 1e4
        learnt = {"gamma": given["gamma"]} if isinstance(given["gamma"], torch.Tensor) else {}
        found = [found[0], *([found[1]] if learnt else [])]
        check_gradients(
            omegas, scores, on, rows, flat(v, dim), numbers, right, dtype, dim, learnt, found, k
        )


def batched(solution):
    """How far a row may differ from itself alone. Batched products and factorisations round
    otherwise than single ones, so a solver that is made of them answers to its certified error."""
    if not any(name in solution.path for name in ("newton", "interior", "fista")):
        return 0.0
    bound = solution.error_bound.detach().nan_to_num(0)
    return 2 * bound.amax().item() + 64 * torch.finfo(bound.dtype).eps if bound.numel() else 0.0


def check_max(layer, case, omegas, leaf, mask, y, numbers, good, on):
    """max_Ω = ⟨y, x⟩ − γΩ(y), and its gradient is y."""
    best = layer.max(leaf, mask)
    (g,) = torch.autograd.grad(best.sum(), leaf)
    dim, info = case.x.dim, torch.finfo(leaf.dtype)
    rows, slopes, scores = flat(y, dim), flat(g, dim), flat(leaf, dim)
    for i in good.nonzero().flatten().tolist():
        off = (slopes[i] - rows[i]).abs().max().item()
        assert off <= 4 * info.eps, f"row {i}: ∇max − y = {off}"
        if case.omega.penalty not in (None, "tv", "oscar"):
            continue
        t = rows[i][on[i]].numpy().astype(truth.Long)
        z = scores[i][on[i]].numpy().astype(truth.Long)
        gamma, top = truth.Long(numbers["gamma"][i]), z.max()
        cost = gamma * omegas[i].value(t)
        parts = gamma * sum(abs(k.value(t)) for k in omegas[i].terms)
        # y is normalized to its own rounding, which the scores are multiplied by
        allowed = (
            abs(top)
            + (t * np.abs(z - top)).sum()
            + parts
            + abs(cost)
            + np.abs(z - top)[t > 0].max()
        )
        right = top + (t * (z - top)).sum() - cost
        allowed = (
            info.eps * (16 + 2 * math.sqrt(len(t))) * (allowed + gamma * slope_size(omegas[i], t))
        )
        got = truth.Long(flat_number(best, i))
        if allowed > info.max or abs(right) > info.max:
            continue
        assert abs(got - right) <= allowed, (
            f"row {i}: max = {float(got)!r}, by definition {float(right)!r} ± {float(allowed):.2g}"
        )


def flat_number(t, i):
    return t.detach().flatten()[i].item()


def slope_size(omega, y):
    """Σ y_i |∂Ω/∂y_i|: what the rounding of y makes of Ω(y)."""
    on = y > 0
    return (y[on] * np.abs(omega.slope(y[on], y))).sum()
