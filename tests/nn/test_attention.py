"""Attention beside PyTorch's scaled_dot_product_attention, and what holds for every Ω."""

from __future__ import annotations

import math
import re

import pytest
import torch
from mapping_checks import normal
from omegas import Cubic, Weighted, omega_of
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regmax
from regmax.functional import entmax15
from regmax.nn import (
    AdaptiveEntmax,
    MultiheadAttention,
    attention,
    attention_weights,
    chunks,
    explain_attention,
)

F64 = torch.float64
MAPPINGS = ("softmax", "sparsemax", "pnormmax", "entmax", "entmax15", "fusedmax", "oscarmax")
EXACT = {"rtol": 0, "atol": 1e-13}
L, S = 4, 6


def qkv(heads=2, shared=None, dtype=F64, seed=0):
    shared = heads if shared is None else shared
    shapes = ((3, heads, L, 5), (3, shared, S, 5), (3, shared, S, 7))
    return [
        normal(*shape, seed=seed + i, dtype=dtype).requires_grad_()
        for i, shape in enumerate(shapes)
    ]


def scores(q, k, scale=None):
    return q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)


def gradients(out, inputs, seed=9):
    return torch.autograd.grad((out * normal(*out.shape, seed=seed).to(out)).sum(), inputs)


def bools(*shape, seed=5):
    """A mask that leaves something of every row."""
    mask = normal(*shape, seed=seed) > 0
    mask[..., 2] = True
    return mask


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool": {"attn_mask": bools(L, S)},
    "bool of keys": {"attn_mask": bools(3, 1, 1, S)},
    "bool of all": {"attn_mask": bools(3, 2, L, S)},
    "float": {"attn_mask": normal(2, L, S, seed=6)},
    "float -inf": {"attn_mask": torch.where(bools(L, S), normal(L, S, seed=6), -torch.inf)},
    "float min": {"attn_mask": torch.where(bools(L, S), 0.0, normal(1) * 0 + torch.finfo(F64).min)},
}


@pytest.mark.parametrize("arguments", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("gqa", [False, True])
def test_entropy_is_pytorchs(arguments, gqa):
    inputs = qkv(*((2, 1) if gqa else (2, 2)))
    ours = attention(*inputs, "softmax", enable_gqa=gqa, **arguments)
    theirs = sdpa(*inputs, enable_gqa=gqa, **arguments)
    torch.testing.assert_close(ours, theirs, **EXACT)
    for a, b in zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


# -- every mapping --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "scale", "gamma"), [(1, None, 0.5), (1e6, 10.0, 1e-4), (1, 0.0, 1e4)]
)
@pytest.mark.parametrize("name", MAPPINGS)
def test_it_is_the_mapping_of_the_scores(name, size, scale, gamma):
    q, k, v = (t.detach().mul(s).requires_grad_() for t, s in zip(qkv(), (size, 1, 1), strict=True))
    mask = bools(3, 1, L, S)
    given = {"scale": scale, "gamma": gamma}
    weights = getattr(regmax.functional, name)(scores(q, k, scale), gamma=gamma, mask=mask)
    ours = attention_weights(q, k, name, attn_mask=mask, **given)
    torch.testing.assert_close(ours, weights, **EXACT)
    out = attention(q, k, v, name, attn_mask=mask, **given)
    torch.testing.assert_close(out, weights @ v, **EXACT)
    left_out = torch.where(mask, 0.0, -torch.inf).double()
    added = attention(q, k, v, name, attn_mask=left_out, **given)
    torch.testing.assert_close(added, out, **EXACT)
    assert all(g.isfinite().all() for g in gradients(out, [q, k, v]))


@pytest.mark.parametrize("name", ["softmax", "entmax15", "fusedmax"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_queries_without_keys_give_zeros(name, kind):
    inputs = qkv()
    mask = bools(L, S)
    mask[1] = False
    if kind == "float":
        mask = torch.where(mask, 0.0, -torch.inf).double()
    out = attention(*inputs, name, attn_mask=mask)
    assert (out[..., 1, :] == 0).all()
    assert out[..., 0, :].all()
    assert all(g.isfinite().all() for g in gradients(out, inputs))


def test_dropout():
    q, k, v = qkv()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = attention(q, k, v, "entmax15", dropout_p=0.5)
        torch.manual_seed(0)
        weights = torch.dropout(entmax15(scores(q, k)), 0.5, True)
    torch.testing.assert_close(out, weights @ v, **EXACT)
    assert (attention(q, k, v, "entmax15", dropout_p=1.0) == 0).all()


# -- masks that are more than tensors --------------------------------------------------------------

CAUSAL = {"upper left": causal_upper_left, "lower right": causal_lower_right}


@pytest.mark.parametrize("made", CAUSAL.values(), ids=CAUSAL)
def test_causal_biases_are_pytorchs(made):
    q, k, v = qkv(4, 2)
    for rows, keys in ((L, S), (L, L), (1, S), (1, 1)):
        inputs = [q[..., :rows, :], k[..., :keys, :], v[..., :keys, :]]
        bias = made(rows, keys)
        ours = attention(*inputs, "softmax", attn_mask=bias, enable_gqa=True)
        theirs = sdpa(*inputs, attn_mask=bias, enable_gqa=True)
        torch.testing.assert_close(ours, theirs, **EXACT)
        for a, b in zip(gradients(ours, [q, k, v]), gradients(theirs, [q, k, v]), strict=True):
            torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
def test_queries_that_a_lower_right_bias_leaves_no_key_give_zeros():
    k, q, v = (t.detach().requires_grad_() for t in qkv())  # S queries, L keys
    v = normal(3, 2, L, 7)
    out = attention(q, k, v, "entmax15", attn_mask=causal_lower_right(S, L))
    assert (out[..., : S - L, :] == 0).all()
    assert out[..., S - L :, :].all()
    assert all(g.isfinite().all() for g in gradients(out, [q, k]))


def test_a_causal_bias_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"= \(3, 2, 4, 6\); got \(4, 5\)"):
        attention(*qkv(), "softmax", attn_mask=causal_upper_left(L, 5))


def test_other_subclasses_are_refused():
    class Bias(torch.Tensor):
        """What it adds is not what it holds."""

    class Sliding(CausalBias):
        """Not a triangle, maybe."""

    mask = torch.zeros(L, S, dtype=F64)
    assert attention(*qkv(), "softmax", attn_mask=torch.nn.Parameter(mask)).isfinite().all()
    with pytest.raises(TypeError, match=r"must be a plain Tensor, a CausalBias .* got Bias"):
        attention(*qkv(), "softmax", attn_mask=mask.as_subclass(Bias))
    with pytest.raises(TypeError, match="got Sliding"):
        attention(*qkv(), "softmax", attn_mask=Sliding(causal_upper_left(L, S).variant, L, S))


def test_masks_that_stand_for_others():
    """Tensors of transforms and tracers are masks as any other."""
    q, k, v = (t.detach() for t in qkv())
    many = normal(5, L, S)
    each = torch.stack([attention(q, k, v, "entmax15", attn_mask=m) for m in many])
    mapped = torch.func.vmap(lambda m: attention(q, k, v, "entmax15", attn_mask=m))(many)
    torch.testing.assert_close(mapped, each, **EXACT)
    for mode in ("real", "fake"):
        traced = torch.fx.experimental.proxy_tensor.make_fx(
            lambda *a: attention(*a[:3], "entmax15", attn_mask=a[3]), tracing_mode=mode
        )(q, k, v, many[0])
        torch.testing.assert_close(traced(q, k, v, many[1]), each[1], **EXACT)


# -- sequences in parts ---------------------------------------------------------------------------


@pytest.fixture
def mesh():
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch.distributed has no gloo here")
    if distributed.is_initialized():
        pytest.skip("there is a process group already")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_context_parallel_is_refused(mesh):
    experimental = pytest.importorskip("torch.distributed.tensor.experimental")
    q, k, v = (normal(2, 2, 8, 4, seed=i) for i in range(3))
    layer = MultiheadAttention(4, 2, omega="entmax15", batch_first=True, dtype=F64)
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, "entmax15"), backend="aot_eager", fullgraph=True
    )
    calls = {
        "attention": lambda: attention(q, k, v, "entmax15"),
        "weights": lambda: attention_weights(q, k, "entmax15"),
        "layer": lambda: layer(q[0], k[0], v[0]),
        "compiled": lambda: compiled(q, k, v),
    }
    for call in calls.values():
        call()
    buffers = {"buffers": [q, k, v], "buffer_seq_dims": [2, 2, 2]}
    with experimental.context_parallel(mesh, **buffers):
        for name, call in calls.items():
            error = RuntimeError if name == "compiled" else NotImplementedError
            with pytest.raises(error, match="context_parallel leaves each process a part of them"):
                call()
    for call in calls.values():
        call()


# -- sizes of 0 -----------------------------------------------------------------------------------

ZERO = {
    "no key": ((2, 4, 3, 5), (2, 2, 0, 5), (2, 2, 0, 7)),
    "no feature": ((2, 4, 3, 0), (2, 2, 6, 0), (2, 2, 6, 7)),
    "no query": ((2, 4, 0, 5), (2, 2, 6, 5), (2, 2, 6, 7)),
    "no batch": ((0, 4, 3, 5), (0, 2, 6, 5), (0, 2, 6, 7)),
    "no value": ((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 0)),
}


@pytest.mark.parametrize("dtype", [F64, torch.bfloat16])
@pytest.mark.parametrize("shapes", ZERO.values(), ids=ZERO)
def test_sizes_of_zero_are_pytorchs(shapes, dtype):
    (rows, _), (keys, _) = (shape[-2:] for shape in shapes[:2])
    tolerance = EXACT if dtype == F64 else {"rtol": 0.01, "atol": 0.01}
    for gqa, arguments in [
        (gqa, arguments)
        for gqa in (False, True)
        for arguments in (
            {},
            {"is_causal": True},
            {"attn_mask": torch.ones(rows, keys, dtype=torch.bool)},
            {"attn_mask": normal(rows, keys).to(dtype)},
        )
    ]:
        own = shapes
        if not gqa:  # all have q's heads
            own = [(shape[0], shapes[0][1], *shape[2:]) for shape in shapes]
        inputs = [
            normal(*shape, seed=i, dtype=dtype).requires_grad_() for i, shape in enumerate(own)
        ]
        ours = attention(*inputs, "softmax", enable_gqa=gqa, **arguments)
        theirs = sdpa(*inputs, enable_gqa=gqa, **arguments)
        torch.testing.assert_close(ours, theirs, **tolerance)
        found, expected = gradients(ours, inputs), gradients(theirs, inputs)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, **tolerance)
        for name in ("fusedmax", "entmax15"):
            out = attention(*inputs, name, enable_gqa=gqa, **arguments)
            assert out.shape == theirs.shape
            assert keys or (out == 0).all()
            gradients(out, inputs)


# -- chunks of queries, and sinks ------------------------------------------------------------------


def with_gradients(inputs, *args, **kwargs):
    out = attention(*inputs[:3], *args, **kwargs)
    return (out, *torch.autograd.grad((out * out.detach().cos()).sum(), inputs))


@pytest.mark.parametrize("chunk", [None, 2, 4])
@pytest.mark.parametrize("what", ["declared", "hidden", "gamma", "attn_mask", "sink"])
def test_one_row_for_each_query_of_a_chunk_is_refused(what, chunk):
    """With 6 queries nothing of 2 rows broadcasts; it would serve each chunk of 2."""
    rows, given, omega = torch.rand(2, 1, dtype=F64) + 0.5, {}, Cubic()
    if what == "declared":
        omega = regmax.regularizer("tsallis", alpha=rows + 1)
    elif what == "hidden":
        omega = Weighted(rows * torch.ones(5, dtype=F64))
    else:
        given[what] = rows * torch.ones(5, dtype=F64) if what == "attn_mask" else rows
    q, k = normal(6, 3), normal(5, 3)
    with pytest.raises(ValueError, match="broadcast to"):
        attention(q, k, k, omega, chunk=chunk, **given)


def test_a_matrix_inside_omega_with_as_many_rows_as_a_chunk():
    class Mapped(Weighted):
        def value(self, y):
            return y.square().sum(-1) + (y @ self.w.mT).square().sum(-1)

    omega, q, k = Mapped(normal(2, 5)), normal(6, 3), normal(5, 3)
    torch.testing.assert_close(*(attention(q, k, k, omega, chunk=c) for c in (2, None)))


def test_long_sequences_take_chunks(monkeypatch):
    """By their size, where autograd records and where it does not; learnt α and half precision."""
    monkeypatch.setattr(chunks, "SCORES", {"cpu": 64})
    sizes = []
    monkeypatch.setattr(chunks, "_FEWEST", 1)
    plain = chunks.Chunks.forward
    monkeypatch.setattr(
        chunks.Chunks, "forward", lambda way, *a: sizes.append(way.chunk) or plain(way, *a)
    )
    q, k, v = (normal(1, 2, 40, 3).float().requires_grad_() for _ in range(3))
    omega = AdaptiveEntmax(2)
    own = [q, k, v, omega.a]
    whole = with_gradients(own, omega, is_causal=True, chunk=40)
    assert not sizes
    torch.testing.assert_close(with_gradients(own, omega, is_causal=True), whole)
    with torch.no_grad():
        torch.testing.assert_close(attention(q, k, v, omega, is_causal=True), whole[0])
    half = attention(*(t.bfloat16() for t in (q, k, v)), omega, is_causal=True)
    torch.testing.assert_close(half, whole[0].bfloat16(), atol=0.05, rtol=0.05)
    assert sizes == [1, 1, 1]
    layer = MultiheadAttention(8, 2, batch_first=True, omega="entmax15")
    x = normal(1, 40, 8).float()
    out, weights = layer(x, x, x, need_weights=False)
    assert weights is None
    assert len(sizes) == 4
    torch.testing.assert_close(out, layer(x, x, x)[0])
    attention(q, k, v, Weighted(torch.rand(40, 1) + 1))  # all queries
    assert len(sizes) == 4


def test_chunks_drop_weights_as_often_and_repeat_them_in_backward():
    q, v = torch.zeros(2, 30, 4, dtype=F64), torch.ones(2, 30, 4, dtype=F64, requires_grad=True)
    torch.manual_seed(0)
    out = attention(q, normal(2, 30, 4), v, "softmax", dropout_p=0.5, chunk=7)
    (dv,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close(out.sum(), dv.sum())  # linear in v, by the same weights
    assert 0.8 < out.mean() < 1.2
    assert out.std() > 0.05
    assert not torch.equal(out[:, :7], out[:, 7:14])  # each chunk by its own


@pytest.mark.parametrize("learns", [(), "q", "k", "v"])
def test_chunks_refuse_a_hidden_tensor_that_learns(learns):
    w = torch.ones(6, dtype=F64, requires_grad=True)

    hidden = omega_of(lambda y: (w * y.square()).sum(-1))
    q, k, v = (normal(6, 2).requires_grad_(name in learns) for name in "qkv")
    with pytest.raises(regmax.RegularizerError, match="requires grad and is not one of its"):
        attention(q, k, v, hidden, chunk=2)


def test_a_sink_takes_what_no_key_gets():
    q, k, v = qkv()
    s = attention_weights(q, k, "entmax15", sink=0.5)
    rows = torch.cat([q @ k.mT / q.shape[-1] ** 0.5, torch.full_like(q[..., :1], 0.5)], -1)
    torch.testing.assert_close(s, entmax15(rows)[..., :-1], **EXACT)
    assert (s.sum(-1) < 1).any()
    hidden = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.bool)
    assert (attention(q, k, v, "entmax15", attn_mask=hidden, sink=0.0) == 0).all()
    layer = MultiheadAttention(8, 2, omega="softmax", sink=True, dtype=F64)
    x = normal(5, 1, 8)
    weights = layer(x, x, x)[1]
    assert (weights.sum(-1) < 1).all()
    assert layer.sink.shape == (2, 1, 1)
    layer(x, x, x)[0].sum().backward()
    assert layer.sink.grad.abs().min() > 0


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("gqa", [False, True])
def test_a_sink_for_each_head(gqa, chunk):
    """(heads,), as models store sinks, is (heads, 1, 1)."""
    inputs = qkv(4, 2 if gqa else 4)
    sink = normal(4).requires_grad_()
    given = {"enable_gqa": gqa, "chunk": chunk}
    out = attention(*inputs, "entmax15", sink=sink, **given)
    same = attention(*inputs, "entmax15", sink=sink[:, None, None], **given)
    assert torch.equal(out, same)
    torch.testing.assert_close(
        gradients(out, [*inputs, sink]), gradients(same, [*inputs, sink]), **EXACT
    )
    q, k, _ = inputs
    sinks = (sink, sink.view(4, 1, 1))
    found = (attention_weights(q, k, "entmax15", sink=s, enable_gqa=gqa) for s in sinks)
    torch.testing.assert_close(*found, **EXACT)


def test_a_scale_that_learns():
    q, k, v = (t.detach() for t in qkv())
    scale = torch.tensor(0.3, dtype=F64, requires_grad=True)
    found = [
        torch.autograd.grad(attention(q, k, v, "entmax15", scale=scale, chunk=c).cos().sum(), scale)
        for c in (None, 2)
    ]
    assert found[0][0] != 0
    torch.testing.assert_close(*found)


def test_chunks_take_a_batch_of_gradients():
    q, k, v = qkv()
    out = attention(q, k, v, "entmax15", chunk=2)
    many = normal(3, *out.shape)
    found = torch.autograd.grad(out, q, many, retain_graph=True, is_grads_batched=True)[0]
    each = [torch.autograd.grad(out, q, one, retain_graph=True)[0] for one in many]
    torch.testing.assert_close(found, torch.stack(each), **EXACT)


# -- which way, and why ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("whole: a chunk takes all queries; Ω has no attention kernel", {"omega": "sparsemax"}),
        ("chunks: of 2 queries; a chunk is asked for", {"chunk": 2}),
        ("sequences: each packed sequence alone; ", {"cu_seq_q": torch.tensor([0, L])}),
        ("whole: .*; weights that are not in memory cannot", {"certify": True}),
        ("whole: scale requires grad", {"scale": torch.ones((), requires_grad=True)}),
    ],
)
def test_the_way_is_explained(way, options):
    q, k, v = (t[..., :L, :] for t in qkv())
    assert re.match(way, explain_attention(q, k, v, **{"omega": "softmax", **options}))


def test_the_kernel_is_explained(monkeypatch):
    monkeypatch.setattr("regmax.kernels.cpu.flash.FEWEST", 0)
    q = normal(1, 2, L, 5)
    assert explain_attention(q, q, q, "softmax") == "kernel: scores are not in memory"
    half = (
        "kernel: scores are not in memory",
        "whole: a chunk takes all queries; the kernel does not take these dtypes",
    )
    assert [explain_attention(*(t,) * 3, "softmax") for t in (q, q.bfloat16())] == list(half)
    found = []
    torch.func.vmap(lambda t: (found.append(explain_attention(t, t, t, "softmax")), t)[1])(q)
    assert found == ["whole: in a graph, under a transform or of wrapped tensors"]


# -- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "attn_mask must be None where is_causal=True", {"is_causal": True}),
        (TypeError, "attn_mask must be bool .* got torch.int64", {"attn_mask": bools(L, S).long()}),
        (TypeError, "attn_mask must be a Tensor or None; got list", {"attn_mask": [True]}),
        (ValueError, r"= \(3, 2, 4, 6\); got \(5, 6\)", {"attn_mask": torch.ones(5, S)}),
        (ValueError, r"got \(1, 1, 1, 1, 6\)", {"attn_mask": torch.ones(1, 1, 1, 1, S)}),
        (ValueError, "omega must be one of .*entmax15.*; got 'hardmax'", {"omega": "hardmax"}),
        (TypeError, r"omega must be a regmax\.Regularizer.* got function", {"omega": entmax15}),
        (ValueError, "with the same E; got", {"k": torch.ones(3, 2, S, 4, dtype=F64)}),
        (ValueError, "with the same S; got", {"v": torch.ones(3, 2, 5, 7, dtype=F64)}),
        (ValueError, "must be a multiple of k's", {"k": normal(3, 4, S, 5), "enable_gqa": True}),
        (ValueError, "True where k has fewer heads; got", {"k": normal(3, 4, S, 5)}),
        (ValueError, "gamma must be > 0; got -1", {"gamma": -1.0}),
        (ValueError, "sink must broadcast to .* got \\(7,\\)", {"sink": torch.zeros(7)}),
        (ValueError, "chunk must be an int >= 1 or None; got 0", {"chunk": 0}),
        (ValueError, r"dropout_p must be a number in \[0, 1\]; got -0.5", {"dropout_p": -0.5}),
        (ValueError, r"dropout_p must be a number in \[0, 1\]; got 'a'", {"dropout_p": "a"}),
        (ValueError, "scale must be a number, .* or None; got nan", {"scale": float("nan")}),
        (ValueError, "sink must be a number, .* or None; got 'a'", {"sink": "a"}),
        (TypeError, "v must be a floating tensor; got", {"v": bools(3, 2, S, 7).long()}),
        (ValueError, r"or have shape \(heads,\); got \(3,\)", {"sink": torch.zeros(3)}),
        (
            ValueError,
            "chunk must be None for Weighted.*its tensor 'w' has 4 rows",
            {"omega": Weighted(torch.rand(L, 1)), "chunk": 2},
        ),
    ],
)  # fmt: skip
def test_wrong_arguments(error, message, change):
    q, k, v = qkv()
    arguments = {"q": q, "k": k, "v": v, "omega": "entmax15", "attn_mask": torch.zeros(L, S)}
    attention(**arguments)
    with pytest.raises(error, match=message):
        attention(**{**arguments, **change})


def test_a_name_that_needs_arguments(monkeypatch):
    class Needy(regmax.Regularizer):
        name = "needy"

        def __init__(self, weight):
            self.weight = weight

    known = regmax.regularizers.registry.registry()
    offer = regmax.regularizers.registry.Offer("needy", Needy, "mine", "mine 1.0")
    monkeypatch.setitem(known._offers["regularizer"], "needy", [offer])
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"'needy' has no default for weight.*weight=\.\.\."):
        attention(q, k, v, "needy")
