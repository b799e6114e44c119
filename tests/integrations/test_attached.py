"""Ω in Hugging Face models: among their parameters, in their config, and back from their files."""

from __future__ import annotations

import json

import pytest
import torch
from processes import python
from torch import nn

import regmax
from regmax.integrations.transformers import attach, from_pretrained, register
from regmax.nn import AdaptiveEntmax, Between, Learnable, Positive

transformers = pytest.importorskip("transformers")

from tiny_models import HEADS, SIZES, bart, bert, llama, made, t5  # noqa: E402

CausalLM = transformers.AutoModelForCausalLM

IDS = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _registered():
    register()


def llava():
    """A text model and one of images, each with a config of its own."""
    config = transformers.LlavaConfig(
        text_config=llama().config,
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            image_size=8,
            patch_size=4,
        ),
        image_token_index=49,
        image_seq_length=4,
    )
    return made(transformers.LlavaForConditionalGeneration, config)


def logits(model):
    kind = model.config.model_type
    said = {"decoder_input_ids": IDS[:, :6]} if kind in ("bart", "t5") else {}
    if kind == "llava":
        pictures = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
        ids = torch.cat([torch.full((2, 4), 49), IDS], -1)
        return model(input_ids=ids, pixel_values=pictures.to(model.dtype)).logits
    return model(input_ids=IDS, **said).logits


def learnt(model, seed=2):
    """The model with hyperparameters that nobody would guess."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "regmax" in name.split("."):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data += noise.to(parameter.dtype)
    return model


def same(ours, theirs):
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=0, atol=0)


def ours(model):
    """The names of Ω's parameters."""
    return [name for name, _ in model.named_parameters() if "regmax" in name.split(".")]


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def rewrite(folder, change):
    config = config_of(folder)
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


OMEGAS = {
    "adaptive": lambda: AdaptiveEntmax(HEADS),
    "learnable": lambda: Learnable(regmax.regularizer("tv"), lam=Positive((HEADS, 1, 1), 0.1)),
    "dotted": lambda: Learnable(
        2 * regmax.regularizer("tsallis"), **{"base.alpha": Between(1, 2), "c": Positive()}
    ),
    "parameter": lambda: regmax.regularizer(
        "tsallis", alpha=nn.Parameter(torch.full((HEADS, 1, 1), 1.3))
    ),
    "fixed": lambda: regmax.regularizer("gini") + 0.1 * regmax.penalty("tv"),
    "tensor": lambda: regmax.regularizer(
        "tsallis", alpha=torch.linspace(1.1, 1.9, 4).view(4, 1, 1)
    ),
    "name": lambda: "fusedmax",
}
MODELS = {"llama": llama, "bert": bert, "bart": bart, "t5": t5, "llava": llava}
LAYERS = {"llama": 2, "bert": 2, "bart": 3, "t5": 6, "llava": 4}


# -- plain files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama", "bert", "bart", "t5"])
def test_a_mapping_comes_back(model, tmp_path):
    model = MODELS[model]("regmax-entmax15")
    model.save_pretrained(tmp_path / "1")
    twin = type(model).from_pretrained(tmp_path / "1")
    assert twin.config._attn_implementation == "regmax-entmax15"
    same(twin, model)
    twin.save_pretrained(tmp_path / "2")
    same(type(model).from_pretrained(tmp_path / "2"), model)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_an_attached_omega_comes_back(model, per_layer, tmp_path):
    model, expected = MODELS[model](), LAYERS[model] if per_layer else 1
    before = logits(model)
    assert attach(model, AdaptiveEntmax(HEADS), per_layer=per_layer) is model
    assert len(ours(model)) == expected
    learnt(model).save_pretrained(tmp_path / "1")
    assert not torch.allclose(logits(model), before)
    assert config_of(tmp_path / "1")["regmax"] == {
        "omega": "AdaptiveEntmax(4)",
        "per_layer": per_layer,
    }
    twin = type(model).from_pretrained(tmp_path / "1")
    same(twin, model)
    assert ours(twin) == ours(model)
    twin.save_pretrained(tmp_path / "2")
    same(from_pretrained(type(model), tmp_path / "2"), model)


@pytest.mark.parametrize("omega", OMEGAS)
def test_every_form_of_omega_comes_back(omega, tmp_path):
    omega = OMEGAS[omega]()
    model = learnt(attach(llama(), omega)) if omega != "parameter" else attach(llama(), omega)
    model.save_pretrained(tmp_path)
    twin = CausalLM.from_pretrained(tmp_path)
    same(twin, model)
    assert repr(twin.model.regmax) == repr(model.model.regmax)
    assert twin.model.regmax is not model.model.regmax


def test_a_registered_omega_comes_back_without_its_name(tmp_path):
    register("regmax-mine", AdaptiveEntmax(HEADS))
    model = learnt(llama("regmax-mine"))
    model.save_pretrained(tmp_path)
    assert config_of(tmp_path)["attn_implementation"] == "regmax"
    same(CausalLM.from_pretrained(tmp_path), model)


def test_a_model_that_is_loaded_leaves_the_registered_omega_alone(tmp_path):
    mine = AdaptiveEntmax(HEADS)
    register("regmax-mine", mine)
    model = learnt(llama("regmax-mine"))
    model.save_pretrained(tmp_path)
    kept = mine.a.detach().clone()
    with torch.no_grad():
        mine.a.zero_()
    twin = CausalLM.from_pretrained(tmp_path, attn_implementation="regmax-mine")
    assert torch.equal(twin.model.regmax.a, kept)
    assert not mine.a.any()


def test_a_registered_omega_for_a_model_without_one(tmp_path):
    llama().save_pretrained(tmp_path)
    mine = AdaptiveEntmax(HEADS, 1.3)
    register("regmax-mine", mine)
    model = CausalLM.from_pretrained(tmp_path, attn_implementation="regmax-mine")
    assert model.model.regmax is mine
    same(model, llama("regmax-mine"))
    torch.testing.assert_close(mine.alpha, torch.full((HEADS, 1, 1), 1.3))


def test_another_omega_than_the_files_is_refused(tmp_path):
    attach(llama(), AdaptiveEntmax(HEADS)).save_pretrained(tmp_path)
    register("regmax-mine", Learnable(regmax.regularizer("tsallis"), alpha=Positive()))
    with pytest.raises(ValueError, match=r"omega is Learnable.* saved with Ω = AdaptiveEntmax"):
        CausalLM.from_pretrained(tmp_path, attn_implementation="regmax-mine")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_is_that_of_the_model(dtype, tmp_path):
    model = CausalLM.from_config(llama().config, dtype=dtype).eval()
    learnt(attach(model, AdaptiveEntmax(HEADS)))
    assert model.model.regmax.a.dtype == dtype
    model.save_pretrained(tmp_path)
    twin = CausalLM.from_pretrained(tmp_path)
    assert twin.model.regmax.a.dtype == dtype
    same(twin, model)
    other = CausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in other.parameters()} == {torch.bfloat16}
    assert logits(other).isfinite().all()


def test_a_part_alone(tmp_path):
    """Ω of the text model; that of images keeps softmax."""
    model = llava()
    attach(model.model.language_model, AdaptiveEntmax(HEADS))
    assert len(ours(learnt(model))) == 1
    model.save_pretrained(tmp_path)
    twin = type(model).from_pretrained(tmp_path)
    assert twin.config.vision_config._attn_implementation == "sdpa"
    assert twin.config.text_config._attn_implementation == "regmax"
    same(twin, model)


def test_the_base_model_of_a_file_and_a_head_for_it(tmp_path):
    model = learnt(attach(llama(), AdaptiveEntmax(HEADS)))
    model.save_pretrained(tmp_path / "head")
    base = transformers.AutoModel.from_pretrained(tmp_path / "head")
    assert torch.equal(base.regmax.a, model.model.regmax.a)
    base.save_pretrained(tmp_path / "base")
    again = CausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(again.model.regmax.a, model.model.regmax.a)


def test_a_config_makes_a_fresh_model():
    model = learnt(attach(llama(), AdaptiveEntmax(HEADS), per_layer=True))
    for config in (model.config, type(model.config)(**model.config.to_dict())):
        fresh = CausalLM.from_config(config, dtype=torch.bfloat16)
        assert ours(fresh) == ours(model)
        assert not fresh.get_parameter(ours(model)[0]).any()
        assert fresh.get_parameter(ours(model)[0]).dtype == torch.bfloat16


# -- other processes ------------------------------------------------------------------------------

READ = """
import sys, torch
from transformers import AutoModelForCausalLM

def read():
    found = {}
    for folder in sys.argv[1:]:
        try:
            model = AutoModelForCausalLM.from_pretrained(folder)
            found[folder] = model(input_ids=torch.load("ids")).logits
        except Exception as error:
            found[folder] = f"{type(error).__name__}: {error}"
    return found

stages = [read()]
from regmax.integrations.transformers import register
stages.append(read())
register()
torch.save([*stages, read()], "found")
"""


def test_another_process_raises_until_it_registers(tmp_path):
    register("regmax-mine", AdaptiveEntmax(HEADS))
    models = {
        "named": llama("regmax-entmax15"),
        "tied": learnt(attach(llama(), AdaptiveEntmax(HEADS))),
        "per_layer": learnt(attach(llama(), AdaptiveEntmax(HEADS), per_layer=True)),
        "registered": learnt(llama("regmax-mine")),
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    torch.save(IDS, tmp_path / "ids")
    python(READ, *models, cwd=tmp_path)
    *before, after = torch.load(tmp_path / "found")
    said = "ValueError: Specified `attn_implementation="
    for found in before:  # without regmax, and with it imported
        assert found["named"].startswith(f'{said}"regmax-entmax15"` is not supported')
        for name in ("tied", "per_layer", "registered"):
            assert found[name].startswith(f'{said}"regmax"` is not supported')
    for name, model in models.items():
        torch.testing.assert_close(after[name], logits(model), rtol=0, atol=0)


# -- what cannot be restored ----------------------------------------------------------------------


class Mine(regmax.Regularizer):
    """Ω(y) = ½ Σ w yᵢ², which no plugin offers."""

    def __init__(self, w):
        self.w = nn.Parameter(torch.tensor(w)) if isinstance(w, list) else w

    def value(self, y):
        return (self.w * y.square()).sum(-1) / 2


class Halved(nn.Module):
    """A hyperparameter of one's own making."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(HEADS, 1, 1))

    def forward(self):
        return 1.5 + self.weight.tanh() / 2


@pytest.mark.parametrize(
    ("omega", "name"),
    [
        (lambda: Mine([1.0]), "Mine"),
        (lambda: regmax.regularizer("gini") + Mine(0.5), "Mine"),
        (lambda: Mine(torch.tensor([0.7])), "Mine"),
        (lambda: Learnable(regmax.regularizer("tsallis"), alpha=Halved()), "Halved"),
    ],
)
def test_a_class_of_ones_own_is_asked_for(omega, name, tmp_path):
    model = learnt(attach(llama(), omega()))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"{__name__}\.{name} is no class .*omega="):
        CausalLM.from_pretrained(tmp_path)
    given = omega()
    twin = from_pretrained(CausalLM, tmp_path, omega=given)
    same(twin, model)
    assert twin.model.regmax is not given
    twin, info = from_pretrained(
        CausalLM, tmp_path, omega=given, output_loading_info=True, dtype=torch.bfloat16
    )
    assert not info["missing_keys"]
    assert logits(twin).isfinite().all()
    with pytest.raises(ValueError, match=rf"omega is .* saved with Ω = .*{name}"):
        from_pretrained(CausalLM, tmp_path, omega=regmax.regularizer("gini"))


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (
            {"omega": "Elsewhere(0.1)", "per_layer": False},
            r"Elsewhere\(0\.1\).*is named 'Elsewhere'",
        ),
        *((s, r"config\.regmax must be") for s in (3, {}, {"omega": 3})),
        ({"omega": "Gini()", "per_layer": 1}, r"config\.regmax must be"),
        (None, r"LlamaModel has none: call attach\(model, omega\)"),
    ],
)
def test_a_config_that_holds_no_omega(saved, said, tmp_path):
    attach(llama(), "fusedmax").save_pretrained(tmp_path)
    kept = {} if saved is None else {"regmax": saved}
    rewrite(tmp_path, lambda config: config.pop("regmax") and config.update(kept))
    with pytest.raises(ValueError, match=said):
        CausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("per_layer", [False, True])
def test_a_file_without_the_parameters(ignore, per_layer, tmp_path):
    model = attach(llama(), AdaptiveEntmax(HEADS), per_layer=per_layer)
    names = ours(model)
    weights = {name: item for name, item in model.state_dict().items() if name != names[-1]}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ValueError, match=f"lacks parameters of its Ω.*: {names[-1]}$"):
        CausalLM.from_pretrained(tmp_path, ignore_mismatched_sizes=ignore)


def test_parameters_of_another_shape(tmp_path):
    attach(llama(), AdaptiveEntmax(HEADS)).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda config: config["regmax"].update(omega="AdaptiveEntmax(2)"))
    for ignore, error in ((False, RuntimeError), (True, ValueError)):
        with pytest.raises(error, match=r"mismatch|in another shape"):
            CausalLM.from_pretrained(tmp_path, ignore_mismatched_sizes=ignore)


def test_a_model_with_attention_of_its_own():
    """transformers takes every registered name for it, and it goes on with softmax."""
    config = transformers.DebertaV2Config(
        **SIZES, num_hidden_layers=1, num_attention_heads=HEADS, attn_implementation="eager"
    )
    with pytest.raises(ValueError, match="DebertaV2Model has no attention layer"):
        attach(transformers.DebertaV2Model(config), AdaptiveEntmax(HEADS))
    config._attn_implementation = "regmax-entmax15"
    with pytest.raises(ValueError, match=r"Attention computes softmax in .*'regmax-entmax15'"):
        transformers.DebertaV2Model(config)


def test_omega_for_a_file_without_one(tmp_path):
    for attention in ("sdpa", "regmax-entmax15"):
        llama(attention).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="saved without an Ω of its own"):
            from_pretrained(CausalLM, tmp_path, omega=AdaptiveEntmax(HEADS))


# -- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_layer", [False, True])
def test_hyperparameters_learn(per_layer):
    model = attach(llama(), AdaptiveEntmax(HEADS), per_layer=per_layer).train()
    names = ours(model)
    before = {name: model.get_parameter(name).detach().clone() for name in names}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(IDS, labels=IDS).loss.backward()
    assert all(model.get_parameter(name).grad.all() for name in names)
    optimizer.step()
    assert not any(torch.equal(model.get_parameter(name), before[name]) for name in names)
    assert len({id(model.get_parameter(name)) for name in names}) == (2 if per_layer else 1)
    omega = next(layer.self_attn.regmax for layer in model.model.layers)
    assert (omega is model.model.layers[1].self_attn.regmax) is not per_layer


# -- switching ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("to", ["sdpa", "regmax-entmax15"])
def test_switching_away(model, to, tmp_path):
    model = MODELS[model]()
    names = [name for name, _ in model.named_parameters()]
    before = logits(model)
    attach(model, AdaptiveEntmax(HEADS))
    model.set_attn_implementation(to)
    assert [name for name, _ in model.named_parameters()] == names
    model.save_pretrained(tmp_path)
    twin, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert twin.config._attn_implementation == to
    same(twin, model)
    config = config_of(tmp_path)
    assert "regmax" not in config
    assert config.get("attn_implementation") == (None if to == "sdpa" else to)
    if to == "sdpa":
        torch.testing.assert_close(logits(model), before, rtol=0, atol=0)


def test_switching_back_needs_an_omega():
    model = attach(llama(), AdaptiveEntmax(HEADS))
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has none: call attach"):
        model.set_attn_implementation("regmax")
    assert model.config._attn_implementation == "sdpa"
    attach(model, AdaptiveEntmax(HEADS), per_layer=True)
    assert len(ours(model)) == 2
    attach(model, AdaptiveEntmax(HEADS))
    assert ours(model) == ["model.regmax.learned.alpha.a"]
    with pytest.raises(ValueError, match="not supported"):
        model.set_attn_implementation("regmax-unknown")
    assert ours(model) == ["model.regmax.learned.alpha.a"]


def test_switching_to_a_registered_omega(tmp_path):
    mine = AdaptiveEntmax(HEADS)
    register("regmax-mine", mine)
    model = llama()
    model.set_attn_implementation("regmax-mine")
    assert model.model.regmax is mine
    same(model, attach(llama(), AdaptiveEntmax(HEADS)))
    attach(model, AdaptiveEntmax(HEADS, 1.2))
    model.set_attn_implementation("regmax-mine")
    assert model.model.regmax is mine
    model.set_attn_implementation("regmax-fusedmax")
    model.save_pretrained(tmp_path)
    assert config_of(tmp_path)["attn_implementation"] == "regmax-fusedmax"


def test_softmax_for_a_file_with_omega(tmp_path):
    """Asked for by name, it is softmax, and is saved as that."""
    model = llama()
    before = logits(model)
    attach(model, AdaptiveEntmax(HEADS)).save_pretrained(tmp_path)
    twin = type(model).from_pretrained(tmp_path, attn_implementation="sdpa")
    torch.testing.assert_close(logits(twin), before, rtol=0, atol=0)
    twin.save_pretrained(tmp_path)
    assert not {"regmax", "attn_implementation"} & set(config_of(tmp_path))


def test_a_name_that_was_put_into_the_config_by_hand():
    """No method of the model runs, so its layers find out."""
    register("regmax-mine", AdaptiveEntmax(HEADS))
    for name in ("regmax", "regmax-mine"):
        model = llama()
        model.config._attn_implementation = name
        with pytest.raises(RuntimeError, match=r"LlamaAttention runs with .* holds no Ω"):
            logits(model)
    register("regmax-mine", regmax.regularizer("gini"))  # no parameter that could be lost
    same(model, llama("regmax-sparsemax"))


# -- all else -------------------------------------------------------------------------------------


def test_the_callers_omega(tmp_path):
    omega = AdaptiveEntmax(HEADS)
    model = attach(llama().double(), omega, per_layer=True)
    assert omega.a.dtype == torch.float32
    assert attach(model, omega).model.regmax is omega
    assert omega.a.dtype == torch.float64
    with torch.device("meta"):
        attach(llama(), omega)
    assert omega.a.device.type == "cpu"


def test_other_models_are_left_alone(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    assert not {"regmax", "attn_implementation"} & set(config_of(tmp_path))
    assert type(model).from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_wrong_arguments():
    omega, model = AdaptiveEntmax(HEADS), llama()
    with pytest.raises(TypeError, match=r"must be a transformers\.PreTrainedModel; got Linear"):
        attach(nn.Linear(2, 2), omega)
    with pytest.raises(TypeError, match=r"omega must be a regmax\.Regularizer"):
        attach(model, torch.softmax)
    with pytest.raises(TypeError, match="per_layer must be a bool; got int 1"):
        attach(model, omega, per_layer=1)
    with pytest.raises(ValueError, match="name must not be 'regmax'"):
        register("regmax", omega)
    alpha = torch.tensor(1.5, requires_grad=True)
    for item in (alpha, 2 * alpha):
        lost = Learnable(2 * regmax.regularizer("tsallis", alpha=item), c=Positive())
        for call in (lambda x: attach(model, x), lambda x: register("regmax-mine", x)):
            with pytest.raises(TypeError, match=r"base\.base\.alpha of .* is no parameter"):
                call(lost)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="ResNetModel has no attention layer"):
        attach(
            made(
                transformers.ResNetModel,
                transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1]),
            ),
            omega,
        )
