"""Why a row did not reach its tolerance: what Ω breaks, looked for along many segments of Δ.

The slope of a convex Ω along a segment never falls, and that of a differentiable Ω does not jump.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import decisions, simplex
from ..regularizers.arguments import first
from ..regularizers.kinks import MOST, Kinks, TooMany
from ..regularizers.penalty import Penalized, value_of
from .premises import below_tangents, contradicted, shown, vertices
from .problem import Problem

TOP = 4
SAMPLES = 16
HALVINGS = (24, 16)


@dataclass(frozen=True)
class Defect:
    """What is wrong with Ω, in a sentence; ``broken``: no Ω with this has a maximiser to find."""

    said: str
    broken: bool


def diagnose(problem: Problem, y: Tensor, failed: Tensor) -> Defect | None:
    """What Ω breaks in one of the ``failed`` rows, or None where nothing is found."""
    problem, y = problem.widened(), y.double()
    said = contradicted(problem, y, failed)
    if said is not None:
        return Defect(said, broken=False)
    with torch.no_grad():
        segments = _Segments(problem, y, failed)
        for find in (_not_finite, _not_convex, _not_bent, _kinked, _flat):
            said = find(segments)
            if said is not None:
                return Defect(said, broken=find in (_not_finite, _not_convex))
    return None


class _Segments:
    """a + t(b − a) for t in [0, 1], (segments, *batch, d), those that :func:`_segments` names; y at
    t = ``at``, (segments, *batch, 1). What is wrong counts in the ``failed`` rows."""

    def __init__(self, problem: Problem, y: Tensor, failed: Tensor) -> None:
        self.problem, self.y, self.failed = problem, y, failed
        self.a, self.b, self.at = (
            torch.stack(torch.broadcast_tensors(*some))
            for some in zip(*_segments(problem, y), strict=True)
        )

    def point(self, t: float | Tensor) -> Tensor:
        return simplex.inward((self.a + t * (self.b - self.a)).clamp_min(0))

    def slope(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        """⟨∇Ω, b − a⟩ at t, (segments, *batch, 1), and the size of its terms."""
        along = self.b - self.a
        gradient = self.problem.smooth.grad(self.point(t))
        terms = torch.where(along == 0, 0, gradient * along)
        return terms.sum(-1, keepdim=True), terms.abs().sum(-1, keepdim=True)


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
    for end in (middle + reach * past, *vertices(problem, 2)):
        yield y, end, zero


def _not_finite(s: _Segments) -> str | None:
    for k in range(SAMPLES + 1):
        point = s.point(k / SAMPLES)
        wrong = ~torch.isfinite(s.problem.smooth.value(point)) & s.failed
        if decisions.rare("Ω not finite", wrong):
            at = first(wrong)
            return f"Ω is not finite at y = {shown(point[at])} (row {at[1:]})"
    return None


def _not_convex(s: _Segments) -> str | None:
    moved = (s.a != 0) | (s.b != 0)  # the scores of masked entries are unknown
    rows = s.failed & ~(moved & ~s.problem.participants()).any(-1)
    return below_tangents(s.problem, s.a, s.b, None, rows)


def _not_bent(s: _Segments) -> str | None:
    """A second derivative that autograd does not find."""
    on, y = s.problem.participants(), s.y
    bent = s.problem.at(y).verified.curvature.matvec(torch.where(on, simplex.generic(y), 0))
    wrong = (on & ~torch.isfinite(bent)).any(-1) & s.failed
    if not decisions.rare("no second derivative", wrong):
        return None
    at = first(wrong)
    return (
        f"the second derivative of value is not finite at y = {shown(y[at])}, by autograd (row "
        f"{at}); that of torch.logaddexp is NaN far from 0, that of softplus is not"
    )


def _kinked(s: _Segments) -> str | None:
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
        said = _jump(s, low, high)
        if said is not None:
            return f"{said}; {_unsolved(s.problem)}"
    return None


def bounded_kinks(problem: Problem) -> str | None:
    """That the value has kinks, on a domain, where none are solved."""
    with contextlib.suppress(TooMany), Kinks(None, None) as seen:
        value_of(problem.omega, simplex.generic(problem.z), problem.mask)
        if not seen.u:
            return None
    return (
        "its value has kinks, which regmax solves on the simplex alone: smooth them, √(t² + 1e-6) "
        "for |t|, or leave domain= out"
    )


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
    written = "write the kink by abs, relu, clamp, maximum, amax or sort (a where by relu)"
    smoothed = "or smooth it, √(t² + 1e-6) for |t|"
    if isinstance(problem.omega, Penalized):  # Ω has one penalty
        return f"{written}, {smoothed}"
    return f"{written}, the norm of a group as a regmax.Penalty, {smoothed}"


def _jump(s: _Segments, low: Tensor, high: Tensor) -> str | None:
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
    wrong = (stays & (length > 1e-3)).squeeze(-1) & inside.all(-1) & s.failed
    if not decisions.rare("jump", wrong):
        return None
    at = first(wrong)
    return (
        f"Ω is not differentiable at y = {shown(s.point(low)[at])}: its slope jumps by "
        f"{(jumps[1] / length.clamp_min(1e-30))[at].item():.3g} there (row {at[1:]})"
    )


def _flat(s: _Segments) -> str | None:
    """No rise of the slope at all around y: nothing fixes y there."""
    low, high = (s.at - 0.01).clamp_min(0), (s.at + 0.01).clamp_max(1)
    (below, size), (above, more) = s.slope(low), s.slope(high)
    inside = (s.at > 0.02) & (s.at < 0.98) & ((s.b - s.a).norm(dim=-1, keepdim=True) > 1e-2)
    none = above - below <= 64 * torch.finfo(s.y.dtype).eps * (size + more)
    wrong = (none & inside).squeeze(-1) & s.failed
    if not decisions.rare("flat", wrong):
        return None
    at = first(wrong)
    return (
        f"Ω is not strictly convex: around y = {shown(s.y[at[1:]])} it has no curvature from "
        f"{shown(s.a[at])} to {shown(s.b[at])}, so that the maximiser is not unique "
        f"(row {at[1:]}); add a multiple of ½‖y‖²"
    )
