"""Plugins that lie: solvers, penalties and Ω, each with one defect, or with none ("honest").

What they are built on is right: :data:`BASES` and :data:`PENALTIES` hold each Ω and penalty in
torch beside its truth in numpy (:mod:`posed`), which shares no code with regmax.
"""

import copy
import functools
from dataclasses import dataclass

import numpy as np
import torch
from posed import LONG, Kinks, Smooth

import regmax
from regmax import Penalty, Regularizer
from regmax.regularizers.curvature import Diagonal
from regmax.solvers import Solver, choose

# -- bases: Ω in torch and F in numpy -------------------------------------------------------------


class Weighted(Regularizer):
    """½ Σ c y², c ≥ 1."""

    def __init__(self, c, b=None):
        self.c = c
        if b is not None:
            self.b = b

    def value(self, y):
        return (self.c * y.square()).sum(-1) / 2


class Quartic(Weighted):
    """½ Σ c y² + ¼ Σ y⁴."""

    def value(self, y):
        return super().value(y) + y.pow(4).sum(-1) / 4


class Quadratic(Weighted):
    """½ Σ c y² + ½‖By‖²."""

    def value(self, y):
        return super().value(y) + (y @ self.b.T).square().sum(-1) / 2


class Entropies(Weighted):
    """Σ c y log y."""

    def value(self, y):
        return (self.c * torch.xlogy(y, y)).sum(-1)


class Tsallis(Weighted):
    """Σ c y^1.5 / .75."""

    def value(self, y):
        return (self.c * y.pow(1.5)).sum(-1) / 0.75


@dataclass(frozen=True)
class Base:
    """``make(c, b)``: Ω; ``smooth(c, b)``: its truth; ``moves(y)``: ∂(∂Ω/∂y_i)/∂c_i, None where Ω
    has no c; ``invariant``: Ω knows no order of its entries, and is a sum over them."""

    make: object
    smooth: object
    moves: object = None
    invariant: bool = False


def diag(h):
    return np.diag(h)


BASES = {
    "gini": Base(
        lambda c, b: regmax.regularizer("gini"),
        lambda c, b: Smooth(lambda y: y, lambda y: np.eye(len(y)), 1.0),
        invariant=True,
    ),
    "entropy": Base(
        lambda c, b: regmax.regularizer("entropy"),
        lambda c, b: Smooth(lambda y: np.log(y), lambda y: diag(1 / y), 1.0, True),
        invariant=True,
    ),
    "tsallis": Base(
        lambda c, b: regmax.regularizer("tsallis", alpha=1.5),
        lambda c, b: Smooth(lambda y: 2 * np.sqrt(y), lambda y: diag(1 / np.sqrt(y)), 1.0),
        invariant=True,
    ),
    "weighted": Base(
        lambda c, b: Weighted(c),
        lambda c, b: Smooth(lambda y: c * y, lambda y: diag(c), 1.0),
        lambda y: y,
    ),
    "quartic": Base(
        lambda c, b: Quartic(c),
        lambda c, b: Smooth(lambda y: c * y + y**3, lambda y: diag(c + 3 * y * y), 1.0),
        lambda y: y,
    ),
    "quadratic": Base(
        lambda c, b: Quadratic(c, b),
        lambda c, b: Smooth(lambda y: c * y + b.T @ (b @ y), lambda y: diag(c) + b.T @ b, 1.0),
        lambda y: y,
    ),
    "entropies": Base(
        lambda c, b: Entropies(c),
        lambda c, b: Smooth(lambda y: c * (np.log(y) + 1), lambda y: diag(c / y), 1.0, True),
        lambda y: np.log(y) + 1,
    ),
    "powers": Base(
        lambda c, b: Tsallis(c),
        lambda c, b: Smooth(lambda y: c * 2 * np.sqrt(y), lambda y: diag(c / np.sqrt(y)), 1.0),
        lambda y: 2 * np.sqrt(y),
    ),
}

# -- penalties outside the theorem, right ---------------------------------------------------------


def masked(v, mask):
    return v if mask is None else torch.where(mask, v, 0)


class Plain(Penalty):
    """No groups are fused."""

    def groups(self, z, mask=None):
        return torch.arange(z.shape[-1], device=z.device).expand(z.shape).contiguous()

    def any_subgradient(self, y, mask=None):
        with torch.enable_grad():
            t = y.detach().requires_grad_()
            (u,) = torch.autograd.grad(self.value(t, mask).sum(), t)
        return u.nan_to_num()


class GroupNorms(Plain):
    """Σ_g w_g ‖y_g‖₂ over ``parts``, lists of indices."""

    name = "group_norms"

    def __init__(self, parts, weights):
        self.parts, self.weights = parts, weights

    def value(self, y, mask=None):
        y = masked(y, mask)
        norms = [w * y[..., g].norm(dim=-1) for g, w in zip(self.parts, self.weights, strict=True)]
        return torch.stack(norms).sum(0)

    def prox(self, v, step, mask=None):
        out = masked(v, mask).clone()
        for g, w in zip(self.parts, self.weights, strict=True):
            size = out[..., g].norm(dim=-1, keepdim=True)
            out[..., g] = out[..., g] * (1 - step * w / size.clamp_min(1e-300)).clamp_min(0)
        return out

    def subgradient(self, y, near, step, mask=None):
        y, near = masked(y, mask), masked(near, mask)
        u = torch.zeros_like(y)
        for g, w in zip(self.parts, self.weights, strict=True):
            size = y[..., g].norm(dim=-1, keepdim=True)
            far = near[..., g].norm(dim=-1, keepdim=True)
            limit = torch.as_tensor(step * w, dtype=y.dtype)
            ball = near[..., g] * torch.minimum(limit / far.clamp_min(1e-300), torch.ones_like(far))
            u[..., g] = torch.where(size > 0, limit * y[..., g] / size.clamp_min(1e-300), ball)
        return u


class MaxNorm(Plain):
    """max |y_i|."""

    name = "max_norm"

    def value(self, y, mask=None):
        return masked(y, mask).abs().amax(-1)

    def prox(self, v, step, mask=None):
        """v minus its projection on the ℓ1 ball of radius ``step``."""
        v = masked(v, mask)
        step = torch.as_tensor(step, dtype=v.dtype).expand(*v.shape[:-1], 1)
        a = v.abs()
        s = a.sort(-1, descending=True).values
        k = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype)
        theta = (s.cumsum(-1) - step) / k
        count = (s > theta).sum(-1, keepdim=True).clamp_min(1)
        t = theta.gather(-1, count - 1).clamp_min(0)
        t = torch.where(a.sum(-1, keepdim=True) <= step, 0, t)
        return v.sign() * torch.minimum(a, t)

    def groups(self, z, mask=None):
        a = masked(z, mask).abs()
        ids = super().groups(z, mask)
        top = a.argmax(-1, keepdim=True)
        return torch.where(a == a.amax(-1, keepdim=True), top, ids)

    def subgradient(self, y, near, step, mask=None):
        a = masked(y, mask).abs()
        top = a == a.amax(-1, keepdim=True)
        if mask is not None:
            top = top & mask
        # the nearest point of the face of the simplex of size step
        v = torch.where(top, near, -torch.inf)
        step = torch.as_tensor(step, dtype=y.dtype).expand(*y.shape[:-1], 1)
        s = v.sort(-1, descending=True).values
        k = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype)
        theta = (s.cumsum(-1) - step) / k
        count = (s > theta).sum(-1, keepdim=True).clamp_min(1)
        return (v - theta.gather(-1, count - 1)).clamp_min(0)


class Distance(Plain):
    """Σ |y_i − c_i|."""

    name = "distance"

    def __init__(self, at):
        self.at = at

    def value(self, y, mask=None):
        return masked(y - self.at, mask).abs().sum(-1)

    def prox(self, v, step, mask=None):
        t = v - self.at
        soft = t.sign() * (t.abs() - step).clamp_min(0)
        return masked(self.at + soft, mask)

    def subgradient(self, y, near, step, mask=None):
        step = torch.as_tensor(step, dtype=y.dtype)
        inside = torch.minimum(torch.maximum(near, -step), step)
        t = y - self.at
        return masked(torch.where(t == 0, inside, t.sign() * step), mask)


class WeightedSum(Plain):
    """Σ w_i |y_i|."""

    name = "weighted_l1"

    def __init__(self, w):
        self.w = w

    def value(self, y, mask=None):
        return masked(self.w * y.abs(), mask).sum(-1)

    def prox(self, v, step, mask=None):
        return masked(v.sign() * (v.abs() - step * self.w).clamp_min(0), mask)

    def subgradient(self, y, near, step, mask=None):
        limit = step * self.w
        inside = torch.minimum(torch.maximum(near, -limit), limit)
        return masked(torch.where(y == 0, inside, y.sign() * limit), mask)


class Hubers(Plain):
    """Σ huber_k(y_i − c_i): smooth, of degree 1 nowhere."""

    name = "hubers"

    def __init__(self, at, k):
        self.at, self.k = at, k

    def value(self, y, mask=None):
        t = masked(y - self.at, mask).abs()
        inside = t.clamp(max=self.k)
        return (inside * (t - inside / 2)).sum(-1)

    def prox(self, v, step, mask=None):
        t = v - self.at
        near = t / (1 + step)
        out = torch.where(near.abs() <= self.k, near, t - step * self.k * t.sign())
        return masked(self.at + out, mask)

    def subgradient(self, y, near, step, mask=None):
        return masked(step * (y - self.at).clamp(-self.k, self.k), mask)


class Norm(GroupNorms):
    """‖y‖₂."""

    name = "norm"

    def __init__(self, d):
        super().__init__([list(range(d))], [1.0])


@dataclass(frozen=True)
class Kind:
    """``make(n)``: the penalty from numbers n; ``kinks(n, lam, on)``: λR of the participants ``on``
    and what it adds to F, (slope, bend) or None. ``inside``: the theorem holds for it."""

    make: object
    kinks: object
    inside: bool = False
    needs_invariant: bool = False


def _lines(a, at, lam):
    return Kinks(a.astype(LONG), np.asarray(at, LONG), np.full(len(a), LONG(lam)))


def _chain(n, lam, on):
    m = int(on.sum())
    return _lines(np.diff(np.eye(m), axis=0), np.zeros(m - 1), lam), None


def _group_kinks(n, lam, on):
    where = np.cumsum(on) - 1
    balls = []
    for g, w in zip(n["parts"], n["weights"], strict=True):
        inside = np.array([where[i] for i in g if on[i]], int)
        if len(inside):
            balls.append((inside, LONG(lam) * LONG(w)))
    return Kinks(balls=tuple(balls)), None


def _norm_kinks(n, lam, on):
    return Kinks(balls=((np.arange(int(on.sum())), LONG(lam)),)), None


def _owl(weights):
    def kinks(n, lam, on):
        m = int(on.sum())
        return Kinks(ordered=LONG(lam) * np.asarray(weights(n, m), LONG)), None

    return kinks


def _huber(n, lam, on):
    at, k = n["at"][on], n["k"]

    def slope(y):
        return lam * np.clip(y - at, -k, k)

    def bend(y):
        return np.diag(lam * (np.abs(y - at) < k).astype(float))

    return Kinks(), (slope, bend)


def _linear(n, lam, on):
    w = n["weights_of"][on].astype(LONG)
    return Kinks(), (lambda y: lam * w, lambda y: np.zeros((len(w), len(w))))


def tensor(a):
    return torch.tensor(np.asarray(a, float))


PENALTIES = {
    "tv": Kind(lambda n: regmax.penalty("tv"), _chain, inside=True),
    "owl": Kind(
        lambda n: regmax.penalty("owl", weights=[float(w) for w in n["ordered"]]),
        _owl(lambda n, m: n["ordered"][:m]),
        inside=True,
        needs_invariant=True,
    ),
    "group norms": Kind(lambda n: GroupNorms(n["parts"], n["weights"]), _group_kinks),
    "norm": Kind(lambda n: Norm(n["d"]), _norm_kinks),
    "max norm": Kind(lambda n: MaxNorm(), _owl(lambda n, m: np.eye(m)[0]), needs_invariant=True),
    "distance": Kind(
        lambda n: Distance(tensor(n["at"])),
        lambda n, lam, on: (_lines(np.eye(len(on))[on][:, on], n["at"][on], lam), None),
    ),
    "weighted l1": Kind(lambda n: WeightedSum(tensor(n["weights_of"])), _linear),
    "hubers": Kind(lambda n: Hubers(tensor(n["at"]), n["k"]), _huber),
}

# -- lies about penalties -------------------------------------------------------------------------


def _noise(t, size):
    generator = torch.Generator().manual_seed(t.numel())
    return size * torch.randn(t.shape, generator=generator, dtype=t.dtype)


PENALTY_LIES = {
    "honest": {},
    "lovasz": {"lovasz": True},
    "prox: step 1.5 times": {
        "prox": lambda p, v, step, mask=None: p.right.prox(v, 1.5 * step, mask)
    },
    "prox: step 0.99 times": {
        "prox": lambda p, v, step, mask=None: p.right.prox(v, 0.99 * step, mask)
    },
    "prox: of step 0.3": {"prox": lambda p, v, step, mask=None: p.right.prox(v, 0.3, mask)},
    "prox: the identity": {"prox": lambda p, v, step, mask=None: v},
    "prox: noise 1e-9": {
        "prox": lambda p, v, step, mask=None: (z := p.right.prox(v, step, mask)) + _noise(z, 1e-9)
    },
    "prox: noise 1e-4": {
        "prox": lambda p, v, step, mask=None: (z := p.right.prox(v, step, mask)) + _noise(z, 1e-4)
    },
    "prox: NaN in a row": {
        "prox": lambda p, v, step, mask=None: spoil_row(p.right.prox(v, step, mask))
    },
    "prox: rows mixed": {
        "prox": lambda p, v, step, mask=None: p.right.prox(v, step, mask).roll(1, 0)
    },
    "prox: shape": {"prox": lambda p, v, step, mask=None: p.right.prox(v, step, mask)[..., :-1]},
    "prox: float32": {"prox": lambda p, v, step, mask=None: p.right.prox(v.float(), step, mask)},
    "prox: None": {"prox": lambda p, v, step, mask=None: None},
    "groups: merged": {"groups": lambda p, z, mask=None: torch.zeros_like(z, dtype=torch.int64)},
    "groups: split": {
        "groups": lambda p, z, mask=None: torch.arange(z.shape[-1]).expand(z.shape).contiguous()
    },
    "groups: out of range": {
        "groups": lambda p, z, mask=None: p.right.groups(z, mask) + z.shape[-1]
    },
    "groups: shape": {"groups": lambda p, z, mask=None: p.right.groups(z, mask)[..., :1]},
    "groups: float": {"groups": lambda p, z, mask=None: p.right.groups(z, mask).double()},
    "subgradient: zeros": {"subgradient": lambda p, y, near, step, mask=None: torch.zeros_like(y)},
    "subgradient: twice": {
        "subgradient": lambda p, y, near, step, mask=None: (
            2 * p.right.subgradient(y, near, step, mask)
        )
    },
    "subgradient: near": {"subgradient": lambda p, y, near, step, mask=None: near},
    "subgradient: NaN": {
        "subgradient": lambda p, y, near, step, mask=None: torch.full_like(y, torch.nan)
    },
    "subgradient: shape": {
        "subgradient": lambda p, y, near, step, mask=None: p.right.subgradient(
            y, near, step, mask
        ).sum(-1)
    },
    "any_subgradient: zeros": {"any_subgradient": lambda p, y, mask=None: torch.zeros_like(y)},
    "average: the identity": {"average": lambda p, v, z, mask=None: masked(v, mask)},
    "average: twice": {"average": lambda p, v, z, mask=None: 2 * p.right.average(v, z, mask)},
    "average: shape": {"average": lambda p, v, z, mask=None: v.sum(-1)},
    "value: 1.5 times": {"value": lambda p, y, mask=None: 1.5 * p.right.value(y, mask)},
    "value: shape": {"value": lambda p, y, mask=None: p.right.value(y, mask).unsqueeze(-1)},
    "value: NaN": {"value": lambda p, y, mask=None: torch.nan * p.right.value(y, mask)},
    "value: concave": {"value": lambda p, y, mask=None: -p.right.value(y, mask)},
    "margin: 0": {"margin": lambda p, step, d: 0.0},
}


def spoil_row(y):
    y = y.clone()
    y.view(-1, y.shape[-1])[0] = torch.nan
    return y


class _Right:
    """The methods of an object as the class ``cls`` has them."""

    def __init__(self, item, cls):
        self._item, self._cls = item, cls

    def __getattr__(self, name):
        return functools.partial(getattr(self._cls, name), self._item)


def lying_penalty(right, lie):
    """The right penalty with one method of the lie; ``p.right.prox`` is what it was."""
    if not PENALTY_LIES[lie]:
        return right
    owner = type(right)
    methods = {**PENALTY_LIES[lie], "name": "lying_penalty"}
    methods["right"] = property(lambda p: _Right(p, owner))
    lying = copy.copy(right)
    lying.__class__ = type("LyingPenalty", (owner,), methods)
    return lying


# -- solvers that lie -----------------------------------------------------------------------------


class LyingSolver(Solver):
    """An honest answer, spoilt."""

    name = "lying_solver"

    def __init__(self, lie):
        self.lie = lie
        self.kept = None

    def unsuitable(self, problem):
        return None

    def run(self, problem, tol, max_iter):
        if self.lie == "mirror descent":
            return self.mirror(problem, 2000)
        if self.lie == "early":
            return self.mirror(problem, 3)
        solvers, _ = choose(problem)
        y, iterations = solvers[0].run(problem, tol, max_iter)
        y = y.clone()
        lie = SOLVER_LIES[self.lie]
        return lie(self, problem, y, iterations)

    def mirror(self, problem, steps):
        on = problem.participants()
        y = problem.initial().clone()
        for k in range(1, steps + 1):
            step = 0.5 if k < 1000 else 0.05
            slope = problem.slope(y)
            slope = torch.where(on, slope - torch.where(on, slope, 0).amax(-1, keepdim=True), 0)
            y = torch.where(on, y * (step * slope).exp(), 0)
            y = y / y.sum(-1, keepdim=True)
        return y, torch.full(y.shape[:-1], steps, dtype=torch.int64)


def answer(function):
    """A lie about y alone."""

    def lie(solver, problem, y, iterations):
        return function(solver, problem, y), iterations

    lie.of_y = True
    return lie


def _floored(floor):
    def lie(solver, problem, y):
        y = torch.where(problem.participants(), y.clamp_min(floor), 0)
        return y / y.sum(-1, keepdim=True)

    return answer(lie)


def _lost(solver, problem, y):
    """The smallest positive entry is taken for 0."""
    least = torch.where(y > 0, y, torch.inf).argmin(-1, keepdim=True)
    alone = (y > 0).sum(-1, keepdim=True) < 2
    y = torch.where(alone, y, y.scatter(-1, least, 0))
    return y / y.sum(-1, keepdim=True)


def _stale(solver, problem, y):
    if solver.kept is None or solver.kept.shape != y.shape or solver.kept.dtype != y.dtype:
        solver.kept = y
    return solver.kept


def _vertex(solver, problem, y):
    z = torch.where(problem.participants(), problem.z, -torch.inf)
    return torch.nn.functional.one_hot(z.argmax(-1), y.shape[-1]).to(y)


def _worst(solver, problem, y):
    z = torch.where(problem.participants(), problem.z, torch.inf)
    return torch.nn.functional.one_hot(z.argmin(-1), y.shape[-1]).to(y)


def _negative(solver, problem, y):
    y = y.clone()
    y[..., 0] -= 0.2
    y[..., -1] += 0.2
    return y


def _outside(solver, problem, y):
    """Mass on an entry that takes no part."""
    off = (~problem.participants()).to(y.dtype)
    y = y + 0.1 * off
    return y / y.sum(-1, keepdim=True)


def _writes(solver, problem, y):
    problem.z.mul_(0.5)
    return y


def _noisy(size):
    return answer(lambda solver, problem, y: y + _noise(y, size))


SOLVER_LIES = {
    "honest": answer(lambda s, p, y: y),
    "mirror descent": None,
    "early": None,
    "floor 1e-3": _floored(1e-3),
    "floor 1e-9": _floored(1e-9),
    "floor 1e-300": _floored(1e-300),
    "NaN in a row": answer(lambda s, p, y: spoil_row(y)),
    "inf": answer(lambda s, p, y: y / 0),
    "NaN": answer(lambda s, p, y: torch.full_like(y, torch.nan)),
    "shape: one entry less": answer(lambda s, p, y: y[..., :-1]),
    "shape: flat": answer(lambda s, p, y: y.flatten()),
    "shape: one row more": answer(lambda s, p, y: torch.cat([y, y[:1]])),
    "shape: one row for all": answer(lambda s, p, y: y[:1]),
    "dtype: the other": answer(
        lambda s, p, y: y.float() if y.dtype == torch.float64 else y.double()
    ),
    "dtype: half": answer(lambda s, p, y: y.half()),
    "dtype: int": answer(lambda s, p, y: y.round().long()),
    "rows mixed": answer(lambda s, p, y: y.roll(1, 0)),
    "entries mixed": answer(lambda s, p, y: y.roll(1, -1)),
    "sum 1.3": answer(lambda s, p, y: 1.3 * y),
    "sum 0": answer(lambda s, p, y: 0 * y),
    "sum 1 + 1e-6": answer(lambda s, p, y: (1 + 1e-6) * y),
    "negative": answer(_negative),
    "None": answer(lambda s, p, y: None),
    "a list": answer(lambda s, p, y: y.tolist()),
    "an array": answer(lambda s, p, y: y.numpy()),
    "iterations: None": lambda s, p, y, k: (y, None),
    "iterations: a number": lambda s, p, y, k: (y, 3),
    "iterations: float": lambda s, p, y, k: (y, k.double() + 0.5),
    "iterations: shape": lambda s, p, y, k: (y, k.unsqueeze(-1)),
    "iterations: negative": lambda s, p, y, k: (y, k - 1000),
    "no pair": lambda s, p, y, k: y,
    "noise 1e-6": _noisy(1e-6),
    "noise 1e-10": _noisy(1e-10),
    "noise 1e-14": _noisy(1e-14),
    "noise 0.1": _noisy(0.1),
    "lost support": answer(_lost),
    "stale": answer(_stale),
    "the best vertex": answer(_vertex),
    "the worst vertex": answer(_worst),
    "the barycentre": answer(lambda s, p, y: p.initial()),
    "mass outside the mask": answer(_outside),
    "writes to z": answer(_writes),
    "not contiguous": answer(lambda s, p, y: y.mT.contiguous().mT),
    "expanded": answer(lambda s, p, y: y[:1].expand(y.shape)),
    "requires grad": answer(lambda s, p, y: y.requires_grad_()),
    "a Parameter": answer(lambda s, p, y: torch.nn.Parameter(y)),
}

# -- Ω that lies ----------------------------------------------------------------------------------


def _coupled(y):
    return (y[..., 1:] * y[..., :-1]).sum(-1)


def other(y):
    """y as a tensor that another row, the one before, has."""
    return y.roll(1, 0) if y.ndim > 1 else y


def _shifted(y, size):
    d = y.shape[-1]
    return size * torch.linspace(-1, 1, d, dtype=y.dtype)


class Calls:
    """A counter that Ω carries."""

    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        return self.count


def _formula(change):
    """A closed form: the answer of another Ω's solver, changed."""

    def closed_form(omega, x, gamma, mask=None):
        x = x if mask is None else torch.where(mask, x, -torch.inf)
        layer = regmax.RegularizedMax(omega.right, gamma=gamma, on_failure="ignore")
        return change(layer(x).detach())

    return closed_form


def _sum_of(omega, y):
    return omega.right.value(y)


OMEGA_LIES = {
    "honest": {},
    "strong_convexity: 1000 times": {"strong_convexity": 1000.0},
    "strong_convexity: 3 times": {"strong_convexity": 10.0},
    "strong_convexity: 1e-9": {"strong_convexity": 1e-9},
    "strong_convexity: negative": {"strong_convexity": -1.0},
    "strong_convexity: 0": {"strong_convexity": 0.0},
    "strong_convexity: NaN": {"strong_convexity": float("nan")},
    "strong_convexity: text": {"strong_convexity": "1"},
    "strong_convexity: shape": {"strong_convexity": torch.ones(7, 3)},
    "separable": {"separable": True},
    "not separable": {"separable": False},
    "permutation_invariant": {"permutation_invariant": True},
    "ignores_zeros": {"ignores_zeros": True},
    "reach: 0.01": {"support_radius": lambda o: 0.01},
    "reach: 0": {"support_radius": lambda o: 0.0},
    "smallest: 0.1": {"min_positive": lambda o, tiny: 0.1},
    "smallest: 1e-3": {"min_positive": lambda o, tiny: 1e-3},
    "smallest: NaN": {"min_positive": lambda o, tiny: float("nan")},
    "entries": {"entries": 99},
    "grad: 1.1 times": {"grad": lambda o, y: 1.1 * o.right.grad(y)},
    "grad: shifted": {"grad": lambda o, y: o.right.grad(y) + _shifted(y, 0.1)},
    "grad: shifted 1e-6": {"grad": lambda o, y: o.right.grad(y) + _shifted(y, 1e-6)},
    "grad: detached": {"grad": lambda o, y: o.right.grad(y).detach()},
    "grad: NaN": {"grad": lambda o, y: torch.nan * o.right.grad(y)},
    "grad: shape": {"grad": lambda o, y: o.right.grad(y)[..., :1]},
    "grad: None": {"grad": lambda o, y: None},
    "grad: entries mixed": {"grad": lambda o, y: o.right.grad(y).roll(1, -1)},
    "grad: rows mixed": {"grad": lambda o, y: o.right.grad(y).roll(1, 0)},
    "curvature: twice": {"curvature": lambda o, y: Diagonal(2 * torch.ones_like(y))},
    "curvature: 1e-6": {"curvature": lambda o, y: Diagonal(1e-6 * torch.ones_like(y))},
    "curvature: 1": {"curvature": lambda o, y: Diagonal(torch.ones_like(y))},
    "curvature: negative": {"curvature": lambda o, y: Diagonal(-torch.ones_like(y))},
    "curvature: NaN": {"curvature": lambda o, y: Diagonal(torch.nan * torch.ones_like(y))},
    "curvature: shape": {"curvature": lambda o, y: Diagonal(torch.ones_like(y)[..., :1])},
    "curvature: a tensor": {"curvature": lambda o, y: torch.ones_like(y)},
    "curvature: None": {"curvature": lambda o, y: None},
    "grad and curvature of another Ω": {
        "grad": lambda o, y: 3 * y,
        "curvature": lambda o, y: Diagonal(3 * torch.ones_like(y)),
    },
    "closed_form: right": {"closed_form": _formula(lambda y: y)},
    "closed_form: off by 1e-5": {"closed_form": _formula(lambda y: y + _shifted(y, 1e-5))},
    "closed_form: off by 0.1": {"closed_form": _formula(lambda y: y + _shifted(y, 0.1))},
    "closed_form: NaN in a row": {"closed_form": _formula(spoil_row)},
    "closed_form: rows mixed": {"closed_form": _formula(lambda y: y.roll(1, 0))},
    "closed_form: sum 1.3": {"closed_form": _formula(lambda y: 1.3 * y)},
    "closed_form: zeros": {"closed_form": _formula(lambda y: 0 * y)},
    "closed_form: tiny instead of 0": {"closed_form": _formula(lambda y: y.clamp_min(3.8e-309))},
    "closed_form: 1e-12 instead of 0": {"closed_form": _formula(lambda y: y.clamp_min(1e-12))},
    "closed_form: the vertex": {
        "closed_form": _formula(lambda y: (y == y.amax(-1, keepdim=True)).to(y.dtype))
    },
    "closed_form: shape": {"closed_form": _formula(lambda y: y[..., :1])},
    "closed_form: a list": {"closed_form": _formula(lambda y: y.tolist())},
    "closed_form: of entropy": {
        "closed_form": lambda o, x, gamma, mask=None: (
            x / gamma if mask is None else torch.where(mask, x / gamma, -torch.inf)
        ).softmax(-1)
    },
    "conjugate: off": {"conjugate": lambda o, x, gamma, mask=None: x.amax(-1) + 1},
    "conjugate: NaN": {"conjugate": lambda o, x, gamma, mask=None: torch.nan * x.amax(-1)},
    "conjugate: shape": {"conjugate": lambda o, x, gamma, mask=None: x},
    "value: shape": {"value": lambda o, y: _sum_of(o, y).unsqueeze(-1)},
    "value: one number": {"value": lambda o, y: _sum_of(o, y).sum()},
    "value: NaN": {"value": lambda o, y: torch.nan * _sum_of(o, y)},
    "value: a number": {"value": lambda o, y: 1.0},
    "value: constant": {"value": lambda o, y: torch.ones_like(y[..., 0])},
    "value: linear": {"value": lambda o, y: y[..., 0]},
    "value: concave": {"value": lambda o, y: -_sum_of(o, y)},
    "value: a dent": {
        "value": lambda o, y: _sum_of(o, y) - 0.3 * (-50 * (y[..., 0] - 0.7).square()).exp()
    },
    "value: a narrow dent": {
        "value": lambda o, y: _sum_of(o, y) - 0.02 * (-2e3 * (y[..., 0] - 0.37).square()).exp()
    },
    "value: a wave": {"value": lambda o, y: _sum_of(o, y) + (60 * y).sin().sum(-1) / 600},
    "value: detached": {"value": lambda o, y: _sum_of(o, y.detach())},
    "value: half detached": {"value": lambda o, y: _sum_of(o, y) + _sum_of(o, y.detach())},
    "value: in numpy": {
        "value": lambda o, y: torch.from_numpy(np.asarray(_sum_of(o, y.detach()).numpy()))
    },
    "value: float32 inside": {"value": lambda o, y: _sum_of(o, y.float()).to(y.dtype)},
    "value: float32": {"value": lambda o, y: _sum_of(o, y).float()},
    "value: other rows": {"value": lambda o, y: _sum_of(o, y) + 0.3 * (y * other(y)).sum(-1)},
    "value: rows mixed": {"value": lambda o, y: other(_sum_of(o, y).unsqueeze(-1)).squeeze(-1)},
    "value: a mean over rows": {"value": lambda o, y: _sum_of(o, y) + 2 * _sum_of(o, y).mean()},
    "value: noise": {
        "value": lambda o, y: _sum_of(o, y) + 1e-2 * (torch.randn_like(y) * y).sum(-1)
    },
    "value: noise 1e-7": {
        "value": lambda o, y: _sum_of(o, y) + 1e-7 * (torch.randn_like(y) * y).sum(-1)
    },
    "value: state": {"value": lambda o, y: _sum_of(o, y) + 1e-3 * (o.calls.next() * y[..., 0])},
    "value: writes to y": {"value": lambda o, y: _writing(o, y)},
    "value: a kink": {"value": lambda o, y: _sum_of(o, y) + 0.3 * (y - 0.3).abs().sum(-1)},
    "value: a step": {"value": lambda o, y: _sum_of(o, y) + 0.2 * (y[..., 0] > 0.3)},
}


def _writing(o, y):
    if not y.requires_grad:
        y.mul_(1)
        y += 0.0
    return _sum_of(o, y)


NEVER = {"value: shape", "value: one number", "value: NaN", "value: a number", "value: detached",
         "value: in numpy"}  # fmt: skip
"""Nothing to maximise: refused or flagged."""
ELSEWHERE = {"value: constant", "value: linear", "value: concave", "value: a dent",
             "value: a narrow dent", "value: a wave", "value: a step", "value: a kink"}  # fmt: skip
"""Another maximum than F's: found by looking everywhere, for three scores."""
SCALED = {"value: half detached": 2.0, "value: a mean over rows": 3.0}
"""What Ω of one row is of F."""


def lying_omega(right, lie):
    """An Ω that has the value of ``right`` and the lie."""
    if not OMEGA_LIES[lie]:
        return right
    methods = dict(OMEGA_LIES[lie])
    methods.setdefault("value", _sum_of)
    for name in ("strong_convexity",):
        if name in methods:
            methods[name] = property(lambda o, item=methods[name]: item)
    cls = type("LyingOmega", (Regularizer,), methods)
    omega = cls()
    omega.right = right
    omega.calls = Calls()
    return omega
