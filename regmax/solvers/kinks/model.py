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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels import asked, rowwise
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
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The range of each multiplier; Σm of its M, or 0; where its M ends."""
        found = []
        for allowed, part, shape in self.parts:
            size = part.stop - part.start
            ends, k = torch.full((size,), part.stop, device="cpu"), torch.zeros(size, device="cpu")
            if allowed.k is not None:
                k = allowed.k.cpu().expand(shape[1:]).flatten()
                ends = part.start + (torch.arange(size, device="cpu") // shape[-1] + 1) * shape[-1]
            ranges = (torch.full((size,), t, device="cpu") for t in (allowed.low, allowed.high))
            found.append((*ranges, k, ends))
        low, high, k, ends = (torch.cat(ts).unsqueeze(0) for ts in zip(*found, strict=True))
        return low.double(), high.double(), k.double(), ends.int()

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
        low, high = (t.to(m.device) for t in self.arrays[:2])
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
    rows = _rows() if r.device.type == "cpu" and r.dtype == torch.float64 and asked() else None
    if rows is None:
        return reference(h, r, u, c, w, rho, m, sets, on)
    s, at, m, good = torch.empty_like(r), torch.empty_like(u), m.clone(), r.new_empty(len(u), 1)
    arrays = (h.flatten(1), c.flatten(1), u, w, rho, on, *sets.arrays)
    rows.run(0, r, *(t.contiguous() for t in arrays), sets.total, m, s, at, good)
    return Model(s, m, at, good.squeeze(-1) == 1)


@functools.cache
def _rows() -> Any:
    """The compiled code; None where numba is missing."""
    try:
        from ...kernels.cpu.rows import CompiledRows
    except (ModuleNotFoundError, RuntimeError):
        return None
    return CompiledRows("regmax.kernels.from_value.kinked", names=("forward",))


def reference(
    h: Tensor, r: Tensor, u: Tensor, c: Tensor, w: Tensor, rho: Tensor, m: Tensor, sets: Sets,
    on: Tensor,
) -> Model:  # fmt: skip
    """The same in PyTorch."""
    across, centre, s = c.mT.contiguous(), m, torch.zeros_like(r)
    hardness, left = torch.full_like(r[:, :1], FACTOR), torch.full_like(r[:, 0], torch.inf)
    done = failed = torch.zeros_like(r[:, 0], dtype=torch.bool)
    former = left

    def look(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = u + rowwise.times(c, s)
        m = sets.project(centre + rho * hardness * at)
        return at, m, rowwise.times(h, s) - r + rowwise.times(across, w * m)

    at, m, g = look(s)
    for _ in range(INNER):
        free = sets.free(m)
        a = sets.tangent(free, c) * (w * rho * hardness).sqrt().unsqueeze(-1)
        step, good = newton_step(h + gram(a), g, on)
        failed = failed | ~done & ~good
        done = done | failed
        step = torch.where(done.unsqueeze(-1), 0, step)
        start, length = (g * step).sum(-1, keepdim=True), step.norm(dim=-1)
        t, low, low_end = torch.ones_like(start), torch.zeros_like(start), start
        high, high_end = torch.full_like(start, torch.inf), torch.zeros_like(start)
        for _ in range(30):  # the slope along the step has its root between low and high
            new = s + t * step
            ahead = look(new)
            end = (ahead[2] * step).sum(-1, keepdim=True)
            near = (end.abs() <= -0.1 * start) | ((t == 1) & (end <= 0))
            near = near | (length <= 1e-8).unsqueeze(-1) | (start >= -1e-15)  # rounding
            if bool(near.all()):
                break
            beyond = end > 0
            high, high_end = torch.where(beyond, t, high), torch.where(beyond, end, high_end)
            low, low_end = torch.where(beyond, low, t), torch.where(beyond, low_end, end)
            between = (low_end / (low_end - high_end)).clamp(0.02, 0.98)
            t = torch.where(near, t, low + (high - low) * between)
        same = (sets.free(ahead[1]) == free).all(-1) & (t.squeeze(-1) == 1) | (length <= 1e-11)
        last, left = left, torch.where(done, left, length)
        off = (w * sets.missing(sets.over(ahead[0]), ahead[1])).amax(-1)
        hard = hardness.squeeze(-1)
        over = (left <= 1e-14) | (left <= 1e-11) & (left > last / 2)
        change = (h.diagonal(dim1=-2, dim2=-1) * step).abs().amax(-1)  # far where Ω is stiff
        met = (off <= 1e-14) & (change <= 1e-9)
        over = over & (hard >= HARD) & (met | (hard >= HARDEST))
        on_way = done.unsqueeze(-1)
        s, at, m = new, torch.where(on_way, at, ahead[0]), torch.where(on_way, m, ahead[1])
        done = done | over
        if bool(done.all()):
            break
        moves = (same & ~done).unsqueeze(-1)
        centre = torch.where(moves, m, centre)
        most = torch.where((hard >= HARD) & (off > former / FACTOR), HARDEST, hard.clamp_min(HARD))
        harder = torch.minimum(hardness * FACTOR, most.unsqueeze(-1))
        hardness = torch.where(moves, harder, hardness)
        former = torch.where(moves.squeeze(-1), off, former)
        _, fresh, g = look(s)
        m = torch.where(done.unsqueeze(-1), m, fresh)
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
