"""Attention in Triton against the mappings in float64: interpreted without a GPU, compiled on one.

The calls are a user's: ``regmax.nn.attention`` takes the kernel as it does for tensors on CUDA.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from devices import CUDA, TRITON_DEVICES, need_triton

need_triton()

import regmax  # noqa: E402
from regmax import kernels  # noqa: E402
from regmax.kernels.base import Arrangement, CannotLaunch  # noqa: E402
from regmax.kernels.triton import powers  # noqa: E402
from regmax.kernels.triton.attention_launch import ThresholdAttention  # noqa: E402
from regmax.nn import (  # noqa: E402
    AdaptiveEntmax,
    attention,
    attention_weights,
    chunks,
    fused,
)

# the interpreter is numpy, which warns where IEEE arithmetic is meant
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

F32, F64 = torch.float32, torch.float64
SMALL, TOLERANCE = (16, 16), 2e-5
HALF = torch.bfloat16 if CUDA else torch.float16
"""The interpreter multiplies the bits of bfloat16 as integers."""


def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Any]]:
    """The calls of the kernel: their steps, and what they compute."""
    steps: list[str] = []
    arrangements: list[Any] = []
    for step in ("forward", "backward"):
        inner = getattr(ThresholdAttention, step)

        def call(kernel: Any, how: Any, *args: Any, inner: Any = inner, step: str = step) -> Any:
            steps.append(step)
            arrangements.append(how)
            return inner(kernel, how, *args)

        monkeypatch.setattr(ThresholdAttention, step, call)
    return steps, arrangements


def omega_of(alpha: Any, heads: int, dtype: torch.dtype, device: str) -> Any:
    """Tsallis, or with an α for each head that is learnt."""
    if alpha != "learnt":
        return regmax.regularizer("tsallis", alpha=alpha)
    omega = AdaptiveEntmax(heads).to(device, dtype)
    with torch.no_grad():
        omega.a.copy_(torch.linspace(-3, 3, heads)[:, None, None])
    return omega


def dense(lengths: Any, causal: bool) -> torch.Tensor:
    """Which keys each query of packed sequences sees, (L, S)."""
    blocks = [torch.ones(n, m, dtype=torch.bool) for n, m in zip(*lengths, strict=True)]
    return torch.block_diag(*(b.tril() if causal else b for b in blocks)).bool()


@pytest.fixture(params=TRITON_DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On each, the kernel has small blocks."""
    torch.manual_seed(0)
    get = kernels.Lazy.get
    monkeypatch.setattr(kernels.Lazy, "get", lambda lazy, device: get(lazy, "cuda"))
    for name in ("entropy", "gini", "tsallis"):
        kernel = importlib.import_module(f"regmax_{name}._gpu").KERNEL
        monkeypatch.setattr(kernel.attention, "blocks", SMALL)
    return str(request.param)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Any]]:
    """The calls of the kernel, and what they compute."""
    return noted(monkeypatch)


SOME, OTHERS = ((17, 0, 5, 20), (17, 0, 5, 20)), ((17, 3, 0, 20), (5, 0, 34, 21))


def one(queries: int, keys: int) -> tuple[tuple[int], tuple[int]]:
    return (queries,), (keys,)


# α, heads of q and of k, lengths of queries and of keys, (E, Ev), other arguments
CASES = (
    (1.0, (2, 1), one(20, 33), (24, 40), "bias gamma"),
    (1.0, (1, 1), one(17, 33), (8, 8), "varlen"),
    (1.0, (2, 1), SOME, (8, 24), "causal gamma"),
    (1.0, (2, 2), OTHERS, (8, 8), "sink"),
    (1.0, (1, 1), one(20, 33), (8, 8), "drop bias"),
    (1.0001, (2, 2), one(20, 33), (8, 8), "causal gamma"),
    (1.0001, (2, 1), SOME, (8, 8), "sink causal gamma"),
    (1.2, (2, 1), one(37, 37), (24, 8), "causal"),
    (1.2, (1, 1), one(20, 33), (8, 8), "bias gamma"),
    (1.5, (1, 1), one(17, 40), (8, 8), "varlen gamma"),
    (1.5, (2, 1), SOME, (8, 8), "causal sink gamma"),
    (1.5, (1, 1), one(20, 33), (8, 8), "sink bias"),
    (1.5, (2, 2), SOME, (8, 8), "drop causal"),
    (2.0, (4, 2), one(20, 33), (16, 8), "causal gamma"),
    (2.0, (2, 1), OTHERS, (8, 8), "gamma"),
    (2.0, (2, 1), one(20, 33), (8, 8), "sink causal gamma"),
    (2.0, (1, 1), one(20, 33), (8, 8), "masked sink"),
    ("learnt", (2, 2), one(37, 37), (8, 8), "causal"),
    ("learnt", (2, 2), one(20, 50), (8, 8), "varlen"),
    ("learnt", (2, 1), SOME, (8, 8), "causal"),
    ("learnt", (2, 2), one(20, 33), (8, 8), "sink bias gamma"),
    ("learnt", (2, 1), one(20, 20), (8, 8), "drop sink gamma causal"),
)


@pytest.mark.parametrize(("alpha", "heads", "lengths", "sizes", "more"), CASES)
def test_values_and_gradients(
    alpha: Any, heads: Any, lengths: Any, sizes: Any, more: str, device: str, monkeypatch: Any
) -> None:
    """Beside dense weights in float64; two rows of a batch have paddings of their own."""
    calls, batch = noted(monkeypatch), 2 if "varlen" in more else 1
    (rows, keys), (width, depth) = map(sum, lengths), sizes
    q = 2 * torch.randn(batch, heads[0], rows, width)
    k, v = torch.randn(batch, heads[1], keys, width), torch.randn(batch, heads[1], keys, depth)
    bias = torch.randn(1, heads[0], rows, keys) if "bias" in more else None
    gamma = 0.7 + torch.rand(heads[0], 1, 1) if "gamma" in more else None
    sink = 0.5 + torch.rand(heads[0], 1, 1) if "sink" in more else None
    g, taking = torch.randn(batch, heads[0], rows, depth), dense(lengths, "causal" in more)
    if "masked" in more:
        taking[3] = False
    if "varlen" in more:
        taking = torch.arange(keys) < torch.tensor([keys - 14, 7])[:, None, None, None]

    def leaves(where: str, dtype: torch.dtype) -> list[torch.Tensor | None]:
        given = (q, k, v, bias, gamma, sink)
        return [
            None if t is None else t.to(where, dtype, copy=True).requires_grad_() for t in given
        ]

    def gradients(out: torch.Tensor, given: Any, omega: Any) -> list[torch.Tensor]:
        learnt = [t for t in given if t is not None]
        learnt += [omega.a] if alpha == "learnt" else []
        return [out.detach(), *torch.autograd.grad(out, learnt, g.to(out))]

    given, omega = leaves(device, F32), omega_of(alpha, heads[0], F32, device)
    more_given: dict[str, Any] = {"attn_mask": given[3]}
    if len(lengths[0]) > 1:
        places = [torch.tensor([0, *n], device=device).cumsum(0) for n in lengths]
        more_given = dict(zip(("cu_seq_q", "cu_seq_k"), places, strict=True))
    elif "masked" in more or "varlen" in more:
        on = taking.to(device)
        mask = on if given[3] is None else given[3].masked_fill(~on, -torch.inf)
        more_given = {"attn_mask": mask}
    out = attention(
        *(*given[:3], omega),
        **more_given,
        is_causal="causal" in more,
        enable_gqa=heads[0] != heads[1],
        gamma=1.0 if gamma is None else given[4],
        sink=given[5],
        dropout_p=0.3 if "drop" in more else 0.0,
    )
    have = gradients(out, given, omega)
    assert calls[0] == ["forward", "backward"]
    kept = torch.ones(())
    if "drop" in more:
        kept = (
            ThresholdAttention(powers.LINEAR).factors(calls[1][0], q.to(device), k.to(device)).cpu()
        )
        assert 0.6 < float((kept > 0).float().mean()) < 0.8
        assert torch.equal(kept.unique(), torch.tensor([0, 1 / (1 - torch.tensor(0.3))]))

    given, omega = leaves("cpu", F64), omega_of(alpha, heads[0], F64, "cpu")
    scores = torch.zeros(1, 1, dtype=F64) if given[3] is None else given[3]
    with kernels.reference():
        weights = attention_weights(
            *(*given[:2], omega),
            attn_mask=scores.masked_fill(~taking, -torch.inf),
            enable_gqa=heads[0] != heads[1],
            gamma=1.0 if gamma is None else given[4],
            sink=given[5],
        )
        values = given[2].repeat_interleave(heads[0] // heads[1], 1)
        want = gradients((weights * kept) @ values, given, omega)
    assert len(calls[0]) == 2
    for i, (mine, exact) in enumerate(zip(have, want, strict=True)):
        size = 1 + float(exact.abs().max()) if i else 1
        assert float((mine.cpu() - exact).abs().max()) <= TOLERANCE * size, i


def entries(z: torch.Tensor, tau: torch.Tensor, a: float) -> torch.Tensor:
    """p(z − τ)."""
    u = z - tau
    return u.exp() if a == 0 else (1 + a * u).clamp_min(0).log().div(a).exp()


@pytest.mark.parametrize("steps", [0, 1, 16])
@pytest.mark.parametrize(
    ("alpha", "sink", "size"),  # the last has its largest weight on the sink
    [(1.0, None, 3), (1.2, None, 3), (2.0, None, 3), (2.0, 2.0, 3), (1.8, 1.0, 0.1)],
)
def test_bounds(alpha: float, sink: float | None, size: float, steps: int, device: str) -> None:
    """One pass bounds τ from below, and a row's certificate its duality gap, after any step."""
    q, k = size * torch.randn(1, 1, 20, 8), torch.randn(1, 1, 70, 8)
    v, a = torch.randn(1, 1, 70, 8), alpha - 1
    kernel = ThresholdAttention(*powers.TSALLIS, blocks=SMALL, steps=steps, limit=torch.inf)
    on = [t.to(device) for t in (q, k, v)]
    found = kernel.solve(Arrangement(0.5, 10), False, *on, None, sink, 1.0, alpha)
    out, top, rest, total, gap = (t[0, 0].cpu().double() for t in found[:5])
    z = q[0, 0].double() @ k[0, 0].double().T / 2
    z = z.masked_fill(~torch.ones(20, 70, dtype=torch.bool).tril(10), -torch.inf)
    z = z if sink is None else torch.nn.functional.pad(z, (0, 1), value=sink)
    low, high = z.amax(-1, keepdim=True), z.amax(-1, keepdim=True) + 70
    for _ in range(80):
        middle = (low + high) / 2
        over = entries(z, middle, a).sum(-1, keepdim=True) > 1
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    tau = (top + rest)[:, None]
    if steps == 0:
        assert bool((tau <= high + 2e-6 * (1 + high.abs())).all())
        assert bool((total >= 1 - 2e-6).all())
    if steps == 16:
        assert bool(((total - 1).abs() <= 4e-6).all())
    p = entries(z, tau, a)
    y = p / p.sum(-1, keepdim=True)
    grad = torch.where(y > 0, y, 1).log() if a == 0 else (y**a - 1) / a
    r = torch.where(z > -torch.inf, z - grad, -torch.inf)
    if a == 0:
        r = torch.where(y > 0, r, -torch.inf)
    exact = r.amax(-1) - torch.where(y > 0, y * r, 0).sum(-1)
    assert bool((exact <= gap + 1e-5).all())
    assert torch.allclose(total, p.sum(-1), rtol=1e-5)
    assert torch.allclose(out, y[:, :70] @ v[0, 0].double(), atol=TOLERANCE)


def test_a_row_beyond_its_certificate_is_nan(device: str) -> None:
    q, k, v = (torch.randn(1, 1, 20, 8, device=device) for _ in range(3))
    kernel = ThresholdAttention(powers.LINEAR, blocks=SMALL, steps=0, limit=1e-3)
    out, _, _, total, gap, *_ = kernel.solve(Arrangement(1.0), True, q, k, v, None, None, 1.0)
    assert bool(torch.isnan(gap).any())
    assert torch.equal(torch.isnan(total), torch.isnan(gap))
    assert torch.equal(torch.isnan(out).all(-1), torch.isnan(gap))


def test_large_scores_cost_no_digits(device: str) -> None:
    q, k, v = torch.ones(1, 1, 20, 8), torch.zeros(1, 1, 33, 8), torch.randn(1, 1, 33, 8)
    k[..., 0], k[..., 1] = 1 << 20, (torch.arange(33) % 5) / 8  # exact in float32
    near = k.clone()
    near[..., 0] = 0
    q, k, near, v = (t.to(device) for t in (q, k, near, v))
    for name in ("sparsemax", "entmax15", "softmax"):
        mine, want = attention(q, k, v, name, scale=1.0), attention(q, near, v, name, scale=1.0)
        assert torch.allclose(mine, want, rtol=0, atol=TOLERANCE), name


def plain(device: str, *shape: int, dtype: torch.dtype = F32) -> list[torch.Tensor]:
    return [torch.randn(*shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_rows_without_keys_and_rows_that_are_no_numbers(name: str, device: str, taken: Any) -> None:
    q, k, v = plain(device, 1, 1, 20, 8)
    mask = torch.rand(20, 20, device=device) > 0.5
    mask[:, 4] = False
    mask[:, 5] = True
    mask[2] = False
    bias = torch.zeros(20, 20, device=device).masked_fill(~mask, -torch.inf)
    bias[7, 5], bias[8, 5] = torch.nan, torch.inf
    bias[9] = torch.finfo(F32).min  # a uniform row
    bias[2] = -torch.inf
    for given in (mask, bias):
        with torch.no_grad():
            k[..., 4, :] = torch.nan if given is mask else 0.0  # seen by none
        mine = attention(q, k, v, name, attn_mask=given, gamma=0.5 if given is mask else 1.0)
        with kernels.reference():
            want = attention(q, k, v, name, attn_mask=given, gamma=0.5 if given is mask else 1.0)
        torch.testing.assert_close(mine, want, rtol=0, atol=TOLERANCE, equal_nan=True)
        assert torch.equal(mine[0, 0, 2], torch.zeros_like(mine[0, 0, 2]))
    assert len(taken[0]) == 2
    g = torch.randn_like(mine)
    (have,), (expected,) = torch.autograd.grad(mine, v, g), torch.autograd.grad(want, v, g)
    torch.testing.assert_close(have, expected, rtol=0, atol=TOLERANCE, equal_nan=True)


def test_any_layout(device: str, taken: Any) -> None:
    """Dimensions that are missing, transposed or shared, and the default blocks."""
    KERNEL = importlib.import_module("regmax_gini._gpu").KERNEL
    KERNEL.attention.blocks = None
    q = torch.randn(20, 3, 16, device=device).transpose(0, 1)[..., ::2]
    k, v = torch.randn(33, 8, device=device), torch.randn(1, 33, 5, device=device)
    mask = (torch.rand(33, 20, device=device) > 0.3).mT
    omega = 0.5 * regmax.regularizer("gini")
    for given in (
        (q, k, v, mask),
        (q[0], k, v[0], mask[None, None, 0, 0].expand(20, 33)),
        (q[None, :, :1], k, v, mask[:1]),
    ):
        mine = attention(*given[:3], omega, attn_mask=given[3])
        with kernels.reference():
            want = attention(*given[:3], omega, attn_mask=given[3])
        assert mine.shape == want.shape
        torch.testing.assert_close(mine, want, rtol=0, atol=TOLERANCE)
    assert taken[0] == ["forward"] * 3


def test_half_precision_and_autocast(device: str, taken: Any) -> None:
    q, k, v = plain(device, 1, 2, 20, 8)
    half = [t.to(HALF) for t in (q, k, v)]
    with torch.autocast(device, HALF):
        mine = attention(q, k, v, "entmax15")
    assert taken[0] == ["forward"]
    assert mine.dtype == HALF
    assert torch.equal(mine, attention(*half, "entmax15"))
    have = torch.autograd.grad(mine.float().square().sum(), (q, k, v))
    wide = [t.detach().double().requires_grad_() for t in half]
    with kernels.reference():
        out = attention(*wide, "entmax15")
        want = torch.autograd.grad(out.square().sum(), wide)
    for a, b in zip((mine, *have), (out, *want), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-2, atol=2e-2)


OTHERWISE: dict[str, Any] = {
    "α > 2": {"omega": regmax.regularizer("tsallis", alpha=2.5)},
    "the p-norm": {"omega": "pnormmax"},
    "a sink of each query": {"sink": torch.ones(4, 1)},
    "no weights": {"dropout_p": 1.0},
    "chunks": {"chunk": 5},
    "certified": {"certify": True},
    "γ of each query": {"gamma": torch.ones(4, 1)},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_otherwise_scores_are_computed(name: str, device: str, taken: Any) -> None:
    q, k, v = plain(device, 1, 1, 4, 8)
    more = {"omega": "sparsemax", **OTHERWISE[name]}
    torch.manual_seed(1)
    mine = attention(q, k, v, **more)
    with kernels.reference():
        torch.manual_seed(1)
        torch.testing.assert_close(mine, attention(q, k, v, **more), rtol=0, atol=TOLERANCE)
    assert taken[0] == []


def test_tensors_that_no_kernel_takes(device: str, taken: Any) -> None:
    for q, k, v in (
        plain(device, 1, 1, 3, 8, dtype=F64),
        plain(device, 1, 1, 0, 8),
        plain(device, 1, 1, 1, 2, 8),
        plain(device, 2, 130),
    ):
        assert attention(q, k, v, "sparsemax").shape == q.shape
    q, k, v = plain(device, 1, 2, 3, 8)
    for alpha in (torch.tensor([[[1.5]], [[2.5]]]), torch.tensor(0.5)):
        attention(q, k, v, regmax.regularizer("tsallis", alpha=alpha.to(device)))
    wide = AdaptiveEntmax(2)
    wide.learned["alpha"].high = 3
    attention(q, k, v, wide.to(device))
    scale = torch.tensor(0.3, device=device, requires_grad=True)
    attention(q, k, v, "sparsemax", scale=scale).square().sum().backward()
    assert scale.grad is not None
    torch.func.vmap(lambda q: attention(q, k[0], v[0], "sparsemax"))(q)
    assert taken[0] == []
    for wrong in (
        {"attn_mask": torch.ones(7, 3, dtype=torch.bool)},
        {"gamma": torch.ones(2, 3, 3)},
        {"attn_mask": torch.ones(3, 3, dtype=torch.int)},
    ):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            attention(q, k, v, "sparsemax", **{n: t.to(device) for n, t in wrong.items()})
    with pytest.raises(ValueError, match="gamma must be > 0"):
        attention(q, k, v, "sparsemax", gamma=-1.0)
    with pytest.raises(ValueError, match="enable_gqa"):
        attention(q, k[:, :1].expand(1, 3, 3, 8), v, "sparsemax", enable_gqa=True)
    assert taken[0] == []


def test_a_shared_mask_that_learns_is_no_larger_than_a_chunk(
    device: str, taken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = plain(device, 2, 1, 20, 8)
    bias = torch.randn(1, 1, 20, 20, device=device, requires_grad=True)
    monkeypatch.setitem(chunks.SCORES, device, 300)
    attention(q, k, v, "sparsemax", attn_mask=bias)
    assert taken[0] == []
    attention(q, k, v, "sparsemax", attn_mask=bias.detach())
    assert taken[0] == ["forward"]


def test_a_batch_of_gradients_is_of_the_scores(device: str, taken: Any) -> None:
    q, k, v = plain(device, 1, 1, 5, 8)
    out = attention(q, k, v, "sparsemax")
    g = torch.randn(3, *out.shape, device=device)
    (many,) = torch.autograd.grad(out, q, g, retain_graph=True, is_grads_batched=True)
    assert taken[0] == ["forward"]
    for one, each in zip(many, g, strict=True):
        torch.testing.assert_close(torch.autograd.grad(out, q, each, retain_graph=True)[0], one)


def test_what_does_not_fit_the_device_warns_once(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = plain(device, 1, 1, 5, 8)
    with kernels.reference():
        want = attention(q, k, v, "sparsemax")
        gradient = torch.autograd.grad(want.sum(), q)[0]

    def refused(*args: Any) -> Any:
        raise CannotLaunch("out of resource: shared memory")

    monkeypatch.setattr(fused, "_REFUSED", set())
    out = attention(q, k, v, "sparsemax")
    monkeypatch.setattr(ThresholdAttention, "backward", refused)
    with pytest.warns(RuntimeWarning, match="does not fit this device"):
        torch.testing.assert_close(torch.autograd.grad(out.sum(), q)[0], gradient)
    monkeypatch.setattr(ThresholdAttention, "forward", refused)
    with pytest.warns(RuntimeWarning, match="does not fit this device"):
        torch.testing.assert_close(attention(q, k, v, "sparsemax"), want)
    torch.testing.assert_close(attention(q, k, v, "sparsemax"), want)


# -- packed sequences, sinks and dropout, where they are odd ---------------------------------------


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_sinks_that_are_no_numbers(name: str, device: str, taken: Any) -> None:
    q, k, v = (torch.randn(1, 4, 5, 8, device=device) for _ in range(3))
    sink = torch.tensor([-torch.inf, torch.inf, torch.nan, -1e38], device=device)[:, None, None]
    mask = torch.ones(5, 5, dtype=torch.bool, device=device)
    mask[1] = False
    mine = attention(q, k, v, name, attn_mask=mask, sink=sink, gamma=0.1)
    assert taken[0] == ["forward"]
    with kernels.reference():
        want = attention(q, k, v, name, attn_mask=mask, sink=sink, gamma=0.1)
    torch.testing.assert_close(mine, want, rtol=0, atol=TOLERANCE, equal_nan=True)
    assert bool(mine[0, 1:3].isnan().all())
    assert torch.equal(mine[0, 0, 1], torch.zeros_like(mine[0, 0, 1]))


@pytest.mark.parametrize("name", ["sparsemax", "softmax"])
def test_a_sink_that_takes_all(name: str, device: str, taken: Any) -> None:
    """A weight of 1 on the sink: the results and all gradients are 0."""
    q, k, v = (torch.randn(1, 1, 20, 8, device=device, requires_grad=True) for _ in range(3))
    sink = torch.tensor(1e3, device=device, requires_grad=True)
    out = attention(q, k, v, name, sink=sink)
    found = torch.autograd.grad(out, (q, k, v, sink), torch.randn_like(out))
    assert taken[0] == ["forward", "backward"]
    assert not any(bool(t.any()) for t in (out, *found))


def test_dropout_has_seeds(device: str, taken: Any) -> None:
    q, k, v = (torch.randn(1, 2, 40, 8, device=device) for _ in range(3))
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(attention(q, k, v, "softmax", dropout_p=0.5))
    assert taken[0] == ["forward"] * 3
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
    one, other = taken[1][0], taken[1][2]
    kept = [ThresholdAttention(powers.LINEAR).factors(how, q, k) > 0 for how in (one, other)]
    assert 0.4 < float((kept[0] == kept[1]).float().mean()) < 0.6
    heads = kept[0][0]
    assert 0.4 < float((heads[0] == heads[1]).float().mean()) < 0.6
    assert 0.4 < float((heads[0, 1:] == heads[0, :-1]).float().mean()) < 0.6


@pytest.mark.parametrize("more", ["packed", "sink", "drop", "gamma"])
def test_second_derivatives(more: str, device: str, taken: Any) -> None:
    q, k, v = (torch.randn(1, 1, 8, 8, device=device, requires_grad=True) for _ in range(3))
    sink = torch.full((1, 1, 1), 0.5, device=device, requires_grad=True)
    omega, gamma = AdaptiveEntmax(1).to(device), torch.full_like(sink, 0.7).requires_grad_()
    places = torch.tensor([0, 5, 8], device=device) if more in ("packed", "drop") else None
    given = {"sink": None if more == "gamma" else sink, "gamma": gamma}
    out = attention(
        *(q, k, v, omega), cu_seq_q=places, dropout_p=0.3 if more == "drop" else 0.0, **given
    )
    inputs = (q, k, v, gamma, omega.a, *([] if more == "gamma" else [sink]))
    once = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    graph = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    for mine, want in zip(graph, once, strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)
    assert taken[0] == ["forward", "backward"]
    kept = ThresholdAttention(powers.LINEAR).factors(taken[1][0], q, k) if more == "drop" else 1.0
    mask = None if places is None else dense(((5, 3), (5, 3)), False).to(device)
    with kernels.reference():
        weights = attention_weights(q, k, omega, attn_mask=mask, **given)
        want = ((weights * kept) @ v).square().sum()
        want = torch.autograd.grad(want, inputs, create_graph=True)
    mine, want = (
        torch.autograd.grad(sum(t.square().sum() for t in each), inputs) for each in (graph, want)
    )
    for a, b in zip(mine, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
