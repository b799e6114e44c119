"""What a certificate takes for granted of Ω, tested at every solve.

A certificate holds for a strictly convex Ω whose value is a function of each row, and derivatives
rest on the methods of Ω. A convex Ω lies above each of its tangents: :func:`refuted` compares a few
points with the answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..kernels.simplex import row_dot
from ..regularizers.arguments import first
from ..regularizers.curvature import DENSE_LIMIT, Diagonal
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import value_of, who
from ..regularizers.regularizer import Definition, like
from .problem import Point, Problem
from .properties import softest

PARTS = 8
"""A jump of Ω is found where it exceeds what Ω changes over 1/PARTS of a segment."""


def check_start(p: Problem) -> None:
    """Refuse an Ω that is not strictly convex where a solver starts: one row is looked at,
    among those with the most participants, in all directions or, where these are too many to
    factorise, in one."""
    if p.beta is not None:
        return
    start, on = p.first, p.participants()
    count = on.sum(-1).reshape(-1)
    chosen = torch.arange(len(count), device=count.device) == count.argmax()
    chosen, curvature = chosen.view(on.shape[:-1]), start.defined.curvature
    with torch.no_grad():
        if on.shape[-1] <= DENSE_LIMIT or isinstance(curvature, Diagonal):
            low = curvature.inverse(on & chosen.unsqueeze(-1)).min_eigenvalue
        else:
            along = simplex.tangent(simplex.generic(start.y), on)
            low = row_dot(along, curvature.matvec(along)).squeeze(-1)
    check_convex(start, torch.where(chosen, low, torch.inf))
    if on.shape[-1] < 2 or not p.separable:
        return
    # where entries differ too: along e_i − e_j of the two that bend least
    apart = p.at(simplex.normalize(torch.where(on, simplex.generic(start.y), 0)))
    h = torch.where(on, apart.diagonal[1], torch.inf)
    check_convex(apart, torch.where(chosen, h.topk(2, largest=False).values.mean(-1), torch.inf))


def check_convex(at: Point, low: Tensor | None) -> None:
    """Refuse an Ω whose least curvature ``low`` along the support of y is not positive: negative,
    or 0 where rounding does not hide what it is. A method of Ω that makes it so is named. Without
    ``low`` Ω declares a β, which :func:`refuted` tests."""
    p = at.problem
    if low is None:
        return
    wrong = (low <= 0) & (p.participants().sum(-1) > 1)  # of one participant Δ is a point
    if not decisions.rare("no curvature", wrong):
        return
    hidden = _hidden(at)
    wrong = wrong & ((low < -hidden) | (hidden <= 1e-6))
    if bool(wrong.any()):
        row = first(wrong)
        error = RegularizerError(
            f"{who(p.smooth)} is not strictly convex: its curvature along the "
            f"support is {low[row].item():.3g} at row {row}, and must be positive"
        )
        said = contradicted(p.widened(), at.y.double(), torch.ones_like(wrong))
        raise error if said is None else RegularizerError(f"{error}. {said}")


def _hidden(at: Point) -> Tensor:
    """Curvature that rounding may hide beside the largest at y, one number per row."""
    y = at.y
    signs = torch.where(simplex.generic(y) * y.shape[-1] > 1, 1.0, -1.0).to(y.dtype)
    with torch.no_grad():
        size = at.defined.curvature.matvec(torch.where(at.support, signs, 0))
    noise: Tensor = 64 * torch.finfo(y.dtype).eps * y.shape[-1] * size.abs().amax(-1)
    return torch.nan_to_num(noise, nan=torch.inf)


def unsteady(problem: Problem, y: Tensor) -> str | None:
    """Why the value of Ω is no function of each row, or None: it differs from call to call, or when
    every other row is another."""
    with torch.no_grad():
        on = problem.participants()
        generic = torch.where(on, simplex.generic(y), 0)
        y = simplex.normalize(y + generic)  # where no entry is 0
        value = problem.objective(y)
        slack = 1e-9 * (1 + value.abs() + row_dot(y, problem.z.abs()).squeeze(-1))
        again = (problem.objective(y) - value).abs() > slack
        if decisions.rare("unsteady value", again):
            at = first(again)
            return (
                f"value gives other numbers when it is called again at y = {shown(y[at])} "
                f"(row {at}): it must depend on y alone, not on a state or on chance"
            )
        odd = (torch.arange(value.numel(), device=y.device) % 2 == 1).view(value.shape)
        other = torch.where(odd.unsqueeze(-1), simplex.normalize(generic), y)
        moved = ((problem.objective(other) - value).abs() > slack) & ~odd
        if decisions.rare("mixed rows", moved):
            at = first(moved)
            return (
                f"value at y = {shown(y[at])} (row {at}) changes when other rows change: it must "
                "reduce over the last dimension alone"
            )
    return None


def refuted(at: Point, gap: Tensor) -> str | None:
    """Why Ω cannot be convex, or strongly convex with the β that it declares, or None.

    No point is better than y by more than the duality gap of y, and Ω lies above its tangents on
    the ways from y to the barycentre and to the vertices of the three largest scores, by β/2 times
    the squared distance. At y Ω bends by β or more in the softest direction of the support.
    """
    problem, y = at.problem, at.y
    said = _overstated(at)
    if said is None:
        ends = torch.stack([problem.domain.middle(problem.z), *vertices(problem, 3)])
        everywhere = torch.ones_like(y[..., 0], dtype=torch.bool)
        said = below_tangents(problem, y, ends, gap, everywhere)
    return said


def _overstated(at: Point) -> str | None:
    """A declared β that is more than the curvature of Ω at y in one direction."""
    p = at.problem
    if p.beta is None:
        return None
    with torch.no_grad():
        support = at.support
        inverse = at.base.inverse(support, verified=True)
        soft = softest(inverse, p.domain.tangent(simplex.generic(at.y), at.face), 8)
        soft = simplex.unit(soft)
        bent = row_dot(soft, at.base.verified.curvature.matvec(soft)).squeeze(-1)
        least = p.beta.squeeze(-1) * (1 - 1e-6) - _hidden(at.base)
        wrong = (bent < least) & (support.sum(-1) > 1) & (soft.norm(dim=-1) > 0.5)
    if not decisions.rare("too much strong_convexity", wrong):
        return None
    row = first(wrong)
    return (
        f"strong_convexity is {p.beta[row].item():.6g}, and the curvature of Ω is "
        f"{bent[row].item():.6g} at row {row}: it must be at most the least curvature on Δ, or None"
    )


def below_tangents(
    problem: Problem, a: Tensor, b: Tensor, gap: Tensor | None, rows: Tensor
) -> str | None:
    """Where f = Ω − ⟨·, z⟩ is less at a point than at a, by more than a ``gap``, or breaks the
    inequalities of (strong) convexity, in one of ``rows``; None.

    The points divide each way from a to b, (ways, *batch, d), into ``PARTS``. From each point to
    the next f rises by at least its slope at the first and at most its slope at the next.
    """
    eps, way, starts = torch.finfo(a.dtype).eps, b - a, a.expand(b.shape)
    times = torch.linspace(0, 1, PARTS + 1, dtype=a.dtype, device=a.device)
    with torch.no_grad():
        points = a + times.view(-1, *(1,) * b.ndim) * way
        f, slopes, size = _along(problem, points, way)
        bent = way.square().sum(-1) / PARTS**2 / 2
        size = size + f.abs() + 1
        slack = 1e3 * eps * (size[1:] + size[:-1])
        rise = f.diff(dim=0)
        found = [(slopes[:-1] / PARTS - rise, True), (rise - slopes[1:] / PARTS, True)]
        if gap is not None:
            found.insert(0, (f[0] - gap - f[1:], False))
        for low, tangent in found:
            for beta in (None, problem.beta) if tangent and problem.beta is not None else (None,):
                strength = 0.0 if beta is None else beta.squeeze(-1)
                excess = low + strength * bent
                if decisions.rare("refuted", (excess > slack) & rows):
                    at = first((excess > slack) & rows)
                    row = at[2:]
                    amount = f"{excess[at].item():.3g}"
                    where = (
                        f"between y = {shown(starts[at[1:]])} "
                        f"and {shown(b[at[1:]])}, next to {shown(points[1:][at])} (row {row})"
                    )
                    if beta is not None:
                        return (
                            "Ω bends less than strong_convexity says, β = "
                            f"{beta[row].item():.6g}: Ω lies {amount} below its tangent raised by "
                            f"β {where}"
                        )
                    what = f"a point is better than y by {amount} more than the duality gap"
                    return (
                        "Ω is not convex, or autograd does not see all of its value: "
                        f"{f'Ω lies {amount} below its tangent' if tangent else what} {where}"
                    )
    return None


def _along(problem: Problem, points: Tensor, way: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f = Ω − ⟨·, z⟩ at the points, its slope along ``way``, and the size of what is added up."""
    at = simplex.inward(points)
    with torch.enable_grad():
        at.requires_grad_()
        value = value_of(problem.omega, at, problem.mask)
        (g,) = torch.autograd.grad(value.sum(), at)
    on = problem.participants()
    terms = torch.where(on & (way != 0), (g - problem.z) * way, 0)
    linear = torch.where(on, points * problem.z, 0)
    size = terms.abs().sum(-1) + linear.abs().sum(-1) + value.detach().abs()
    return value.detach() - linear.sum(-1), terms.sum(-1), size


def contradicted(problem: Problem, y: Tensor, rows: Tensor) -> str | None:
    """Which method of Ω is not what its value says, by autograd, near y in one of ``rows``; None.

    Looked at are points around y whose entries are positive and not equal by chance. Constants that
    are added to all of ∇Ω do not count: on Δ they change nothing.
    """
    on = problem.participants()
    other = torch.where(on, simplex.generic(y), 0)
    v = simplex.tangent(simplex.generic(y, 7.3), on)
    v = v / v.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    for leaf in problem.smooth.leaves():
        truth, name = Definition(leaf), type(leaf).__name__
        for k in (0.01, 0.5, 1):
            point = simplex.inward((1 - k) * y + k * simplex.normalize(other))
            looks = []
            with torch.no_grad():
                if leaf.declares("grad"):
                    got = like(leaf.grad(point), point, f"{name}.grad")
                    looks.append(("grad", "∇Ω", got, truth.grad(point)))
                if leaf.declares("curvature") or leaf.separable:
                    method = "curvature" if leaf.declares("curvature") else "separable"
                    by_value = truth.curvature(point).matvec(v)
                    looks.append((method, "∇²Ω v", leaf.curvature(point).matvec(v), by_value))
            for method, what, got, expected in looks:
                known = on & torch.isfinite(expected)
                off = torch.where(torch.isfinite(got), got - expected, torch.inf)
                off = torch.where(torch.isfinite(off), simplex.tangent(off, known), torch.inf)
                off = torch.where(known, off.abs(), 0).amax(-1)
                size = torch.where(known, got.nan_to_num(0, 0, 0).abs() + expected.abs(), 0)
                wrong = (off > torch.finfo(y.dtype).eps ** 0.5 * size.amax(-1)) & rows
                if decisions.rare("contradicted", wrong):
                    at = first(wrong)
                    along = f" for v = {shown(v[at])}" if "v" in what else ""
                    return (
                        f"{name}.{method} contradicts {name}.value: at y = {shown(point[at])} "
                        f"(row {at}) {what}{along} is {shown(got[at])} by it, and "
                        f"{shown(expected[at])} by autograd through value, off by "
                        f"{off[at].item():.2g}"
                    )
    return None


def vertices(problem: Problem, count: int) -> list[Tensor]:
    """The vertices of the largest scores; of other domains than the simplex the best one."""
    if problem.bounds is not None:
        return [problem.domain.best(problem.z)]
    on = torch.where(problem.participants(), problem.z, -torch.inf)
    scores, best = on.topk(min(count, on.shape[-1]), -1)
    best = torch.where(scores > -torch.inf, best, best[..., :1])  # rows with fewer participants
    return [torch.zeros_like(on).scatter(-1, k, 1) for k in best.split(1, -1)]


def shown(y: Tensor) -> str:
    """A row for a message."""
    numbers = ", ".join(f"{v:.4g}" for v in y.tolist()[:8])
    return f"[{numbers}{', …' if y.shape[-1] > 8 else ''}]"
