"""Attention by chunks over the support, beside all queries at once."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right

import regmax
from regmax.nn import AdaptiveEntmax, attention

pytest.importorskip("numba")

from regmax.kernels.cpu.sparse import Columns

F64 = torch.float64
QUERIES, KEYS, WIDTH, DEPTH = 37, 60, 20, 70


@pytest.fixture
def taken(monkeypatch):
    """How many chunks were computed over the support in the backward pass."""
    calls = []
    plain = Columns.add_gradients
    monkeypatch.setattr(Columns, "add_gradients", lambda *a: calls.append(1) or plain(*a))
    return calls


def inputs(heads=4, shared=2, scale=20.0, queries=QUERIES):
    torch.manual_seed(0)
    shapes = (2, heads, queries, WIDTH), (2, shared, KEYS, WIDTH), (2, shared, KEYS, DEPTH)
    q, k, v = (torch.randn(*shape, dtype=F64) for shape in shapes)
    return [t.requires_grad_() for t in (scale * q, k, v)]


def with_gradients(learnt, omega, chunk, **given):
    out = attention(*learnt[:3], omega, chunk=chunk, enable_gqa=True, **given)
    return out, *torch.autograd.grad((out * out.detach().cos()).sum(), learnt)


def compare(taken, learnt, omega, **given):
    whole = with_gradients(learnt, omega, learnt[0].shape[-2], **given)
    assert not taken
    parts = with_gradients(learnt, omega, 8, **given)
    assert len(taken) >= 3
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("omega", ["sparsemax", "entmax15", "pnormmax"])
@pytest.mark.parametrize("mask", [None, "causal", "lower right", "bool", "floating", "keys"])
def test_equal(taken, omega, mask):
    queries = KEYS if mask == "lower right" else QUERIES
    learnt, given = inputs(queries=queries), {"is_causal": mask == "causal"}
    learnt[0] = (learnt[0] * (1.5 if mask == "causal" else 1)).detach().requires_grad_()
    if mask == "lower right":
        given["attn_mask"] = causal_lower_right(queries, KEYS)
    elif mask == "bool":
        given["attn_mask"] = torch.rand(2, 1, queries, KEYS) < 0.8
    elif mask is not None and mask != "causal":
        shape = (4, queries, KEYS) if mask == "floating" else (2, 1, 1, KEYS)
        learnt.append(torch.randn(*shape, dtype=F64).requires_grad_())
        given["attn_mask"] = learnt[-1]
    compare(taken, learnt, omega, **given)


def test_learnt_numbers_and_a_sink(taken):
    learnt, omega = inputs(), AdaptiveEntmax(4).double()
    gamma = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=F64).view(4, 1, 1).requires_grad_()
    with torch.no_grad():
        omega.a.copy_(torch.linspace(0, 2, 4).view(4, 1, 1))
    each = torch.rand(QUERIES, 1, dtype=F64).add(0.5).requires_grad_()  # one number per query
    sink = torch.full((4, 1, 1), 3.0, dtype=F64, requires_grad=True)
    compare(taken, [*learnt, omega.a, gamma], omega, gamma=gamma)
    taken.clear()
    compare(taken, [*learnt, omega.a, each, sink], omega, gamma=each, sink=sink)
    taken.clear()
    scaled = 0.5 * regmax.regularizer("gini") + regmax.regularizer("tsallis", alpha=1.5)
    compare(taken, learnt, scaled)


def test_dense_weights_and_others_take_dense_products(taken):
    for omega, scale in (("softmax", 1.0), ("fusedmax", 20.0), ("oscarmax", 20.0)):
        learnt = inputs(scale=scale)
        whole, parts = (with_gradients(learnt, omega, n) for n in (QUERIES, 8))
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    assert not taken


def test_frozen_inputs_nan_and_queries_without_keys(taken):
    q, k, v = inputs()
    _, *expected = with_gradients([q, k, v], "sparsemax", QUERIES)
    given = (q.detach(), k, v.detach())
    out = attention(*given, "sparsemax", chunk=8, enable_gqa=True)
    (dk,) = torch.autograd.grad((out * out.detach().cos()).sum(), k)
    torch.testing.assert_close(dk, expected[1], rtol=1e-12, atol=1e-12)
    assert taken
    with torch.no_grad():
        q[0, 0, 3] = torch.nan
    mask = torch.ones(QUERIES, 1, dtype=torch.bool)
    mask[5] = False
    out = attention(q, k, v, "sparsemax", chunk=8, enable_gqa=True, attn_mask=mask)
    assert out[0, 0, 3].isnan().all()
    assert (out[:, :, 5] == 0).all()
    assert out[0, 0, 4].isfinite().all()
    with torch.no_grad():
        v[0, 0, 0] = torch.inf
    parts, whole = (
        attention(*(t[1:] for t in (q, k, v)), "sparsemax", chunk=n, enable_gqa=True)
        for n in (8, QUERIES)
    )
    torch.testing.assert_close(parts, whole)
