"""Attention in half precision, beside PyTorch's: errors against float64, and dtypes."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from devices import DEVICES
from mapping_checks import normal
from torch.nn.functional import scaled_dot_product_attention as sdpa

from regmax.nn import attention, attention_weights, matmul

F64 = torch.float64
HALF = (torch.bfloat16, torch.float16)
SCALES = (1, 300)
N, HEADS, L, S, E = 2, 4, 24, 40, 32


def left_of(mask):
    return mask | (torch.arange(S) == 2)


def masks(dtype):
    kept, added = left_of(normal(L, S, seed=5) > 0), normal(HEADS, L, S, seed=6)
    return {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": kept},
        "float": {"attn_mask": added.to(dtype)},
        "float -inf": {"attn_mask": added.to(dtype).masked_fill(~kept, -torch.inf)},
        "float32": {"attn_mask": added.float()},
        "learnt": {"attn_mask": added.float().requires_grad_()},
    }


def inputs(dtype, scale, gqa):
    """q, k and v, whose scores are about ``scale``, as they are in half precision."""
    heads = HEADS // 2 if gqa else HEADS
    shapes = ((N, HEADS, L, E), (N, heads, S, E), (N, heads, S, E))
    found = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    return [
        (t * size).to(dtype) for t, size in zip(found, (scale**0.5, scale**0.5, 1), strict=True)
    ]


def run(function, given, arguments, autocast=None):
    """The answer and its gradients, in float64; and the answer's dtype."""
    leaves = [t.detach().requires_grad_() for t in given]
    mask = arguments.get("attn_mask")
    if mask is not None and mask.requires_grad:
        mask = mask.detach().to(torch.promote_types(mask.dtype, given[0].dtype)).requires_grad_()
        leaves, arguments = [*leaves, mask], {**arguments, "attn_mask": mask}
    device = given[0].device.type
    with torch.autocast(device, autocast) if autocast else contextlib.nullcontext():
        out = function(*leaves[:3], **arguments)
    weights = normal(*out.shape, seed=9).bfloat16().to(out)
    return [t.double() for t in (out, *torch.autograd.grad(out, leaves, weights))], out.dtype


def softmax(q, k, v, **arguments):
    return attention(q, k, v, "softmax", **arguments)


def errors(found, truth):
    return [(a - b).abs().max().item() for a, b in zip(found, truth, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "scale"), list(itertools.product(HALF, SCALES)))
def test_errors_are_pytorchs(dtype, scale, device):
    """Of the answer and of each gradient at most twice as large."""
    for (kind, arguments), gqa, autocast in itertools.product(
        masks(dtype).items(), (False, True), (False, True)
    ):
        if device == "cuda" and kind not in ("none", "causal", "bool"):
            continue  # PyTorch's kernels differ in what they take there
        given = [t.to(device) for t in inputs(dtype, scale, gqa)]
        settings = {n: t.to(device) if n == "attn_mask" else t for n, t in arguments.items()}
        settings["enable_gqa"] = gqa
        exact = dict(settings)
        if "float" in kind or kind == "learnt":
            exact["attn_mask"] = settings["attn_mask"].detach().double()
            exact["attn_mask"].requires_grad_(kind == "learnt")
        truth, _ = run(sdpa, [t.double() for t in given], exact)
        if autocast:
            given = [t.float() for t in given]
        under = dtype if autocast else None
        ours, found = run(softmax, given, settings, under)
        theirs, expected = run(sdpa, given, settings, under)
        assert found == expected == dtype
        # a mask that learns in float32 has its gradient from scores that are rounded to float32
        floor = [0.0] * 4 + [4 * scale * torch.finfo(torch.float32).eps]
        for mine, other, least in zip(
            errors(ours, truth), errors(theirs, truth), floor, strict=False
        ):
            assert mine <= 2 * other + least, (kind, gqa, autocast)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "fusedmax", "pnormmax"])
@pytest.mark.parametrize("dtype", HALF)
def test_every_mapping_sees_scores_in_float32(name, dtype):
    q, k, v = inputs(dtype, 300, False)
    out = attention(q, k, v, name)
    exact = attention(*(t.double() for t in (q, k, v)), name)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), exact, rtol=eps, atol=2e-4)
    weights = attention_weights(q, k, name)
    assert weights.dtype == dtype
    torch.testing.assert_close(
        weights.double(), attention_weights(q.double(), k.double(), name), rtol=eps, atol=2e-4
    )


@pytest.mark.parametrize("autocast", HALF)
@pytest.mark.parametrize("dtype", [*HALF, torch.float32, F64])
def test_dtypes_under_autocast_are_pytorchs(dtype, autocast):
    q, k, v = inputs(dtype, 1, False)
    with torch.autocast("cpu", autocast):
        assert attention(q, k, v, "entmax15").dtype == sdpa(q, k, v).dtype


def test_dtypes_must_agree():
    q, k, v = inputs(torch.bfloat16, 1, False)
    with pytest.raises(TypeError, match="q and k must have the same dtype"):
        attention(q.float(), k, v, "softmax")


# -- on tensor cores ------------------------------------------------------------------------------


def test_products_on_tensor_cores(monkeypatch):
    """What a GPU computes, of products by PyTorch's CPU code: answers, gradients, and theirs."""
    calls = []

    def multiplied(a, b):
        assert a.dtype == b.dtype in HALF
        assert a.ndim == b.ndim == 3
        calls.append(a)
        return a.float() @ b.float()

    def all_of(given, gqa):
        leaves = [t.detach().requires_grad_() for t in given]
        out = attention(*leaves, "softmax", enable_gqa=gqa)
        first = torch.autograd.grad(out.float().square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.float().square().sum() for g in first), leaves)
        return [out, *first, *second]

    cases = [(inputs(dtype, 1, gqa), gqa) for dtype in HALF for gqa in (False, True)]
    q, k, v = inputs(torch.bfloat16, 1, False)
    cases += [([q[0, 0], k[0, 0], v[0, 0]], False), ([q, k[0], v[:1]], False)]
    cases += [([q, k[..., :0, :], v[..., :0, :]], False), ([q[:0], k[:0], v[:0]], False)]
    expected = [all_of(*case) for case in cases]
    monkeypatch.setattr(matmul, "_has_kernel", lambda a, b: True)
    monkeypatch.setattr(matmul, "multiplied", multiplied)
    for case, truth in zip(cases, expected, strict=True):
        for a, b in zip(all_of(*case), truth, strict=True):
            assert a.dtype == b.dtype
            size = b.abs().max().item() if b.numel() else 0
            eps = torch.finfo(b.dtype).eps
            torch.testing.assert_close(a, b, rtol=0, atol=8 * eps * max(size, 1))
    assert calls
