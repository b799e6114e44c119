"""What the public API promises of any argument, checked on one case each. A finding raises."""

import contextlib
import math
from dataclasses import dataclass, field

import fuzz_truth as truth
import numpy as np
import torch
from fuzz_cases import HALF, ONE, Mask, Number, Scores
from fuzz_truth import Omega, Term

import regmax
from regmax import functional

RANGES = {"gamma": (0, math.inf), "alpha": (0, math.inf), "p": (1, 2)}


@dataclass(frozen=True)
class Mapped:
    """A call of regmax.functional."""

    name: str
    x: Scores
    gamma: Number = ONE
    hyper: dict[str, Number] = field(default_factory=dict)
    mask: Mask | None = None
    reference: bool = False


def truth_of(name, hyper):
    """Ω of a mapping for one row's hyperparameters."""
    kind = functional.hyperparameters_of(name)[0].name
    if kind in ("tv", "oscar"):
        return penalized((Term("gini"),), kind, hyper["lam"])
    theta = {"tsallis": hyper.get("alpha", 1.5), "pnorm": hyper.get("p", 1.5)}.get(kind, 0.0)
    return Omega((Term(kind, theta),))


def penalized(terms, penalty, lam):
    """A penalty with the weight 0 is none, and holds no ties together."""
    return Omega(terms) if lam == 0 else Omega(terms, penalty, lam)


# -- rows of arguments -----------------------------------------------------------------------------


def flat(t, dim):
    """(R, d) of a tensor whose rows lie along ``dim``."""
    return t.detach().movedim(dim, -1).reshape(-1, t.shape[dim])


def per_row(item, x, dim, dtype):
    """A number for each row, as it is computed with."""
    if not isinstance(item, torch.Tensor):
        return [float(item)] * (x.numel() // x.shape[dim])
    item = item.detach().to(dtype)
    shape = [1 if i == dim % x.ndim else n for i, n in enumerate(x.shape)]
    return item.expand(shape).flatten().tolist() if x.numel() else []


def refused(hyper, x):
    """Whether a hyperparameter leaves its range when it is rounded to the dtype of the rows."""
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    for name, item in hyper.items():
        if not isinstance(item, torch.Tensor):
            continue
        low, high = RANGES.get(name, (-math.inf, math.inf))
        for t in (item.detach(), item.detach().to(dtype)):
            if not bool(((t > low) & (t <= high) & torch.isfinite(t)).all()):
                return True
    return False


def participants(x, mask):
    on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
    return on & (x.detach() != -torch.inf)


def check_simplex(y, x, mask, dim):
    """Shape, dtype, zeros, spoilt and empty rows, sums; the rows that have an answer."""
    assert y.shape == x.shape, f"shape {tuple(y.shape)} of x {tuple(x.shape)}"
    assert y.dtype == x.dtype, f"dtype {y.dtype} of x {x.dtype}"
    on = flat(participants(x, mask), dim)
    rows, scores = flat(y, dim), flat(x, dim)
    spoilt = (on & ~(scores < torch.inf)).any(-1)
    empty = ~on.any(-1)
    assert bool(rows[spoilt].isnan().all()), "a spoilt row is NaN"
    assert bool((rows[empty] == 0).all()), "an empty row is zeros"
    good = ~(spoilt | empty)
    assert not bool(rows[good].isnan().any()), f"NaN from finite scores: {rows[good].tolist()}"
    assert bool((rows[good] >= 0).all()), f"a negative entry: {rows[good].tolist()}"
    assert bool((rows[good][~on[good]] == 0).all()), "a masked entry is 0"
    d = x.shape[dim]
    slack = 2 * torch.finfo(y.dtype).eps * math.sqrt(d)
    for row in rows[good].tolist():
        assert abs(math.fsum(row) - 1) <= slack, f"a sum of {math.fsum(row)!r}"
    return good, on


def optimal(omegas, scores, on, rows, gammas, good, dtype, off=None):
    """Every answer is exact for scores and entries that differ in their last bits."""
    info = torch.finfo(dtype)
    d = rows.shape[-1]
    eps = info.eps * (16 + 2 * math.sqrt(d))
    for i in good.nonzero().flatten().tolist():
        z = np.array(scores[i][on[i]].tolist(), dtype=truth.Long)
        y = np.array(rows[i][on[i]].tolist(), dtype=truth.Long)
        z = (z - z.max()) / truth.Long(gammas[i])
        far = truth.violation(
            omegas[i], z, y, eps, info.tiny, off[i] if off else 0.0, -(info.max**0.5) / gammas[i]
        )
        assert far <= 1, f"row {i}: {far:.3g} times rounding from optimal, y = {rows[i].tolist()}"


# -- mappings --------------------------------------------------------------------------------------


def check_mapping(case):
    """Π_Ω by name: values, independence of batch and strides, gradients in x, γ and θ."""
    f, dim = getattr(functional, case.name), case.x.dim
    x = case.x.make()
    mask = None if case.mask is None else case.mask.make(x, dim)
    hyper = {k: n.make(x, dim, learns=True) for k, n in case.hyper.items()}
    gamma = case.gamma.make(x, dim, learns=True)
    arguments = {"dim": dim, "gamma": gamma, "mask": mask, **hyper}
    road = regmax.kernels.reference() if case.reference else contextlib.nullcontext()
    with road:
        if refused({"gamma": gamma, **hyper}, x):
            try:
                f(x, **arguments)
            except ValueError:
                return
            raise AssertionError("a hyperparameter that rounds out of its range is refused")
        leaf = x.requires_grad_()
        y = f(leaf, **arguments)
        learnt = {k: t for k, t in {"gamma": gamma, **hyper}.items() if isinstance(t, torch.Tensor)}
        generator = torch.Generator().manual_seed(case.x.seed + 1)
        v = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
        found = torch.autograd.grad(y, [leaf, *learnt.values()], v, materialize_grads=True)
        x, y = x.detach(), y.detach()
        good, on = check_simplex(y, x, mask, dim)
        if case.x.dtype in HALF:
            wide = x.float().requires_grad_()
            y32 = f(wide, **arguments)
            assert torch.equal(y32.to(y.dtype).nan_to_num(9), y.nan_to_num(9)), "rounded once"
            found = torch.autograd.grad(
                y32, [wide, *learnt.values()], v.float(), materialize_grads=True
            )
            x, y, v = wide.detach(), y32.detach(), v.float()
        check_layout(f, x, y, arguments, dim)
    dtype = y.dtype
    numbers = {k: per_row(t, x, dim, dtype) for k, t in {"gamma": gamma, **hyper}.items()}
    omegas = [truth_of(case.name, {k: numbers[k][i] for k in hyper}) for i in range(len(good))]
    rows, scores = flat(y, dim), flat(x, dim)
    optimal(omegas, scores, on, rows, numbers["gamma"], good, dtype)
    check_gradients(
        omegas, scores, on, rows, flat(v, dim), numbers, good, dtype, dim, learnt, found
    )


def check_layout(f, x, y, arguments, dim, off=0.0):
    """A row is the same alone, contiguous, and whatever the layout of the others: bit for bit, or
    to ``off``."""

    def same(a, b):
        a, b = a.nan_to_num(9), b.nan_to_num(9)
        return torch.equal(a, b) if off == 0 else torch.allclose(a, b, rtol=0, atol=off)

    plain = {**arguments, "mask": None if arguments["mask"] is None else arguments["mask"].clone()}
    with torch.no_grad():
        again = f(x.contiguous().clone(), **plain)
    assert same(again, y), "contiguous scores, another answer"
    if not x.numel():
        return
    on = None if arguments["mask"] is None else flat(arguments["mask"].expand(x.shape), dim)
    many = {
        k: per_row(t, x, dim, t.dtype) if isinstance(t, torch.Tensor) else None
        for k, t in arguments.items()
        if k not in ("dim", "mask")
    }
    for i, row in enumerate(flat(x, dim)[:6]):
        alone = {
            k: arguments[k] if r is None else torch.tensor(r[i], dtype=arguments[k].dtype)
            for k, r in many.items()
        }
        with torch.no_grad():
            one = f(row, dim=0, mask=None if on is None else on[i], **alone)
        assert same(one, flat(y, dim)[i]), (
            f"row {i} alone: {one.tolist()}, with others {flat(y, dim)[i].tolist()}"
        )


def check_gradients(omegas, scores, on, rows, v, numbers, good, dtype, dim, learnt, found, k=64):
    """J v, and −⟨J v, ∂∇Ω/∂θ⟩ for each tensor θ, as Proposition 1 has them at this y."""
    info = torch.finfo(dtype)
    d = rows.shape[-1]
    eps = info.eps * k * (1 + math.sqrt(d))
    gx = flat(found[0], dim).double()
    totals = {name: [] for name in learnt}
    for i in range(len(rows)):
        gamma = truth.Long(numbers["gamma"][i])
        keep, nothing = on[i].numpy(), truth.Long(0)
        right, size, off = (np.zeros(d, truth.Long) for _ in range(3))
        if good[i]:
            y = rows[i].numpy().astype(truth.Long)[keep]
            w, s, o = truth.jacobian_product(omegas[i], y, v[i].numpy()[keep], info.tiny)
            right[keep], size[keep], off[keep] = w / gamma, s / gamma, o / gamma
        known = bool((size + off < info.max / 1e3).all())
        # a tensor λ that is 0 keeps ties together, the limit for λ > 0
        tied = good[i] and "lam" in learnt and omegas[i].penalty is None
        if not tied and (bool(good[i]) or bool((rows[i] == 0).all())):
            got = gx[i].numpy()
            wrong = np.abs(got - right) > eps * size + off + 8 * info.tiny
            assert not (known and (wrong | ~np.isfinite(got)).any()), (
                f"row {i}: ∂x {got.tolist()}, by Proposition 1 {right.astype(float).tolist()}, "
                f"y = {rows[i].tolist()}"
            )
        for name, total in totals.items():
            if tied:
                total.append((nothing, truth.Long(math.inf)))
            elif good[i]:
                z = scores[i].numpy().astype(truth.Long)[keep]
                slope = truth.hyper_slope(omegas[i], name, y, (z - z.max()) / gamma, gamma)
                value, bound, more = truth.along(y, w, s, o, slope)
                total.append((value, eps * bound + more if known else truth.Long(math.inf)))
            else:
                spoilt = bool((rows[i] != 0).any())
                total.append((truth.Long(math.nan) if spoilt else nothing, nothing))
    for (name, theta), got in zip(learnt.items(), found[1:], strict=True):
        kept = torch.finfo(theta.dtype)
        least = 64 * max(info.tiny, kept.tiny)
        check_sum(name, theta, got, totals[name], max(eps, kept.eps), least)


def check_sum(name, theta, got, rows, eps, least):
    """The rows' derivatives, summed to the shape of θ."""
    assert got.shape == theta.shape
    info = torch.finfo(theta.dtype)
    if theta.numel() not in (1, len(rows)):
        return
    each = [rows] if theta.numel() == 1 else [[row] for row in rows]
    for k, mine in enumerate(each):
        right = sum((value for value, _ in mine), truth.Long(0))
        # added up and rounded to the dtype of θ
        allowed = sum((bound + eps * abs(value) for value, bound in mine), least)
        g = truth.Long(got.flatten()[k].item())
        if np.isnan(right) or not np.isfinite(allowed) or abs(right) > info.max / 1e3:
            continue
        assert abs(g - right) <= allowed, (
            f"∂{name}[{k}] = {float(g)!r}, by Proposition 1 {float(right)!r} ± {float(allowed):.2g}"
        )
