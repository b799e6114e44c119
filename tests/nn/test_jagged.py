"""Attention of jagged nested tensors beside that of each sequence, and PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from regmax.nn import AdaptiveEntmax, attention

F64 = torch.float64
H, E = 2, 3


def packed(lengths, seed, heads=H):
    """Rows (Σ L, H, E) that learn, and the nested tensor (N, H, L, E)."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randn(sum(lengths), heads, E, generator=g, dtype=F64).requires_grad_()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return rows, torch.nested.nested_tensor_from_jagged(rows, offsets).transpose(1, 2)


@pytest.mark.parametrize("is_causal", [False, True])
def test_each_sequence_is_computed_alone(is_causal):
    queries, keys = ([4, 1, 6], [4, 1, 6]) if is_causal else ([4, 1, 6], [3, 5, 2])
    rows = [packed(n, i)[0] for i, n in enumerate((queries, keys, keys))]
    nested = [packed(n, i) for i, n in enumerate((queries, keys, keys))]
    omega, sink = AdaptiveEntmax(H).double(), torch.zeros(H, 1, 1, dtype=F64)
    out = attention(*(t for _, t in nested), omega, is_causal=is_causal, sink=sink)
    assert out.shape == nested[0][1].shape
    parts = zip(
        *(t.split(n) for t, n in zip(rows, (queries, keys, keys), strict=True)), strict=True
    )
    expected = [
        attention(*(t.transpose(0, 1) for t in part), omega, is_causal=is_causal, sink=sink)
        for part in parts
    ]
    for a, b in zip(out.unbind(), expected, strict=True):
        torch.testing.assert_close(a, b)
    found = torch.autograd.grad(
        sum(t.cos().sum() for t in out.unbind()), [*(t for t, _ in nested), omega.a]
    )
    wanted = torch.autograd.grad(sum(t.cos().sum() for t in expected), [*rows, omega.a])
    torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_entropy_is_pytorchs():
    q, k, v = (packed([3, 5], i)[1].detach() for i in range(3))
    k = torch.nested.nested_tensor_from_jagged(k.transpose(1, 2).values(), q.offsets())
    v = torch.nested.nested_tensor_from_jagged(v.transpose(1, 2).values(), q.offsets())
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    found, expected = attention(q, k, v, "softmax"), sdpa(q, k, v)
    torch.testing.assert_close(found.transpose(1, 2).values(), expected.transpose(1, 2).values())


def test_without_heads():
    rows, lengths = torch.randn(7, E, dtype=F64), [3, 4]
    x = torch.nested.nested_tensor_from_jagged(rows, torch.tensor([0, 3, 7]))
    out = attention(x, x, x, "sparsemax")
    for a, row in zip(out.unbind(), rows.split(lengths), strict=True):
        torch.testing.assert_close(a, attention(row, row, row, "sparsemax"))


def test_wrong_arguments():
    _, q = packed([2, 3], 0)
    _, longer = packed([2, 3, 1], 0)
    with pytest.raises(TypeError, match=r"must all be nested tensors .* v is not nested"):
        attention(q, q, torch.ones(2, 2, 3, 3), "softmax")
    with pytest.raises(ValueError, match="lengths in dimension -2; k has"):
        attention(q, longer, longer, "softmax")
    with pytest.raises(ValueError, match="attn_mask must be None for nested"):
        attention(q, q, q, "softmax", attn_mask=torch.ones(1).bool())
