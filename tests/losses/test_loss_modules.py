"""Fenchel–Young losses as modules: under autograd, by name."""

import gc
import sys
import types
import weakref
from importlib.metadata import EntryPoint, entry_points

import pytest
import torch
from loss_cases import FORMULAS, OMEGAS, close, gradient, indices, loss_of
from mapping_checks import normal
from omegas import omega_of
from torch.utils.checkpoint import checkpoint

import regmax
from regmax import functional, losses
from regmax.losses import EntmaxLoss, FenchelYoungLoss, SparsemaxLoss
from regmax.regularizers.registry import Registry


@pytest.fixture(params=OMEGAS)
def name(request):
    return request.param


# -- autograd ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_logits_that_changed_are_noticed(name):
    logits = normal(4, 5).requires_grad_() * 1
    value = loss_of(name)(logits, indices(4, 5))
    with torch.no_grad():
        logits.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_no_graph_no_cycle(name):
    loss, k, leaf = loss_of(name), indices(4, 5), normal(4, 5).requires_grad_()
    gc.disable()
    try:
        for step in ("none", "once", "twice"):
            logits = leaf * 1
            value = loss(logits, k)
            left = [weakref.ref(logits), weakref.ref(value)]
            if step != "none":
                g = torch.autograd.grad(value, logits, create_graph=step == "twice")
                del g
            del logits, value
            assert all(ref() is None for ref in left), step
    finally:
        gc.enable()
    x = leaf.detach()
    expected = loss(x, k)
    assert not expected.requires_grad
    with torch.no_grad():
        assert torch.equal(loss(leaf, k), expected)
    with torch.inference_mode():
        assert torch.equal(loss(leaf, k), expected)
        close(loss(x * 1, k, torch.ones(5, dtype=torch.bool)), expected)


def test_a_loss_of_fixed_logits_teaches_alpha():
    alpha = torch.nn.Parameter(torch.tensor(1.4))
    loss, x, k = EntmaxLoss(alpha), normal(4, 5), indices(4, 5)
    loss(x, k).backward()
    kept = alpha.grad.clone()
    alpha.grad = None
    loss(x.requires_grad_(), k).backward()
    assert alpha.grad != 0
    assert torch.equal(alpha.grad, kept)


@pytest.mark.parametrize("module", [regmax.RegularizedMax, FenchelYoungLoss])
@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
def test_checkpoints_of_a_first_call(coupled, penalised, module):
    """What is computed once for an Ω is not saved for backward."""

    def value(y):
        more = torch.linalg.slogdet(torch.eye(5) + torch.diag_embed(y)).logabsdet
        return y.square().sum(-1) - (more if coupled else 0)

    own = omega_of(value)
    function = module(own + 0.1 * regmax.penalty("tv") if penalised else own)
    given = (indices(4, 5),) if module is FenchelYoungLoss else ()
    leaf = normal(4, 5).requires_grad_()
    checkpoint(lambda x: (function(x, *given) ** 2).sum(), leaf, use_reentrant=False).backward()
    assert torch.equal(leaf.grad, gradient(lambda x: (function(x, *given) ** 2).sum(), leaf))


# -- the module --------------------------------------------------------------------------------


def test_names():
    assert regmax.SparsemaxLoss is SparsemaxLoss
    assert regmax.losses.EntmaxLoss is EntmaxLoss
    assert {"nn", "losses", "analysis", "FenchelYoungLoss"} <= set(dir(regmax))
    assert {"FenchelYoungLoss", "SoftmaxLoss", "Entmax15Loss", "FusedmaxLoss"} <= set(dir(losses))
    for made, omega in (
        (EntmaxLoss(1.3), "Tsallis(alpha=1.3)"),
        (EntmaxLoss(alpha=1.3), "Tsallis(alpha=1.3)"),
        (losses.Entmax15Loss(), "Tsallis(alpha=1.5)"),
        (losses.PnormmaxLoss(p=1.2), "PNorm(p=1.2)"),
        (losses.FusedmaxLoss(lam=0.3), "TV(lam=0.3)"),
        (losses.OscarmaxLoss(), "Oscar(lam=0.01)"),
    ):
        assert isinstance(made, FenchelYoungLoss)
        assert repr(made.omega) == omega
    full = EntmaxLoss(
        1.3, 2.0, dim=-1, reduction="sum", weight=torch.ones(3), label_smoothing=0.1, ignore_index=0
    )
    assert full.gamma == 2.0
    for module in (regmax, losses):
        with pytest.raises(AttributeError, match="NoneSuchLoss"):
            _ = module.NoneSuchLoss
    with pytest.raises(TypeError, match="alpha"):
        losses.Entmax15Loss(alpha=2.0)
    with pytest.raises(TypeError, match="beta"):
        EntmaxLoss(beta=2.0)


def test_a_plugins_mapping_has_a_loss(monkeypatch):
    class Steep(regmax.Regularizer):
        name, mapping = "steep", "steep_max"

        def __init__(self, mu=1.0):
            self.mu = mu

        def value(self, y):
            return self.mu * y.square().sum(-1)

    module = types.ModuleType("regmax_steep")
    module.regmax_regularizers = regmax.hookimpl(lambda: [Steep], specname="regmax_regularizers")
    monkeypatch.setitem(sys.modules, "regmax_steep", module)
    found = Registry([*entry_points(group="regmax"), EntryPoint("steep", "regmax_steep", "regmax")])
    for user in (losses, functional):
        monkeypatch.setattr(user, "registry", lambda: found)
    assert "SteepMaxLoss" in dir(losses)
    x, k = normal(4, 5), indices(4, 5)
    expected = FenchelYoungLoss(regmax.regularizer("gini"), gamma=3.0)
    close(regmax.SteepMaxLoss(1.5)(x, k), expected(x, k), 1e-9)
