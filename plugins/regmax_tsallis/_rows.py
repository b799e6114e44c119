"""α-entmax of one row and its derivatives, compiled with numba.

    y = [1 + a(z − τ)]₊^(1/a),  Σ y = 1,  z = x/γ,  a = α − 1
    J v = s ∘ (v − ⟨s, v⟩/Σs) on the support of y,  s = y^(2−α)

(Peters, Niculae & Martins 2019, Lemma 2 and Prop. 2; in α: Correia, Niculae & Martins 2019,
Prop. 1.) α = 2 is the projection on the simplex, α = 1.5 needs square roots only. The others go by
logarithms, as in :mod:`regmax_tsallis`: below α = 2 from the largest entry, which has a limit at
α = 1, above from the smallest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from regmax.kernels import cpu, elementary, projection, simd
from regmax.kernels.simd import LANES

GROUP = 8
"""Rows that are worked at in turns."""
REACH = 800.0
"""exp(−800) is 0."""
LONG = 64
"""Entries whose sum loses nothing that matters."""
TERMS = 14
PHI_SLOPE = tuple((k + 1.0) / math.factorial(k + 2) for k in range(TERMS - 1, -1, -1))
"""φ'(t) = Σ (k + 1) t^k/(k + 2)!, highest power first, for φ(t) = (e^t − 1)/t."""


# -- α = 1.5: y = (h − τ)₊², h = z/2 ---------------------------------------------------------


@njit
def _bound15(h: Any) -> float:
    """At most τ, from sixteen of the entries: Newton from below on a convex function."""
    tau = -1.0
    for _ in range(3):
        t = simd.larger(h - tau, 0.0)
        tau += (simd.total(t * t) - 1.0) / (2.0 * simd.total(t))
    return tau


@njit
def _threshold15(h: Any, n: int, tau: float) -> float:
    """τ with Σ (h − τ)₊² = 1, from a lower one.

    The root for the entries above the last τ is too high where it leaves some out, and too low from
    a τ that is too high; Newton's step is always too low. Done when nothing enters or leaves.
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
            second, lost = cpu.added(second, lost, t * t)
        off = simd.total(second) - 1.0
    return tau + off / (2.0 * s1) if off * off > cpu.EPS * cpu.EPS * size else tau


@njit
def _forward15(
    row: Any, d: int, best: Any, gamma: float, h: Any, kept: Any, out: Any, blank: bool
) -> None:
    top, scale = np.float64(simd.largest(best)), 0.5 / gamma
    tau = _bound15((simd.wide(best) - top) * scale)
    low = cpu.floor(row, top, -2.0 * tau * gamma)
    n = cpu.pack(row, d, low, top, scale, kept, h)
    tau = _threshold15(h, n, tau)
    full = d - d % LANES
    zero = simd.spread(best, 0.0)
    for i in range(0, full, LANES):
        v = simd.load(row, i)
        if simd.count(v >= low) > 0:
            t = simd.larger((simd.wide(v) - top) * scale - tau, 0.0)
            simd.store(out, i, simd.like(v, t * t))
        elif not blank:
            simd.store(out, i, zero)
    if full < d:
        rest = simd.first(d - full)
        v = simd.load_part(row, full, rest, -np.inf)
        t = simd.larger((simd.wide(v) - top) * scale - tau, 0.0)
        simd.store_part(out, full, rest, simd.like(v, t * t))


# -- α ≤ 2, by the logarithm ℓ of the largest entry ----------------------------------------------


@njit
def newton(t: Any, power: float) -> tuple[Any, Any]:
    """y = t₊^(1/a) in float32, and y/t."""
    inside = t > 1e-30
    t = simd.select(inside, t, 1.0)
    slope = elementary.exp32(elementary.log32(t) * (power - 1.0))
    slope = simd.select(inside, slope, 0.0)
    return slope * t, slope


@njit
def _entries(
    z: Any, n: int, a: float, log_top: float, y: Any, rate: Any
) -> tuple[float, float, float]:
    """y_i = e^ℓ b_i^(1/a), b_i = [1 − a δ_i e^(−aℓ)]₊, δ = −z, and e^(ℓ−δ_i) at a = 0: exact in
    relative terms; ``rate`` is 1/b. Returns Σy, and its first and second derivative in ℓ."""
    # dy/dℓ = y/b and db/dℓ = a (1 − b)
    stretch = math.exp(-a * log_top)
    near = abs(a) < 0.1  # where log b loses digits that 1/a makes count
    zero = simd.spread(simd.load(z, 0), 0.0)
    sums, firsts, seconds = zero, zero, zero
    inverse = 1.0 / a if a != 0.0 else 1.0
    for i in range(0, n, LANES):
        t = simd.load(z, i) * -stretch
        b = 1.0 - t * a
        inside = (b > 0.0) & (t < np.inf)
        b = simd.select(inside, b, 1.0)
        if near:
            t = simd.select(inside, t, 0.0)
            power = elementary.log1p(t * -a) * inverse if a != 0.0 else 0.0 - t
        else:
            power = elementary.log(b) * inverse
        v = simd.select(inside, elementary.exp(power + log_top), 0.0)
        b = 1.0 / b
        first = v * b
        sums = sums + v
        firsts = firsts + first
        seconds = seconds + first * b
        simd.store(y, i, v)
        simd.store(rate, i, b)
    s1 = simd.total(firsts)
    return simd.total(sums), s1, (1.0 - a) * simd.total(seconds) + a * s1


@njit
def _powers_at(z: Any, a: float, log_top: float) -> Any:
    """y of sixteen entries, at any ℓ; a is not 0."""
    t = z * (a * math.exp(-a * log_top))
    inside = t > -1.0
    t = simd.select(inside, t, 0.0)
    y = elementary.exp(elementary.log1p(t) * (1.0 / a) + log_top)
    return simd.select(inside, y, 0.0)


@njit
def _solve(z: Any, n: int, a: float, log_top: float, tol: float, y: Any, rate: Any) -> None:
    """y[:n] with Σ y = 1, from some ``log_top``: Halley's steps on log Σy, kept in a bracket.

    Once log Σy is within ``tol`` the last step is taken by the Taylor series of y.
    """
    low, high = -math.log(n), 0.0
    step, width = 0.0, -low
    for _ in range(200):
        total, first, second = _entries(z, n, a, log_top, y, rate)
        off = math.log(total)
        slope = first / total
        bend = second / total - slope * slope
        step = 2.0 * off * slope / (2.0 * slope * slope - off * bend)
        if not abs(off) > tol or high - low <= cpu.EPS * max(-low, 1e-300):
            break
        if off > 0.0:
            high = min(high, log_top)
        else:
            low = max(low, log_top)
        trial = log_top - step
        if not (low <= trial <= high):
            trial = log_top - off / slope
        if not (low <= trial <= high and abs(trial - log_top) <= 0.5 * width):
            trial = 0.5 * (low + high)
        width = abs(trial - log_top)
        if trial == log_top:
            break
        log_top = trial
    zero = simd.spread(simd.load(y, 0), 0.0)
    sums, lost = zero, zero
    for i in range(0, n, LANES):
        v = simd.load(y, i)
        b = simd.load(rate, i) * -step
        if simd.count((b > 0.01) | (b < -0.01)) > 0:  # next to the threshold
            v = _powers_at(simd.load(z, i), a, log_top - step)
        else:
            v = simd.larger(v * (1.0 + b * (1.0 + (b * (1.0 - a) - step * a) * 0.5)), 0.0)
        sums, lost = cpu.added(sums, lost, v)
        simd.store(y, i, v)
    cpu.scaled(y, n, 1.0 / simd.total(sums))


@njit
def _forward_below(
    row: Any,
    d: int,
    best: Any,
    gamma: float,
    a: float,
    z: Any,
    y: Any,
    more: Any,
    kept: Any,
    out: Any,
    blank: bool,
) -> None:
    """α ≤ 1.05, where all entries may count."""
    top = np.float64(simd.largest(best))
    depth = np.inf
    if a >= 0.0:
        depth = min(1.0 / a, REACH) if a > 0.0 else REACH
    low = cpu.floor(row, top, depth * gamma)
    n = cpu.pack(row, d, low, top, 1.0 / gamma, kept, z)
    _solve(z, n, a, 0.0, tolerance(row), y, more)
    cpu.unpack(row, d, low, n, y, kept, out, blank)


@njit
def tolerance(row: Any) -> float:
    """For log Σy, before the last step."""
    return 4.0 * cpu.EPS if simd.resolution(row) < 1e-10 else 1e-4


@njit
def forward_power(job: Any, like: Any, rows: Any, count: int, wide: Any, own: Any) -> None:
    """Up to GROUP rows with 1.05 < α < 2; scratch of ``wide`` for two rows more, of ``own`` for two
    of each.

    What has to wait for its own last sum is done for one row after the other in each step: the
    machine then works at several rows at once.
    """
    d, blank = job[cpu.WIDTH], job[cpu.BLANK] != 0
    group = wide.shape[0] - 2
    state = np.empty((6, GROUP))
    top, low, rate, scale, tau, step = state[0], state[1], state[2], state[3], state[4], state[5]
    size = np.zeros(GROUP, np.int64)
    heads = np.empty((GROUP, LANES))
    for k in range(count):
        r = rows[k]
        row = cpu.participants(job, r, 3, like, simd.row(own, group + k))
        out = cpu.rows_at(job, 4, r, like)
        best, bad = cpu.scan(row, d)
        top[k] = np.float64(simd.largest(best))
        scale[k] = 1.0 / cpu.number_at(job, 1, r)
        rate[k] = cpu.number_at(job, 2, r) - 1.0
        size[k] = -1
        if bad:
            cpu.fill(out, d, np.nan)
        elif top[k] == -np.inf:
            cpu.fill(out, d, 0.0)
        else:
            size[k] = 0
            tau[k] = -1.0 / rate[k]
            simd.store(simd.row(heads, k), 0, (simd.wide(best) - top[k]) * scale[k])
    # at most τ, from sixteen of the entries: Newton from below on a convex function
    for _ in range(4):
        for k in range(count):
            if size[k] >= 0:
                a = rate[k]
                head = simd.narrow(simd.load(simd.row(heads, k), 0))
                y, slope = newton((head - tau[k]) * a, 1.0 / a)
                tau[k] += (simd.total(y) - 1.0) / simd.total(slope)
    for k in range(count):
        if size[k] >= 0:
            a = rate[k]
            tau[k] = max(tau[k] - 1e-5 / a, -1.0 / a)
            step[k] = 1.0
            row = cpu.participants(job, rows[k], 3, like, simd.row(own, group + k))
            low[k] = cpu.floor(row, top[k], min(-tau[k], REACH) / scale[k])
            kept, z = simd.row(own, k), simd.row(wide, k)
            size[k] = cpu.pack(row, d, low[k], top[k], scale[k], kept, z)
    # τ to float32's accuracy
    for _ in range(8):
        for k in range(count):
            if size[k] > 0 and step[k] >= 1e-3:
                step[k] = _newton_step(simd.row(wide, k), size[k], rate[k], tau[k])
                tau[k] = min(tau[k] + step[k], -1e-30)
    y, more = simd.row(wide, group), simd.row(wide, group + 1)
    for k in range(count):
        if size[k] > 0:
            a = rate[k]
            log_top = min(math.log(-a * tau[k]) / a, 0.0)
            row = cpu.participants(job, rows[k], 3, like, simd.row(own, group + k))
            _solve(simd.row(wide, k), size[k], a, log_top, tolerance(row), y, more)
            out = cpu.rows_at(job, 4, rows[k], like)
            cpu.unpack(row, d, low[k], size[k], y, simd.row(own, k), out, blank)


@njit
def _newton_step(z: Any, n: int, a: float, tau: float) -> float:
    y, slope = newton((simd.narrow(simd.load(z, 0)) - tau) * a, 1.0 / a)
    for i in range(LANES, n, LANES):
        more_y, more_slope = newton((simd.narrow(simd.load(z, i)) - tau) * a, 1.0 / a)
        y = y + more_y
        slope = slope + more_slope
    return (simd.total(y) - 1.0) / simd.total(slope)


# -- α > 2, by the smallest entry t of the support -----------------------------------------------


@njit
def _powers(z: Any, n: int, smallest: float, a: float) -> float:
    """Σ (aΔ)^(1/a), Δ = z − smallest where positive."""
    total = 0.0
    for i in range(n):
        if z[i] > smallest:
            total += math.exp((math.log(z[i] - smallest) + math.log(a)) / a)
    return total


@njit
def _solve_above(z: Any, n: int, a: float, ordered: Any, y: Any) -> None:
    """y = (aΔ_i + t^a)^(1/a), Δ_i the distance to the smallest supported score.

    The k-th largest score is supported iff Σ (aΔ_i)^(1/a) < 1 for the distances to it; Σ y is
    convex and increases in t.
    """
    for i in range(n):
        ordered[i] = -z[i]
    ordered[:n].sort()
    size, beyond = 1, n + 1
    while beyond - size > 1:
        middle = (size + beyond) // 2
        if _powers(z, n, -ordered[middle - 1], a) < 1.0:
            size = middle
        else:
            beyond = middle
    smallest = -ordered[size - 1]
    while size < n and -ordered[size] == smallest:
        size += 1
    low = (1.0 - _powers(z, n, smallest, a)) / size
    high = 1.0 / size
    t = high
    total = 1.0
    for _ in range(200):
        total, slope = 0.0, 0.0
        log_t = math.log(t)
        for i in range(n):
            y[i] = 0.0
            if z[i] >= smallest:
                log_y = log_t
                if z[i] > smallest:
                    p, q = math.log(z[i] - smallest) + math.log(a), a * log_t
                    log_y = (max(p, q) + math.log1p(math.exp(-abs(p - q)))) / a
                y[i] = math.exp(log_y)
                total += y[i]
                slope += math.exp((a - 1.0) * (log_t - log_y))  # dy_i/dt = (t/y_i)^(a−1)
        off = total - 1.0
        if not abs(off) > 4.0 * cpu.EPS or not high > low:
            break
        if off > 0.0:
            high = min(high, t)
        else:
            low = max(low, t)
        trial = t - off / slope
        if not (low <= trial <= high):
            trial = 0.5 * (low + high)
        if trial == t:
            break
        t = trial
    total, lost = 0.0, 0.0
    for i in range(n):
        term = y[i] - lost
        following = total + term
        lost = (following - total) - term
        total = following
    for i in range(n):
        y[i] /= total


@njit
def _forward_above(
    row: Any,
    d: int,
    best: Any,
    gamma: float,
    a: float,
    z: Any,
    y: Any,
    sort: Any,
    kept: Any,
    out: Any,
    blank: bool,
) -> None:
    top = np.float64(simd.largest(best))
    low = cpu.floor(row, top, gamma / a)
    n = cpu.pack(row, d, low, top, 1.0 / gamma, kept, z)
    _solve_above(z, n, a, sort, y)
    cpu.unpack(row, d, low, n, y, kept, out, blank)


# -- the rows ------------------------------------------------------------------------------------


@njit
def forward(job: Any, r: int, like: Any, wide: Any, own: Any) -> None:
    """One row of a job; the scratch has 3 and 2 rows."""
    d, blank = job[cpu.WIDTH], job[cpu.BLANK] != 0
    row = cpu.participants(job, r, 3, like, simd.row(own, 1))
    out, kept = cpu.rows_at(job, 4, r, like), simd.row(own, 0)
    g, a = cpu.number_at(job, 1, r), cpu.number_at(job, 2, r) - 1.0
    z, p, more = simd.row(wide, 0), simd.row(wide, 1), simd.row(wide, 2)
    best, bad = cpu.scan(row, d)
    if bad or not (g > 0.0 and a > -1.0):
        cpu.fill(out, d, np.nan)
    elif simd.largest(best) == -np.inf:
        cpu.fill(out, d, 0.0)
    elif a == 1.0:
        projection.forward(row, d, g, z, kept, out, blank)
    elif a == 0.5:
        _forward15(row, d, best, g, z, kept, out, blank)
    elif a < 1.0:
        _forward_below(row, d, best, g, a, z, p, more, kept, out, blank)
    else:
        _forward_above(row, d, best, g, a, z, p, wide[2], kept, out, blank)


@njit
def _slopes(y: Any, n: int, a: float, u: Any) -> None:
    """u = ∂∇Ω(y)/∂α, up to a constant.

    Below α = 2, log² y φ'(a log y) with φ(t) = (e^t − 1)/t, which is right at a = 0; above, the
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
def _weights(y: Any, n: int, a: float, limit: float, s: Any) -> float:
    """s = y^(2−α), at most ``limit``, over its largest, which is returned; 0 beyond n."""
    count = simd.spread(simd.load(y, 0), 0.0)
    if a == 0.5:
        for i in range(0, n, LANES):
            simd.store(s, i, simd.sqrt(simd.load(y, i)))
        highest = 1.0
    else:
        most = count - 1e300
        for i in range(0, n, LANES):
            t = elementary.log(simd.larger(simd.load(y, i), 2.3e-308)) * (1.0 - a)
            t = simd.smaller(t, math.log(limit))
            t = simd.select(simd.first(n - i), t, -1e300)
            most = simd.larger(t, most)
            simd.store(s, i, t)
        top = simd.largest(most)
        for i in range(0, n, LANES):
            simd.store(s, i, elementary.exp(simd.load(s, i) - top))
        highest = math.exp(top)
    last = (n - 1) // LANES * LANES
    simd.store(s, last, simd.select(simd.first(n - last), simd.load(s, last), 0.0))
    return highest


@njit
def _product(y: Any, v: Any, n: int, scale: float, a: float, s: Any, limit: float) -> None:
    """v ← Jv·scale of the packed support."""
    highest = _weights(y, n, a, limit, s)
    origin = cpu.at_largest(s, v, n) if a > 1.0 else v[0]
    cpu.diagonal_product(s, v, n, origin, highest * scale)


@njit
def backward(job: Any, r: int, like: Any, wide: Any, own: Any) -> None:
    """One row of a job; the scratch has 3 and 2 rows."""
    d, blank, hyper = job[cpu.WIDTH], job[cpu.BLANK] != 0, cpu.given(job, 5)
    y, v, out = (
        cpu.rows_at(job, 0, r, like),
        cpu.rows_at(job, 1, r, like),
        cpu.rows_at(job, 4, r, like),
    )
    scale, a = 1.0 / cpu.number_at(job, 2, r), cpu.number_at(job, 3, r) - 1.0
    if a == 1.0 and not hyper:
        projection.backward(y, v, d, scale, out, blank)
        return
    p, w, s = simd.row(wide, 0), simd.row(wide, 1), simd.row(wide, 2)
    n = cpu.pack_support(y, v, d, simd.row(own, 0), simd.row(own, 1), p, w, blank)
    dalpha = 0.0
    if n == 0:
        cpu.fill(out, d, 0.0)
    else:
        _product(p, w, n, scale, a, s, simd.greatest(y) / 1024.0)
        cpu.unpack_support(y, d, n, w, simd.row(own, 0), out, blank)
        if hyper:
            _slopes(p, n, a, s)
            dalpha = -cpu.dot(w, s, n) / scale
    if hyper:
        cpu.set_number(job, 5, r, dalpha)
