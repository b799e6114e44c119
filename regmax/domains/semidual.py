"""Transport plans of a separable Ω by Newton's method on the potentials of the columns.

argmax ⟨Y, Z⟩ − Σ_i Ω(Y_i) over {Y ≥ 0, Y1 = a, Yᵀ1 = b} has the rows Y_i = Π_Ω(z_i + v), on the
simplex of total a_i, where v minimises the convex function (Blondel, Seguy & Rolet 2018)

    φ(v) = Σ_i max_Ω(z_i + v) − ⟨b, v⟩,    ∇φ = Σ_i Y_i − b,    ∇²φ = Σ_i diag(s_i) − s_i s_iᵀ/Σs_i,

s = 1/e''(Y), 0 where Y is. ∇²φ is the Laplacian of a graph: columns are joined that share rows.
Σv is free, and where the graph has several parts, a part moves until it meets another one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.base import asked, compiled

MOST, HALVINGS = 60, 50
"""Newton's steps, and trials for the length of one."""


class Plan(NamedTuple):
    """Y (B, n, m), v (B, m), the largest error of a sum of a column, relative to the largest b, and
    the number of steps, (B,)."""

    y: Tensor
    v: Tensor
    error: Tensor
    steps: Tensor


class Laplacian:
    """L = Σ_i diag(s_i) − s_i s_iᵀ/Σs_i, plus a diagonal matrix E ≥ 0, of weights s (B, n, m).

    Gaussian elimination without a subtraction (Grassmann, Taksar & Heyman 1985): pivots are sums of
    what is off the diagonal and of E, so that weights of any size keep their digits. A pivot is 0
    at the end of a part of the graph, where E is; there the solution is set to 0. Differentiable in
    the right hand side.
    """

    def __init__(self, s: Tensor, relative: Tensor | None = None, least: Tensor | None = None):
        s = s.detach()
        part = s / s.sum(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
        off = torch.bmm(s.mT, part).permute(1, 2, 0).contiguous()  # (m, m, B): vectors over B
        off.diagonal(dim1=0, dim2=1).zero_()
        m = len(off)
        extra = torch.zeros_like(off[0])
        if relative is not None and least is not None:
            extra = extra + (relative * off.sum(0).mean(0) + least)
        self.rates, self.pivots, self.ends = [], [], []
        for k in range(m):
            row = off[k, k + 1 :]
            joined = row.sum(0)
            pivot = joined + extra[k]
            rate = torch.where(pivot > 0, row / pivot, 0)
            off[k + 1 :, k + 1 :] += rate.unsqueeze(1) * row
            extra[k + 1 :] += rate * extra[k]
            self.rates.append(rate)
            self.pivots.append(pivot)
            self.ends.append(joined <= extra[k])

    def solve(self, g: Tensor, noise: Tensor | None = None, size: Tensor | None = None) -> Tensor:
        """(L + E)⁻¹ g, (B, m). What g adds up to in a part of the graph counts as 0 up to
        ``noise``, (B,); or, also in parts that small weights join, up to rounding of sums of
        ``size``, (B, m)."""
        rest, first = g.mT, []
        sizes = None if size is None else size.mT
        for k, rate in enumerate(self.rates):
            own = rest[0]
            if noise is not None:
                own = torch.where(self.ends[k] & (own.abs() <= noise), 0, own)
            if sizes is not None:
                small = own.detach().abs() <= 8 * torch.finfo(g.dtype).eps * sizes[0]
                own = own - torch.where(small, own.detach(), 0)
                sizes = sizes[1:] + rate * sizes[0]
            first.append(own)
            rest = rest[1:] + rate * own
        found: list[Tensor] = []
        for k in range(len(first) - 1, -1, -1):
            pivot = self.pivots[k]
            x = torch.where(pivot > 0, first[k] / torch.where(pivot > 0, pivot, 1), 0)
            if found:
                x = x + (self.rates[k] * torch.stack(found[::-1])).sum(0)
            found.append(x)
        return torch.stack(found[::-1], -1)


def potentials(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """α (B, n) and v (B, m) for which α_i + v_j is nearest to t (B, n, m) in the norm with weights
    s. Differentiable: with a fixed L, each round squares the error of the derivatives."""
    moves = transforms.under_transform((s, t))  # in forward mode no tensor requires a gradient
    learns = moves or (torch.is_grad_enabled() and (s.requires_grad or t.requires_grad))
    if not learns and s.device.type == "cpu" and s.dtype == t.dtype == torch.float64:
        between = compiled("regmax.kernels.cpu.between") if asked() else None
        if between is not None and len(s):
            found: tuple[Tensor, Tensor] = between.potentials(s, t)
            return found
    part = s / s.sum(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
    with torch.no_grad():
        laplacian = Laplacian(s)

    def mean(u: Tensor) -> Tensor:
        return (part * u).sum(-1, keepdim=True)

    v = torch.zeros_like(t[:, 0])
    for _ in range(4 if learns and (moves or s.requires_grad) else 2):
        left = t - v.unsqueeze(-2)
        each = s * (left - mean(left))
        size = (s * (left.detach().abs() + mean(left.detach().abs()))).detach().sum(-2)
        v = v + laplacian.solve(each.sum(-2), size=size)
    return mean(t - v.unsqueeze(-2)).squeeze(-1), v


def multipliers(y: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """α (B, n) and v (B, m) with α_i + v_j = r where the entries y are large, and ≥ r elsewhere if
    that can be.

    They are equal along the heaviest spanning tree of the graph whose edges are the entries y > 0
    (Prim's algorithm). A graph of several parts has a tree for each, and v of a part moves with a
    number t of it: t_q ≥ t_p + r_ij − α_i − v_j for i in part p and j in part q. The longest paths
    from the first part are the least such numbers, those to it the largest (Bellman & Ford), and
    their mean is taken.
    """
    (count, n, m), at = y.shape, torch.arange(len(y), device=y.device)
    alpha, v = y.new_zeros(count, n), y.new_zeros(count, m)
    rows, columns = (torch.zeros_like(t, dtype=torch.bool) for t in (alpha, v))
    of_row, of_column = (torch.zeros_like(t, dtype=torch.int64) for t in (alpha, v))
    first = torch.zeros_like(at)
    for _ in range(n + m):
        edges = torch.where(rows.unsqueeze(-1) ^ columns.unsqueeze(-2), y, 0).flatten(-2)
        weight, edge = edges.max(-1)
        i, j, joins = edge // m, edge % m, weight > 0
        new = (~columns).to(torch.uint8).argmax(-1)  # where a part begins
        begins = ~joins & ~columns[at, new]
        first, j = torch.where(begins, new, first), torch.where(begins, new, j)
        known = r.flatten(-2)[at, i * m + j]
        to_row = joins & ~rows[at, i]
        to_column = joins & ~to_row
        alpha[at, i] = torch.where(to_row, known - v[at, j], alpha[at, i])
        v[at, j] = torch.where(to_column, known - alpha[at, i], v[at, j])
        of_row[at, i] = torch.where(to_row, first, of_row[at, i])
        of_column[at, j] = torch.where(to_column | begins, first, of_column[at, j])
        rows[at, i] |= to_row
        columns[at, j] |= to_column | begins
    if not bool(of_column.any()):
        return alpha, v
    apart = r - alpha.unsqueeze(-1) - v.unsqueeze(-2)
    least = _longest(apart, of_row, of_column)
    most = -_longest(apart.mT, of_column, of_row, m)
    t = torch.where(least.isfinite() & most.isfinite(), (least + most) / 2, 0)
    t = torch.where(most.isfinite() | ~least.isfinite(), t, least)
    t = torch.where(least.isfinite() | ~most.isfinite(), t, most)
    return alpha - t.gather(-1, of_row), v + t.gather(-1, of_column)


def _longest(edges: Tensor, start: Tensor, end: Tensor, parts: int | None = None) -> Tensor:
    """The longest paths from part 0 to each part, (B, parts), −∞ where there is none: ``edges``
    (B, n, m) go from the part ``start`` (B, n) to the part ``end`` (B, m)."""
    parts = edges.shape[-1] if parts is None else parts
    found = edges.new_full((len(edges), parts), -torch.inf)
    found[:, 0] = 0
    for _ in range(parts):
        longest = (edges + found.gather(-1, start).unsqueeze(-1)).amax(-2)
        further = found.scatter_reduce(-1, end, longest, "amax")
        further[:, 0] = 0
        if bool((further <= found).all()):
            break
        found = further
    return found


def tolerance(z: Tensor) -> Tensor:
    """Rounding of z in the sums, (B,)."""
    ulps: Tensor = 16 * torch.finfo(z.dtype).eps * (1 + z.abs().amax((-1, -2)) / 8)
    return ulps


def solve(e: Any, z: Tensor, a: Tensor, b: Tensor) -> Plan:
    """The plans of z (B, n, m), −∞ where an entry is 0, in float64; a (B, n, 1), b (B, m). Where
    Newton's method does not reach the root, it starts again from 4v of the scores z/4."""
    found = _newton(e, z, a, b, torch.where(z > -torch.inf, -z, torch.inf).amin(-2))
    size = torch.where(z > -torch.inf, z, 0).abs().amax((-1, -2))
    failed = (found.error > 16 * tolerance(torch.where(z > -torch.inf, z, 0))) & (size > 0.25)
    if not bool(failed.any()):
        return found
    at = failed.nonzero().squeeze(-1)
    e, z, a, b = e.take(at), z[at], a[at], b[at]
    again = _newton(e, z, a, b, 4 * solve(e, z / 4, a, b).v)
    better = again.error < found.error[at]
    at, again = at[better], Plan(*(t[better] for t in again))
    for t, new in zip(found[:3], again[:3], strict=True):
        t[at] = new
    found.steps[at] += again.steps
    return found


def _newton(e: Any, z: Tensor, a: Tensor, b: Tensor, v: Tensor) -> Plan:
    """Newton's steps from v.

    A step has E ∝ ‖∇φ‖, so that it is bounded where ∇²φ is singular. Along it φ is convex: its
    slope is looked at, never its value. The step ends where ‖∇φ‖ is halved; or before the least
    value, where φ has fallen, next to it if that is in sight.
    """
    eps, on = torch.finfo(z.dtype).eps, z > -torch.inf
    finite = torch.where(on, z, 0)
    reach, scale = 4 + 8 * finite.abs().amax((-1, -2)), b.amax(-1)
    tol = tolerance(finite) * scale

    def look(e: Any, z: Tensor, a: Tensor, b: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = e.rows(z + v.unsqueeze(-2), a)
        g = y.sum(-2) - b
        return y, g, g.norm(dim=-1)

    y, g, norm = look(e, z, a, b, v)
    best = Plan(y, v, g.abs().amax(-1) / scale, torch.zeros_like(scale, dtype=torch.int64))
    best = Plan(*(t.clone() for t in best))
    left = torch.arange(len(z), device=z.device)
    fell = last = torch.zeros_like(norm)
    own = e
    for k in range(MOST + 1):
        off = g.abs().amax(-1)
        still = torch.minimum(fell, last) > 0.9
        go = (off > tol) & ~((off <= 4 * tol) & (fell > 0.7)) & ~((off <= 1e-8 * scale) & still)
        if k == MOST or not bool(go.all()):
            ended = torch.ones_like(go) if k == MOST else ~go
            at = left[ended]
            best.y[at], best.v[at], best.error[at] = y[ended], v[ended], (off / scale)[ended]
            best.steps[at] = k
            if k == MOST or not bool(go.any()):
                break
            state = left, z, a, b, v, y, g, norm, reach, scale, tol, fell, last
            left, z, a, b, v, y, g, norm, reach, scale, tol, fell, last = (t[go] for t in state)
            own = e.take(left)
        s, far = weights(own, y), norm / scale
        least = 1e-2 * far.square() * s.amax((-1, -2)) + torch.finfo(z.dtype).tiny
        d = -Laplacian(s, 1e-2 * far.clamp_max(1) + 8 * eps, least).solve(g, tol)
        d = d - d.mean(-1, keepdim=True)
        part = (reach / d.abs().amax(-1).clamp_min(eps)).clamp_max(1)
        d, reach = d * part.unsqueeze(-1), torch.where(part < 1, 2 * reach, reach)
        # ∇φ falls by 4 at a double root, where half of each step is missing
        double = (torch.minimum(fell, last) > 0.15) & (torch.maximum(fell, last) < 0.35)
        t = torch.ones_like(norm) + double
        low, high = torch.zeros_like(t), torch.full_like(t, math.inf)
        first = down = (g * d).sum(-1)
        up, done = torch.zeros_like(t), torch.zeros_like(t, dtype=torch.bool)
        taken = v, y, g, norm
        for trial in range(HALVINGS):
            at = v + t.unsqueeze(-1) * d
            seen = at, *look(own, z, a, b, at)
            along = (seen[2] * d).sum(-1)
            over = ~(along <= 0)
            close = (seen[3] <= norm / 2) | (seen[2].abs().amax(-1) <= tol)
            good = ~done & (close | ~over)
            taken = chosen(good, seen, taken)  # type: ignore[assignment]
            done = done | close | (~over & (high.isinf() | (along >= 0.5 * first)))
            if bool(done.all()):
                break
            high, up = torch.where(over, t, high), torch.where(over, along, up)
            low, down = torch.where(over, low, t), torch.where(over, down, along)
            between = (down / (down - up)).clamp(0.1, 0.9) if trial % 2 == 0 else 0.5
            t = torch.where(done, t, low + between * (high - low))
        last, fell = fell, taken[3] / norm
        v, y, g, norm = taken
    return best


def chosen(where: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The plans of ``new`` in the rows ``where``, (B,), and of ``old`` in the others."""
    if bool(where.all()):
        return new
    each = zip(new, old, strict=True)
    return tuple(torch.where(where.view(-1, *(1,) * (t.ndim - 1)), t, u) for t, u in each)


def weights(e: Any, y: Tensor) -> Tensor:
    """s = 1/e''(y), 0 where y is 0."""
    h = e.second(torch.where(y > 0, y, 1))
    s: Tensor = torch.where(y > 0, 1 / h.clamp_min(torch.finfo(y.dtype).tiny), 0)
    return s
