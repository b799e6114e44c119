"""Every mapping on rows whose values are hard, and on the outputs of every mapping:

    python tests/helpers/hard_values.py --rows 1000000 [--only sparsemax,fusedmax] [--seed 0]

Prints what it is about to compute, so that a caller with a time limit knows what did not end; the
exit status is 1 if a promise is broken.
"""

import argparse
import contextlib
import functools
import itertools
import math
import random
import warnings

import numpy as np
import torch
from omegas import omega_of as of_value
from references import Long

import regmax
from regmax import functional
from regmax.testing.inputs import VALUES, hard_values, normal

SIZES = (2, 3, 6, 17, 40, 65, 200, 1500)
BATCH = 6000
"""Entries of a batch."""
STEEP = ("entmax 4.0", "tsallis + tv", "tsallis + clique_tv")
"""Mappings with α > 2."""


def tsallis(z, y, alpha, delta):
    """What entmax may be: p(z − τ) for thresholds up to ``delta`` from the one of the largest y."""
    a = Long(alpha) - 1

    def p(u):
        if a == 0:
            return np.exp(u)
        inside = a * u > -1
        return np.where(inside, np.exp(np.log1p(np.where(inside, a * u, 0)) / a), 0)

    top = y.max(-1, keepdims=True)
    tau = -np.log(top) if a == 0 else -np.expm1(a * np.log(top)) / a
    return [p(z - (tau + step)) for step in (-delta, 0, delta)]


def pnorm(z, y, p, delta):
    """The same for pnormmax: ‖y‖_p^(2−p) y_i^(p−1) = (z_i − τ)₊."""
    p = Long(p)

    def of(tau):
        u = np.maximum(z - tau, 0) ** (1 / (p - 1))
        return (u**p).sum(-1, keepdims=True) ** ((p - 2) / p) * u

    norm = (y**p).sum(-1, keepdims=True) ** ((2 - p) / p)
    tau = -norm * y.max(-1, keepdims=True) ** (p - 1)
    return [of(tau + step) for step in (-delta, 0, delta)]


def by_reference(z, y, f, delta):
    """The closed form in PyTorch, an algorithm of its own, which adds up sets of entries."""
    with regmax.kernels.reference():
        expected = f(torch.from_numpy(z.astype(np.float64))).numpy()
    delta = delta + 2 * z.shape[-1] * np.finfo(np.float64).eps
    return [expected - delta, expected, expected + delta]


def composed(base, penalty, theta):
    """The mapping of a base and a penalty, and the truth of it."""
    omega = regmax.regularizer(base, **theta) + 0.03 * regmax.penalty(penalty)
    layer = regmax.RegularizedMax(omega)
    return layer, functools.partial(by_reference, f=layer)


def by_value(alpha):
    """Tsallis entropy from its value alone."""
    if alpha == 1:
        return of_value(lambda y: torch.xlogy(y, y).sum(-1))
    return of_value(lambda y: y.pow(alpha).sum(-1) / (alpha * (alpha - 1)))


MAPPINGS = {
    "softmax": (functional.softmax, functools.partial(tsallis, alpha=1.0)),
    "sparsemax": (functional.sparsemax, functools.partial(tsallis, alpha=2.0)),
    "entmax15": (functional.entmax15, functools.partial(tsallis, alpha=1.5)),
    **{
        f"entmax {alpha}": (
            functools.partial(functional.entmax, alpha=alpha),
            functools.partial(tsallis, alpha=alpha),
        )
        for alpha in (0.5, 1.0, 1.05, 1.3, 2.0, 4.0)
    },
    **{
        f"pnormmax {p}": (
            functools.partial(functional.pnormmax, p=p),
            functools.partial(pnorm, p=p),
        )
        for p in (1.1, 1.5, 2.0)
    },
    **{
        f"by value {alpha}": (
            regmax.RegularizedMax(by_value(alpha)),
            functools.partial(tsallis, alpha=alpha),
        )
        for alpha in (1.0, 1.5, 2.0)
    },
    **{
        f"{base} + {penalty}": composed(base, penalty, theta)
        for base, penalty, theta in (
            ("gini", "clique_tv", {}),
            ("entropy", "tv", {}),
            ("tsallis", "oscar", {"alpha": 1.5}),
            ("tsallis", "tv", {"alpha": 3.0}),
            ("pnorm", "clique_tv", {"p": 1.3}),
            ("pnorm", "tv", {"p": 1.3}),
            ("tsallis", "clique_tv", {"alpha": 3.0}),
        )
    },
    "by value 1.5 + tv": (
        regmax.RegularizedMax(by_value(1.5) + 0.03 * regmax.penalty("tv")),
        composed("tsallis", "tv", {"alpha": 1.5})[1],
    ),
    "fusedmax": (functional.fusedmax, functools.partial(by_reference, f=functional.fusedmax)),
    "oscarmax": (functional.oscarmax, functools.partial(by_reference, f=functional.oscarmax)),
}


def batches(rows, seed):
    """What is computed: a name and rows, until there are ``rows`` rows in either dtype."""
    done = 0
    kinds = [*VALUES, *(f"outputs of {name}" for name in MAPPINGS if "by value" not in name)]
    for k in itertools.count(seed):
        pairs = list(itertools.product(SIZES, kinds))
        for d, kind in random.Random(k).sample(pairs, len(pairs)):
            count = max(2, min(400, BATCH // d, rows // 20))
            for dtype in (torch.float32, torch.float64):
                made = kind.removeprefix("outputs of ")
                if made in MAPPINGS:
                    x = normal(count, d, seed=k) * 10 ** ((k + d) % 3 - 1)
                    x = MAPPINGS[made][0](x.to(dtype))
                else:
                    x = hard_values(kind, count, d, dtype, seed=k)
                yield f"{kind}, {dtype}, {tuple(x.shape)}, seed {k}", x
            done += 2 * count
            if done >= rows:
                return


def check(name, x):
    """A point of Δ, in the order of x, near the truth; a finite, centred gradient."""
    f, truth = MAPPINGS[name]
    eps, d = torch.finfo(x.dtype).eps, x.shape[-1]
    x = x.requires_grad_()
    y = f(x)
    v = normal(*x.shape, seed=1).to(x.dtype)
    (g,) = torch.autograd.grad(y, x, v)
    x, y = x.detach(), y.detach()
    assert bool((y >= 0).all()), "y ≥ 0"
    off = (y.double().sum(-1) - 1).abs().max()
    assert off <= 2 * math.sqrt(d) * eps, f"Σ y − 1 = {off:.3g}"
    assert bool(torch.isfinite(g).all()), "a finite gradient"
    far = (g.double().sum(-1).abs() / (1 + g.double().abs().sum(-1))).max()
    # α > 2: J has entries of y^(2−α), up to d
    assert far <= (256 + d) * eps * (d if name in STEEP else 1), f"Σ Jv = {far:.3g}"
    if not ("fusedmax" in name or " + tv" in name):
        order = x.argsort(-1)
        rise, step = (t.gather(-1, order).diff(dim=-1) for t in (x, y))
        assert bool((step[rise == 0] == 0).all()), "equal scores have equal weights"
    z, w = x.numpy().astype(Long), y.numpy().astype(Long)
    z = z - z.max(-1, keepdims=True)
    near = truth(z, w, delta=32 * eps)
    most = (32 + d * ("by value" in name)) * eps
    off = np.maximum(w - np.maximum.reduce(near), np.minimum.reduce(near) - w).max()
    assert off <= most, f"y is off by {off:.3g}"


def check_loss(name, x):
    """L ≥ 0, L = 0 for its own answer, and its gradient is y − t, for classes and distributions."""
    f = MAPPINGS[name][0]
    eps = torch.finfo(x.dtype).eps
    loss = regmax.FenchelYoungLoss(omega_of(f), reduction="none")
    y = f(x)
    least = functional.sparsemax(x.roll(1, -1) - x.roll(2, -1))
    classes = torch.arange(len(x)) % x.shape[-1]
    rounding = (64 + x.shape[-1]) * eps * (1 + (x - x.amax(-1, keepdim=True)).abs().amax(-1))
    for target in (classes, least, y):
        leaf = x.clone().requires_grad_()
        value = loss(leaf, target)
        (g,) = torch.autograd.grad(value.sum(), leaf)
        t = target
        if target is classes:
            t = torch.nn.functional.one_hot(classes, x.shape[-1])
        assert bool((value >= -rounding).all()), f"L = {value.min():.3g}"
        off = (g - (y - t)).abs().max()
        assert off <= 32 * eps, f"the gradient of the loss is off by {off:.3g}"
    assert bool((value <= rounding).all()), f"L(x, y) = {value.max():.3g}"


def check_certificate(name, x):
    """The bound on the error is of the size of the rounding of the scores."""
    f = MAPPINGS[name][0]
    x = x[:: max(1, len(x) // 8)].double()
    solution = regmax.RegularizedMax(omega_of(f)).solve(x)
    size = (x - x.amax(-1, keepdim=True)).abs().amax(-1)
    bound = solution.error_bound
    # α > 2: at the threshold an entry moves at no cost
    allowed = 1.5 if name in STEEP else 1e-8 + 512 * torch.finfo(x.dtype).eps * size
    assert bool((bound <= allowed).all()), f"a bound of {bound.max():.3g}"


def omega_of(f):
    """Ω of a mapping."""
    if isinstance(f, regmax.RegularizedMax):
        return f.omega
    hyper = f.keywords if isinstance(f, functools.partial) else {}
    f = f.func if isinstance(f, functools.partial) else f
    kind, _ = functional.hyperparameters_of(f.__name__)
    return kind(**{"entmax15": {"alpha": 1.5}}.get(f.__name__, hyper))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--only", default=",".join(MAPPINGS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", regmax.ConvergenceWarning)  # of rounding above the tolerance
    total = 0
    for name in args.only.split(","):
        done = findings = 0
        for what, x in batches(args.rows, args.seed):
            print(f"\r{name} of {what}", end="", flush=True)
            for promise in (check, check_loss, check_certificate):
                try:
                    promise(name, x.detach())
                except AssertionError as error:
                    findings += 1
                    print(f": {error}", flush=True)
            done += len(x)
        print(f"\r{name}: {done} rows, {findings} findings" + " " * 60, flush=True)
        total += findings
    return int(total > 0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
