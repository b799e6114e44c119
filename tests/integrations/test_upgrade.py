"""What version 0.1 saved loads in this version, and gives the values and gradients of then.

``python tests/integrations/test_upgrade.py`` wrote the files in tests/fixtures with version 0.1.0.
They stay as they are: where a test fails, the code must read them again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import regmax
from regmax.integrations import saving
from regmax.nn import AdaptiveEntmax, Learnable, MultiheadAttention, Positive

FIXTURES = Path(__file__).parents[1] / "fixtures"
STATES, NUMBERS = FIXTURES / "saved-0.1.pt", FIXTURES / "saved-0.1.json"
X = torch.sin(3.0 * torch.arange(12, dtype=torch.float64)).view(3, 4)
INDEX = torch.tensor([0, 3, 1])


def modules(s: float = 1.0) -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """By name, a module whose numbers learn, started at multiples of ``s``, and its inputs."""

    def learnt(*value: float) -> nn.Parameter:
        return nn.Parameter(s * torch.tensor(value, dtype=torch.float64))

    def omega(name, **hyper):
        return regmax.regularizer(name, **hyper)

    layer, tv = regmax.RegularizedMax, regmax.penalty("tv")
    prior = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).roll(int(s > 1)))
    owl = regmax.penalty("owl", weights=learnt(0.4, 0.3, 0.1, 0.0))
    edges = [(0, 1), (1, 3), (0, 2)]
    graph = regmax.penalty("graph_tv", edges=edges, weights=learnt(0.1, 0.2, 0.3), nodes=4)
    rows = {
        "entropy": layer(omega("entropy"), learnt(0.7)),
        "gini": layer(omega("gini"), learnt(0.5)),
        "tsallis": layer(omega("tsallis", alpha=learnt(1.4))),
        "pnorm": layer(omega("pnorm", p=learnt(1.5))),
        "tv": layer(omega("tv", lam=learnt(0.1)), learnt(0.8)),
        "oscar": layer(omega("oscar", lam=learnt(0.05))),
        "divergence": layer(omega("divergence", prior=prior)),
        "sum": layer(learnt(0.5) * omega("tsallis", alpha=learnt(1.3)) + learnt(0.1) * tv),
        "owl": layer(omega("gini") + owl),
        "graph": layer(omega("gini") + graph),
    }
    loss = regmax.FenchelYoungLoss(omega("tsallis", alpha=learnt(1.6)), learnt(0.9))
    weighted = regmax.Entmax15Loss(weight=s * torch.arange(1.0, 5, dtype=torch.float64))
    torch.manual_seed(int(10 * s))
    attention = MultiheadAttention(4, 2, omega=AdaptiveEntmax(2), gamma=Positive())
    fused = MultiheadAttention(4, 2, omega=Learnable(omega("tv"), lam=Positive((2, 1, 1), 0.1)))
    found = {name: (module, (X,)) for name, module in rows.items()}
    found |= {"loss": (loss, (X, INDEX)), "weighted loss": (weighted, (X, INDEX))}
    found |= {"AdaptiveEntmax": (attention, (X,) * 3), "fused attention": (fused, (X,) * 3)}
    return {name: (module.double().eval(), inputs) for name, (module, inputs) in found.items()}


def numbers(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, list[float]]:
    """The output, and the gradients of the sum of its squares in the first input and parameters."""
    x = inputs[0].clone().requires_grad_()
    out = module(x, *inputs[1:])
    out = out[0] if isinstance(out, tuple) else out
    wanted = {"x": x, **dict(module.named_parameters())}
    grads = torch.autograd.grad(out.square().sum(), list(wanted.values()))
    found = {"out": out, **dict(zip(wanted, grads, strict=True))}
    return {name: tensor.detach().flatten().tolist() for name, tensor in found.items()}


def text(module: nn.Module) -> str | None:
    """The text of its Ω, as ``save_pretrained`` writes it."""
    omega = getattr(module, "omega", None)
    return None if omega is None else saving.text_of(omega)


def same(found: dict[str, list[float]], saved: dict[str, list[float]]) -> None:
    assert list(found) == list(saved)
    for name, values in saved.items():
        assert found[name] == pytest.approx(values, rel=1e-8, abs=1e-10), name


SAVED = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}


def test_every_module_was_saved():
    assert list(SAVED) == list(modules())


@pytest.mark.parametrize("name", SAVED)
def test_a_state_of_version_0_1_loads(name):
    module, inputs = modules(1.2)[name]
    state = torch.load(STATES, weights_only=True)[name]
    if state:
        assert any(not torch.equal(t, state[key]) for key, t in module.state_dict().items())
    module.load_state_dict(state)
    same(numbers(module, inputs), SAVED[name]["numbers"])


@pytest.mark.parametrize("name", [name for name, found in SAVED.items() if found["text"]])
def test_a_text_of_version_0_1_is_read(name):
    module, inputs = modules(1.2)[name]
    module.load_state_dict(torch.load(STATES, weights_only=True)[name])
    owner = module.mapping if isinstance(module, regmax.FenchelYoungLoss) else module
    owner.omega = saving.made(SAVED[name]["text"]).double()
    same(numbers(module, inputs), SAVED[name]["numbers"])


if __name__ == "__main__":
    every = modules()
    torch.save({name: module.state_dict() for name, (module, _) in every.items()}, STATES)
    report = {n: {"text": text(m), "numbers": numbers(m, i)} for n, (m, i) in every.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in report.items())
    NUMBERS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
