"""The truth about max_Δ ⟨y, z⟩ − F(y) − R(y), row by row, in numpy's longest floats; shares no code
with regmax. F is smooth and β-strongly convex, R has kinks: Σ w |aᵀy − b|, Σ w ‖y_g‖₂, or ordered
weights Σ_k w_k y_[k].

An interior point method finds who is 0 and which kinks are met; Newton steps on what is left find
the last digits. The answer is believed as far as its own residual goes: 0 lies within ``bound``·β
of the subdifferential, so ‖y − y*‖ ≤ ``bound``.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

LONG = np.longdouble
FLOOR = LONG(1e-30)
"""Where a slope that is infinite at 0 is taken instead."""


@dataclass(frozen=True)
class Smooth:
    """F by its slope and Hessian at y > 0, (d,) -> (d,) and (d, d); β; whether the slope is
    infinite at 0."""

    slope: object
    bend: object
    beta: float
    steep: bool = False


@dataclass(frozen=True)
class Kinks:
    """R: rows a of ``lines`` (k, d) with ``at`` b and ``weights`` w; ``balls``: (indices, w) of
    disjoint groups; ``ordered``: w_1 ≥ w_2 ≥ … of sorted entries, and then nothing else."""

    lines: np.ndarray | None = None
    at: np.ndarray | None = None
    weights: np.ndarray | None = None
    balls: tuple = ()
    ordered: np.ndarray | None = None

    def subgradient(self, y, met=None):
        """An element of ∂R(y); 0 on the kinks that are ``met``."""
        u = np.zeros_like(y)
        if self.lines is not None:
            t = self.lines @ y - self.at
            sign = np.sign(t) if met is None else np.where(met, 0, np.sign(t))
            u = u + self.lines.T @ (self.weights * sign)
        for g, w in self.balls:
            size = np.sqrt((y[g] ** 2).sum())
            if size > 0:
                u[g] += w * y[g] / size
        if self.ordered is not None:
            u[np.argsort(-y, kind="stable")] += self.ordered[: len(y)]
        return u


@dataclass
class Row:
    """y and threshold; ``bound`` ≥ ‖y − y*‖; ``margin``: how far the row is from a kink of its
    derivative; ``fixed`` (m, d): y moves along the null space of these rows; ``bend``: the Hessian
    of the smooth part there; ``pull``: an element of ∂R(y)."""

    y: np.ndarray
    bound: float
    margin: float
    fixed: np.ndarray = field(repr=False, default=None)
    bend: np.ndarray = field(repr=False, default=None)
    pull: np.ndarray = field(repr=False, default=None)

    def product(self, v):
        """J v: w with B w + Cᵀμ = v, C w = 0; B scaled so that its diagonal is 1."""
        d = len(self.y)
        single = (self.fixed != 0).sum(-1) == 1
        k = np.flatnonzero(~(self.fixed[single] != 0).any(0))
        out = np.zeros(d)
        b = np.nan_to_num(self.bend.astype(float), posinf=1e290)[np.ix_(k, k)]
        scale = 1 / np.sqrt(np.diag(b))
        c = self.fixed[~single][:, k].astype(float) * scale
        size = np.linalg.norm(c, axis=-1, keepdims=True)
        c = (c / np.where(size > 0, size, 1))[size[:, 0] > 0]
        _, sizes, right = np.linalg.svd(c)
        basis = right[int((sizes > 1e-12).sum()) :].T
        if basis.shape[1]:
            h = basis.T @ (b * scale * scale[:, None]) @ basis
            out[k] = scale * (basis @ np.linalg.solve(h, basis.T @ (scale * v[k])))
        return out


def solve(f, kinks, z):
    """The Row of scores z, participants alone."""
    z = np.asarray(z, dtype=LONG)
    z = z - z.max()
    d = len(z)
    if d == 1:
        one = np.ones(1, LONG)
        return Row(one, 0.0, np.inf, np.ones((1, 1)), f.bend(one), kinks.subgradient(one))
    if kinks.ordered is not None:
        return _ordered(f, kinks, z)
    y, u = _interior(f, kinks, z)
    return _polished(f, kinks, z, y, u)


def _with_balls(f, kinks, dead=()):
    """Slope and Hessian of F and of the norms of the groups that are not ``dead``."""
    balls = [(g, w) for k, (g, w) in enumerate(kinks.balls) if k not in dead]

    def slope(y):
        s = f.slope(y)
        for g, w in balls:
            s = s.copy()
            s[g] += w * y[g] / np.sqrt((y[g] ** 2).sum())
        return s

    def bend(y):
        h = np.array(f.bend(y))
        for g, w in balls:
            size = np.sqrt((y[g] ** 2).sum())
            e = y[g] / size
            h[np.ix_(g, g)] += w / size * (np.eye(len(g)) - np.outer(e, e))
        return h

    return slope, bend


def _interior(f, kinks, z, steps=120):
    """Primal–dual path following: y s = μ, p (w − u) = μ, q (w + u) = μ, p − q = Ay − b."""
    slope, bend = _with_balls(f, kinks)
    d = len(z)
    z = z.astype(float)
    a = np.zeros((0, d)) if kinks.lines is None else kinks.lines.astype(float)
    b = np.zeros(0) if kinks.lines is None else kinks.at.astype(float)
    w = np.zeros(0) if kinks.lines is None else kinks.weights.astype(float)
    y, u = np.full(d, 1 / d), np.zeros(len(b))
    t = a @ y - b
    p, q = np.maximum(t, 0) + 0.1, np.maximum(-t, 0) + 0.1
    g = z - slope(y).astype(float)
    tau = g.max()
    s = np.maximum(tau - g, 1e-2 * (1 + abs(tau)))
    sp, sq = w.copy(), w.copy()
    n = d + 2 * len(b)

    def parts(v, mu):
        y, u, p, q, s, sp, sq, tau = v
        dual = slope(np.maximum(y, 1e-290)).astype(float) - z + a.T @ u + tau - s
        return np.concatenate(
            [dual, y * s - mu, p * sp - mu, q * sq - mu, a @ y - b - p + q, [y.sum() - 1]]
        )

    v = [y, u, p, q, s, sp, sq, tau]
    for _ in range(steps):
        y, u, p, q, s, sp, sq, tau = v
        mu = (y @ s + p @ sp + q @ sq) / n
        now = np.linalg.norm(parts(v, 0))
        if mu < 1e-17 and now < 1e-12 * (1 + np.abs(z).max()):
            break
        target = 0.1 * mu
        h = bend(y).astype(float) + np.diag(s / y)
        dual = slope(y).astype(float) - z + a.T @ u + tau - s
        dd = 1 / (p / sp + q / sq)
        rho = a @ y - b - p + q - (target / sp - p) + (target / sq - q)
        h = h + a.T @ (dd[:, None] * a)
        right = -(dual + a.T @ (dd * rho)) + (target / y - s)
        scale = 1 / np.sqrt(np.diag(h))
        m = np.zeros((d + 1, d + 1))
        m[:d, :d] = h * scale * scale[:, None]
        size = np.linalg.norm(scale)
        m[:d, d] = m[d, :d] = scale / size
        try:
            out = np.linalg.solve(m, np.r_[right * scale, (1 - y.sum()) / size])
        except np.linalg.LinAlgError:
            break
        dy, dtau = out[:d] * scale, out[d] / size
        du = dd * (a @ dy + rho)
        ds = (target - y * s - s * dy) / y
        dsp, dsq = -du, du
        dp = (target - p * sp - p * dsp) / sp
        dq = (target - q * sq - q * dsq) / sq
        step = 1.0
        for x, dx in ((y, dy), (s, ds), (p, dp), (q, dq), (sp, dsp), (sq, dsq)):
            if (dx < 0).any():
                step = min(step, 0.99 * (-x[dx < 0] / dx[dx < 0]).min())
        before = np.linalg.norm(parts(v, target))
        for _ in range(30):
            new = [
                x + step * dx for x, dx in zip(v, (dy, du, dp, dq, ds, dsp, dsq, dtau), strict=True)
            ]
            if np.linalg.norm(parts(new, target)) <= before * (1 - 0.01 * step) + 1e-13:
                break
            step /= 2
        v = new
    return v[0] / v[0].sum(), v[1]


def _polished(f, kinks, z, y, u):
    """Newton on the face and the kinks that y is on; the row with the smallest bound."""
    best = None
    for small in (1e-7, 1e-9, 1e-5, 1e-11, 1e-4):
        row = _on_manifold(f, kinks, z, y.astype(LONG), u, small)
        if best is None or row.bound < best.bound:
            best = row
        if best.bound < 1e-15:
            break
    return best


def _on_manifold(f, kinks, z, y, u, small, steps=60):
    d = len(y)
    slope_z = z - f.slope(np.maximum(y, FLOOR))
    dead = tuple(
        k for k, (g, w) in enumerate(kinks.balls) if not f.steep and np.abs(y[g]).max() < small
    )
    slope, bend = _with_balls(f, kinks, dead)
    on = np.ones(d, bool) if f.steep else y > small
    for k in dead:
        on[kinks.balls[k][0]] = False
    if not on.any():
        on[np.argmax(y)] = True
    none = kinks.lines is None
    a = np.zeros((0, d), LONG) if none else kinks.lines.astype(LONG)
    b = np.zeros(0, LONG) if none else kinks.at.astype(LONG)
    w = np.zeros(0, LONG) if none else kinks.weights.astype(LONG)
    met = np.abs(a @ y - b) < small * 100
    y = np.where(on, y, 0)
    e = np.ones((1, d), LONG)
    duals = np.where(met, u.astype(LONG), 0)
    tau = slope_z[np.argmax(y)]
    for it in range(steps):
        # kinks that the face decides by itself give rows of 0: least squares
        point = np.where(on, np.maximum(y, FLOOR), FLOOR)
        fixed = a[met]
        sign = np.where(met, 0, np.sign(a @ y - b))
        pull = a.T @ (w * sign) + fixed.T @ duals[met]
        res = np.where(on, z - slope(point) - pull - tau, 0)
        k = np.flatnonzero(on)
        h = bend(point).astype(float)[np.ix_(k, k)]
        scale = 1 / np.sqrt(np.maximum(np.diag(h), 1e-30))
        c = np.r_[e, fixed][:, k].astype(float) * scale
        m = np.zeros((len(k) + len(c),) * 2)
        m[: len(k), : len(k)] = h * scale * scale[:, None]
        m[: len(k), len(k) :] = c.T
        m[len(k) :, : len(k)] = c
        right = np.r_[
            res[k].astype(float) * scale,
            float(1 - y.sum()),
            (b[met] - fixed @ y).astype(float),
        ]
        try:
            out = np.linalg.solve(m, right)
            if not np.isfinite(out).all():
                raise np.linalg.LinAlgError
        except np.linalg.LinAlgError:
            out = np.linalg.lstsq(m, right, rcond=1e-13)[0]
        dy = np.zeros(d, LONG)
        dy[k] = out[: len(k)] * scale
        new = np.where(on, np.maximum(y + dy, y / 10), 0)
        if not f.steep:  # a step out of Δ: that entry was no member of the support
            new = np.where(on & (y + dy <= 0), y / 10, new)
        tau = tau + out[len(k)]
        duals[met] += out[len(k) + 1 :]
        moved = np.abs(new - y).max()
        y = new
        if moved < 1e-19 and it > 2:
            break
    return _certified(f, kinks, z, y, duals, met, on, dead, slope, bend)


def _certified(f, kinks, z, y, duals, met, on, dead, slope, bend):
    """The distance of 0 to the subdifferential over β: rigorous whatever y is."""
    d = len(y)
    none = kinks.lines is None
    a = np.zeros((0, d), LONG) if none else kinks.lines.astype(LONG)
    b = np.zeros(0, LONG) if none else kinks.at.astype(LONG)
    w = np.zeros(0, LONG) if none else kinks.weights.astype(LONG)
    off = abs(y.sum() - 1)
    y = y / y.sum()
    t = a @ y - b
    point = np.where(on, np.maximum(y, FLOOR), FLOOR)
    # a kink that is met to rounding is met: the point that it is met at is as near
    exact = met & (np.abs(t) < 1e-17)
    off = off + (np.abs(t[exact]).max() if exact.any() else 0) * len(y) ** 2
    u = np.where(exact, np.clip(duals, -w, w), w * np.sign(t))
    r = z - slope(point) - a.T @ u
    tau = np.median(r[on])
    rho = r - tau
    miss = np.where(on, np.abs(rho), np.maximum(rho, 0))
    margin = np.inf
    for k in dead:
        g, wg = kinks.balls[k]
        up = np.maximum(rho[g], 0)
        size = np.sqrt((up**2).sum())
        miss[g] = up * max(0, 1 - wg / size) if size > 0 else 0
        margin = min(margin, float(wg - size))
    size = 1 + np.abs(z).max() + np.abs(slope(point)[on]).max()
    bound = float(np.sqrt((miss**2).sum()) / f.beta + off + 1e-18 * size * d / f.beta)
    zero = [i for i in np.flatnonzero(~on) if not any(i in kinks.balls[k][0] for k in dead)]
    if zero:
        margin = min(margin, float(-rho[zero].max()))
    if not f.steep:
        margin = min(margin, float(y[on].min()))
    if exact.any():
        margin = min(margin, float((w - np.abs(u))[exact].min()))
    if (~met).any():
        margin = min(margin, float(np.abs(t[~met]).min()))
    if (met & ~exact).any():
        margin = 0.0
    fixed = np.r_[np.ones((1, d)), a[met].astype(float), np.eye(d)[~on]]
    if met.any():  # multipliers are one only where the rows are independent
        rows = np.r_[np.ones((1, d)), a[met].astype(float)][:, on]
        if np.linalg.matrix_rank(rows) < len(rows):
            margin = 0.0
    pull = a.T @ np.where(met, 0, w * np.sign(t))
    for g, wg in kinks.balls:
        norm = np.sqrt((y[g] ** 2).sum())
        if norm > 0:
            pull[g] += wg * y[g] / norm
    return Row(y, bound, margin, fixed, bend(point), pull)


def _ordered(f, kinks, z):
    """By groups: pool adjacent violators on sorted z − w, then F on the groups' means. For an F
    that is a sum of one function of each entry."""
    d = len(z)
    w = kinks.ordered[:d].astype(LONG)
    order = np.argsort(-z, kind="stable")
    v = z[order] - w
    blocks = []
    for i in range(d):
        blocks.append([v[i], 1])
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            (m1, n1), (m2, n2) = blocks[-2], blocks[-1]
            blocks[-2:] = [[(m1 * n1 + m2 * n2) / (n1 + n2), n1 + n2]]
    ids = np.repeat(np.arange(len(blocks)), [n for _, n in blocks])
    means = np.array([m for m, _ in blocks], LONG)[ids]
    inner = np.empty(d, LONG)
    inner[order] = means
    base = solve(f, Kinks(), inner)
    y = base.y.copy()
    for g in range(len(blocks)):
        members = order[ids == g]
        y[members] = y[members].mean()
    # optimal for F + R if within each group of y the sorted rest is majorized by the weights
    point = np.maximum(y, FLOOR)
    r = z - f.slope(point)
    on = y > 0 if not f.steep else np.ones(d, bool)
    tau = ((r * y).sum() - (np.sort(y)[::-1] * w).sum()) / y.sum()
    ranked = np.lexsort((-(r - tau), -y))
    excess = (r - tau)[ranked] - w
    worst, margin, start = LONG(0), base.margin, 0
    sorted_y = y[ranked]
    while start < d:
        stop = start + 1
        while stop < d and sorted_y[stop] == sorted_y[start]:
            stop += 1
        part = excess[start:stop].cumsum()
        worst = max(worst, part.max())
        if sorted_y[start] > 0:
            worst = max(worst, abs(part[-1]))
        if stop - start > 1:
            slack = -part[:-1].max()
            if sorted_y[start] > 0 or part[-1] > -1e-9:
                margin = min(margin, float(slack))
        if stop < d:
            gap = sorted_y[stop - 1] - sorted_y[stop]
            margin = min(margin, float(gap))
        start = stop
    size = 1 + np.abs(z).max()
    bound = float(np.sqrt(LONG(d)) * max(worst, 0) / f.beta + base.bound + 1e-18 * size * d)
    rows = [np.ones(d)]
    for g in range(len(blocks)):
        members = order[ids == g]
        for i, j in itertools.pairwise(members):
            row = np.zeros(d)
            row[i], row[j] = 1, -1
            rows.append(row)
    zeros = np.eye(d)[~on]
    pull = np.zeros(d, LONG)
    for g in range(len(blocks)):
        pull[order[ids == g]] = w[ids == g].mean()
    return Row(y, bound, margin, np.r_[np.array(rows), zeros], f.bend(point), pull)
