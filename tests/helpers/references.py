"""Π_Ω from its definition, in numpy, by algorithms that regmax does not use.

Rows are 1-d arrays and z = x/γ. Roots are found by bisection in extended precision; the prox of
total variation by its path in λ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath
import numpy as np
import torch
from mpmath import mpf
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from torch import Tensor

Row = NDArray[np.floating]
Long = np.longdouble


def rows(f: Callable[[Row], Row], x: torch.Tensor, gamma: float = 1.0, dim: int = -1) -> Row:
    """f(z) of every row of x along dim, as a float64 array of x's shape."""
    z = np.moveaxis(x.detach().numpy().astype(Long), dim, -1) / Long(gamma)
    y = np.empty_like(z)
    for at in np.ndindex(z.shape[:-1]):
        y[at] = f(z[at] - z[at].max())
    return np.moveaxis(y, -1, dim).astype(np.float64)


def bisect(increasing: Callable[[Row], Row], low: float | Row, high: float | Row) -> Row:
    """The root of an increasing function, to the last bits."""
    low, high = Long(low), Long(high)
    for _ in range(120):
        middle = low + (high - low) / 2
        if increasing(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def tsallis(z: Row, alpha: float) -> Row:
    """(y^a − 1)/a = z − τ on the support, Σy = 1, a = α − 1: bisection on τ."""
    a, z = Long(alpha) - 1, z.astype(Long) - z.max()

    def y(tau: Row) -> Row:
        u = z - tau
        if a == 0:
            return np.exp(u)
        inside = a * u > -1
        return np.where(inside, np.exp(np.log1p(np.where(inside, a * u, 0)) / a), 0)

    log_d = np.log(Long(len(z)))
    high = log_d if a == 0 else -np.expm1(-a * log_d) / a
    return y(bisect(lambda tau: 1 - y(tau).sum(), 0, high))


def entropy(z: Row) -> Row:
    return tsallis(z, 1.0)


def pnorm(z: Row, p: float) -> Row:
    """‖y‖_p^(2−p) y_i^(p−1) = (z_i − τ)₊: y = ‖u‖_p^(p−2) u, u = (z − τ)₊^(1/(p−1)), Σy = 1."""
    z, p = z.astype(Long) - z.max(), Long(p)

    def y(s: Row) -> Row:
        u = np.maximum(z + s, 0) ** (1 / (p - 1))
        return (u**p).sum() ** ((p - 2) / p) * u

    return y(bisect(lambda s: y(s).sum() - 1, Long(len(z)) ** (2 / p - 2) / 2, 1))


def sparsemax(z: Row) -> Row:
    """P_Δ(z), z − τ on an active set that only shrinks."""
    z = z.astype(Long) - z.max()
    active = np.ones(len(z), dtype=bool)
    while True:
        tau = (z[active].sum() - 1) / active.sum()
        if (z[active] > tau).all():
            return np.where(active, z - tau, 0)
        active &= z > tau


def prox_tv(v: Row, lam: float) -> Row:
    """prox of λ Σ|z_{i+1} − z_i| by its path: groups move at constant speed in λ and never split.

    dz_G/dλ = (s_a − s_b)/|G|, s_a = sign(left neighbour − z_G), s_b = sign(z_G − right neighbour).
    """
    value = list(v.astype(Long))
    size, now = [1] * len(value), Long(0)
    while True:
        k = 0
        while k + 1 < len(value):
            if value[k] == value[k + 1]:
                size[k] += size.pop(k + 1)
                value.pop(k + 1)
            else:
                k += 1
        z, n = np.array(value), np.array(size)
        s = np.concatenate([[0], np.sign(z[:-1] - z[1:]), [0]])
        speed = (s[:-1] - s[1:]) / n
        gap, closing = np.abs(np.diff(z)), np.sign(-np.diff(z)) * np.diff(speed)
        meet = np.where(closing > 0, gap / np.where(closing > 0, closing, 1), np.inf)
        step = min(meet.min(initial=np.inf), Long(lam) - now)
        z = z + step * speed
        now += step
        if now >= lam:
            return np.repeat(z, n)
        for k in np.flatnonzero(meet == step):
            z[k + 1] = z[k]
        value = list(z)


def fusedmax(z: Row, lam: float) -> Row:
    return sparsemax(prox_tv(z, lam))


def oscarmax(z: Row, lam: float) -> Row:
    """P_Δ of scipy's isotonic regression of sort(z) − λw, w_k = d − k."""
    order = np.argsort(-z, kind="stable")
    weights = len(z) - 1 - np.arange(len(z))
    fitted = isotonic_regression(
        (z[order] - Long(lam) * weights).astype(np.float64), increasing=False
    )
    y = np.empty(len(z), Long)
    y[order] = sparsemax(np.asarray(fitted.x))
    return y


def prox_oscar(v: Row, lam: float) -> Row:
    """P_OSC(v) = argmin ½‖z − v‖² + λ Σ_{i<j} max(|z_i|, |z_j|) (2017, Lemma 2)."""
    order = np.argsort(-np.abs(v), kind="stable")
    weights = len(v) - 1 - np.arange(len(v))
    target = np.abs(v)[order] - lam * weights
    fitted = isotonic_regression(target.astype(np.float64), increasing=False)
    z = np.empty(len(v))
    z[order] = np.maximum(fitted.x, 0)
    return np.sign(v).astype(np.float64) * z


# -- with as many digits as it takes: Π_Ω, J v and the derivative in the hyperparameter -----------


def entmax_digits(x: Sequence[float], alpha: float, v: Sequence[float]) -> tuple[Row, Row, Row]:
    """y, J v, dy/dα from (y^a − 1)/a = z − τ, a = α − 1, and J = diag(s) − ssᵀ/Σs, s = y^(2−α)."""
    with mpmath.workdps(50 + 10 * max(0, int(alpha))):  # a threshold may be y^a away
        z, a = [mpf(float(t)) for t in x], mpf(float(alpha)) - 1

        def y(tau: mpf) -> list[mpf]:
            if a == 0:
                return [mpmath.exp(t - max(z) - tau) for t in z]
            base = [1 + a * (t - max(z) - tau) for t in z]
            return [mpmath.exp(mpmath.log(b) / a) if b > 0 else mpf(0) for b in base]

        high = mpmath.log(len(z)) if a == 0 else (1 - mpf(len(z)) ** -a) / a
        p = y(_bisect_digits(lambda tau: 1 - sum(y(tau)), mpf(0), high))
        s = [t ** (1 - a) if t > 0 else mpf(0) for t in p]
        log = [mpmath.log(t) if t > 0 else mpf(0) for t in p]
        # ∂/∂α of (y^a − 1)/a
        if a == 0:
            slope = [t**2 / 2 for t in log]
        else:
            slope = [mpmath.exp(a * t) * t / a - mpmath.expm1(a * t) / a**2 for t in log]
        return (
            _floats(p),
            _floats(_project(s, [mpf(float(t)) for t in v])),
            _floats(_project(s, [-t for t in slope])),
        )


def pnorm_digits(x: Sequence[float], p: float, v: Sequence[float]) -> tuple[Row, Row, Row]:
    """y, J v, dy/dp from ‖y‖_p^(2−p) y^(p−1) = (z − τ)₊ and J = D − c D uuᵀ D/(1 + c uᵀ D u),
    D = diag(s) − ssᵀ/Σs, with t = y/‖y‖_p, 1/s = (p−1) t^(p−2), u = t^(p−1), c = 2 − p."""
    with mpmath.workdps(50):
        z, r = [mpf(float(t)) for t in x], mpf(float(p))

        def power(t: mpf, q: mpf) -> mpf:
            return t**q if t > 0 else mpf(0)

        def unscaled(height: mpf) -> list[mpf]:
            w = [power(t - max(z) + height, 1 / (r - 1)) for t in z]
            return [sum(power(t, r) for t in w) ** ((r - 2) / r) * t for t in w]

        low = mpf(len(z)) ** (2 / r - 2) / 2
        y = unscaled(_bisect_digits(lambda h: sum(unscaled(h)) - 1, low, mpf(1)))
        total = sum(power(t, r) for t in y)
        norm = total ** (1 / r)
        share = [t / norm for t in y]
        s = [power(t, 2 - r) / (r - 1) for t in share]
        u = [power(t, r - 1) for t in share]
        du = _project(s, u)

        def jacobian(v: list[mpf]) -> list[mpf]:
            dv = _project(s, v)
            k = (2 - r) * mpmath.fdot(u, dv) / (1 + (2 - r) * mpmath.fdot(u, du))
            return [a - k * b for a, b in zip(dv, du, strict=True)]

        log = [mpmath.log(t) if t > 0 else mpf(0) for t in y]
        # d log‖y‖_p / dp, and ∂/∂p of ‖y‖^(2−p) y^(p−1)
        dn = sum(power(t, r) * k for t, k in zip(y, log, strict=True)) / (r * total)
        dn -= mpmath.log(total) / r**2
        slope = [
            norm * a * (k - mpmath.log(norm) + (2 - r) * dn) for a, k in zip(u, log, strict=True)
        ]
        return (
            _floats(y),
            _floats(jacobian([mpf(float(t)) for t in v])),
            _floats(jacobian([-t for t in slope])),
        )


def check_digits(
    f: Callable[[Tensor, Tensor], Tensor],
    digits: Callable[..., tuple[Row, ...]],
    x: Tensor,
    value: float,
    v: Tensor,
    tol32: float,
) -> None:
    """y, J v and dy/dθ of f(x, θ): 1e-11 of the largest in float64, ``tol32`` in float32."""
    for dtype, tol in ((torch.float64, 1e-11), (torch.float32, tol32)):
        score = x.to(dtype).requires_grad_()
        theta = torch.tensor(value, dtype=dtype)
        w = v.to(dtype)
        y = f(score, theta)
        (jv,) = torch.autograd.grad(y, score, w)
        (slope,) = torch.autograd.functional.jacobian(
            lambda t, score=score: f(score.detach(), t), (theta,)
        )
        expected = digits(score.tolist(), theta.item(), w.tolist())
        for got, right in zip((y, jv, slope), expected, strict=True):
            error = np.abs(got.detach().double().numpy() - right).max()
            assert error <= tol * (1 + np.abs(right).max()), (dtype, value, x.tolist(), error)


def _bisect_digits(increasing: Callable[[mpf], mpf], low: mpf, high: mpf) -> mpf:
    for _ in range(mpmath.mp.prec + 20):
        middle = (low + high) / 2
        if increasing(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def _project(s: list[mpf], v: list[mpf]) -> list[mpf]:
    """(diag(s) − ssᵀ/Σs) v."""
    mean = mpmath.fdot(s, v) / mpmath.fsum(s)
    return [a * (b - mean) for a, b in zip(s, v, strict=True)]


def _floats(t: list[mpf]) -> Row:
    return np.array([float(k) for k in t])


def tv_value(y: Row) -> float:
    return float(np.abs(np.diff(y)).sum())
