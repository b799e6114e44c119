"""MultiheadAttention beside PyTorch's, in its layers, and with hyperparameters that learn."""

from __future__ import annotations

import copy

import pytest
import torch
from mapping_checks import normal
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from regmax.nn import MultiheadAttention, attention_weights

F64 = torch.float64
EXACT = {"rtol": 0, "atol": 1e-12}
N, L, S, E, H = 3, 4, 5, 8, 2
OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
    "kdim": {"kdim": 6, "vdim": 7},
    "kdim and both": {"kdim": 6, "add_bias_kv": True, "add_zero_attn": True, "bias": False},
}


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = make()
        state = torch.get_rng_state()
    return made, state


def pair(omega="softmax", **options):
    """PyTorch's layer and ours, with the same weights, none of them 0."""
    theirs, _ = seeded(lambda: nn.MultiheadAttention(E, H, dtype=F64, **options))
    for i, weight in enumerate(theirs.parameters()):
        weight.data = normal(*weight.shape, seed=i) / 2
    ours = MultiheadAttention(E, H, dtype=F64, omega=omega, **options)
    ours.load_state_dict(theirs.state_dict(), strict=omega == "softmax")
    return ours, theirs


def inputs(layer, batched=True):
    sizes = ((L, E), (S, layer.kdim), (S, layer.vdim))
    found = []
    for i, (n, size) in enumerate(sizes):
        t = normal(N, n, size, seed=20 + i)
        t = t if batched and layer.batch_first else t.transpose(0, 1)
        found.append((t if batched else t[:, 0]).requires_grad_())
    return found


def bools(*shape, seed=5):
    """True = left out, but for one in each row."""
    mask = normal(*shape, seed=seed) > 0
    mask[..., 2] = False
    return mask


def floats(*shape, seed=6):
    return normal(*shape, seed=seed).masked_fill(bools(*shape), -torch.inf)


MASKS = {
    "none": {},
    "2-D": {"attn_mask": bools(L, S)},
    "2-D float": {"attn_mask": floats(L, S)},
    "3-D": {"attn_mask": bools(N * H, L, S)},
    "3-D float": {"attn_mask": floats(N * H, L, S)},
    "padding": {"key_padding_mask": bools(N, S)},
    "padding float": {"key_padding_mask": floats(N, S)},
    "two": {"attn_mask": bools(L, S), "key_padding_mask": bools(N, S, seed=7)},
    "two float": {"attn_mask": floats(N * H, L, S), "key_padding_mask": floats(N, S, seed=7)},
}


def same(ours, theirs):
    torch.testing.assert_close(ours[0], theirs[0], **EXACT)
    assert (ours[1] is None) == (theirs[1] is None)
    if ours[1] is not None:
        torch.testing.assert_close(ours[1], theirs[1], **EXACT)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_entropy_is_pytorchs(options, masks):
    for batch_first in (False, True):
        ours, theirs = pair(batch_first=batch_first, **options)
        given = inputs(ours)
        for want in ({}, {"average_attn_weights": False}, {"need_weights": False}):
            same(ours(*given, **masks, **want), theirs(*given, **masks, **want))
        gradients = []
        for layer in (ours, theirs):
            out = layer(*given, **masks)[0]
            leaves = [*given, *layer.parameters()]
            gradients.append(torch.autograd.grad((out * normal(*out.shape, seed=9)).sum(), leaves))
        torch.testing.assert_close(*gradients, **EXACT)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_entropy_is_pytorchs_without_a_batch(options):
    ours, theirs = pair(**options)
    given = inputs(ours, batched=False)
    for masks in (
        {},
        {"attn_mask": bools(L, S)},
        {"attn_mask": floats(H, L, S)},
        {"key_padding_mask": bools(S)},
    ):
        for want in ({}, {"average_attn_weights": False}, {"need_weights": False}):
            same(ours(*given, **masks, **want), theirs(*given, **masks, **want))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_self_attention(batch_first, training):
    ours, theirs = (layer.train(training) for layer in pair(batch_first=batch_first))
    x = normal(N, L, E) if batch_first else normal(L, N, E)
    causal = nn.Transformer.generate_square_subsequent_mask(L, dtype=F64)
    hint = {"attn_mask": causal, "is_causal": True, "need_weights": False}
    with torch.no_grad():
        for arguments in ({}, {"attn_mask": causal}, hint):
            same(ours(x, x, x, **arguments), theirs(x, x, x, **arguments))


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_causal_biases(options):
    """PyTorch's own layer refuses them, or reads memory that nobody wrote."""
    ours, theirs = pair(batch_first=True, **options)
    given = inputs(ours)
    padding = bools(N, S, seed=7)
    padding[:, 0] = False  # every query has a key
    for bias, offset in ((causal_upper_left(L, S), 0), (causal_lower_right(L, S), S - L)):
        left_out = ~torch.ones(L, S, dtype=torch.bool).tril(offset)
        for more in ({}, {"key_padding_mask": padding}, {"need_weights": False}):
            found = ours(*given, attn_mask=bias, **more)
            same(found, theirs(*given, attn_mask=left_out, **more))
        with pytest.raises(TypeError, match=r"key_padding_mask must be a plain .* got CausalBias"):
            ours(*given, key_padding_mask=bias)


def test_dropout_is_of_weights():
    ours, theirs = pair(dropout=0.5)
    given = inputs(ours)
    results = []
    for layer in (ours, theirs):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            results.append(layer(*given, average_attn_weights=False))
    same(results[0], (results[0][0], results[1][1].view_as(results[0][1])))
    same(ours.eval()(*given), theirs.eval()(*given))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_states_and_initial_weights(options):
    theirs, after = seeded(lambda: nn.MultiheadAttention(E, H, **options))
    ours, later = seeded(lambda: MultiheadAttention(E, H, omega="entmax15", **options))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert torch.equal(after, later)
    theirs.load_state_dict(ours.state_dict())
    for name, weight in ours.named_parameters():
        assert weight.shape == theirs.get_parameter(name).shape


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_from_torch(options):
    _, theirs = pair(dropout=0.1, batch_first=True, **options)
    theirs.eval().out_proj.weight.requires_grad_(False)
    ours = MultiheadAttention.from_torch(theirs, "softmax", gamma=1.0)
    assert (ours.training, ours.dropout, ours.batch_first) == (False, 0.1, True)
    assert [p.requires_grad for p in ours.parameters()] == [
        p.requires_grad for p in theirs.parameters()
    ]
    given = inputs(ours)
    same(ours(*given), theirs(*given))
    assert not {p.data_ptr() for p in ours.parameters()} & {
        p.data_ptr() for p in theirs.parameters()
    }


def test_the_weights_are_the_mappings():
    ours, theirs = pair("entmax15", batch_first=True)
    given = inputs(ours)
    q, k, _ = (
        (t @ w.T + b).unflatten(-1, (H, -1)).transpose(1, 2)
        for t, w, b in zip(
            given, theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        )
    )
    _, weights = ours(*given, average_attn_weights=False)
    torch.testing.assert_close(weights, attention_weights(q, k, "entmax15"), **EXACT)
    assert (weights == 0).any()


@pytest.mark.parametrize("name", ["softmax", "entmax15", "fusedmax"])
def test_queries_without_keys(name):
    ours, _ = pair(name)
    given = inputs(ours)
    mask = bools(L, S)
    mask[1] = True
    out, weights = ours(*given, attn_mask=mask)
    assert (weights[:, 1] == 0).all()
    torch.testing.assert_close(out[1], ours.out_proj.bias.expand(N, -1), **EXACT)
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in given)


# -- inside PyTorch's layers ----------------------------------------------------------------------


def encoder_layer(norm_first=False):
    layer, _ = seeded(
        lambda: nn.TransformerEncoderLayer(
            E, H, 16, 0.0, batch_first=True, norm_first=norm_first, dtype=F64
        )
    )
    return layer


def swapped(layer, omega="sparsemax"):
    layer = copy.deepcopy(layer)
    layer.self_attn = MultiheadAttention.from_torch(layer.self_attn, omega)
    return layer


def slowly(layer, *args, **kwargs):
    """What the layer says in training, where PyTorch has no fast path."""
    return layer.train()(*args, **kwargs).detach()


PADDING = torch.tensor([[False] * 4, [False, False, True, True], [False, True, True, True]])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padding", [None, PADDING])
def test_the_fast_path_asks_us(norm_first, padding):
    plain, x = encoder_layer(norm_first), 2 * normal(N, L, E)
    ours = swapped(plain)
    expected = slowly(ours, x, src_key_padding_mask=padding)
    with torch.inference_mode():
        fast = ours.eval()(x, src_key_padding_mask=padding)
        softmax = plain.eval()(x, src_key_padding_mask=padding)
    torch.testing.assert_close(fast, expected, **EXACT)
    assert (fast - softmax).abs().max() > 0.01


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_whose_layers_were_swapped(monkeypatch):
    """It makes nested tensors of padded ones."""
    nested = []
    monkeypatch.setattr(
        MultiheadAttention,
        "_nested",
        lambda *args, f=MultiheadAttention._nested: nested.append(1) or f(*args),
    )
    encoder, x = nn.TransformerEncoder(encoder_layer(), 2), normal(N, L, E)
    for layer in encoder.layers:
        layer.self_attn = MultiheadAttention.from_torch(layer.self_attn, "sparsemax")
    expected = slowly(encoder, x, src_key_padding_mask=PADDING)
    assert not nested
    with torch.no_grad():
        fast = encoder.eval()(x, src_key_padding_mask=PADDING)
    assert len(nested) == 2
    torch.testing.assert_close(fast[~PADDING], expected[~PADDING], **EXACT)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_go_without_masks():
    ours, _ = pair(batch_first=True)
    x = torch.nested.nested_tensor([normal(2, E), normal(3, E)])
    assert ours(x, x, x)[0].is_nested
    with pytest.raises(ValueError, match="a nested query must be key and value too"):
        ours(x, x, x, key_padding_mask=bools(2, 3))


def test_a_decoder_layer():
    layer, _ = seeded(lambda: nn.TransformerDecoderLayer(E, H, 16, 0.0, dtype=F64))
    ours = copy.deepcopy(layer)
    for name in ("self_attn", "multihead_attn"):
        setattr(ours, name, MultiheadAttention.from_torch(getattr(ours, name), "softmax"))
    x, memory = normal(L, N, E), normal(S, N, E, seed=1)
    mask = nn.Transformer.generate_square_subsequent_mask(L, dtype=F64)
    arguments = {"tgt_mask": mask, "memory_key_padding_mask": floats(N, S), "tgt_is_causal": True}
    torch.testing.assert_close(ours(x, memory, **arguments), layer(x, memory, **arguments), **EXACT)


# -- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "attn_mask must be given where is_causal=True", {"is_causal": True}),
        (TypeError, r"bool \(True = left out\) or .*int64", {"attn_mask": bools(L, S).long()}),
        (TypeError, "padding_mask must be a Tensor or None; got list", {"key_padding_mask": [0]}),
        (ValueError, r"shape \(4, 5\) or \(6, 4, 5\); got \(5, 4\)", {"attn_mask": bools(S, L)}),
        (ValueError, r"must have shape \(3, 5\); got \(3, 4\)", {"key_padding_mask": bools(N, L)}),
        (ValueError, "query, key and value must have", {"query": normal(1, L, N, E)}),
        (ValueError, "query, key and value must have", {"key": normal(S, N, E + 1)}),
        (ValueError, "query, key and value must have", {"value": normal(S + 1, N, E)}),
    ],
)  # fmt: skip
def test_wrong_arguments(error, message, change):
    ours, _ = pair()
    query, key, value = inputs(ours)
    with pytest.raises(error, match=message):
        ours(**{"query": query, "key": key, "value": value, **change})


def test_wrong_constructions():
    with pytest.raises(TypeError, match="omega must be a regmax"):
        MultiheadAttention(E, H, omega=3)
    with pytest.raises(ValueError, match="gamma must be > 0; got 0"):
        MultiheadAttention(E, H, omega="softmax", gamma=0.0)
