"""Long softmax attention on the CPU by PyTorch's blocks, beside the scores."""

from __future__ import annotations

import pytest
import torch

from regmax import kernels
from regmax.kernels.cpu import flash
from regmax.nn import attention

F64 = torch.float64
H, E = 3, 8


@pytest.fixture
def taken(monkeypatch):
    """The passes of the kernel, which takes short sequences too."""
    calls = []
    monkeypatch.setattr(flash, "FEWEST", 0)
    for step in ("forward", "backward"):
        inner = getattr(flash.FlashAttention, step)

        def call(*args, inner=inner, step=step):
            calls.append(step)
            return inner(*args)

        monkeypatch.setattr(flash.FlashAttention, step, call)
    torch.manual_seed(0)
    return calls


def tensors(queries=70, keys=70, dtype=F64):
    shapes = ((2, H, queries, E), (2, H, keys, E), (2, H, keys, E))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("gamma", [0.7, "learnt"])
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (40, 70), (70, 40)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_equal(queries, keys, is_causal, gamma, taken):
    inputs, more = tensors(queries, keys), []
    if gamma == "learnt":
        gamma = (0.5 + torch.rand(H, 1, 1, dtype=F64)).requires_grad_()
        more = [gamma]

    def found():
        out = attention(*inputs, "softmax", is_causal=is_causal, gamma=gamma)
        first = torch.autograd.grad(out.cos().sum(), inputs + more, retain_graph=True)
        graph = torch.autograd.grad(out.cos().sum(), inputs + more, create_graph=True)
        second = torch.autograd.grad(sum(t.square().sum() for t in graph), inputs + more)
        return [out, *first], second

    mine, twice = found()
    assert taken == ["forward", "backward", "backward"]  # the last one of second derivatives
    with kernels.reference():
        want, expected = found()
    torch.testing.assert_close(mine, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(twice, expected, rtol=1e-9, atol=1e-9)


def test_any_layout_and_scale(taken):
    rows = torch.randn(20, H, 4 * E, dtype=F64)[..., :E]
    shared = torch.randn(1, 30, E, dtype=F64, requires_grad=True)
    q = rows.transpose(0, 1).requires_grad_()

    def found():
        out = attention(q, shared, shared, "softmax", scale=-0.5)
        return [out, *torch.autograd.grad(out.sum(), (q, shared))]

    mine = found()
    assert taken == ["forward", "backward"]
    with kernels.reference():
        torch.testing.assert_close(mine, found(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "more",
    [
        {"attn_mask": torch.ones(70, 70, dtype=torch.bool)},
        {"sink": 0.5},
        {"dropout_p": 0.5},
        {"chunk": 10},
        {"gamma": torch.ones(70, 1, dtype=F64)},
        {"cu_seq_q": torch.tensor([0, 70])},
        {"omega": "sparsemax"},
    ],
)
def test_otherwise_scores_are_computed(more, taken):
    q, k, v = tensors()
    attention(q, k, v, **{"omega": "softmax", **more})
    assert taken == (["forward"] if "cu_seq_q" in more else [])


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_no_numbers(number, taken):
    for i in range(3):
        inputs = [t.detach() for t in tensors()]
        inputs[i][0, 1, 2, 3] = number
        mine = attention(*inputs, "softmax", is_causal=True)
        with kernels.reference():
            want = attention(*inputs, "softmax", is_causal=True)
        torch.testing.assert_close(mine, want, equal_nan=True)
    assert taken == []
