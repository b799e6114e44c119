"""What Fenchel–Young losses and attention promise, on one case each. A finding raises."""

import math
from dataclasses import dataclass

import fuzz_truth as truth
import numpy as np
import torch
from fuzz_cases import HALF, ONE, Mask, Number, Scores
from fuzz_checks import flat, participants, per_row
from fuzz_layers import Expression, slope_size

import regmax
from regmax import functional
from regmax.nn import MultiheadAttention, attention


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
    seen = [t for t in given.values() if isinstance(t, torch.Tensor) and t.requires_grad]
    g = torch.autograd.grad(got.sum(), [leaf, *seen], materialize_grads=True)
    if case.x.dtype in HALF:
        compare_half(loss, x, target, mask, got, g[0])
        return
    numbers = {k: per_row(n, x, dim, x.dtype) for k, n in given.items()}
    judge(case, numbers, x, y, mask, dim, index.flatten(), t.reshape(-1, d), weight, got, g)


def compare_half(loss, x, target, mask, got, g):
    """float16 and bfloat16 compute in float32 and round once."""
    wide = x.float().requires_grad_()
    value = loss(wide, target, mask)
    (gx,) = torch.autograd.grad(value.sum(), wide)
    assert torch.equal(value.to(got.dtype).nan_to_num(9), got.nan_to_num(9))
    assert torch.equal(gx.to(g.dtype).nan_to_num(9), g.nan_to_num(9))


def judge(case, numbers, x, y, mask, dim, index, t, weight, got, g):
    on = flat(participants(x, mask), dim)
    scores, answers, slopes = flat(x, dim), flat(y, dim), flat(g[0], dim)
    d, info = x.shape[dim], torch.finfo(x.dtype)
    w = np.ones(d, truth.Long) if weight is None else weight.to(x.dtype).numpy().astype(truth.Long)
    # a solved y is known to the tolerance, and L to its square
    solved = 0.0 if len(case.omega.terms) == 1 else (1e-6 if x.dtype == torch.float64 else 1e-2)
    rows, count = [], truth.Long(0)
    for i in range(len(scores)):
        keep = on[i].numpy()
        ignored = case.target == "index" and index[i] < 0
        if case.target == "index":
            own = np.zeros(d, truth.Long)
            own[max(int(index[i]), 0)] = 1
        else:
            own = t[i].numpy().astype(truth.Long)
        factor = (w * own).sum()
        count += 0 if ignored else factor
        outside = bool((own[~keep] > 0).any()) and (
            case.target == "index" or bool((w * own)[~keep].any())
        )
        own = w * own / (factor if factor > 0 else 1)
        if ignored or not keep.any():
            rows.append((truth.Long(0), truth.Long(0), np.zeros(d), truth.Long(0)))
            continue
        smoothed = case.smoothing * (w * keep).sum()
        if (1 - case.smoothing) * factor + smoothed == 0:  # of no weight, whatever it holds
            rows.append((truth.Long(0), truth.Long(0), np.zeros(d), truth.Long(0)))
            continue
        if not bool((scores[i][on[i]] < torch.inf).all()):
            rows.append((truth.Long(math.nan), truth.Long(0), None, truth.Long(0)))
            continue
        omega = case.omega.truth(numbers["c"][i], numbers["lam"][i])
        gamma = truth.Long(numbers["gamma"][i])
        spread = w * keep / keep.sum()
        parts = [((1 - truth.Long(case.smoothing)) * factor, own)]
        if case.smoothing:
            parts += [(case.smoothing * s, np.eye(d)[c]) for c, s in enumerate(spread) if s > 0]
        value, bound, slope = definition(
            omega, gamma, scores[i].numpy(), answers[i].numpy(), keep, parts, outside
        )
        rows.append((value, bound, slope, sum(p for p, _ in parts)))
    eps = info.eps * (16 + 2 * math.sqrt(d)) + solved
    total = count if case.target == "index" else truth.Long(len(rows))
    scale = 1 / total if case.reduction == "mean" and total > 0 else truth.Long(1)
    if case.omega.penalty in (None, "tv", "oscar"):
        check_value(case, rows, got, scale, eps, info)
    for i, (value, _, slope, factor) in enumerate(rows):
        if slope is None:
            continue
        if not np.isfinite(value):
            slope = np.zeros(d)
        off = np.abs(slopes[i].double().numpy() - slope * scale).max()
        assert off <= eps * factor * scale, (
            f"row {i}: ∂L/∂x = {slopes[i].tolist()}, y − t = {(slope * scale).astype(float)}"
        )


def definition(omega, gamma, x, y, keep, parts, outside):
    """Σ_k p_k L(x; t_k), the size of its terms, and its gradient; +inf for a target ``outside``."""
    x, y = x.astype(truth.Long), y.astype(truth.Long)
    top = x[keep].max()
    z = np.where(keep, x - top, 0)
    y_on = y[keep]
    best = (y_on * z[keep]).sum() - gamma * omega.value(y_on)
    size_y = (y_on * np.abs(z[keep])).sum() + np.abs(z[y > 0]).max()
    size_y += gamma * (sum(abs(k.value(y_on)) for k in omega.terms) + abs(omega.value(y_on)))
    size_y += gamma * slope_size(omega, y_on)
    total, size, slope = truth.Long(0), truth.Long(0), np.zeros(len(x), truth.Long)
    if outside and sum(p for p, _ in parts) > 0:
        return truth.Long(math.inf), truth.Long(0), slope
    for p, t in parts:
        if p == 0:
            continue
        t = np.asarray(t, truth.Long)
        linear = (t * z).sum()
        here = gamma * omega.value(t[keep]) if t.sum() > 0 else gamma * zero_value(omega)
        total += p * (best + here - linear)
        many = gamma * sum(abs(k.value(t[keep])) for k in omega.terms) if t.sum() > 0 else 0
        size += p * (size_y + abs(linear) + abs(here) + many)
        slope += p * (y - t)
    return total, size, slope


def zero_value(omega):
    return truth.Long(0)


def check_value(case, rows, got, scale, eps, info):
    if case.reduction == "none":
        pairs = zip(got.detach().flatten().tolist(), rows, strict=True)
        for i, (a, (value, size, *_)) in enumerate(pairs):
            compare(a, value, size, eps, info, f"row {i}: ")
        return
    total = sum((r[0] for r in rows), truth.Long(0)) * scale
    size = sum((r[1] for r in rows), truth.Long(0)) * scale
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


# -- attention -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attended:
    """A call of regmax.nn.attention."""

    omega: str
    q: Scores
    heads: int = 2
    groups: int = 1
    length: int = 3
    keys: int = 4
    width: int = 2
    mask: str | None = None
    scale: float | None = None
    gamma: float = 1.0
    module: bool = False


def check_attention(case):
    """Π_Ω of the scores, times v; finite gradients; queries without keys give zeros."""
    dtype = torch.float64 if case.q.dtype == "float64" else torch.float32
    generator = torch.Generator().manual_seed(case.q.seed)

    def draw(*shape, scale=1.0):
        t = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return t.to(dtype).requires_grad_()

    size = min(abs(case.q.scale), 1e6)
    if case.module:
        check_module(case, draw, generator)
        return
    q = draw(*case.q.batch, case.heads * case.groups, case.length, case.width, scale=size)
    k = draw(*case.q.batch, case.heads, case.keys, case.width)
    v = draw(*case.q.batch, case.heads, case.keys, 3)
    shape = (case.length, case.keys)
    mask = None
    if case.mask in ("bool", "float"):
        mask = torch.rand(shape, generator=generator) < 0.6
        mask[0] = False
        if case.mask == "float":
            mask = torch.zeros(shape, dtype=dtype).masked_fill(~mask, -math.inf)
    out = attention(
        q,
        k,
        v,
        case.omega,
        attn_mask=mask,
        is_causal=case.mask == "causal",
        scale=case.scale,
        enable_gqa=case.groups > 1,
        gamma=case.gamma,
    )
    wide_k, wide_v = (t.repeat_interleave(case.groups, -3) for t in (k, v))
    scores = (q * (1 / math.sqrt(case.width) if case.scale is None else case.scale)) @ wide_k.mT
    on = mask
    if case.mask == "causal":
        on = torch.ones(shape, dtype=torch.bool).tril()
    elif case.mask == "float":
        on = mask == 0
    weights = getattr(functional, case.omega)(scores, mask=on, gamma=case.gamma)
    torch.testing.assert_close(
        out, weights @ wide_v, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12
    )
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(bool(torch.isfinite(t).all()) for t in grads), "a gradient is not finite"
    if on is not None:
        empty = ~on.any(-1)
        assert bool((out[..., empty, :] == 0).all())


def check_module(case, draw, generator):
    """MultiheadAttention with softmax is PyTorch's; with any Ω it averages the values."""
    width = 4 * case.heads
    with torch.random.fork_rng():
        torch.manual_seed(case.q.seed)
        ours = MultiheadAttention(width, case.heads, omega=case.omega, batch_first=True)
        plain = torch.nn.MultiheadAttention(width, case.heads, batch_first=True)
    ours.load_state_dict(plain.state_dict(), strict=False)
    x = draw(case.groups, case.length, width).float().detach().requires_grad_()
    key = draw(case.groups, case.keys, width).float().detach()
    left_out = torch.rand(case.groups, case.keys, generator=generator) < 0.3
    left_out[:, 0] = False
    padding = left_out if case.mask in ("bool", "float") else None
    out, weights = ours(x, key, key, key_padding_mask=padding)
    if case.omega == "softmax":
        expected = plain(x, key, key, key_padding_mask=padding)
        for a, b in zip((out, weights), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert out.shape == x.shape
    assert bool(((weights.sum(-1) - 1).abs() < 1e-5).all())
    (g,) = torch.autograd.grad(out.sum(), x)
    assert bool(torch.isfinite(g).all())
    if padding is not None:
        assert bool((weights.masked_select(left_out[:, None]) == 0).all())
        none, _ = ours(x, key, key, key_padding_mask=torch.ones_like(left_out))
        bias = ours.out_proj.bias
        torch.testing.assert_close(none, bias.expand(none.shape), rtol=0, atol=0)
