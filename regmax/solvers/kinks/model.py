"""A quadratic model of an Ω with kinks, maximised over Δ by the method of multipliers.

With H = ∇²_y L, C = ∂u/∂y and W = ∂G/∂a of :mod:`regmax.regularizers.kinks`,

    min_s ½ sᵀHs − ⟨r, s⟩ + Σ W max_{m ∈ M} ⟨m, u + Cs⟩      over y + s ∈ Δ.

y ≥ 0 is one more maximum, over m ≥ 0, of −my. The method of multipliers (Rockafellar 1976, section
4) takes

    s ← argmin of the model with max_m ⟨m, u + Cs⟩ − ‖m − m̄‖²/(2ρ),      m̄ ← P_M(m̄ + ρ(u + Cs)),

and finds each s by semismooth Newton steps (Qi & Sun 1993) with the matrix H + CᵀWρP'C, P' the
derivative of P_M. ρ grows from step to step, as large ρ makes the problem hard far from the
solution.

L. Qi, J. Sun, A nonsmooth version of Newton's method, Mathematical Programming 58, 1993.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import rowwise
from ...regularizers.kinks import Multipliers

INNER = 200
"""Newton steps."""
FACTOR, HARD, HARDEST = 10, 1e3, 1e8
"""The curvature of the augmented terms over that of H grows by the first up to the second, and up
to the third where steps with it divide the error by less than FACTOR."""


class Model(NamedTuple):
    """s; the multipliers; u + Cs; the rows that are solved."""

    s: Tensor
    m: Tensor
    u: Tensor
    solved: Tensor


class Sets:
    """M of all maxima of a row, one after another: ``parts`` are M, their places and the shapes of
    their u without those of the batch."""

    def __init__(self, parts: list[tuple[Multipliers, torch.Size]]) -> None:
        self.parts: list[tuple[Multipliers, slice, tuple[int, ...]]] = []
        self.total = 0
        for allowed, shape in parts:
            begin, self.total = self.total, self.total + shape.numel()
            own = (-1, *(shape or (1,)))
            self.parts.append((allowed, slice(begin, self.total), own))

    @functools.cached_property
    def ranges(self) -> tuple[Tensor, Tensor]:
        """The range of each multiplier."""
        found = []
        for allowed, part, _ in self.parts:
            size = (1, part.stop - part.start)
            found.append([torch.full(size, t, device="cpu") for t in (allowed.low, allowed.high)])
        low, high = (torch.cat(ts, -1).double() for ts in zip(*found, strict=True))
        return low, high

    def _each(self, name: str, *given: Tensor) -> Tensor:
        """What a method of each M gives, one after another."""
        found = []
        for allowed, part, shape in self.parts:
            own = [t[:, part].reshape(*shape, *t.shape[2:]) for t in given]
            found.append(getattr(allowed, name)(*own).flatten(1, len(shape) - 1))
        return torch.cat(found, 1)

    def project(self, v: Tensor) -> Tensor:
        """P_M(v)."""
        return self._each("project", v)

    def free(self, m: Tensor) -> Tensor:
        """The multipliers that P_M does not hold."""
        return self._each("free", m)

    def tangent(self, free: Tensor, c: Tensor) -> Tensor:
        """P'C."""
        return self._each("tangent", free, c)

    def over(self, u: Tensor) -> Tensor:
        """u over the number at which ⟨m, u⟩ does not depend on m."""
        return self._each("over", u)

    def missing(self, over: Tensor, m: Tensor) -> Tensor:
        """max ⟨·, u⟩ − ⟨m, u⟩ of each multiplier, which is not negative; as for m ≤ 2 + m̄ where M
        has no end."""
        low, high = (t.to(m.device) for t in self.ranges)
        more, less = (high - m).clamp_max(2), (m - low).clamp_max(2)
        return more * over.clamp_min(0) - less * over.clamp_max(0)

    def rho(self, h: Tensor, c: Tensor, w: Tensor) -> Tensor:
        """1 / (W C D⁻¹Cᵀ), with D the diagonal of H: the least of each M."""
        stiff = h.diagonal(dim1=-2, dim2=-1).clamp(1e-30, 1e30)
        own = w * (c.square() / stiff.unsqueeze(-2)).sum(-1)
        rho = torch.where(own > 0, 1 / own, torch.inf)
        rho = self._each("least", rho)
        return torch.where(torch.isfinite(rho), rho, 1)


def maximised(
    h: Tensor, r: Tensor, u: Tensor, c: Tensor, w: Tensor, m: Tensor, sets: Sets, on: Tensor
) -> Model:
    """The solution of the model from multipliers m, with one maximum at the end of ``sets`` for
    each constraint y ≥ 0; ``on``: the participants."""
    rho = sets.rho(h, c, w)
    across, centre, s = c.mT.contiguous(), m, torch.zeros_like(r)
    hardness, left = torch.full_like(r[:, :1], FACTOR), torch.full_like(r[:, 0], torch.inf)
    done = failed = torch.zeros_like(r[:, 0], dtype=torch.bool)
    former = left

    def held(at: Tensor) -> Tensor:
        return sets.project(centre + rho * hardness * at)

    at, slope = u, -r
    m = held(at)
    for _ in range(INNER):
        free, g = sets.free(m), slope + rowwise.times(across, w * m)
        a = sets.tangent(free, c) * (w * rho * hardness).sqrt().unsqueeze(-1)
        step, good = newton_step(h + gram(a), g, on)
        failed = failed | ~done & ~good
        done = done | failed
        step = torch.where(done.unsqueeze(-1), 0, step)
        start, length = rowwise.dot(g, step), step.norm(dim=-1)
        smooth, bend = rowwise.dot(slope, step), rowwise.dot(rowwise.times(h, step), step)
        rise = rowwise.times(c, step)
        t, low, low_end = torch.ones_like(start), torch.zeros_like(start), start
        high, high_end = torch.full_like(start, torch.inf), torch.zeros_like(start)
        beyond = start > 0
        for _ in range(30):  # the slope along the step has its root between low and high
            end = smooth + t * bend + rowwise.dot(w * held(at + t * rise), rise)
            near = (end.abs() <= -0.1 * start) | ((t == 1) & (end <= 0))
            near = near | (length <= 1e-8).unsqueeze(-1) | (start >= -1e-15)  # rounding
            if bool(near.all()):
                break
            former_side, beyond = beyond, end > 0
            stays = torch.where(beyond == former_side, 0.5, 1)  # an end that stays counts half
            low_end, high_end = low_end * stays, high_end * stays
            high, high_end = torch.where(beyond, t, high), torch.where(beyond, end, high_end)
            low, low_end = torch.where(beyond, low, t), torch.where(beyond, low_end, end)
            between = (low_end / (low_end - high_end)).clamp(0.02, 0.98)
            t = torch.where(near, t, low + (high - low) * between)
        s = s + t * step
        at, slope = u + rowwise.times(c, s), rowwise.times(h, s) - r
        m = held(at)
        same = (sets.free(m) == free).all(-1) & (t.squeeze(-1) == 1) | (length <= 1e-11)
        last, left = left, torch.where(done, left, length)
        off = (w * sets.missing(sets.over(at), m)).amax(-1)
        hard = hardness.squeeze(-1)
        over = (left <= 1e-14) | (left <= 1e-11) & (left > last / 2)
        change = (h.diagonal(dim1=-2, dim2=-1) * step).abs().amax(-1)  # far where Ω is stiff
        met = (off <= 1e-14) & (change <= 1e-9)
        done = done | over & (hard >= HARD) & (met | (hard >= HARDEST))
        if bool(done.all()):
            break
        moves = (same & ~done).unsqueeze(-1)
        centre = torch.where(moves, m, centre)
        most = torch.where((hard >= HARD) & (off > former / FACTOR), HARDEST, hard.clamp_min(HARD))
        harder = torch.minimum(hardness * FACTOR, most.unsqueeze(-1))
        hardness = torch.where(moves, harder, hardness)
        former = torch.where(moves.squeeze(-1), off, former)
        m = held(at)
    return Model(s, m, at, done & ~failed)


def gram(a: Tensor) -> Tensor:
    """AᵀA of each row."""
    columns = a.mT.contiguous()
    if columns.shape[-2] <= rowwise.ENTRYWISE:
        return rowwise.times(columns.unsqueeze(-3), columns)
    d, size = a.shape[-1], rowwise.whole(a.shape[-1])
    whole = rowwise.resized(a, size)
    return torch.stack([own.mT @ own for own in whole])[..., :d, :d]


def newton_step(k: Tensor, g: Tensor, on: Tensor) -> tuple[Tensor, Tensor]:
    """−K⁻¹g along Δ on the participants, and the rows in which K is positive definite there."""
    d, size = g.shape[-1], rowwise.whole(g.shape[-1])
    scale = torch.where(on, k.diagonal(dim1=-2, dim2=-1), 1).clamp_min(1e-300).rsqrt()
    ones = torch.where(on, scale, 0)
    ones = ones / ones.norm(dim=-1, keepdim=True)
    k = k * scale.unsqueeze(-1) * scale.unsqueeze(-2) + ones.unsqueeze(-1) * ones.unsqueeze(-2)
    k = torch.where(on.unsqueeze(-1) & on.unsqueeze(-2), k, 0)
    rest = rowwise.resized((~on).to(k.dtype), size)
    rest[:, d:] = 1
    lower, info = torch.linalg.cholesky_ex(rowwise.square(k, size) + torch.diag_embed(rest))
    given = torch.where(on, torch.stack([-g * scale, ones]), 0)
    sides = rowwise.resized(given, size).movedim(0, -1).contiguous()
    p, q = torch.cholesky_solve(sides, lower)[..., :d, :].unbind(-1)
    step = (p - q * (rowwise.dot(ones, p) / rowwise.dot(ones, q))) * scale
    step = torch.where(on, step, 0)
    good = (info == 0) & torch.isfinite(step).all(-1)
    return torch.where(good.unsqueeze(-1), step, 0), good
