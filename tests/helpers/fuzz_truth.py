"""What Ω's formula says of an answer y, row by row, in numpy's longest floats: is it optimal, what
is J v, what is the loss. No code of regmax.

A float answer is right if it is the exact one for scores and entries that differ from the given
ones in their last bits: what scores x/γ and entries y_i are known to is an interval, and y is
optimal if one threshold τ lies in the intervals of z_i − ∂Ω/∂y_i − λu_i of all of the support. So
the bound holds where y itself is no Lipschitz function of x (α-entmax for α > 2) too.
"""

from dataclasses import dataclass

import numpy as np

Long = np.longdouble


@dataclass(frozen=True)
class Term:
    """c times Ω of a name: entropy, gini, tsallis (θ = α), pnorm (θ = p)."""

    name: str
    theta: float = 0.0
    c: float = 1.0

    def value(self, y):
        y = y[y > 0]
        if self.name == "gini":
            total = (y * y).sum() / 2
        elif self.name == "entropy" or (self.name == "tsallis" and self.theta == 1):
            total = (y * np.log(y)).sum()
        elif self.name == "tsallis":
            a = Long(self.theta) - 1
            total = (y * np.expm1(a * np.log(y))).sum() / (a * (a + 1))
        else:
            total = _norm(y, self.theta) ** 2 / 2
        return Long(self.c) * total

    def slope(self, y, at):
        """∂Ω/∂y_i up to a constant, −∞ at 0 where it is; a norm is that of the row ``at``."""
        with np.errstate(divide="ignore", over="ignore"):
            if self.name == "gini":
                g = y
            elif self.name == "entropy" or (self.name == "tsallis" and self.theta == 1):
                g = np.log(y)
            elif self.name == "tsallis":
                a = Long(self.theta) - 1
                # the constant −1/a would absorb small powers
                g = y**a / a if a > 1 else np.expm1(a * np.log(y)) / a
            else:
                norm = _norm(at, self.theta)
                g = norm * (y / norm) ** (Long(self.theta) - 1)
        return Long(self.c) * g

    def gain(self, y, at):
        """s_i = 1/(∂²Ω/∂y_i²) of its diagonal part at y > 0."""
        if self.name == "gini":
            s = np.ones_like(y)
        elif self.name == "entropy":
            s = y
        elif self.name == "tsallis":
            s = y ** (2 - Long(self.theta))
        else:
            p = Long(self.theta)
            s = (y / _norm(at, p)) ** (2 - p) / (p - 1)
        return s / Long(self.c)


def _norm(y, p):
    y = y[y > 0]
    top = y.max()
    return top * ((y / top) ** Long(p)).sum() ** (1 / Long(p))


@dataclass(frozen=True)
class Omega:
    """A sum of terms, with the penalty "tv" or "oscar" times λ."""

    terms: tuple[Term, ...]
    penalty: str | None = None
    lam: float = 0.0

    def value(self, y):
        total = sum(term.value(y) for term in self.terms)
        return total + Long(self.lam) * penalty_value(self.penalty, y)

    def steepest(self, d):
        """The largest |λu_i|."""
        return Long(self.lam) * {None: 0, "tv": 2, "oscar": d}[self.penalty]

    def steered(self, y):
        """How far ∂Ω/∂y_i moves with the norm, to a change of one of y: |δ‖y‖_p| ≤ √d ‖δy‖."""
        found = Long(0)
        for term in self.terms:
            if term.name == "pnorm":
                share = (2 - Long(term.theta)) * np.sqrt(Long(len(y))) / _norm(y, term.theta)
                found = found + share * term.slope(y, y)
        return found

    def slope(self, y, at):
        return sum(term.slope(y, at) for term in self.terms)


def penalty_value(name, y):
    """R(y)."""
    if name is None or len(y) < 2:
        return Long(0)
    if name == "tv":
        return np.abs(np.diff(y)).sum()
    return (np.sort(y)[::-1] * (len(y) - 1 - np.arange(len(y)))).sum()


# -- optimality ------------------------------------------------------------------------------------


def violation(omega, z, y, eps, tiny, off=0.0, lowest=-np.inf):
    """How far the row y is from optimal for z = x/γ, over what rounding may do: ≤ 1 is right.

    ``eps``, ``tiny``: the relative error of entries and scores, and what underflows; ``off``: an
    absolute error of the entries; ``lowest``: a score that lower ones may be taken for. For
    participants alone.
    """
    z, y = (np.asarray(t, dtype=Long) for t in (z, y))
    z = z - z.max()
    d = len(z)
    if d == 1:
        return 0.0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        rel = eps * (1 + np.abs(np.log(np.where(y > 0, y, 1))))
        low = np.maximum(y * (1 - rel) - tiny - off, 0)
        high = np.minimum(y * (1 + rel) + tiny + off, 1)
        g_low, g_high = omega.slope(low, y), omega.slope(high, y)
        size = np.abs(omega.slope(np.maximum(y, tiny), y))
    noise = eps * (np.abs(z) + np.where(np.isfinite(size) & (y > 0), size, 0))
    noise = np.where(z < lowest, -z, noise) + off * omega.steered(y)
    if omega.penalty is None:
        bottom = (z - noise - g_high).max()  # τ is no lower
        sure = low > 0  # an entry that may be 0 says no more than r_i ≤ τ
        top = (z + noise - g_low)[sure].min() if sure.any() else bottom  # nor higher
        unit = eps * (1 + np.abs(z[y > 0]).max())
        return max(float((bottom - top) / unit), 0.0)
    # the rounding of a prox is that of the scores that matter
    reach = np.abs(z[y > 0]).max(initial=0) + 1
    noise = noise + eps * (np.minimum(np.abs(z), reach) + reach + omega.steepest(d))
    slope = omega.slope(np.maximum(y, tiny), y)
    r = np.where(y > 0, z - slope, z - omega.slope(np.full_like(y, tiny), y))
    middle = z - np.where(y > 0, slope, 0)
    tau = (
        np.where(y > 0, y * middle, 0).sum() - Long(omega.lam) * penalty_value(omega.penalty, y)
    ) / y.sum()
    noise = noise + np.where(y > 0, np.maximum(g_high - slope, slope - g_low), 0)
    # τ is that of this y
    noise = noise + off * np.sqrt(Long(d)) * (np.abs(middle[y > 0]).max() + omega.steepest(d))
    judge = _chain if omega.penalty == "tv" else _ordered
    return judge(r - tau, y, Long(omega.lam), noise, off)


def _chain(w, y, lam, noise, off):
    """w_i = λ(t_{i−1} − t_i) for some |t| ≤ 1, t_i = sign(y_{i+1} − y_i) at jumps; ≤ where y_i = 0.

    All t_i that the first i entries allow are an interval."""
    worst, total = Long(0), noise.sum()
    low = high = Long(0)
    for i in range(len(w)):
        high, low = high - w[i], low - w[i]
        if y[i] == 0:
            low = Long(-np.inf)
        if i == len(w) - 1:
            goal = (Long(0), Long(0))
        else:
            jump = y[i + 1] - y[i]
            sure = abs(jump) > 2 * off
            goal = (np.sign(jump) * lam,) * 2 if sure else (-lam, lam)
        worst = max(worst, low - goal[1], goal[0] - high)
        low, high = min(max(low, goal[0]), goal[1]), max(min(high, goal[1]), goal[0])
    return max(float(worst / total), 0.0)


def _ordered(w, y, lam, noise, off):
    """Within each group of ties, w sorted is majorized by the group's weights; ≤ where y_i = 0."""
    order = np.lexsort((-w, -y))
    w, y, noise = w[order], y[order], noise[order]
    weights = lam * (len(w) - 1 - np.arange(len(w)))
    excess = w - weights
    worst, start = Long(0), 0
    while start < len(w):
        stop = start + 1
        while stop < len(w) and y[stop - 1] - y[stop] <= 2 * off:
            stop += 1
        part = excess[start:stop].cumsum()
        total = noise[start:stop].sum() + noise.max()
        worst = max(worst, part.max() / total)
        if y[start] > 0:
            worst = max(worst, -part[-1] / total)
        start = stop
    return max(float(worst), 0.0)


# -- derivatives -----------------------------------------------------------------------------------


def jacobian_product(omega, y, v, tiny):
    """J v, the size of its terms, and how far it may be off besides, entry by entry. At most one of
    Ω's terms is a p-norm.

    Derivatives may take smaller entries for ``tiny``, or √tiny where y^(α−2) would overflow."""
    y, v = (np.asarray(t, dtype=Long) for t in (y, v))
    out, size, off = np.zeros_like(y), np.zeros_like(y), np.zeros_like(y)
    on = y > 0
    if on.sum() < 2:
        return out, size, off
    t, u = y[on], v[on]
    if omega.penalty is not None:
        ids = _groups(omega.penalty, y, on)
        u = np.array([u[ids == k].mean() for k in ids])
    s = 1 / sum(1 / term.gain(t, t) for term in omega.terms)

    def centred(u):
        return s * (u - (s * u).sum() / s.sum())

    w = centred(u)
    for term in omega.terms:
        if term.name == "pnorm":
            c = (2 - Long(term.theta)) * Long(term.c)
            e = (t / _norm(t, term.theta)) ** (Long(term.theta) - 1)
            de = centred(e)
            w = w - de * (c * (e * w).sum() / (1 + c * (e * de).sum()))
    out[on] = w
    least = tiny if all(k.name != "tsallis" or k.theta >= 1 for k in omega.terms) else tiny**0.5
    least = least * 16 * max(1, *(k.c for k in omega.terms))  # sums and multiples overflow sooner
    lifted = 1 / sum(1 / term.gain(np.maximum(t, least), t) for term in omega.terms)
    mean = (s * np.abs(u)).sum() / s.sum()
    # a power of y is rounded relative to log y
    size[on] = s * (np.abs(u) + mean) * (1 + np.abs(np.log(t)) / 16)
    more = np.abs(lifted - s) * (np.abs(u) + mean)
    off[on] = 2 * (more + s / s.sum() * more.sum())
    return out, size, off


def _groups(penalty, y, on):
    if penalty == "oscar":
        return np.unique(y[on], return_inverse=True)[1]
    first = np.concatenate([[0], (np.diff(y) != 0).cumsum()])
    return first[on]


def hyper_slope(omega, name, y, z, gamma):
    """∂/∂θ of ∇Ω + λu, or of −z for γ, at fixed y, up to a constant, and the size of its terms."""
    on = y > 0
    safe = np.where(on, y, 1)
    log = np.log(safe)
    term = omega.terms[0]
    if name == "gamma":
        # x/γ is taken as what is left of it beside λu
        slope, size = z / gamma, (np.abs(z) + omega.steepest(len(y))) / gamma
    elif name == "lam":
        slope = _subgradient(omega.penalty, y)
        size = np.abs(slope)
    elif name == "alpha":
        a = Long(term.theta) - 1
        if abs(a) * np.abs(log).max() < 1e-4:
            slope = log**2 / 2 + a * log**3 / 3 + a**2 * log**4 / 8
        else:
            power = np.exp(a * log)
            slope = power * log / a - (power - (a <= 1)) / a**2
        size = np.abs(slope) + log**2 * np.minimum(1, np.exp(a * log))
    else:
        p, n = Long(term.theta), _norm(y[on], term.theta)
        share = safe / n
        total = np.where(on, y**p, 0).sum()
        dn = np.where(on, y**p * log, 0).sum() / (p * total) - np.log(total) / p**2
        slope = n * share ** (p - 1) * (log - np.log(n) + (2 - p) * dn)
        size = n * share ** (p - 1) * (np.abs(log) + abs(np.log(n)) + abs(dn))
    return np.where(on, slope, 0), np.where(on, size, 0)


def along(y, w, size, off, slope):
    """−⟨w, slope⟩, the size of its terms, and how far it may be off besides. w adds up to 0, so a
    constant may be taken off: the slope at the least entry, where w is largest if Ω is flat there.
    """
    slope, noise = slope
    on = y > 0
    least = np.where(on, y, np.inf).argmin()
    moved = np.where(on, slope - slope[least], 0)
    spread = np.abs(moved) + noise
    return -(w * moved).sum(), (size * spread).sum(), (off * spread).sum()


def _subgradient(penalty, y):
    if penalty == "tv":
        t = np.sign(np.diff(y))
        return -np.diff(np.concatenate([[0], t, [0]]))
    order = np.lexsort((np.arange(len(y)), -y))
    u = np.empty(len(y), Long)
    u[order] = len(y) - 1 - np.arange(len(y))
    return u
