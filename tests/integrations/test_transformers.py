"""Hugging Face models, tiny and random, with regmax's attention."""

from __future__ import annotations

import pytest
import torch

import regmax
from regmax.integrations.decoding import cache_argument
from regmax.integrations.transformers import register
from regmax.nn import chunks

transformers = pytest.importorskip("transformers")

import tiny_models  # noqa: E402

MAPPINGS = ("softmax", "sparsemax", "pnormmax", "entmax", "entmax15", "fusedmax", "oscarmax")
EXACT = {"rtol": 0, "atol": 1e-12}
# "eager" takes its softmax in float32
CLOSE = {"sdpa": EXACT, "eager": {"rtol": 0, "atol": 1e-4}}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register()


def double(make):
    return lambda attention, **more: make(attention, **more).double()


llama, bert = double(tiny_models.llama), double(tiny_models.bert)
bart, t5 = double(tiny_models.bart), double(tiny_models.t5)


def words(rows, length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 50, (rows, length), generator=generator)


def padded(side):
    """Two sentences, of 5 words and of 8, and where they are."""
    ids, kept = words(2, 8), torch.ones(2, 8, dtype=torch.long)
    kept[0, slice(5, None) if side == "right" else slice(0, 3)] = 0
    return ids, kept


def positions(kept):
    return (kept.cumsum(-1) - 1).clamp_min(0)


# -- the same numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [llama, bert])
@pytest.mark.parametrize(
    ("side", "reference"),
    [("left", "sdpa"), ("right", "sdpa"), ("right", "eager")],  # on the left, "eager" is NaN
)
def test_softmax_is_the_librarys(make, side, reference):
    ids, kept = padded(side)
    ours, theirs = (
        make(name)(ids, attention_mask=kept).logits for name in ("regmax-softmax", reference)
    )
    torch.testing.assert_close(ours[kept.bool()], theirs[kept.bool()], **CLOSE[reference])


@pytest.mark.parametrize("make", [bart, t5])
@pytest.mark.parametrize("reference", ["eager", "sdpa"])
def test_softmax_is_the_librarys_in_encoder_and_decoder(make, reference):
    ids, kept = padded("right")
    said = words(2, 6, seed=2)
    ours, theirs = (
        make(name)(ids, attention_mask=kept, decoder_input_ids=said).logits
        for name in ("regmax-softmax", reference)
    )
    torch.testing.assert_close(ours, theirs, **CLOSE[reference])


def gemma(attention, **kwargs):
    config = transformers.Gemma2Config(
        **tiny_models.SIZES,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        **{"sliding_window": 3, "attn_logit_softcapping": 1.5, **kwargs},
    )
    model = tiny_models.made(transformers.Gemma2ForCausalLM, config, attention)
    return model.double()(words(2, 8)).logits


def test_sliding_windows_and_soft_caps():
    ours = gemma("regmax-softmax")
    torch.testing.assert_close(ours, gemma("eager"), **CLOSE["eager"])
    for other in ({"sliding_window": 8}, {"attn_logit_softcapping": 3.0}):
        assert (ours - gemma("regmax-softmax", **other)).abs().max() > 0.01


# -- who sees whom --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_scores_in_float32(dtype):
    """Capped scores and position biases too: the answer is rounded once."""
    from transformers import AttentionInterface

    attend = AttentionInterface()["regmax-softmax"]
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 6, 32), (2, 2, 9, 32), (2, 2, 9, 32), (1, 4, 6, 9))
    q, k, v, bias = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes)
    given = [t.to(dtype) for t in (10 * q, 10 * k, v, 20 * bias)]
    kept = torch.ones(6, 9, dtype=torch.bool).tril(3)
    for more in ({}, {"softcap": 50.0}):
        (out, weights), (exact, right) = (
            attend(torch.nn.Module(), *t[:3], kept, position_bias=t[3], **more)
            for t in (given, [t.double() for t in given])
        )
        assert out.dtype == weights.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), exact, rtol=eps, atol=1e-4)
        torch.testing.assert_close(weights.double(), right, rtol=eps, atol=1e-4)


@pytest.mark.parametrize("mapping", ["entmax15", "fusedmax"])
def test_the_future_does_not_leak(mapping):
    model, ids = llama(f"regmax-{mapping}"), words(2, 8)
    other = ids.clone()
    other[:, 5:] = (other[:, 5:] + 7) % 40 + 3
    now, then = model(ids).logits, model(other).logits
    torch.testing.assert_close(now[:, :5], then[:, :5], rtol=0, atol=0)
    assert not torch.allclose(now[:, 5:], then[:, 5:])


@pytest.mark.parametrize("mapping", ["entmax15", "fusedmax"])
@pytest.mark.parametrize(("make", "side"), [(llama, "left"), (bert, "right")])
def test_padding_does_not_count(mapping, make, side):
    model, (ids, kept) = make(f"regmax-{mapping}"), padded(side)
    real = kept.bool()
    arguments = {"attention_mask": kept, "position_ids": positions(kept)}
    alone = model(ids[:1, real[0]]).logits[0]
    together = model(ids, **arguments).logits
    torch.testing.assert_close(together[0, real[0]], alone, **EXACT)
    other = torch.where(real, ids, (ids + 7) % 40 + 3)
    assert not torch.equal(ids, other)
    torch.testing.assert_close(
        model(other, **arguments).logits[real], together[real], rtol=0, atol=0
    )


def test_packed_sentences_do_not_see_each_other():
    model, first, second = llama("regmax-entmax15"), words(1, 4), words(1, 5, seed=2)
    together = model(
        torch.cat([first, second], -1),
        position_ids=torch.cat([torch.arange(4), torch.arange(5)])[None],
        use_cache=False,
    ).logits
    alone = torch.cat([model(ids).logits for ids in (first, second)], 1)
    torch.testing.assert_close(together, alone, **EXACT)


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
def test_a_mask_is_made_where_softmax_needs_none(kind):
    config = transformers.LlamaConfig(is_causal=kind == "causal")
    config._attn_implementation = "regmax-entmax15"
    made = getattr(transformers.masking_utils, f"create_{kind}_mask")
    arguments = {"inputs_embeds": torch.zeros(2, 4, 8), "attention_mask": None}
    if kind == "causal":
        arguments[cache_argument(made)] = None
    mask = made(config, **arguments)
    every = torch.ones(4, 4, dtype=torch.bool)
    expected = every.tril() if kind == "causal" else every
    assert torch.equal(mask, expected.expand(2, 1, 4, 4))


# -- use ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapping", ["entmax15", "fusedmax"])
def test_generation_with_a_cache(mapping):
    model, (ids, kept) = llama(f"regmax-{mapping}"), padded("left")
    say = {"attention_mask": kept, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    said = [model.generate(ids, use_cache=cache, **say) for cache in (True, False)]
    torch.testing.assert_close(*said, rtol=0, atol=0)
    assert said[0].shape == (2, 12)


def test_a_cache_filled_in_parts():
    model, ids = llama("regmax-entmax15"), words(2, 8)
    cache = model(ids[:, :3]).past_key_values
    later = model(ids[:, 3:], **{cache_argument(model.forward): cache}).logits
    torch.testing.assert_close(later, model(ids).logits[:, 3:], **EXACT)


@pytest.mark.parametrize("mapping", ["entmax15", "fusedmax"])
def test_weights_are_returned(mapping):
    ids, kept = padded("left")
    seen = llama(f"regmax-{mapping}")(ids, attention_mask=kept, output_attentions=True).attentions
    assert len(seen) == 2
    assert seen[0].shape == (2, 4, 8, 8)
    real = kept.bool()[:, None, :, None].expand(-1, 4, -1, 8)
    inside = kept.bool()[:, None, None] & torch.ones(8, 8, dtype=torch.bool).tril()
    for weights in seen:
        torch.testing.assert_close(weights.sum(-1), real[..., 0].double(), **EXACT)
        assert (weights[~inside.expand_as(weights)] == 0).all()
    assert (seen[0][inside.expand_as(seen[0])] == 0).any()


def test_compiled():
    model, (ids, kept) = llama("regmax-entmax15", num_hidden_layers=1), padded("left")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    arguments = {"attention_mask": kept, "use_cache": False}
    with torch.no_grad():
        ours, expected = (f(ids, **arguments).logits for f in (compiled, model))
    torch.testing.assert_close(ours, expected, **EXACT)


def test_every_mapping_is_registered(monkeypatch):
    names = register()
    assert {f"regmax-{m}" for m in MAPPINGS} <= set(names)
    known = regmax.regularizers.registry.registry()
    monkeypatch.setattr(known, "names", lambda kind: [*MAPPINGS, "laterax"])
    assert "regmax-laterax" in register()
    assert "regmax-laterax" in transformers.AttentionInterface().valid_keys()


@pytest.mark.parametrize(
    ("argument", "given"), [("cache", object()), ("cu_seq_lens_q", torch.tensor([0, 3]))]
)
def test_what_has_no_answer_is_refused(argument, given):
    attend = transformers.AttentionInterface()["regmax-entmax15"]
    q = torch.zeros(1, 4, 3, 8)
    module = torch.nn.Identity()
    attend(module, q, q, q, None, **{argument: None})
    with pytest.raises(NotImplementedError, match=argument):
        attend(module, q, q, q, None, **{argument: given})


def test_sinks_are_the_models_own():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 3, 8) for _ in range(3))
    module = torch.nn.Identity()
    module.sinks, module.num_key_value_groups = torch.randn(4), 1
    mask = torch.zeros(2, 1, 3, 3).masked_fill(
        ~torch.ones(3, 3, dtype=torch.bool).tril(), -torch.inf
    )
    expected = eager_attention_forward(module, q, k, v, mask, 0.3)
    attend = transformers.AttentionInterface()["regmax-softmax"]
    found = attend(module, q, k, v, mask, scaling=0.3, s_aux=module.sinks)
    torch.testing.assert_close(found, expected)


def test_a_window_needs_its_mask():
    attend = transformers.AttentionInterface()["regmax-entmax15"]
    q = torch.zeros(1, 4, 3, 8)
    attend(torch.nn.Identity(), q, q, q, None, sliding_window=3)
    with pytest.raises(NotImplementedError, match="sliding_window=2 for 3 keys"):
        attend(torch.nn.Identity(), q, q, q, None, sliding_window=2)


def test_without_a_mask_a_module_is_causal_unless_it_says_otherwise():
    attend = transformers.AttentionInterface()["regmax-softmax"]
    q = torch.zeros(1, 4, 3, 8)
    module = torch.nn.Identity()
    assert attend(module, q, q, q, None)[1][0, 0, 0].tolist() == [1, 0, 0]
    assert attend(module, q, q, q, None, is_causal=False)[1][0, 0, 0, 2] > 0
    module.is_causal = False
    assert attend(module, q, q, q, None)[1][0, 0, 0, 2] > 0
    assert attend(module, q[:, :, :1], q, q, None)[1][0, 0, 0, 2] > 0


def test_wrong_arguments():
    with pytest.raises(TypeError, match="name and omega go together"):
        register("regmax-mine")
    with pytest.raises(TypeError, match="name must be a non-empty str"):
        register(3, regmax.regularizer("gini"))
    with pytest.raises(TypeError, match=r"omega must be a regmax\.Regularizer"):
        register("regmax-mine", torch.softmax)


@pytest.mark.parametrize("mapping", ["entmax15", "softmax", "fusedmax"])
def test_long_prompts_are_computed_by_chunks(mapping, monkeypatch):
    """Unless the weights are asked for."""
    model, (ids, kept) = llama(f"regmax-{mapping}"), padded("left")
    given = {"input_ids": ids, "attention_mask": kept, "position_ids": positions(kept)}
    whole = model(**given, output_attentions=True)
    calls, plain = [], chunks.Chunks.forward
    monkeypatch.setattr(chunks, "SCORES", {"cpu": 16})
    monkeypatch.setattr(chunks, "_FEWEST", 3)
    monkeypatch.setattr(chunks.Chunks, "forward", lambda *a: calls.append(1) or plain(*a))
    long = model(**given)
    assert len(calls) == 2
    torch.testing.assert_close(long.logits, whole.logits, **EXACT)
    asked = model(**given, output_attentions=True)
    assert len(calls) == 2
    assert torch.equal(asked.attentions[1], whole.attentions[1])
