"""Problems max_Δ ⟨y, z⟩ − F(y) − R(y) with their answers, in numpy's longest floats, without code
of regmax. F is smooth and β-strongly convex, R has kinks: Σ w |aᵀy − b|, or ordered weights
Σ_k w_k y_[k].

The answer comes first: a point y of Δ with zeros and kinks that it meets, a subgradient u ∈ ∂R(y),
and z = ∇F(y) + u − s with s ≥ 0 on the zeros. So y is optimal for z, and as far as z is rounded,
over β, from the optimum of the rounded scores. No algorithm finds it.

The other truth: :mod:`references` computes Π of named mappings.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

LONG = np.longdouble


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
    """R: rows a of ``lines`` (k, d) with ``at`` b and ``weights`` w; ``ordered``: w_1 ≥ w_2 ≥ … of
    sorted entries, and then nothing else."""

    lines: np.ndarray | None = None
    at: np.ndarray | None = None
    weights: np.ndarray | None = None
    ordered: np.ndarray | None = None


@dataclass
class Row:
    """Scores x = γz, rounded, and their y; ``bound`` ≥ ‖y − y*‖; ``margin``: how far the row is
    from a kink of its derivative; ``fixed`` (m, d): y moves along the null space of these rows;
    ``bend``: the Hessian of the smooth part there."""

    x: np.ndarray
    y: np.ndarray
    bound: float
    margin: float
    fixed: np.ndarray = field(repr=False)
    bend: np.ndarray = field(repr=False)

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


def pose(f, kinks, d, rng, dtype="float64", gamma=1.0):
    """A Row of d participants, its scores in ``dtype``."""
    made = _ordered if kinks.ordered is not None else _met
    y, u, margin, fixed = made(f, kinks, d, rng)
    on = y > 0
    point = np.where(on, y, LONG(1e-30))
    slack = np.where(on, 0, (rng.exponential(size=d) + 0.01) * rng.choice([0.03, 1]))
    exact = np.array(f.slope(point), LONG) + u - slack
    exact = exact - exact.max()
    x = (exact * LONG(gamma)).astype(dtype)
    z = x.astype(LONG) / LONG(gamma)
    off = float(np.sqrt(((z - exact) ** 2).sum()))
    bound = (off + 1e-18 * d * (1 + float(np.abs(exact).max()))) / f.beta
    margins = [margin, *slack[~on], *(() if f.steep else y[on])]
    fixed = np.r_[np.ones((1, d)), fixed, np.eye(d)[~on]]
    return Row(x, y, bound, float(min(margins)), fixed, np.array(f.bend(point)))


def _point(f, d, rng):
    """A point of Δ; with zeros, unless F is steep."""
    y = rng.dirichlet(np.full(d, rng.choice([0.5, 2, 10]))).astype(LONG)
    y = np.maximum(y, 1e-4)
    if not f.steep:
        y = np.where(rng.random(d) < 0.3, 0, y)
    if not y.any():
        y[rng.integers(d)] = 1
    return y / y.sum()


def _met(f, kinks, d, rng):
    """y, u and what holds y, where y meets some of the lines."""
    y = _point(f, d, rng)
    if kinks.lines is None:
        return y, np.zeros(d, LONG), np.inf, np.zeros((0, d))
    a, b, w = (np.asarray(t, LONG) for t in (kinks.lines, kinks.at, kinks.weights))
    for share in (0.7, 0.5, 0.3, 0.2, 0.1):
        found = _moved_to(y, a, b, rng.random(len(a)) < share)
        if found is not None:
            y = found
            break
    t = a @ y - b
    met = np.abs(t) < 1e-15
    side = w * np.where(met, 0, np.sign(t))
    held = np.where(met, w * rng.uniform(-0.95, 0.95, len(w)), 0)
    margins = [*np.abs(t[~met]), *(w - np.abs(held))[met]]
    rows = np.r_[np.ones((1, d)), a[met].astype(float)][:, y > 0]
    if met.any() and np.linalg.matrix_rank(rows) < len(rows):
        margins.append(0.0)  # multipliers are one only where the rows are independent
    return y, a.T @ (side + held), min(margins), a[met].astype(float)


def _moved_to(y, a, b, chosen):
    """y moved within its face until aᵀy = b for the ``chosen`` lines, or None."""
    on = y > 0
    rows = np.r_[np.ones((1, len(y)), LONG), a[chosen]][:, on]
    right = np.r_[LONG(1), b[chosen]]
    move = y[on].copy()
    for _ in range(4):  # the last digits by refinement
        gap = (right - rows @ move).astype(float)
        move = move + np.linalg.lstsq(rows.astype(float), gap, rcond=1e-12)[0]
    if np.abs(rows @ move - right).max() > 1e-17 or (move < 1e-4).any():
        return None
    y = y.copy()
    y[on] = move
    return y


def _ordered(f, kinks, d, rng):
    """y with ties; u in the hull of the permutations of the weights of each group of ties."""
    w = np.asarray(kinks.ordered[:d], LONG)
    y = -np.sort(-_point(f, d, rng))
    tied = rng.random(d - 1) < 0.5
    tied |= (y[1:] == 0) & (y[:-1] == 0)
    tied &= (y[1:] == 0) == (y[:-1] == 0)
    ids = np.r_[0, (~tied).cumsum()]
    order = rng.permutation(d)
    u, margin, rows = np.zeros(d, LONG), np.inf, []
    for k in range(ids[-1] + 1):
        group = np.flatnonzero(ids == k)
        y[group] = y[group].mean()
        inside = rng.permutation(w[group]) * (t := LONG(rng.random() * 0.9))
        u[order[group]] = inside + (1 - t) * w[group].mean()
        excess = (w[group] - -np.sort(-u[order[group]])).cumsum()[:-1]
        margin = min(margin, float(excess.min(initial=np.inf)) if y[group[0]] > 0 else np.inf)
        for i, j in itertools.pairwise(order[group]):
            row = np.zeros(d)
            row[i], row[j] = 1, -1
            rows.append(row)
    y = y / y.sum()
    levels = np.array([y[ids == k][0] for k in range(ids[-1] + 1)])
    margin = min([margin, *(-np.diff(levels))])
    out = np.empty(d, LONG)
    out[order] = y
    return out, u, margin, np.array(rows).reshape(-1, d)
