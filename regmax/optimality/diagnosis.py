"""What is wrong with an Ω that cannot be solved, from its values and slopes along segments of Δ.

A convex Ω lies above each of its tangents, and its slope along a segment never falls. The slope of
a differentiable Ω does not jump. :func:`refuted` compares a few points with the answer, for every
solve; :func:`diagnose` looks along many segments, where a row did not reach its tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..kernels.simplex import row_dot
from ..regularizers.arguments import first
from ..regularizers.errors import RegularizerError
from ..regularizers.kinks import MOST, Kinks, TooMany
from ..regularizers.penalty import value_of
from ..regularizers.regularizer import Definition, like
from . import convexity
from .problem import Problem

TOP = 4
SAMPLES = 16
HALVINGS = (24, 16)


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


PARTS = 8
"""A jump of Ω is found where it exceeds what Ω changes over 1/PARTS of a segment."""


def refuted(problem: Problem, y: Tensor, gap: Tensor) -> str | None:
    """Why Ω cannot be convex, or strongly convex with the β that it declares, or None.

    With f = Ω − ⟨·, z⟩: no point is better than y by more than the duality gap of y, and from each
    point to the next f rises by at least its slope at the first and at most its slope at the next,
    both by β/2 times the squared distance. The points divide the ways from y to the barycentre and
    to the vertices of the three largest scores into ``PARTS``.
    """
    eps = torch.finfo(y.dtype).eps
    ends = torch.stack([simplex.uniform(problem.z, problem.mask), *_vertices(problem, 3)])
    times = torch.linspace(0, 1, PARTS + 1, dtype=y.dtype, device=y.device)
    steps = times.view(-1, *(1,) * ends.ndim)
    with torch.no_grad():
        points = y + steps * (ends - y)
        f, slopes, size = _along(problem, points, ends - y)
        squares = (ends - y).square().sum(-1) / PARTS**2
        beta = 0.0 if problem.beta is None else problem.beta.squeeze(-1)
        size = size + f.abs() + 1
        slack = 1e3 * eps * (size[1:] + size[:-1])
        rise, bent = f.diff(dim=0), squares / 2
        for low, what in (
            (f[0] - gap - f[1:], "a point is better than y by more than the duality gap"),
            (f[:-1] + slopes[:-1] / PARTS - (f[:-1] + rise), "Ω lies below its tangent"),
            (rise - slopes[1:] / PARTS, "Ω lies below its tangent"),
        ):
            for strength, said in ((0.0, None), (beta, "bends less than strong_convexity says")):
                if problem.beta is None and said is not None:
                    continue
                excess = low + strength * bent * (0 if what.startswith("a point") else 1)
                if decisions.rare("refuted", excess > slack):
                    at = first(excess > slack)
                    row = at[2:]
                    where = (
                        f"by {excess[at].item():.3g} between y = {shown(y[row])} and "
                        f"{shown(ends[at[1:]])}, next to {shown(points[1:][at])} (row {row})"
                    )
                    if said is not None:
                        declared = problem.beta[row].item()  # type: ignore[index]
                        return f"Ω {said}, β = {declared:.6g}: {what} raised by β {where}"
                    return (
                        "Ω is not convex, or autograd does not see all of its value: "
                        f"{what} {where}"
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


@dataclass(frozen=True)
class Defect:
    """What is wrong with Ω, in a sentence; ``broken``: no Ω with this has a maximiser to find."""

    said: str
    broken: bool


def diagnose(problem: Problem, y: Tensor, failed: Tensor) -> Defect | None:
    """What Ω breaks in one of the ``failed`` rows, or None where nothing is found."""
    if not bool(failed.any()):
        return None
    problem, y = problem.widened(), y.double()
    said = contradicted(problem, y, failed)
    if said is not None:
        return Defect(said, broken=False)
    with torch.no_grad():
        segments = _Segments.of(problem, y)
        for find in (_not_finite, _not_convex, _not_bent, _kinked, _flat):
            said = find(problem, segments, y, failed)
            if said is not None:
                return Defect(said, broken=find in (_not_finite, _not_convex))
    return None


def check_start(problem: Problem) -> None:
    """:func:`regmax.optimality.convexity.check_start`; a method of Ω that makes it look concave is
    named."""
    try:
        convexity.check_start(problem)
    except RegularizerError as error:
        wide, y = problem.widened(), problem.initial().double()
        said = contradicted(wide, y, torch.ones_like(y[..., 0], dtype=torch.bool))
        if said is None:
            raise
        raise RegularizerError(f"{error}. {said}") from None


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


class _Segments:
    """a + t(b − a) for t in [0, 1], (segments, *batch, d); y at t = ``at``, (segments, *batch, 1).

    ``points``, ``slopes`` and ``sizes`` are those of ``SAMPLES`` + 1 places from a to b.
    """

    def __init__(self, problem: Problem, a: Tensor, b: Tensor, at: Tensor) -> None:
        self.problem, self.a, self.b, self.at = problem, a, b, at
        self.points = [self.point(k / SAMPLES) for k in range(SAMPLES + 1)]
        slopes = [self.slope(k / SAMPLES) for k in range(SAMPLES + 1)]
        self.slopes, self.sizes = ([one[i] for one in slopes] for i in (0, 1))

    @classmethod
    def of(cls, problem: Problem, y: Tensor) -> _Segments:
        """Those that :func:`_segments` names."""
        a, b, at = (
            torch.stack(torch.broadcast_tensors(*some))
            for some in zip(*_segments(problem, y), strict=True)
        )
        return cls(problem, a, b, at)

    def point(self, t: float | Tensor) -> Tensor:
        return simplex.inward((self.a + t * (self.b - self.a)).clamp_min(0))

    def slope(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        """⟨∇Ω, b − a⟩ at t, (segments, *batch, 1), and the size of its terms."""
        along = self.b - self.a
        gradient = self.problem.smooth.grad(self.point(t))
        terms = torch.where(along == 0, 0, gradient * along)
        return terms.sum(-1, keepdim=True), terms.abs().sum(-1, keepdim=True)


def _vertices(problem: Problem, count: int) -> list[Tensor]:
    """The vertices of the largest scores."""
    on = torch.where(problem.participants(), problem.z, -torch.inf)
    scores, best = on.topk(min(count, on.shape[-1]), -1)
    best = torch.where(scores > -torch.inf, best, best[..., :1])  # rows with fewer participants
    return [torch.zeros_like(on).scatter(-1, k, 1) for k in best.split(1, -1)]


def _segments(problem: Problem, y: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Chords through y along which one large entry feeds another; from y through the barycentre,
    and to the vertices of the largest scores."""
    big = y.topk(min(TOP, y.shape[-1]), -1).indices
    for i in range(big.shape[-1]):
        for j in range(i + 1, big.shape[-1]):
            at_i, at_j = big[..., i : i + 1], big[..., j : j + 1]
            y_i, y_j = y.gather(-1, at_i), y.gather(-1, at_j)
            zero = torch.zeros_like(y_i)
            a = y.scatter(-1, at_i, zero).scatter(-1, at_j, y_i + y_j)
            b = y.scatter(-1, at_j, zero).scatter(-1, at_i, y_i + y_j)
            yield a, b, y_i / (y_i + y_j).clamp_min(1e-30)
    zero = torch.zeros_like(y[..., :1])
    middle = simplex.uniform(problem.z, problem.mask)
    past = middle - y  # from y through the barycentre, half of the way out again
    room = torch.where(past < 0, -middle / torch.where(past < 0, past, -1), torch.inf)
    reach = (room.amin(-1, keepdim=True) / 2).clamp_max(1)
    for end in (middle + reach * past, *_vertices(problem, 2)):
        yield y, end, zero


def _not_finite(problem: Problem, s: _Segments, y: Tensor, failed: Tensor) -> str | None:
    for point in s.points:
        wrong = ~torch.isfinite(problem.smooth.value(point)) & failed
        if decisions.rare("Ω not finite", wrong):
            at = first(wrong)
            return f"Ω is not finite at y = {shown(point[at])} (row {at[1:]})"
    return None


def _not_convex(problem: Problem, s: _Segments, y: Tensor, failed: Tensor) -> str | None:
    """A slope that falls, by more than the cancellations of a legitimate Ω could do. Where the
    points of a short segment are rounded, the order of equal entries falls otherwise at each."""
    long = (s.b - s.a).norm(dim=-1) > 1e-3
    for k in range(SAMPLES):
        fall = (s.slopes[k] - s.slopes[k + 1]).squeeze(-1)
        wrong = (fall > 1e-7 * (s.sizes[k] + s.sizes[k + 1]).squeeze(-1)) & long & failed
        for point in s.points[k : k + 2]:
            wrong = wrong & (point.amax(-1) < 1 - 1e-6)  # log(1 − y) has no digits at a vertex
        if decisions.rare("Ω not convex", wrong):
            at = first(wrong)
            return (
                f"Ω is not convex: from y = {shown(s.points[k][at])} on towards "
                f"{shown(s.points[k + 1][at])} its slope falls (row {at[1:]})"
            )
    return None


def _not_bent(problem: Problem, s: _Segments, y: Tensor, failed: Tensor) -> str | None:
    """A second derivative that autograd does not find."""
    on = problem.participants()
    bent = problem.at(y).verified.curvature.matvec(torch.where(on, simplex.generic(y), 0))
    wrong = (on & ~torch.isfinite(bent)).any(-1) & failed
    if not decisions.rare("no second derivative", wrong):
        return None
    at = first(wrong)
    return (
        f"the second derivative of value is not finite at y = {shown(y[at])}, by autograd (row "
        f"{at}); that of torch.logaddexp is NaN far from 0, that of softplus is not"
    )


def _kinked(problem: Problem, s: _Segments, y: Tensor, failed: Tensor) -> str | None:
    """A jump of the slope, next to y or where it rises most, found by halving."""
    slopes, ends = [], []
    for k in range(SAMPLES + 1):
        ends.append(torch.full_like(s.at, 1e-3 + 0.998 * k / SAMPLES))
        slopes.append(s.slope(ends[-1])[0])
    most = torch.cat(slopes, -1).diff(dim=-1).nan_to_num(-torch.inf).argmax(-1, keepdim=True)
    starts = torch.cat(ends, -1)
    for low, high in (
        ((s.at - 0.05).clamp_min(1e-3), (s.at + 0.05).clamp_max(1 - 1e-3)),
        (starts.gather(-1, most), starts.gather(-1, most + 1)),
    ):
        said = _jump(s, low, high, failed)
        if said is not None:
            return f"{said}; {_unsolved(problem)}"
    return None


def _unsolved(problem: Problem) -> str:
    """Why the kinks of Ω were not solved, as far as it is known, and what to do."""
    try:
        with Kinks(None, None):
            value_of(problem.omega, simplex.generic(problem.z), problem.mask)
    except TooMany as error:
        k, n = error.args
        return (
            f"a sort or topk of {k} of {n} entries takes {k} × {n} multipliers, and regmax solves "
            f"its kinks with up to {MOST}: write it as a regmax.Penalty"
        )
    return "write the kink as a regmax.Penalty, or smooth it, √(t² + 1e-6) for |t|"


def _jump(s: _Segments, low: Tensor, high: Tensor, failed: Tensor) -> str | None:
    """A rise of the slope that does not shrink with the interval that it is found in."""
    (below, size), (above, more) = s.slope(low), s.slope(high)
    size, jumps = size + more, []
    for halvings in HALVINGS:
        for _ in range(halvings):
            middle = (low + high) / 2
            between, _ = s.slope(middle)
            left = between - below >= above - between
            high, above = torch.where(left, middle, high), torch.where(left, between, above)
            low, below = torch.where(left, low, middle), torch.where(left, below, between)
        jumps.append(above - below)
    length = (s.b - s.a).norm(dim=-1, keepdim=True)
    moving = torch.where(s.a != s.b, s.point(low), 0.5)  # near 0 and 1 a slope may be as steep
    inside = (moving > 1e-4) & (moving < 1 - 1e-4)
    stays = (jumps[1] > 1e-5 * size) & (jumps[1] > 0.5 * jumps[0])
    wrong = (stays & (length > 1e-3)).squeeze(-1) & inside.all(-1) & failed
    if not decisions.rare("jump", wrong):
        return None
    at = first(wrong)
    return (
        f"Ω is not differentiable at y = {shown(s.point(low)[at])}: its slope jumps by "
        f"{(jumps[1] / length.clamp_min(1e-30))[at].item():.3g} there (row {at[1:]})"
    )


def _flat(problem: Problem, s: _Segments, y: Tensor, failed: Tensor) -> str | None:
    """No rise of the slope at all around y: nothing fixes y there."""
    low, high = (s.at - 0.01).clamp_min(0), (s.at + 0.01).clamp_max(1)
    (below, size), (above, more) = s.slope(low), s.slope(high)
    inside = (s.at > 0.02) & (s.at < 0.98) & ((s.b - s.a).norm(dim=-1, keepdim=True) > 1e-2)
    none = above - below <= 64 * torch.finfo(y.dtype).eps * (size + more)
    wrong = (none & inside).squeeze(-1) & failed
    if not decisions.rare("flat", wrong):
        return None
    at = first(wrong)
    return (
        f"Ω is not strictly convex: around y = {shown(y[at[1:]])} it has no curvature from "
        f"{shown(s.a[at])} to {shown(s.b[at])}, so that the maximiser is not unique "
        f"(row {at[1:]}); add a multiple of ½‖y‖²"
    )


def shown(y: Tensor) -> str:
    """A row for a message."""
    numbers = ", ".join(f"{v:.4g}" for v in y.tolist()[:8])
    return f"[{numbers}{', …' if y.shape[-1] > 8 else ''}]"
