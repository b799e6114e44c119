"""α-entmax of one row and its derivatives, compiled with numba.

    y = [1 + a(z − τ)]₊^(1/a),  Σ y = 1,  z = x/γ,  a = α − 1
    J v = s ∘ (v − ⟨s, v⟩/Σs) on the support of y,  s = y^(2−α)

(Peters, Niculae & Martins 2019, Lemma 2 and Prop. 2; in α: Correia, Niculae & Martins 2019,
Prop. 1.) α = 2 is the projection on the simplex; α = 1.5 needs square roots only. Other α use
logarithms, as in :mod:`regmax_tsallis`: for α < 2 relative to the largest entry, with a limit at
α = 1, and for α > 2 relative to the smallest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regmax.kernels.cpu import common, elementary, memory, projection, simd
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.simd import LANES

from . import _powers, _short, _steep

LONG = 64
"""Sums of at most this many entries need no compensation."""
TERMS = 14
PHI_SLOPE = tuple((k + 1.0) / math.factorial(k + 2) for k in range(TERMS - 1, -1, -1))
"""φ'(t) = Σ (k + 1) t^k/(k + 2)!, highest power first, for φ(t) = (e^t − 1)/t."""


@njit
def _bound15(h: Any) -> float:
    """A lower bound on τ, from sixteen entries: Newton from below on a convex function."""
    tau = -1.0
    for _ in range(3):
        t = simd.larger(h - tau, 0.0)
        tau += (simd.total(t * t) - 1.0) / (2.0 * simd.total(t))
    return tau


@njit
def _threshold15(h: Any, n: int, tau: float) -> float:
    """τ with Σ (h − τ)₊² = 1, from a lower bound.

    The root for the entries above the last τ is too high if some of them are below the root, and
    too low if the last τ was too high. Newton's step is always too low. Stops when the support does
    not change.
    """
    zero = simd.spread(simd.load(h, 0), 0.0)
    safe, aim = tau, -1
    s1, off, size = 1.0, 0.0, 1
    for _ in range(100):
        first, second = zero, zero
        size = 0
        for i in range(0, n, LANES):
            t = simd.larger(simd.load(h, i) - tau, 0.0)
            size += simd.count(t > 0.0)
            first = first + t
            second = second + t * t
        s1, off = simd.total(first), simd.total(second) - 1.0
        if size == aim:
            break
        room = s1 * s1 - size * off
        root = tau + off / (s1 + math.sqrt(max(room, 0.0)))
        if off >= 0.0:
            safe = tau + off / (2.0 * s1)
            usable = room >= 0.0
        else:
            usable = root > safe
        tau, aim = (root, size) if usable else (safe, -1)
    if n > LONG:
        second, lost = zero, zero
        for i in range(0, n, LANES):
            t = simd.larger(simd.load(h, i) - tau, 0.0)
            second, lost = common.added(second, lost, t * t)
        off = simd.total(second) - 1.0
    return tau + off / (2.0 * s1) if off * off > common.EPS * common.EPS * size else tau


@njit
def _write15(
    row: Any, d: int, low: float, top: float, scale: float, tau: float, out: Any, blank: bool
) -> None:
    """out = ((row − top)·scale − τ)₊², which is 0 below ``low``."""
    for i in range(0, d, LANES):
        v = common.piece(row, i, d, -np.inf)
        if d <= common.DENSE or simd.count(v >= low) > 0:
            t = simd.larger((simd.wide(v) - top) * scale - tau, 0.0)
            common.store_piece(out, i, d, simd.like(v, t * t))
        elif not blank:
            common.store_piece(out, i, d, simd.spread(v, 0.0))


@njit
def _forward15(
    row: Any, d: int, best: Any, gamma: float, h: Any, kept: Any, out: Any, blank: bool
) -> None:
    top, scale = np.float64(simd.largest(best)), 0.5 / gamma
    tau = _bound15((simd.wide(best) - top) * scale)
    low = common.floor(row, top, -2.0 * tau * gamma)
    n = common.pack(row, d, low, top, scale, kept, h)
    tau = _threshold15(h, n, tau)
    _write15(row, d, low, top, scale, tau, out, blank)


@njit
def forward(job: Any, r: int, like: Any, wide: Any, own: Any) -> None:
    """One row of a job; the scratch has 3 and 3 rows."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    row = common.participants(job, r, 3, like, memory.row(own, 1))
    out, kept = common.rows_at(job, 4, r, like), memory.row(own, 0)
    g, a = common.number_at(job, 1, r), common.number_at(job, 2, r) - 1.0
    z, p, more = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
    best, bad = common.scan(row, d)
    bad = bad or not (g > 0.0 and a > -1.0)
    if common.without_answer(bad, np.float64(simd.largest(best)), d, out):
        return
    if a == 1.0:
        projection.special(row, d, g, z, kept, out, blank)
    elif a == 0.5:
        _forward15(row, d, best, g, z, kept, out, blank)
    elif a < 1.0:
        _powers.forward_below(row, d, best, g, a, z, p, more, kept, out, blank)
    else:
        _steep.forward_above(row, d, best, g, a, z, p, more, kept, out, blank)


@njit
def forward15(job: Any, r: int, like: Any, wide: Any, own: Any) -> None:
    """One row of a job with α = 1.5; the scratch has 3 and 2 rows."""
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    row = common.participants(job, r, 3, like, memory.row(own, 1))
    out, gamma = common.rows_at(job, 4, r, like), common.number_at(job, 1, r)
    best, bad = common.scan(row, d)
    if not common.without_answer(bad or not gamma > 0.0, np.float64(simd.largest(best)), d, out):
        _forward15(row, d, best, gamma, memory.row(wide, 0), memory.row(own, 0), out, blank)


@njit
def _slopes(y: Any, n: int, a: float, u: Any) -> None:
    """u = ∂∇Ω(y)/∂α, up to a constant.

    For α < 2, log² y φ'(a log y) with φ(t) = (e^t − 1)/t, which holds at a = 0 too; for α ≥ 2, the
    derivative of y^a/a.
    """
    for i in range(0, n, LANES):
        log = elementary.log(simd.larger(simd.load(y, i), 2.3e-308))
        t = log * a
        power = elementary.exp(t)
        if a >= 1.0:
            simd.store(u, i, power * (log - 1.0 / a) * (1.0 / a))
            continue
        near = (t > -0.5) & (t < 0.5)
        small = simd.select(near, t, 0.0)
        large = simd.select(near, simd.spread(t, 1.0), t)
        series = simd.spread(t, 0.0)
        for k in range(TERMS):
            series = series * small + PHI_SLOPE[k]
        far = (large * power - power + 1.0) / (large * large)
        simd.store(u, i, log * log * simd.select(near, series, far))


@njit
def _weights15(y: Any, n: int, s: Any) -> None:
    """s = √y, and 0 beyond n."""
    for i in range(0, n, LANES):
        simd.store(s, i, simd.sqrt(simd.load(y, i)))
    _cut(s, n)


@njit
def _cut(s: Any, n: int) -> None:
    """Set s to 0 beyond n."""
    last = (n - 1) // LANES * LANES
    simd.store(s, last, simd.select(simd.first(n - last), simd.load(s, last), 0.0))


@njit
def _weights(y: Any, n: int, a: float, limit: float, s: Any) -> float:
    """s = min(y^(2−α), limit) divided by its maximum, and 0 beyond n. Returns the maximum."""
    if a == 0.5:
        _weights15(y, n, s)
        return 1.0
    most = simd.spread(simd.load(y, 0), -1e300)
    for i in range(0, n, LANES):
        t = elementary.log(simd.larger(simd.load(y, i), 2.3e-308)) * (1.0 - a)
        t = simd.smaller(t, math.log(limit))
        t = simd.select(simd.first(n - i), t, -1e300)
        most = simd.larger(t, most)
        simd.store(s, i, t)
    top = simd.largest(most)
    for i in range(0, n, LANES):
        simd.store(s, i, elementary.exp(simd.load(s, i) - top))
    _cut(s, n)
    return math.exp(top)


@njit
def _product(y: Any, v: Any, n: int, scale: float, a: float, s: Any, limit: float) -> None:
    """v ← Jv·scale of the packed support."""
    highest = _weights(y, n, a, limit, s)
    origin = common.at_largest(s, v, n) if a > 1.0 else v[0]
    common.diagonal_product(s, v, n, origin, highest * scale)


@njit
def backward(job: Any, r: int, like: Any, wide: Any, own: Any) -> None:
    """One row of a job; the scratch has 3 and 3 rows."""
    d, blank, hyper = job[common.WIDTH], job[common.BLANK] != 0, common.given(job, 5)
    y, v, out = (
        common.rows_at(job, 0, r, like),
        common.rows_at(job, 1, r, like),
        common.rows_at(job, 4, r, like),
    )
    scale, a = 1.0 / common.number_at(job, 2, r), common.number_at(job, 3, r) - 1.0
    if a == 1.0 and not hyper:
        projection.backward(y, v, d, scale, out, blank)
        return
    p, w, s = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
    n = common.pack_support(y, v, d, memory.row(own, 0), memory.row(own, 1), p, w, blank)
    dalpha = 0.0
    if n == 0:
        common.fill(out, d, 0.0)
    else:
        _product(p, w, n, scale, a, s, simd.greatest(y) / 1024.0)
        common.unpack_support(y, d, n, w, memory.row(own, 0), out, blank)
        if hyper:
            _slopes(p, n, a, s)
            dalpha = -common.dot(w, s, n) / scale
    if hyper:
        common.set_number(job, 5, r, dalpha)


@njit
def backward15(job: Any, r: int, like: Any, wide: Any, own: Any) -> None:
    """One row of a job with α = 1.5, without the derivative in α; the scratch has 3 and 3 rows."""
    if memory.size(like) == 4:
        _short.backward15(job, like, r, memory.row(own, 0))
        return
    d, blank = job[common.WIDTH], job[common.BLANK] != 0
    y, v = common.rows_at(job, 0, r, like), common.rows_at(job, 1, r, like)
    out, kept = common.rows_at(job, 4, r, like), memory.row(own, 0)
    p, w, s = memory.row(wide, 0), memory.row(wide, 1), memory.row(wide, 2)
    n = common.pack_support(y, v, d, kept, memory.row(own, 1), p, w, blank)
    if n == 0:
        common.fill(out, d, 0.0)
        return
    _weights15(p, n, s)
    common.diagonal_product(s, w, n, w[0], 1.0 / common.number_at(job, 2, r))
    common.unpack_support(y, d, n, w, kept, out, blank)
