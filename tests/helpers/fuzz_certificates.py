"""Smooth strongly convex Ω that are hard to certify: near-kinks, walls, curvatures that span 10¹²,
and Ω with a dent. Each row of each answer is right to its error bound, flagged or refused, or a
finding: certified and wrong.

The truth comes first: a point y of Δ is drawn, near kinks and with zeros, and
the scores are z = ∇Ω(y) + τ − s, with s ≥ 0 on the zeros of y: so y is optimal for z, and as Ω is
1-strongly convex no further than ‖x/γ − z‖ from the optimum of the scores x that z is rounded to.
:func:`residual` checks that in 50 digits.
"""

import warnings
from dataclasses import dataclass, replace

import mpmath
import numpy as np
import torch
from torch.nn.functional import softplus

from regmax import RegularizedMax, Regularizer, RegularizerError, Status

LONG = np.longdouble
SLACK = 4
"""Roundings of the scores and of y that an answer may be off beside its bound."""


def _logistic(u):
    return np.exp(-np.logaddexp(LONG(0), -u))


def _atan_inverse(u):
    return np.tan(u * LONG(np.pi) / 2)


def _of_length(p, function):
    size = np.sqrt((p * p).sum(-1, keepdims=True))
    return p * function(4 * size) / np.maximum(size, 1e-30)


@dataclass(frozen=True)
class Phi:
    """A nearly kinked φ of u = t/e, times e: in torch, its slope in numpy and in mpmath, and the u
    of a slope; ``one_sided``: slopes from 0; ``bounded``: slopes to 1."""

    torch: object
    slope: object
    exact: object
    inverse: object
    low: float = -1.0
    high: float = 1.0


PHI = {
    "root": Phi(
        lambda t, e: (t * t + e * e).sqrt(),
        lambda u: u / np.sqrt(1 + u * u),
        lambda u: u / mpmath.sqrt(1 + u * u),
        lambda p: p / np.sqrt((1 - p) * (1 + p)),
    ),
    "softplus": Phi(
        lambda t, e: e * softplus(t / e, threshold=50),
        _logistic,
        lambda u: 1 / (1 + mpmath.exp(-u)),
        lambda p: np.log(p) - np.log1p(-p),
        low=0.0,
    ),
    # its second derivative by autograd is inf / inf where t is large
    "softplus by logaddexp": Phi(
        lambda t, e: e * torch.logaddexp(t / e, torch.zeros_like(t)),
        _logistic,
        lambda u: 1 / (1 + mpmath.exp(-u)),
        lambda p: np.log(p) - np.log1p(-p),
        low=0.0,
    ),
    "log-cosh": Phi(
        lambda t, e: e * softplus(2 * t / e, threshold=50) - t,
        np.tanh,
        mpmath.tanh,
        np.arctanh,
    ),
    # its second derivative by autograd is 0 at t = 0
    "log-cosh by |t|": Phi(
        lambda t, e: t.abs() + e * (-2 * t.abs() / e).exp().log1p(),
        np.tanh,
        mpmath.tanh,
        np.arctanh,
    ),
    "huber": Phi(
        lambda t, e: torch.where(t.abs() < e, t * t / (2 * e), t.abs() - e / 2),
        lambda u: np.clip(u, -1, 1),
        lambda u: max(mpmath.mpf(-1), min(mpmath.mpf(1), u)),
        lambda p: p,
    ),
    "arctan": Phi(
        lambda t, e: (t * (t / e).atan() - e / 2 * (t / e).square().log1p()) * (2 / np.pi),
        lambda u: np.arctan(u) * (2 / LONG(np.pi)),
        lambda u: mpmath.atan(u) * 2 / mpmath.mpf(np.pi),
        _atan_inverse,
    ),
    "wall": Phi(
        lambda t, e: t.clamp(min=0).square() / (2 * e),
        lambda u: np.maximum(u, 0),
        lambda u: max(u, mpmath.mpf(0)),
        lambda p: p,
        low=-1.0,
    ),
    "quadratic": Phi(lambda t, e: t * t / (2 * e), lambda u: u, lambda u: u, lambda p: p),
    # of all maps at once: a norm
    "cone": Phi(
        lambda t, e: (t.square().sum(-1, keepdim=True) + e * e).sqrt(),
        lambda u: u / np.sqrt(1 + (u * u).sum(-1, keepdims=True)),
        None,
        lambda p: _of_length(p, np.sinh),
    ),
}
FAMILIES = (*PHI, "dent")
MAPS = ("differences", "entries", "maps")


class NearKinks(Regularizer):
    """½Σ c y², or Σ c y log y, + w Σ_k φ_e(a_kᵀy − b_k)."""

    def __init__(self, case, dtype):
        self.c = torch.tensor(case.c.astype(float), dtype=dtype)
        self.a = torch.tensor(case.a.astype(float), dtype=dtype)
        self.b = torch.tensor(case.b.astype(float), dtype=dtype)
        self.case = [case]  # not a module's

    @property
    def strong_convexity(self):
        return 1.0 if self.case[0].declared else None

    def value(self, y):
        case = self.case[0]
        if case.maps == "differences":
            t = y[..., 1:] - y[..., :-1]
        elif case.maps == "entries":
            t = y[..., : len(case.b)] - self.b
        else:
            t = y @ self.a.T - self.b
        base = self.c * (torch.xlogy(y, y) if case.steep else y.square() / 2)
        return base.sum(-1) + case.w * PHI[case.family].torch(t, case.e).sum(-1)


@dataclass(frozen=True)
class Batch:
    """One Ω and its rows."""

    seed: int
    family: str
    maps: str
    d: int
    rows: int
    dtype: str
    steep: bool
    declared: bool
    e: float
    w: float
    gamma: float
    scale: float
    c: np.ndarray
    a: np.ndarray
    b: np.ndarray

    def __str__(self):
        return (
            f"seed {self.seed}: {self.family} of {self.maps}, d = {self.d}, {self.dtype}, e = "
            f"{self.e:.3g}, w = {self.w:g}, gamma = {self.gamma:g}, scale = {self.scale:g}"
            f"{', entropy' if self.steep else ''}{', declared' if self.declared else ''}"
        )


def draw(seed, family=None, dtype=None):
    """The batch of this seed."""
    rng = np.random.default_rng(seed)
    family = str(rng.choice(family or FAMILIES))
    d = int(rng.choice([2, 3, 5, 5, 8, 8, 33, 100, 1000], p=[0.12] * 8 + [0.04]))
    maps = str(rng.choice(MAPS))
    e = 10.0 ** -float(rng.choice([rng.uniform(0, 4), rng.uniform(4, 8), rng.uniform(8, 12)]))
    w = float(rng.choice([0.125, 1, 1, 1, 8, 1024, 2**20]))
    c = 1 + np.round(rng.exponential(size=d) * 64) / 64 * float(rng.random() < 0.3)
    if family in ("wall", "quadratic", "dent"):
        w = 1.0
    if maps == "differences":
        a, b = np.diff(np.eye(d), axis=0), np.zeros(d - 1)
    elif maps == "entries":
        # dyadic, so that both dtypes hold them
        k = d if family != "cone" else int(rng.integers(1, min(d, 5)))
        a, b = np.eye(d)[:k], np.floor(rng.dirichlet(np.ones(d)) * 0.9 * 4096)[:k] / 4096
    else:
        m = int(rng.integers(1, min(d, 5)))
        a = np.round(rng.normal(size=(m, d)) * 16) / 16
        b = np.round(a @ rng.dirichlet(np.ones(d)) * 1024) / 1024
    dtype = dtype or str(rng.choice(["float64", "float32"]))
    if dtype == "float32":
        e, w = float(np.float32(e)), min(w, 8.0)  # scores of w have no more digits
    return Batch(
        seed=seed,
        family=family,
        maps=maps,
        d=d,
        rows=1024 if d <= 8 else max(2, 4096 // d),
        dtype=dtype,
        steep=bool(rng.random() < 0.2) and family != "dent",
        declared=bool(rng.random() < 0.3),
        e=e,
        w=w,
        gamma=float(rng.choice([0.5, 1, 2])),
        scale=float(rng.choice([0.1, 1, 4])),
        c=c.astype(LONG),
        a=a.astype(LONG),
        b=b.astype(LONG),
    )


# -- points first, then their scores --------------------------------------------------------------


def slopes(case, rng, shape):
    """Of φ at the kinks that a row is next to: all over its range, and next to its ends."""
    phi = PHI[case.family]
    p = phi.low + (phi.high - phi.low) * rng.random(shape)
    flat = rng.random(shape)
    p = np.where(flat < 0.1, (phi.low + phi.high) / 2, p)  # a tie, exactly, where φ is even
    ends = 10.0 ** -rng.uniform(0, 6, shape)
    p = np.where((flat > 0.85) & (flat < 0.92), phi.high - ends, p)
    p = np.where(flat > 0.92, phi.low + ends, p)
    return p.astype(LONG)


def points(case):
    """(y, t): points of Δ and their a_kᵀy − b_k, whose digits next to 0 y alone does not hold."""
    rng = np.random.default_rng(case.seed + 10**9)
    n, d, e = case.rows, case.d, LONG(case.e)
    phi = PHI[case.family]
    with np.errstate(all="ignore"):
        near = e * phi.inverse(slopes(case, rng, (n, len(case.b))))
    near = np.clip(np.nan_to_num(near), -0.5, 0.5)
    concentration = rng.choice([0.2, 1, 10], size=n)
    far = np.array([rng.dirichlet(np.full(d, k)) for k in concentration])
    far = np.maximum(far, 1e-9).astype(LONG)
    far = far / far.sum(-1, keepdims=True)
    if case.maps == "differences":
        return _steps(case, rng, near, far)
    if case.maps == "entries":
        return _entries(case, rng, near, far)
    y = far
    if not case.steep:
        y = np.where(rng.random((n, d)) < 0.3, 0, y)
        y[:, 0] = np.where(y.sum(-1) > 0, y[:, 0], 1)
        y = y / y.sum(-1, keepdims=True)
    return _on_maps(case, rng, y, near)


def _steps(case, rng, near, far):
    """Plateaus whose entries differ by ``near``; some plateaus at 0."""
    n, d = case.rows, case.d
    jump = rng.random((n, d - 1)) < rng.choice([0.15, 0.4, 0.8], size=(n, 1))
    ids = np.concatenate([np.zeros((n, 1), int), jump.cumsum(-1)], -1)
    level = np.take_along_axis(far, ids, -1)
    zero = np.take_along_axis(rng.random((n, d)) < 0.25, ids, -1) & (not case.steep)
    zero[zero.all(-1)] = False
    big = np.where(jump, np.diff(level, axis=-1), 0)
    t = np.where(jump, 0, near)
    # a plateau's own shape, of mean 0 about its level, then the sum is 1
    shape = np.concatenate([np.zeros((n, 1), LONG), (big + t).cumsum(-1)], -1)
    least = np.where(zero, np.inf, shape).min(-1, keepdims=True)
    shape = shape - least + level.min(-1, keepdims=True)
    shape = np.where(zero, 0, np.maximum(shape, 0))
    total = shape.sum(-1, keepdims=True)
    y = shape / total
    # the steps are scaled too, and those within a plateau keep their own digits
    both = ~zero[:, 1:] & ~zero[:, :-1] & ~jump
    t = np.where(both, t / total, np.diff(y, axis=-1))
    return y, t


def _entries(case, rng, near, far):
    """Some entries next to their b; the first of the others takes what is left."""
    n, d, k = case.rows, case.d, len(case.b)
    b = np.append(case.b, np.zeros(d - k, LONG))
    near = np.concatenate([near, np.zeros((n, d - k), LONG)], -1)
    on = rng.random((n, d)) < rng.choice([0.3, 0.7, 0.9, 1.0], size=(n, 1))
    on &= b + near > 0
    takes = rng.integers(d, size=n) if k == d else np.full(n, d - 1)
    on[np.arange(n), takes] = False
    zero = ~on & (rng.random((n, d)) < 0.3) & (not case.steep)
    zero[np.arange(n), takes] = False
    held = np.where(on, b + near, 0)
    # too much is held: let some go
    for j in range(d):
        over = held.sum(-1) > 0.95
        held[over, j], zero[over, j], on[over, j] = 0, False, False
    rest = np.where(on | zero, 0, far)
    y = held + rest / rest.sum(-1, keepdims=True) * (1 - held.sum(-1, keepdims=True))
    return y, np.where(on, near, y - b)[:, :k]


def _on_maps(case, rng, y, near):
    """y moved along a_k on its support until a_kᵀy − b_k is ``near``, where that keeps y in Δ."""
    n, d = y.shape
    full = case.family in ("wall", "quadratic")
    t = y @ case.a.T - case.b
    keep = np.zeros(n, bool)
    for i in range(n):
        on = y[i] > 0
        chosen = np.ones(len(case.b), bool) if full else rng.random(len(case.b)) < 0.6
        m = int(chosen.sum())
        if m == 0 or on.sum() <= m:
            keep[i] = not full
            continue
        rows = np.concatenate([np.ones((1, d)), case.a[chosen]]).astype(float)[:, on]
        move = y[i]
        with np.errstate(all="ignore"):
            for _ in range(3):  # the last digits by refinement
                gap = case.b[chosen] + near[i, chosen] - case.a[chosen] @ move
                right = np.concatenate([[1 - move.sum()], gap]).astype(float)
                step = np.zeros(d)
                step[on] = np.linalg.lstsq(rows, right, rcond=None)[0]
                move = move + step
        held = np.abs(case.a[chosen] @ move - case.b[chosen] - near[i, chosen]).max() < 1e-17
        if held and (move[on] > 1e-6).all() and abs(move.sum() - 1) < 1e-17:
            y[i], t[i] = move, case.a @ move - case.b
            t[i, chosen] = near[i, chosen]
            keep[i] = True
    return y[keep], t[keep]


def scores(case, y, t):
    """(x, off): scores in the case's dtype for which y is optimal, and how far y may be off."""
    rng = np.random.default_rng(case.seed + 2 * 10**9)
    with np.errstate(all="ignore"):
        base = case.c * (np.log(y) + 1 if case.steep else y)
        pull = LONG(case.w) * PHI[case.family].slope(t / LONG(case.e))
    z = base + pull @ case.a
    slack = np.where(rng.random(z.shape) < 0.2, 0, rng.exponential(size=z.shape) * case.scale)
    z = np.where(y > 0, z, z - slack)
    z = z - z.max(-1, keepdims=True)
    x = (z * case.gamma).astype(case.dtype)
    off = np.sqrt(((x.astype(LONG) / case.gamma - z) ** 2).sum(-1))
    return x, off.astype(float)


def residual(case, x, y, t):
    """A bound on ‖y − y*‖ for one row, in 50 digits, from ∇Ω at the digits of y and t."""
    with mpmath.workdps(50):

        def exact(v):
            top = float(v)
            return mpmath.mpf(top) + mpmath.mpf(float(LONG(v) - LONG(top)))

        u = [exact(v) / mpmath.mpf(case.e) for v in t]
        if case.family == "cone":
            size = mpmath.sqrt(1 + sum(v * v for v in u))
            pull = [mpmath.mpf(case.w) * v / size for v in u]
        else:
            pull = [mpmath.mpf(case.w) * PHI[case.family].exact(v) for v in u]
        r = []
        for i, v in enumerate(y):
            c, v = exact(case.c[i]), exact(v)
            g = c * (mpmath.log(v) + 1) if case.steep else c * v
            g += sum(exact(row[i]) * p for row, p in zip(case.a, pull, strict=True) if row[i])
            r.append(mpmath.mpf(float(x[i])) / mpmath.mpf(case.gamma) - g)
        inside = [p for p, v in zip(r, y, strict=True) if v > 0]
        tau = sum(inside) / len(inside)
        miss = [p - tau if v > 0 else max(p - tau, 0) for p, v in zip(r, y, strict=True)]
        held = [
            sum(exact(p) * exact(v) for p, v in zip(row, y, strict=True) if p) - exact(b) - exact(s)
            for row, b, s in zip(case.a, case.b, t, strict=True)
        ]
        total = abs(sum(exact(v) for v in y) - 1)
        return float(mpmath.norm(miss)), float(max([total, *map(abs, held)]))


# -- a dent ---------------------------------------------------------------------------------------


class Dented(Regularizer):
    """½‖y‖² − h exp(−((y_0 − p)/v)²): not convex where h is large enough."""

    def __init__(self, p, v, h):
        self.numbers = (p, v, h)

    def value(self, y):
        p, v, h = self.numbers
        return y.square().sum(-1) / 2 - h * (-(((y[..., 0] - p) / v) ** 2)).exp()


def dented(case):
    """(Ω, x, objective(y), best value, y of it): y_0 is looked for everywhere, the others are a
    projection then."""
    rng = np.random.default_rng(case.seed + 3 * 10**9)
    p, v = float(rng.uniform(0.05, 0.95)), 10.0 ** -float(rng.uniform(0.5, 3))
    h = v * v * 10.0 ** float(rng.uniform(-1.5, 2))
    n, d = min(case.rows, 64), min(case.d, 33)
    x = (rng.normal(size=(n, d)) * case.scale).astype(case.dtype)
    z = x.astype(float) / case.gamma

    def best_rest(z, mass):
        """max ⟨y, z⟩ − ½‖y‖² over y ≥ 0 with the sum ``mass``: (n, m) of (n, d − 1) and (n, m)."""
        s = -np.sort(-z, axis=-1)
        k = np.arange(1, s.shape[-1] + 1)
        tau = (s.cumsum(-1)[:, None, :] - mass[:, :, None]) / k
        count = (s[:, None, :] > tau).sum(-1, keepdims=True).clip(1)
        tau = np.take_along_axis(tau, count - 1, -1)
        y = np.maximum(z[:, None, :] - tau, 0)
        return (y * z[:, None, :]).sum(-1) - (y * y).sum(-1) / 2, y

    def total(y0):
        rest, _ = best_rest(z[:, 1:], 1 - y0)
        return rest + z[:, :1] * y0 - y0**2 / 2 + h * np.exp(-(((y0 - p) / v) ** 2))

    grid = np.union1d(np.linspace(0, 1, 401), np.clip(p + v * np.linspace(-4, 4, 201), 0, 1))
    y0 = np.broadcast_to(grid, (n, len(grid)))
    at = total(y0).argmax(-1)
    low, high = (
        grid[np.maximum(at - 1, 0)][:, None],
        grid[np.minimum(at + 1, len(grid) - 1)][:, None],
    )
    for _ in range(60):
        a, b = low + (high - low) * 0.382, low + (high - low) * 0.618
        left = total(a) > total(b)
        low, high = np.where(left, low, a), np.where(left, b, high)
    best = (low + high) / 2
    _, rest = best_rest(z[:, 1:], 1 - best)
    y = np.concatenate([best, rest[:, 0]], -1)

    def objective(y):
        dent = h * np.exp(-(((y[:, 0] - p) / v) ** 2))
        return (y * z).sum(-1) - (y * y).sum(-1) / 2 + dent

    return Dented(p, v, h), x, objective, np.maximum(total(best)[:, 0], objective(y)), y


# -- the judge ------------------------------------------------------------------------------------


def answer(case, omega, x, max_iter):
    """(y, bound, converged, seconds), or the refusal."""
    layer = RegularizedMax(omega, gamma=case.gamma, max_iter=max_iter, on_failure="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = layer.solve(torch.tensor(x))
        except RegularizerError as error:
            return str(error)
    ok = found.status.numpy() == Status.CONVERGED
    return found.y.detach().double().numpy(), found.error_bound.double().numpy(), ok


def judge(case, max_iter=60):
    """[(outcome, text)], one for each row."""
    eps = float(np.finfo(case.dtype).eps)
    if case.family == "dent":
        return _judge_dent(case, eps, max_iter)
    y, t = points(case)
    if not len(y):
        return []
    x, off = scores(case, y, t)
    found = answer(case, NearKinks(case, getattr(torch, case.dtype)), x, max_iter)
    if isinstance(found, str):
        return [("refused", found)] * len(y)
    mine, bound, ok = found
    error = np.sqrt(((mine - y) ** 2).sum(-1)).astype(float)
    spread = 1 + np.abs(x / case.gamma).max(-1)
    rounding = SLACK * eps * spread + off
    verdicts = []
    for i in range(len(y)):
        if not ok[i]:
            verdicts.append(("flagged", ""))
        elif error[i] <= bound[i] + rounding[i]:
            verdicts.append(("right", ""))
        else:
            said = f"row {i}: off by {error[i]:.3g}, bound {bound[i]:.3g}, truth to {off[i]:.1g}: "
            said += f"{mine[i][:6].tolist()} for x = {x[i][:6].tolist()}"
            verdicts.append(("wrong", said))
    return verdicts


def _judge_dent(case, eps, max_iter):
    omega, x, objective, best, y = dented(case)
    found = answer(case, omega, x, max_iter)
    if isinstance(found, str):
        return [("refused", found)] * len(x)
    mine, bound, ok = found
    worse = best - objective(mine)
    size = 1 + np.abs(x / case.gamma).max(-1) + np.abs(best)
    verdicts = []
    for i in range(len(x)):
        if not ok[i]:
            verdicts.append(("flagged", ""))
        elif worse[i] <= (1e-12 + 8 * eps + 2 * bound[i]) * size[i]:
            verdicts.append(("right", ""))
        else:
            said = f"row {i}: worse by {worse[i]:.3g}, bound {bound[i]:.3g}, dent {omega.numbers}: "
            said += f"{mine[i][:4].tolist()}, best {y[i][:4].tolist()} for x = {x[i][:4].tolist()}"
            verdicts.append(("wrong", said))
    return verdicts


def check_certificate(seed):
    """For the fuzzer: no row of a few of the batch of this seed is certified and wrong."""
    case = draw(seed)
    if case.d > 33:
        return
    case = replace(case, rows=12)
    bad = [text for outcome, text in judge(case, max_iter=10) if outcome == "wrong"]
    assert not bad, f"{case}: {bad[0]}"
