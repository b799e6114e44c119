"""The truth about max_Δ ⟨y, z⟩ − Ω(y), in numpy: shares no code with regmax.

An interior point method finds the neighbourhood, Newton steps with residuals in extended precision
the last digits, and a bound of its own says how far they can be trusted: where Ω is a sum of
functions of one entry the threshold is enclosed, elsewhere the residual of the optimality condition
is divided by the least curvature around the answer.
"""

from dataclasses import dataclass

import numpy as np

LONG = np.longdouble
FLOOR = LONG(1e-25)
"""What y is at most where it is taken for 0: checked on the slope there."""


@dataclass(frozen=True)
class Convex:
    """Ω by its slope and Hessian; ``apart``: a sum of functions of one entry each."""

    slope: object
    bend: object
    apart: bool


@dataclass(frozen=True)
class Truth:
    """y (n, d) and threshold in extended precision, and per row: ``bound`` ≥ ‖y − y*‖; the least
    curvature along the face of y, and the same where the diagonal is scaled to 1 (``regular``); who
    is positive; the margin of strict complementarity."""

    y: np.ndarray
    tau: np.ndarray
    bound: np.ndarray
    least: np.ndarray
    regular: np.ndarray
    on: np.ndarray
    margin: np.ndarray


def solve(f, z, on):
    """Truth for scores z (n, d), extended precision, where ``on`` says who takes part."""
    y = interior(f, z, on)
    y, tau, active = refined(f, z, on, y)
    bound, least, regular, margin = trusted(f, z, on, y, tau, active)
    if f.apart:
        y, tau, bound = enclosed(f, z, on, y, tau)
        active = on & (y > 2 * FLOOR)
    alone = on.sum(-1) == 1
    return Truth(y, tau, np.where(alone, 0, bound), least, regular, active, margin)


def kkt(h, residual, on, total):
    """[H 1; 1ᵀ 0](dy, dtau) = (residual, total) on ``on``, scaled so that its diagonal is 1."""
    n, d = residual.shape
    scale = np.where(on, 1 / np.sqrt(np.maximum(np.einsum("nii->ni", h), 1e-30)), 0.0)
    m = np.zeros((n, d + 1, d + 1))
    m[:, :d, :d] = h * scale[:, :, None] * scale[:, None, :]
    np.einsum("nii->ni", m)[:, :d][~on] = 1
    m[:, :d, d] = m[:, d, :d] = scale
    size = np.maximum(np.linalg.norm(scale, axis=-1), 1e-300)
    m[:, :d, d] /= size[:, None]
    m[:, d, :d] /= size[:, None]
    right = np.concatenate([residual * scale, total / size[:, None]], -1).astype(np.float64)
    try:
        out = np.linalg.solve(m, right[..., None])[..., 0]
    except np.linalg.LinAlgError:
        m += 1e-14 * np.diag(np.r_[np.ones(d), 0])
        out = np.stack(
            [np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(m, right, strict=True)]
        )
    return out[:, :d] * scale, out[:, d] / size


def interior(f, z, on, steps=150):
    """Primal–dual path following in float64: y_i s_i = μ → 0."""
    z = z.astype(np.float64)
    count = on.sum(-1, keepdims=True)
    y = np.where(on, 1.0 / count, 0.0)
    g = np.where(on, z - f.slope(np.where(on, y, 1e-25)), -np.inf)
    tau = g.max(-1, keepdims=True)
    s = np.where(on, np.maximum(tau - g, 1e-2 * (1 + np.abs(tau))), 0.0)

    def parts(y, s, tau, mu):
        slope = z - f.slope(np.where(on, y, 1e-25))
        dual = np.where(on, tau - slope - s, 0)
        return dual, np.where(on, y * s - mu, 0)

    done = np.zeros(len(y), bool)
    for _ in range(steps):
        mu = (y * s).sum(-1, keepdims=True) / count
        done |= mu[:, 0] < 1e-27
        if done.all():
            break
        target = 0.1 * mu
        dual, central = parts(y, s, tau, target)
        inside = np.where(on, y, 1)
        h = np.where(on[:, :, None] & on[:, None, :], f.bend(np.where(on, y, 1e-25)), 0.0)
        h = h + np.einsum("ni,ij->nij", s / inside, np.eye(y.shape[-1]))
        q = -dual - central / inside
        dy, dtau = kkt(h, q, on, 1 - y.sum(-1, keepdims=True))
        dtau = dtau[:, None]
        ds = np.where(on, -(central + s * dy) / inside, 0)

        def largest(v, dv):
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where(on & (dv < 0), -v / dv, np.inf).min(-1, keepdims=True)

        t = np.minimum(0.99 * np.minimum(largest(y, dy), largest(s, ds)), 1)
        norm = (dual**2).sum(-1, keepdims=True) + (central**2).sum(-1, keepdims=True)
        for _ in range(25):
            a, b = parts(y + t * dy, s + t * ds, tau + t * dtau, target)
            new = (a**2).sum(-1, keepdims=True) + (b**2).sum(-1, keepdims=True)
            worse = ~(
                new <= norm * (1 - 0.01 * t) + 1e-26 * (1 + np.abs(z).max(-1, keepdims=True)) ** 2
            )
            if not worse.any():
                break
            t = np.where(worse, t / 2, t)
        t = np.where(done[:, None], 0, t)
        y, s, tau = y + t * dy, s + t * ds, tau + t * dtau
        y, s = np.where(on, np.maximum(y, 1e-280), 0), np.where(on, np.maximum(s, 1e-280), 0)
    return y / y.sum(-1, keepdims=True)


def state(f, z, on, active, y):
    """y with its zeros at FLOOR, r = z − ∇Ω and the threshold."""
    y = np.where(active, y, np.where(on, FLOOR, LONG(0)))
    r = z - f.slope(np.maximum(y, FLOOR))
    h = np.einsum("nii->ni", f.bend(np.maximum(y, FLOOR)))
    weight = np.where(active, 1 / np.maximum(h, 1e-30), 0).astype(LONG)
    tau = (weight * np.where(active, r, 0)).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)
    return y, r, tau


def refined(f, z, on, start, steps=160):
    """Newton on the active set in extended precision; who is at FLOOR and wants up, gets up."""
    y = np.where(on, start.astype(LONG), LONG(0))
    _, _, tau = state(f, z, on, on & (y > FLOOR), y)
    active = on & (y > 1e-13)
    # near zero: in, if the slope at 0 says so
    r = z - f.slope(np.where(active, y, FLOOR))
    _, _, tau = state(f, z, on, active, y)
    active |= on & (y > FLOOR) & (r > tau)
    best, best_norm, best_active = y, np.full(len(y), np.inf, LONG), active
    stale = 0
    for _ in range(steps):
        y, r, tau = state(f, z, on, active, y)
        h = f.bend(np.maximum(y, FLOOR))
        dy, _ = kkt(
            np.where(active[:, :, None] & active[:, None, :], h, 0.0),
            np.where(active, r - tau, 0),
            active,
            1 - np.where(active, y, 0).sum(-1, keepdims=True),
        )
        wants = on & ~active & (r > tau)
        violation = np.where(wants, r - tau, 0)
        # the step is the distance that counts: residuals over curvatures of 1e20 are no error
        norm = np.sqrt((dy**2).sum(-1)) + np.where(wants.any(-1), 1e-3 + violation.max(-1), 0)
        better = norm < best_norm
        best = np.where(better[:, None], y, best)
        best_active = np.where(better[:, None], active, best_active)
        best_norm = np.where(better, norm, best_norm)
        stale = 0 if (norm < 0.5 * best_norm).any() or better.any() else stale + 1
        if (best_norm < 1e-22).all() or stale > 12:
            break
        y = np.where(active, np.maximum(y + dy, y / 10), y)
        y = np.where(active, np.minimum(y, LONG(1)), y)
        fell = active & (y < 2 * FLOOR)
        active = active & ~fell
        y = np.where(wants, 4 * FLOOR, y)
        active = active | wants
    y, r, tau = state(f, z, on, best_active, best)
    y = y / y.sum(-1, keepdims=True)
    return y, tau, best_active


def trusted(f, z, on, y, tau, active):
    """‖|J| (|ρ| + rounding)‖ with ρ the residual of the optimality condition and J the inverse of
    the Hessian along the face of y; 1/‖J‖; the least eigenvalue when the diagonal is scaled to 1;
    the margin of strict complementarity."""
    g = f.slope(np.maximum(y, FLOOR))
    rho = np.where(on, z - g - tau, -np.inf)
    size = np.maximum(np.abs(z).max(-1), 1).astype(LONG)
    near = active | (on & (rho > -1e-12 * size[:, None]))
    h = f.bend(np.maximum(y, FLOOR))
    n = len(y)
    bound, least, regular = np.zeros(n), np.full(n, np.inf), np.ones(n)
    for i in range(n):
        k = np.flatnonzero(near[i])
        if len(k) < 2:
            bound[i] = np.inf if (rho[i, ~near[i] & on[i]] > 0).any() else 0
            continue
        hk = h[i][np.ix_(k, k)]
        scale = 1 / np.sqrt(np.maximum(np.diag(hk), 1e-30))
        m = len(k)
        basis = np.linalg.qr(np.c_[scale / np.linalg.norm(scale), np.eye(m)])[0][:, 1:m]
        values, vectors = np.linalg.eigh(basis.T @ (hk * scale * scale[:, None]) @ basis)
        regular[i] = values[0]
        if values[0] <= 1e-13 * m:
            bound[i], least[i] = np.inf, 0
            continue
        half = (basis @ vectors) / np.sqrt(values) * scale[:, None]  # J = half halfᵀ
        j = half @ half.T
        least[i] = 1 / np.linalg.norm(j, 2)
        noise = 2e-19 * (np.abs(z[i, k]) + np.abs(g[i, k]) + np.abs(tau[i]) + 1)
        bound[i] = 2 * np.linalg.norm(np.abs(j) @ (np.abs(rho[i, k]) + noise).astype(np.float64))
    off = on & ~active
    margin = np.where(off.any(-1), -np.where(off, rho, -np.inf).max(-1) / size, np.inf)
    return bound + 1e-19 * y.shape[-1], least, regular, margin.astype(np.float64)


def enclosed(f, z, on, y, tau):
    """The threshold between two where Σ y_i(τ) is above and below 1: a bound without any β."""
    size = np.maximum(np.abs(z).max(-1, keepdims=True), 1).astype(LONG)
    logs = np.log(FLOOR) - 1

    def at(t):
        low, high = np.full(y.shape, logs, LONG), np.zeros(y.shape, LONG)
        for _ in range(75):
            mid = (low + high) / 2
            up = z - f.slope(np.exp(mid)) > t
            low, high = np.where(up, mid, low), np.where(up, high, mid)
        none = z - f.slope(np.full(y.shape, np.exp(logs), LONG)) <= t
        full = z - f.slope(np.ones(y.shape, LONG)) >= t
        found = np.where(full, 1, np.where(none, 0, np.exp((low + high) / 2)))
        return np.where(on, found, LONG(0))

    step = LONG(1e-18) * size
    low, high = tau - step, tau + step
    for _ in range(40):
        below, above = at(low).sum(-1, keepdims=True) < 1, at(high).sum(-1, keepdims=True) > 1
        if not (below | above).any():
            break
        step = step * 4
        low, high = np.where(below, tau - step, low), np.where(above, tau + step, high)
    for _ in range(90):
        wide = high - low > 4e-19 * np.maximum(np.abs(high), np.abs(low))
        spread = np.abs(at(low) - at(high)).max(-1, keepdims=True)
        if not (wide & (spread > 1e-17)).any():
            break
        mid = (low + high) / 2
        up = at(mid).sum(-1, keepdims=True) > 1
        low, high = np.where(up, mid, low), np.where(up, high, mid)
    a, b = at(low), at(high)
    total_a, total_b = a.sum(-1, keepdims=True), b.sum(-1, keepdims=True)
    # between the two on the line on which the sum is 1
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total_a > total_b, (total_a - 1) / (total_a - total_b), 0)
    share = np.clip(np.nan_to_num(share.astype(np.float64)), 0, 1)
    found = a + (b - a) * share
    found = found / found.sum(-1, keepdims=True)
    bound = np.sqrt(((a - b) ** 2).sum(-1)) + np.abs(total_a[:, 0] - 1) * (total_a == total_b)[:, 0]
    return found, (low + high) / 2, bound.astype(np.float64) + 1e-18 * y.shape[-1]


def jacobian_product(f, y, active, v):
    """J v on the support: H w + τ1 = v, Σw = 0."""
    h = f.bend(np.maximum(y, FLOOR))
    h = np.where(active[:, :, None] & active[:, None, :], h, 0.0)
    return kkt(h, np.where(active, v, 0.0), active, np.zeros((len(y), 1)))[0]


def gap(f, z, on, y):
    """max_Δ ⟨·, r⟩ − ⟨y, r⟩, r = z − ∇Ω(y): at least what y loses against the optimum."""
    point = np.where(on, np.maximum(y.astype(LONG), FLOOR), 0)
    r = z - f.slope(np.maximum(point, FLOOR))
    return np.where(on, r, -np.inf).max(-1) - np.where(on, point * r, 0).sum(-1)
