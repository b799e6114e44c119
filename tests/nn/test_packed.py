"""Attention of packed sequences and jagged nested tensors beside dense weights, and PyTorch's."""

from __future__ import annotations

import pytest
import torch
from omegas import Quartic
from torch.nn.functional import scaled_dot_product_attention as sdpa

from regmax.nn import AdaptiveEntmax, attention, attention_weights

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


def test_wrong_arguments():
    _, q = packed([2, 3], 0)
    _, longer = packed([2, 3, 1], 0)
    with pytest.raises(TypeError, match=r"must all be nested tensors .* v is not nested"):
        attention(q, q, torch.ones(2, 2, 3, 3), "softmax")
    with pytest.raises(ValueError, match="lengths in dimension -2; k has"):
        attention(q, longer, longer, "softmax")
    with pytest.raises(ValueError, match="attn_mask must be None for nested"):
        attention(q, q, q, "softmax", attn_mask=torch.ones(1).bool())
    with pytest.raises(ValueError, match="must be None for nested q, k and v, which hold them"):
        attention(q, q, q, "softmax", cu_seq_q=q.offsets())


LENGTHS = ([4, 0, 1, 6], [3, 2, 0, 9])
MAPPINGS = ("softmax", "sparsemax", "entmax15", "pnormmax", "fusedmax", "oscarmax", Quartic())


def dense(lengths, is_causal):
    """Which keys each query sees, (L, S)."""
    blocks = [torch.ones(n, m, dtype=torch.bool) for n, m in zip(*lengths, strict=True)]
    return torch.block_diag(*(b.tril() if is_causal else b for b in blocks)).bool()


@pytest.mark.parametrize("more", [{}, {"chunk": 2}, {"is_causal": True}, {"sink": True}])
@pytest.mark.parametrize("omega", MAPPINGS, ids=str)
def test_packed_is_dense_with_a_mask(omega, more):
    g = torch.Generator().manual_seed(0)
    sizes = [(4, sum(LENGTHS[0]), 5), (2, sum(LENGTHS[1]), 5), (2, sum(LENGTHS[1]), 3)]
    inputs = [torch.randn(n, generator=g, dtype=F64).requires_grad_() for n in sizes]
    gamma = (0.5 + torch.rand(4, 1, 1, generator=g, dtype=F64)).requires_grad_()
    sink = torch.zeros(4, 1, 1, dtype=F64, requires_grad=True) if "sink" in more else None
    places = [torch.tensor([0, *n]).cumsum(0) for n in LENGTHS]
    out = attention(
        *(*inputs, omega),
        **{**more, "sink": sink},
        gamma=gamma,
        enable_gqa=True,
        cu_seq_q=places[0].int(),
        cu_seq_k=places[1],
    )
    q, k, v = inputs
    taking = dense(LENGTHS, "is_causal" in more)
    weights = attention_weights(
        q, k, omega, attn_mask=taking, enable_gqa=True, gamma=gamma, sink=sink
    )
    want = weights @ v.repeat_interleave(2, 0)
    learnt = [*inputs, gamma, *([] if sink is None else [sink])]
    results = [[t, *torch.autograd.grad(t.cos().sum(), learnt)] for t in (out, want)]
    tolerance = 1e-12 if isinstance(omega, str) else 1e-7  # what the solver certifies
    torch.testing.assert_close(*results, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("of_q", "of_k", "error", "text"),
    [
        ([1, 5], None, ValueError, "cu_seq_q must start at 0; got 1"),
        ([0, 4, 3, 5], None, ValueError, "cu_seq_q must not decrease; got 3 after 4"),
        ([0, 7], None, ValueError, "cu_seq_q must end at the length of q, 5; got 7"),
        ([0, 4], None, ValueError, "cu_seq_q must end at the length of q, 5; got 4"),
        ([0, 5], [0, 5], ValueError, "cu_seq_k must end at the length of k, 6; got 5"),
        ([0, 2, 5], [0, 6], ValueError, "same number of sequences; got 2 and 1"),
        ([0], [0, 6], ValueError, r"shape \(N \+ 1,\) for N >= 1 sequences; got \(1,\)"),
        ([[0, 5]], [0, 6], ValueError, r"shape \(N \+ 1,\) for N >= 1 sequences; got \(1, 2\)"),
        ([0.0, 5.0], [0, 6], TypeError, "must be an int32 or int64 tensor; got torch.float32"),
        ([0, 5], None, ValueError, "cu_seq_k must be given where k is not as long as q"),
        (None, [0, 6], ValueError, "cu_seq_q must be given where cu_seq_k is; got None"),
    ],
)
def test_wrong_offsets(of_q, of_k, error, text):
    q, k = torch.zeros(2, 5, 4), torch.zeros(2, 6, 4)
    places = [None if n is None else torch.tensor(n) for n in (of_q, of_k)]
    with pytest.raises(error, match=text):
        attention(q, k, k, "softmax", cu_seq_q=places[0], cu_seq_k=places[1])


def test_wrong_arguments_of_packed_sequences():
    q = torch.zeros(2, 5, 4)
    with pytest.raises(TypeError, match="must be an int32 or int64 tensor; got list"):
        attention(q, q, q, "softmax", cu_seq_q=[0, 5])
    mask, whole = torch.ones(5, 5, dtype=torch.bool), torch.tensor([0, 5])
    with pytest.raises(ValueError, match="attn_mask must be None for nested or packed q"):
        attention(q, q, q, "softmax", cu_seq_q=whole, attn_mask=mask)
