"""What Fenchel–Young losses promise, on one case. A finding raises."""

import math
from dataclasses import dataclass

import fuzz_truth as truth
import numpy as np
import torch
from fuzz_cases import HALF, ONE, Mask, Number, Scores
from fuzz_checks import flat, participants, per_row
from fuzz_layers import Expression, slope_size

import regmax

ZERO = truth.Long(0)


@dataclass(frozen=True)
class Loss:
    """A call of FenchelYoungLoss: ``target`` "index" or "distribution", by ``seed``."""

    omega: Expression
    x: Scores
    gamma: Number = ONE
    target: str = "index"
    seed: int = 0
    ignored: float = 0.0
    weighted: bool = False
    smoothing: float = 0.0
    reduction: str = "mean"
    mask: Mask | None = None
    learns: bool = False


def check_loss(case):
    """The loss by its definition, its reduction, and y − t."""
    dim, d = case.x.dim, case.x.d
    x = case.x.make()
    mask = None if case.mask is None else case.mask.make(x, dim)
    given = {"gamma": case.gamma, "c": case.omega.c, "lam": case.omega.lam}
    given = {k: n.make(x, dim, learns=case.learns) for k, n in given.items()}
    omega = case.omega.make(given["c"], given["lam"], d)
    generator = torch.Generator().manual_seed(case.seed)
    rows = x.movedim(dim, -1).shape[:-1]
    weight = None
    if case.weighted:
        weight = (torch.rand(d, generator=generator, dtype=torch.float64) * 3).floor() / 2
    index = torch.randint(0, d, rows, generator=generator)
    index = torch.where(torch.rand(rows, generator=generator) < case.ignored, -7, index)
    t = torch.rand((*rows, d), generator=generator, dtype=torch.float64)
    t = torch.where(t < 0.4, 0, t)
    t = (t / t.sum(-1, keepdim=True).clamp_min(1e-3)).to(torch.float32).to(x.dtype)
    target = index if case.target == "index" else t.movedim(-1, dim)
    loss = regmax.FenchelYoungLoss(
        omega,
        given["gamma"],
        dim=dim,
        weight=weight,
        ignore_index=-7,
        reduction=case.reduction,
        label_smoothing=case.smoothing,
        on_failure="ignore",
    )
    leaf = x.clone().requires_grad_()
    got = loss(leaf, target, mask)
    assert got.dtype == x.dtype
    assert got.shape == (rows if case.reduction == "none" else ())
    y = loss.mapping(x, mask)
    learnt = {k: t for k, t in given.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    g = torch.autograd.grad(got.sum(), [leaf, *learnt.values()], materialize_grads=True)
    if case.x.dtype in HALF:
        compare_half(loss, x, target, mask, got, g[0])
        return
    numbers = {k: per_row(n, x, dim, x.dtype) for k, n in given.items()}
    found, count = by_definition(case, numbers, x, y, mask, index.flatten(), t.view(-1, d), weight)
    mean = case.reduction == "mean" and count > 0
    scale = 1 / count if mean else truth.Long(1)
    # a solved y is known to the tolerance, and L to its square
    solved = 0.0 if len(case.omega.terms) == 1 else (1e-6 if x.dtype == torch.float64 else 1e-2)
    info = torch.finfo(x.dtype)
    eps = info.eps * (16 + 2 * math.sqrt(d)) + solved
    check_scores(found, flat(g[0], dim), scale, eps)
    if case.omega.penalty not in (None, "tv", "oscar"):
        return
    check_value(case, found, got, scale, eps, info)
    for (name, theta), slope in zip(learnt.items(), g[1:], strict=True):
        if name in ("gamma", "lam"):
            check_slope(name, [row.of(name) for row in found], theta, slope, scale, eps, info)


def compare_half(loss, x, target, mask, got, g):
    """float16 and bfloat16 compute in float32 and round once."""
    wide = x.float().requires_grad_()
    value = loss(wide, target, mask)
    (gx,) = torch.autograd.grad(value.sum(), wide)
    assert torch.equal(value.to(got.dtype).nan_to_num(9), got.nan_to_num(9))
    assert torch.equal(gx.to(g.dtype).nan_to_num(9), g.nan_to_num(9))


@dataclass(frozen=True)
class Row:
    """The loss of a row, the size of its terms, its gradient (None: NaN), the weight of it all, and
    its derivatives in γ and λ, each with the size of its terms."""

    value: truth.Long = ZERO
    size: truth.Long = ZERO
    slope: np.ndarray | float | None = 0.0
    factor: truth.Long = ZERO
    gamma: tuple[truth.Long, truth.Long] = (ZERO, ZERO)
    lam: tuple[truth.Long, truth.Long] = (ZERO, ZERO)

    def of(self, name):
        return getattr(self, name)


def by_definition(case, numbers, x, y, mask, index, t, weight):
    """Each row's loss, and what the mean divides by."""
    dim, d = case.x.dim, case.x.d
    on, scores, answers = flat(participants(x, mask), dim), flat(x, dim), flat(y, dim)
    w = np.ones(d, truth.Long) if weight is None else weight.to(x.dtype).numpy().astype(truth.Long)
    rows, count, epsilon = [], ZERO, truth.Long(case.smoothing)
    indices = case.target == "index"
    for i in range(len(scores)):
        keep = on[i].numpy()
        ignored = indices and index[i] < 0
        own = np.eye(d)[max(int(index[i]), 0)] if indices else t[i].numpy().astype(truth.Long)
        factor = (w * own).sum()
        count += 0 if ignored else factor
        # an index costs +inf on what is masked even if its weight is 0, where smoothing has some
        outside = bool(((own if indices else w * own)[~keep] > 0).any())
        total = (1 - epsilon) * factor + epsilon * (w * keep).sum()
        if ignored or not keep.any() or total == 0:  # counts for nothing, whatever it holds
            rows.append(Row())
        elif not bool((scores[i][on[i]] < torch.inf).all()):
            rows.append(Row(truth.Long(math.nan), slope=None))
        elif outside:
            rows.append(Row(truth.Long(math.inf)))
        else:
            parts = [((1 - epsilon) * factor, w * own / (factor if factor > 0 else 1))]
            spread = epsilon * w * keep / keep.sum()
            parts += [(s, np.eye(d)[c]) for c, s in enumerate(spread) if s > 0]
            omega = case.omega.truth(numbers["c"][i], numbers["lam"][i])
            gamma = truth.Long(numbers["gamma"][i])
            z, p = (part[i].numpy().astype(truth.Long)[keep] for part in (scores, answers))
            rows.append(definition(omega, case.omega.penalty, gamma, z, p, keep, parts))
    return rows, count if indices else truth.Long(len(rows))


def definition(omega, penalty, gamma, x, y, keep, parts):
    """Σ_k p_k L(x; t_k) for the participants' scores and probabilities."""
    z = x - x.max()
    smooth = truth.Omega(omega.terms)
    at_y, many = omega.value(y), sum(abs(term.value(y)) for term in omega.terms)
    ridge = truth.penalty_value(penalty, y)
    # y adds up to 1 but for rounding, and Ω moves by as much times a slope of 1
    rounding = many + abs(at_y) + slope_size(smooth, y) + sum(term.c for term in omega.terms)
    best, size_y = (y * z).sum() - gamma * at_y, (y * np.abs(z)).sum() + np.abs(z[y > 0]).max()
    value, size, factor, dg, dg_size, dl, dl_size = (ZERO,) * 7
    slope = np.zeros(len(keep), truth.Long)
    for p, t in parts:
        if p == 0:
            continue
        t = np.asarray(t, truth.Long)
        slope[~keep] -= p * t[~keep]
        t = t[keep]
        slope[keep] += p * (y - t)
        at_t = omega.value(t)
        sizes = rounding + abs(at_t) + sum(abs(term.value(t)) for term in omega.terms)
        value += p * (best + gamma * at_t - (t * z).sum())
        size += p * (size_y + abs((t * z).sum()) + gamma * sizes)
        dg, dg_size = dg + p * (at_t - at_y), dg_size + p * sizes
        there = truth.penalty_value(penalty, t)
        dl, dl_size = dl + p * gamma * (there - ridge), dl_size + p * gamma * (there + ridge)
        factor += p
    return Row(value, size, slope, factor, (dg, dg_size), (dl, dl_size))


def check_scores(rows, found, scale, eps):
    """∂L/∂x = Σ_k p_k (y − t_k)."""
    for i, row in enumerate(rows):
        if row.slope is None:
            continue
        off = np.abs(found[i].double().numpy() - row.slope * scale).max()
        assert off <= eps * row.factor * scale, (
            f"row {i}: ∂L/∂x = {found[i].tolist()}, y − t = {row.slope * scale}"
        )


def check_slope(name, pairs, theta, found, scale, eps, info):
    """∂L/∂γ = Σ_k p_k (Ω(t_k) − Ω(y)) and ∂L/∂λ = γ Σ_k p_k (R(t_k) − R(y))."""
    if theta.numel() not in (1, len(pairs)):
        return
    kept = torch.finfo(theta.dtype)
    each = [pairs] if theta.numel() == 1 else [[pair] for pair in pairs]
    for k, mine in enumerate(each):
        right = sum((value for value, _ in mine), ZERO) * scale
        size = sum((size + abs(value) for value, size in mine), ZERO) * scale
        allowed = max(eps, kept.eps) * size + 8 * max(info.tiny, kept.tiny)
        got = truth.Long(found.flatten()[k].item())
        assert size > info.max / 1e3 or abs(got - right) <= allowed, (
            f"∂L/∂{name}[{k}] = {got}, by definition {right} ± {float(allowed):.2g}"
        )


def check_value(case, rows, got, scale, eps, info):
    if case.reduction == "none":
        pairs = zip(got.detach().flatten().tolist(), rows, strict=True)
        for i, (a, row) in enumerate(pairs):
            compare(a, row.value, row.size, eps, info, f"row {i}: ")
        return
    if any(abs(row.value) > info.max for row in rows if np.isfinite(row.value)):
        return  # one that overflows by itself need not be right in a mean
    total = sum((row.value for row in rows), ZERO) * scale
    size = sum((row.size for row in rows), ZERO) * scale
    compare(got.item(), total, size, eps, info, "")


def compare(a, value, size, eps, info, who):
    if np.isnan(value):
        assert math.isnan(a), f"{who}{a}, and NaN by definition"
        return
    if size > info.max or (np.isfinite(value) and abs(value) > info.max):
        return
    right = a == value or abs(truth.Long(a) - value) <= eps * size + 8 * info.tiny
    assert right, f"{who}L = {a!r}, by definition {float(value)!r} ± {float(eps * size):.2g}"
    assert a >= -eps * size, f"{who}a negative loss {a!r}"
