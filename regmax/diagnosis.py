"""Why a solve went wrong: what Ω breaks, told from its values and slopes along segments of Δ.

A convex Ω lies above each of its tangents, its slope along a segment never falls, and that of a
differentiable Ω does not jump. :func:`refuted` compares a few points with the answer, for every
solve; :func:`diagnose` looks along many segments, where a row did not reach its tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from . import simplex
from .optimality import Problem
from .penalty import smooth_part
from .simplex import row_dot

TOP = 4
SAMPLES = 16
HALVINGS = 32


def refuted(problem: Problem, y: Tensor, gap: Tensor) -> str | None:
    """Why Ω cannot be convex, or None. Some point is better than y by more than the duality gap of
    y, which for a convex Ω is the most that any point can be better; or Ω bulges on the way there.

    The points: the barycentre, the vertices of the three largest scores, and two points on the way
    from y to each of them.
    """
    eps = torch.finfo(y.dtype).eps

    def size(point: Tensor, objective: Tensor) -> Tensor:
        return row_dot(point, problem.z.abs()).squeeze(-1) + objective.abs() + 1

    with torch.no_grad():
        here = problem.objective(y)
        for end in (simplex.uniform(problem.z, problem.mask), *_vertices(problem, 3)):
            half, most = y + 0.5 * (end - y), y + 0.75 * (end - y)
            at_half, at_most, at_end = (problem.objective(p) for p in (half, most, end))
            slack = 1e3 * eps * (size(y, here) + size(end, at_end) + at_half.abs() + at_most.abs())
            for point, low in (
                (end, at_end - here - gap),
                (most, at_most - here - gap),
                (half, at_half - here - gap),
                (half, here / 3 + at_most * 2 / 3 - at_half),
                (most, (at_half + at_end) / 2 - at_most),
            ):
                if bool((low > slack).any()):
                    at = _first(low > slack)
                    return (
                        f"Ω is not convex: it breaks the inequality of convexity by "
                        f"{low[at].item():.3g} between y = {_shown(y[at])} and "
                        f"{_shown(end[at])}, at {_shown(point[at])} (row {at})"
                    )
    return None


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
    with torch.no_grad():
        segments = list(_segments(problem, y))
        for find in (_not_finite, _not_convex, _kinked, _flat):
            for segment in segments:
                said = find(problem, segment, y, failed)
                if said is not None:
                    broken = find in (_not_finite, _not_convex)
                    return Defect(said, broken)
    return None


@dataclass(frozen=True, eq=False)
class _Segment:
    """a + t(b − a) for t in [0, 1], (*batch, d) each; y at t = ``at``, (*batch, 1)."""

    a: Tensor
    b: Tensor
    at: Tensor

    def point(self, t: float | Tensor) -> Tensor:
        return simplex.inward((self.a + t * (self.b - self.a)).clamp_min(0))


def _vertices(problem: Problem, count: int) -> list[Tensor]:
    """The vertices of the largest scores."""
    on = torch.where(problem.participants(), problem.z, -torch.inf)
    scores, best = on.topk(min(count, on.shape[-1]), -1)
    best = torch.where(scores > -torch.inf, best, best[..., :1])  # rows with fewer participants
    return [torch.zeros_like(on).scatter(-1, k, 1) for k in best.split(1, -1)]


def _segments(problem: Problem, y: Tensor) -> Iterator[_Segment]:
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
            yield _Segment(a, b, y_i / (y_i + y_j).clamp_min(1e-30))
    zero = torch.zeros_like(y[..., :1])
    middle = simplex.uniform(problem.z, problem.mask)
    past = middle - y  # from y through the barycentre, half of the way out again
    room = torch.where(past < 0, -middle / torch.where(past < 0, past, -1), torch.inf)
    reach = (room.amin(-1, keepdim=True) / 2).clamp_max(1)
    for end in (middle + reach * past, *_vertices(problem, 2)):
        yield _Segment(y, end, zero)


def _slope(problem: Problem, s: _Segment, t: float | Tensor) -> tuple[Tensor, Tensor]:
    """⟨∇Ω, b − a⟩ at t, (*batch, 1), and the size of its terms."""
    along = s.b - s.a
    gradient = smooth_part(problem.omega).grad(s.point(t))
    terms = torch.where(along == 0, 0, gradient * along)
    return terms.sum(-1, keepdim=True), terms.abs().sum(-1, keepdim=True)


def _not_finite(problem: Problem, s: _Segment, y: Tensor, failed: Tensor) -> str | None:
    for k in range(SAMPLES + 1):
        point = s.point(k / SAMPLES)
        wrong = ~torch.isfinite(smooth_part(problem.omega).value(point)) & failed
        if bool(wrong.any()):
            at = _first(wrong)
            return f"Ω is not finite at y = {_shown(point[at])} (row {at})"
    return None


def _not_convex(problem: Problem, s: _Segment, y: Tensor, failed: Tensor) -> str | None:
    """A slope that falls, by more than the cancellations of a legitimate Ω could do."""
    last: tuple[Tensor, Tensor, Tensor] | None = None
    for k in range(SAMPLES + 1):
        point = s.point(k / SAMPLES)
        slope, size = _slope(problem, s, k / SAMPLES)
        inside = point.amax(-1) < 1 - 1e-6  # log(1 − y) has no digits at a vertex
        if last is not None:
            fall = (last[0] - slope).squeeze(-1)
            wrong = fall > 1e-7 * (size + last[1]).squeeze(-1)
            wrong = wrong & inside & (last[2].amax(-1) < 1 - 1e-6) & failed
            if bool(wrong.any()):
                at = _first(wrong)
                return (
                    f"Ω is not convex: from y = {_shown(last[2][at])} on towards "
                    f"{_shown(point[at])} its slope falls (row {at})"
                )
        last = slope, size, point
    return None


def _kinked(problem: Problem, s: _Segment, y: Tensor, failed: Tensor) -> str | None:
    """A jump of the slope, next to y or where it rises most, found by halving."""
    ends = [torch.full_like(s.at, 1e-3 + 0.998 * k / SAMPLES) for k in range(SAMPLES + 1)]
    slopes = torch.cat([_slope(problem, s, t)[0] for t in ends], -1)
    most = slopes.diff(dim=-1).nan_to_num(-torch.inf).argmax(-1, keepdim=True)
    starts = torch.cat(ends, -1)
    for low, high in (
        ((s.at - 0.05).clamp_min(1e-3), (s.at + 0.05).clamp_max(1 - 1e-3)),
        (starts.gather(-1, most), starts.gather(-1, most + 1)),
    ):
        said = _jump(problem, s, low, high, failed)
        if said is not None:
            return said
    return None


def _jump(problem: Problem, s: _Segment, low: Tensor, high: Tensor, failed: Tensor) -> str | None:
    (below, size), (above, more) = _slope(problem, s, low), _slope(problem, s, high)
    size = size + more
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        between, _ = _slope(problem, s, middle)
        left = between - below >= above - between
        high, above = torch.where(left, middle, high), torch.where(left, between, above)
        low, below = torch.where(left, low, middle), torch.where(left, below, between)
    jump = above - below
    length = (s.b - s.a).norm(dim=-1, keepdim=True)
    moving = torch.where(s.a != s.b, s.point(low), 0.5)  # near 0 and 1 a slope may be as steep
    inside = (moving > 1e-4) & (moving < 1 - 1e-4)
    wrong = ((jump > 1e-5 * size) & (length > 1e-3)).squeeze(-1) & inside.all(-1) & failed
    if not bool(wrong.any()):
        return None
    at = _first(wrong)
    return (
        f"Ω is not differentiable at y = {_shown(s.point(low)[at])}: its slope jumps by "
        f"{(jump / length.clamp_min(1e-30))[at].item():.3g} there (row {at}); write the kink as a "
        "regmax.Penalty, or smooth it"
    )


def _flat(problem: Problem, s: _Segment, y: Tensor, failed: Tensor) -> str | None:
    """No rise of the slope at all around y: nothing fixes y there."""
    low, high = (s.at - 0.01).clamp_min(0), (s.at + 0.01).clamp_max(1)
    (below, size), (above, more) = _slope(problem, s, low), _slope(problem, s, high)
    inside = (s.at > 0.02) & (s.at < 0.98) & ((s.b - s.a).norm(dim=-1, keepdim=True) > 1e-2)
    none = above - below <= 64 * torch.finfo(y.dtype).eps * (size + more)
    wrong = (none & inside).squeeze(-1) & failed
    if not bool(wrong.any()):
        return None
    at = _first(wrong)
    return (
        f"Ω is not strictly convex: around y = {_shown(y[at])} it has no curvature from "
        f"{_shown(s.a[at])} to {_shown(s.b[at])}, so that the maximiser is not unique (row {at}); "
        "add a multiple of ½‖y‖²"
    )


def _first(wrong: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in wrong.nonzero()[0])


def _shown(y: Tensor) -> str:
    numbers = ", ".join(f"{v:.4g}" for v in y.tolist()[:8])
    return f"[{numbers}{', …' if y.shape[-1] > 8 else ''}]"
