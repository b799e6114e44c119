"""Random convex Ω, by value alone, from a grammar: no row of an answer is wrong in silence.

The truth comes first: a point y of Δ is drawn, and the scores are z = ∇Ω(y) + τ − s, with s > 0 on
the zeros of y. ∇Ω and ∇²Ω are written in numpy, which works in whatever precision y has, and share
no code with regmax; a step of Newton's method moves y to the optimum of the rounded scores.
"""

import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from regmax import RegularizedMax, Regularizer, RegularizerError

LONG = np.longdouble
SIZES = (1, 2, 3, 8, 8, 33, 33, 64)
GAMMAS = (0.1, 1.0, 10.0)
ROWS = ("even", "sparse", "one dominates", "ties", "tiny entries", "-inf")


@dataclass(frozen=True)
class Kind:
    """φ of each entry of y, or of u = Ay + b if ``of_maps``, in torch; φ' and φ'' in numpy.
    ``strict``: the sum is strictly convex on Δ; ``steep``: φ'(0) is infinite; ``smooth``: twice
    differentiable."""

    value: object
    slope: object
    bend: object
    of_maps: bool = False
    strict: bool = True
    steep: bool = False
    smooth: bool = True


def huber(u, p):
    inside = u.abs().clamp(max=p.k)
    return inside * (u.abs() - inside / 2)


KINDS = {
    "power": Kind(
        lambda y, p: p.c * y.pow(p.e),
        lambda y, p: p.c * p.e * y ** (p.e - 1),
        lambda y, p: p.c * p.e * (p.e - 1) * y ** (p.e - 2),
    ),
    "root": Kind(
        lambda y, p: -p.c * y.pow(p.e),
        lambda y, p: -p.c * p.e * y ** (p.e - 1),
        lambda y, p: p.c * p.e * (1 - p.e) * y ** (p.e - 2),
        steep=True,
    ),
    "entropy": Kind(
        lambda y, p: p.c * (torch.xlogy(y, y) - y * p.q.log()),
        lambda y, p: p.c * (np.log(y) - np.log(p.q) + 1),
        lambda y, p: p.c / y,
        steep=True,
    ),
    "binary entropy": Kind(
        lambda y, p: torch.xlogy(y, y) + torch.xlogy(1 - y, 1 - y),
        lambda y, p: np.log(y) - np.log(np.maximum(1 - y, 1e-40)),
        lambda y, p: 1 / y + 1 / np.maximum(1 - y, 1e-40),
        steep=True,
    ),
    "barrier": Kind(
        lambda y, p: -(y + p.e).log(),
        lambda y, p: -1 / (y + p.e),
        lambda y, p: 1 / (y + p.e) ** 2,
    ),
    "exponential": Kind(
        lambda y, p: (p.c * y).exp(),
        lambda y, p: p.c * np.exp(p.c * y),
        lambda y, p: p.c**2 * np.exp(p.c * y),
    ),
    "ridge": Kind(
        lambda y, p: p.c * (y - p.q).square() / 2,
        lambda y, p: p.c * (y - p.q),
        lambda y, p: p.c + 0 * y,
    ),
    "quadratic": Kind(
        lambda u, p: u.square() / 2,
        lambda u, p: u,
        lambda u, p: np.ones_like(u),
        of_maps=True,
    ),
    "softplus": Kind(
        lambda u, p: torch.logaddexp(u, torch.zeros_like(u)),
        lambda u, p: 1 / (1 + np.exp(-u)),
        lambda u, p: np.exp(-abs(u)) / (1 + np.exp(-abs(u))) ** 2,
        of_maps=True,
        strict=False,
    ),
    "huber": Kind(
        huber,
        lambda u, p: np.clip(u, -p.k, p.k),
        lambda u, p: (abs(u) < p.k) + 0 * u,
        of_maps=True,
        strict=False,
        smooth=False,
    ),
    "entropy of maps": Kind(  # of u > 0; of sums over groups its slope is infinite at some zeros
        lambda u, p: torch.xlogy(u, u),
        lambda u, p: np.log(u) + 1,
        lambda u, p: 1 / u,
        of_maps=True,
        strict=False,
    ),
    "even power": Kind(
        lambda u, p: u.pow(4) / 4,
        lambda u, p: u**3,
        lambda u, p: 3 * u**2,
        of_maps=True,
        strict=False,
    ),
}


class Atom(Regularizer):
    """w Σ φ."""

    def __init__(self, kind, weight, strict=None, **tensors):
        self.kind, self.told = kind, strict
        tensors = {"weight": weight, **tensors}
        for name, item in tensors.items():
            setattr(self, name, torch.as_tensor(item, dtype=torch.float64))
        self.named = tuple(tensors)

    @property
    def traits(self):
        return KINDS[self.kind]

    @property
    def strict(self):
        return self.traits.strict if self.told is None else self.told

    def maps(self, y):
        return y @ self.a.T + self.b if self.traits.of_maps else y

    def value(self, y):
        return self.weight * self.traits.value(self.maps(y), self).sum(-1)

    def derivatives(self, y):
        """Slope (d,) and Hessian (d, d) at y > 0."""
        p = SimpleNamespace(**{name: getattr(self, name).numpy() for name in self.named})
        if not self.traits.of_maps:
            return p.weight * self.traits.slope(y, p), np.diag(p.weight * self.traits.bend(y, p))
        u = p.a @ y + p.b
        h = (p.a.T * self.traits.bend(u, p)) @ p.a
        return p.weight * (self.traits.slope(u, p) @ p.a), p.weight * h


class LogSumExp(Atom):
    """w log Σ exp(Ay + b)."""

    def value(self, y):
        return self.weight * self.maps(y).logsumexp(-1)

    def derivatives(self, y):
        w, a = self.weight.numpy(), self.a.numpy()
        u = a @ y + self.b.numpy()
        p = np.exp(u - u.max()) / np.exp(u - u.max()).sum()
        return w * (p @ a), w * ((a.T * p) @ a - np.outer(p @ a, p @ a))


class SquaredNorm(Atom):
    """w ½‖y‖_p²."""

    def value(self, y):
        return self.weight * y.pow(self.e).sum(-1).pow(2 / self.e) / 2

    def derivatives(self, y):
        w, p = self.weight.numpy(), self.e.numpy()
        size = (y**p).sum() ** (1 / LONG(p))
        t = (y / size) ** (p - 1)
        h = np.diag((p - 1) * (y / size) ** (p - 2)) + (2 - p) * np.outer(t, t)
        return w * size * t, w * h


class Sum(Regularizer):
    """The sum of its atoms."""

    def __init__(self, atoms):
        self.atoms = torch.nn.ModuleList(atoms)

    def value(self, y):
        return sum(atom.value(y) for atom in self.atoms)

    def derivatives(self, y):
        """Slope, Hessian and the size of the slope's terms."""
        parts = [atom.derivatives(y) for atom in self.atoms]
        size = sum(np.abs(slope) for slope, _ in parts)
        return sum(slope for slope, _ in parts), sum(h for _, h in parts), size


# -- the grammar -----------------------------------------------------------------------------------

STRICT = ("power<2", "entropy", "prior", "ridge", "full", "ill", "barrier", "root", "norm")
VANISHING = ("power>2", "power>2", "exponential", "binary entropy", "norm")
MERELY = ("low rank", "LSE", "softplus", "huber", "huber of entries", "even power")
MERELY += ("entropy of maps", "entropy of groups")


def atom(kind, d, rng):
    """An atom with random numbers inside."""
    w = 10 ** rng.uniform(-2, 2)
    c = np.exp(rng.normal(size=d)) if rng.random() < 0.5 else np.ones(d)
    m = int(rng.integers(1, 6))
    maps = {"a": rng.normal(size=(m, d)) * 10 ** rng.uniform(-0.5, 0.5), "b": rng.normal(size=m)}
    of_rows = lambda rows, strict: Atom("quadratic", w, strict, a=rows, b=np.zeros(len(rows)))  # noqa: E731
    if kind in ("power<2", "power>2", "root"):
        exponents = {
            "power<2": [1.05, 1.2, 1.5, 1.9, rng.uniform(1.1, 2)],
            "power>2": [2.5, 3, 4, 10],
            "root": [0.1, 0.5, 0.7, 0.95],
        }[kind]
        return Atom("root" if kind == "root" else "power", w, c=c, e=rng.choice(exponents))
    if kind in ("entropy", "prior"):
        prior = kind == "prior"
        q = rng.dirichlet(np.ones(d)) if prior else np.ones(d)
        return Atom("entropy", w, c=np.ones(d) if prior else c, q=q)
    if kind == "barrier":
        return Atom(kind, w, e=rng.choice([1e-6, 1e-3, 0.1]))
    if kind == "exponential":
        return Atom(kind, w, c=rng.normal(size=d) * 3 + 0.1)
    if kind == "ridge":
        return Atom(kind, w, c=c, q=rng.normal(size=d) * rng.choice([0, 1]))
    if kind == "full":
        return of_rows(rng.normal(size=(2 * d + 1, d)) / d**0.5, True)
    if kind == "ill":  # a condition of 1e6
        return of_rows((np.linalg.qr(rng.normal(size=(d, d)))[0] * np.logspace(0, -3, d)).T, True)
    if kind == "low rank":
        return of_rows(rng.normal(size=(max(1, d // 3), d)), d == 1)
    if kind == "LSE":
        return LogSumExp("softplus", w, **maps)
    if kind == "huber":
        return Atom(kind, w, **maps, k=10 ** rng.uniform(-2, 0.5))
    if kind == "huber of entries":
        return Atom("huber", w, a=np.eye(d), b=-rng.random(d), k=10 ** rng.uniform(-2, 0))
    if kind == "entropy of maps":
        return Atom(kind, w, a=0.1 + rng.random((m, d)), b=np.zeros(m))
    if kind == "entropy of groups":
        groups = np.eye(m)[:, rng.integers(m, size=d)]
        return Atom(
            "entropy of maps", w, a=groups[groups.any(-1)], b=np.zeros(groups.any(-1).sum())
        )
    if kind == "norm":
        return SquaredNorm("power", w, e=rng.choice([1.2, 1.5, 2, 3, 4]))
    return Atom(kind, w, **(maps if KINDS[kind].of_maps else {}))


def make(seed):
    """(d, Ω) of this seed: half rest on a strictly convex atom, an eighth are merely convex."""
    rng = np.random.default_rng(seed)
    d, plan = int(SIZES[seed % len(SIZES)]), (seed // len(SIZES)) % 8
    kinds = [rng.choice(STRICT if plan < 5 else VANISHING if plan < 7 else MERELY)]
    pool = MERELY if plan == 7 else STRICT + VANISHING + MERELY
    kinds += list(rng.choice(pool, size=int(rng.integers(0, 4))))
    return d, Sum([atom(str(kind), d, rng) for kind in kinds])


def point(kind, d, steep, rng, sums=()):
    """(y, who takes part); none of the ``sums`` of participants is 0."""
    on = np.ones(d, bool)
    y = rng.dirichlet(np.full(d, 0.2 if kind == "tiny entries" else 3.0))
    if kind == "-inf":
        on = rng.random(d) < 0.6
    elif kind == "sparse" and not steep:
        y = y * (rng.random(d) < 0.4)
    elif kind == "one dominates":
        y = y * 1e-6
        y[int(rng.integers(d))] = 1
    elif kind == "ties":
        y = np.ceil(y * 4)
    on[int(rng.integers(d))] = True
    y = np.where(on, np.maximum(y, 1e-9) if steep or kind == "tiny entries" else y, 0).astype(LONG)
    if not y.any():
        y[on] = 1
    for group in sums:
        if (group * on).any() and not group @ y:
            y[np.flatnonzero(group * on)[0]] = 1e-9
    return y / y.sum(), on


# -- the judge -------------------------------------------------------------------------------------


def product(h, support, v):
    """(J v, ‖J‖, least eigenvalue of H with its diagonal scaled to 1), J the inverse of H along the
    face of ``support``."""
    k = np.flatnonzero(support)
    out = np.zeros(len(v))
    if len(k) < 2:
        return out, 0.0, 1.0
    hk = h[np.ix_(k, k)].astype(float)
    scale = 1 / np.sqrt(np.maximum(np.diag(hk), 1e-30))
    basis = np.linalg.qr(np.c_[scale / np.linalg.norm(scale), np.eye(len(k))])[0][:, 1 : len(k)]
    values, vectors = np.linalg.eigh(basis.T @ (hk * scale * scale[:, None]) @ basis)
    if values[0] <= 1e-13 * len(k):
        return out, np.inf, 0.0
    half = (basis @ vectors) / np.sqrt(values) * scale[:, None]
    out[k] = half @ (half.T @ v[k].astype(float))
    return out, np.linalg.norm(half, 2) ** 2, values[0]


@dataclass(frozen=True)
class Truth:
    """The optimum y of scores z = x/γ for participants ``on``; ``bound`` ≥ how far it may be off;
    the size of the scores and slopes; the least eigenvalue of :func:`product`."""

    z: np.ndarray
    on: np.ndarray
    y: np.ndarray
    bound: float
    size: float
    least: float


def scored(omega, gamma, y, on, rng):
    """(x, Truth) of a point y."""
    if on.sum() == 1:
        x = np.where(on, rng.normal(), -np.inf)
        return x, Truth(np.zeros(len(y), LONG), on, y, 0.0, 1.0, 1.0)
    slope, h, terms = omega.derivatives(np.maximum(y, LONG(1e-300)))
    size = float(terms[on].max()) + 1
    slack = rng.exponential(size=len(y)) * size * 10.0 ** rng.choice([-3, 0, 1]) + 1e-6 * size
    z = np.where(y > 0, slope, slope - slack)
    z = z - z[on].max()
    x = np.where(on, (z * gamma).astype(float), -np.inf)
    exact = np.where(on, x, 0).astype(LONG) / LONG(gamma)
    size = max(size, float(np.abs(exact[y > 0]).max()))
    move, norm, least = product(h, y > 0, np.where(on, exact - z, 0))
    bound = 1e-3 * np.linalg.norm(move) + 1e-18 * size * norm + 1e-18 * len(y)
    if (np.abs(move) > 1e-6 * y)[y > 0].any():
        bound = np.inf  # the curvature may be another there
    return x, Truth(exact, on, y + move, bound, size, least)


def gap(omega, truth, y):
    """max_Δ ⟨·, r⟩ − ⟨y, r⟩, r = z − ∇Ω(y): at least what y loses against the optimum."""
    slope, _, _ = omega.derivatives(np.maximum(y, LONG(1e-25)))
    r = np.where(truth.on, truth.z - slope, -np.inf)
    return float(r.max() - (y * np.where(truth.on, r, 0)).sum())


def judge(seed, max_iter=40):
    """[(outcome, text)], one for each row: right, flat (certified where no y is known), flagged,
    refused or wrong."""
    d, omega = make(seed)
    rng = np.random.default_rng([seed, 1])
    steep = any(a.traits.steep for a in omega.atoms)
    sums = [row for a in omega.atoms if a.kind == "entropy of maps" for row in a.a.numpy()]
    gammas = [GAMMAS[(i + seed) % 3] for i in range(len(ROWS))]
    with np.errstate(all="ignore"):
        made = [
            scored(omega, gamma, *point(kind, d, steep, rng, sums), rng)
            for kind, gamma in zip(ROWS, gammas, strict=True)
        ]
    x = torch.tensor(np.array([x for x, _ in made]), requires_grad=True)
    gamma = torch.tensor(gammas, dtype=torch.float64).unsqueeze(-1)
    layer = RegularizedMax(omega, gamma=gamma, on_failure="ignore", max_iter=max_iter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = layer.solve(x)
        except RegularizerError as error:
            return [("refused", str(error))] * len(made)
    v = np.random.default_rng([seed, 2]).normal(size=x.shape)
    (slopes,) = torch.autograd.grad(found.y, x, torch.tensor(v))
    smooth = all(a.traits.smooth for a in omega.atoms)
    verdicts = []
    for i, (_, truth) in enumerate(made):
        y, bound = found.y[i].detach().numpy(), found.error_bound[i].item()
        error = float(np.linalg.norm((y - truth.y).astype(float)))
        known = truth.bound < 1e-9
        lies = known and error > bound + truth.bound
        if lies:
            said = f"off by {error:.3g}, bound {bound:.3g}, truth to {truth.bound:.1g}"
            verdicts.append(("wrong", f"{ROWS[i]}, by {found.path}: {said}"))
        elif not found.converged[i]:
            verdicts.append(("flagged", ""))
        elif not known:
            with np.errstate(all="ignore"):
                loss = gap(omega, truth, y)
            low = loss <= truth.size * (2 * bound + 1e-14)
            verdicts.append(("flat" if low else "wrong", f"{ROWS[i]}: loses {loss:.3g}"))
        elif smooth and (off := wrong_product(omega, truth, y, v[i], gammas[i], slopes[i])) > 1e-6:
            verdicts.append(("wrong", f"{ROWS[i]}: its product with J is off by {off:.2g}"))
        else:
            verdicts.append(("right", ""))
    return verdicts


def wrong_product(omega, truth, y, v, gamma, found):
    """How far J v is off, beside what J changes from the true y to this one."""
    if not truth.least > 1e-9:
        return 0.0
    at = [np.maximum(t, LONG(1e-300)) for t in (truth.y, y.astype(LONG))]
    there, here = (product(omega.derivatives(t)[1], y > 0, v)[0] / gamma for t in at)
    off = np.linalg.norm(found.numpy() - there) - 4 * np.linalg.norm(here - there)
    return max(0.0, off) / (1 + np.linalg.norm(there))


def check_random(seed):
    """For the fuzzer."""
    bad = [text for outcome, text in judge(seed) if outcome == "wrong"]
    _, omega = make(seed)
    assert not bad, f"seed {seed}, {[a.kind for a in omega.atoms]}: {bad[0]}"
