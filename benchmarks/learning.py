"""Losses beside ``CrossEntropyLoss``, attention beside ``scaled_dot_product_attention``; also those
of large vocabularies and long sequences."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regmax
from regmax.nn import AdaptiveEntmax, attention
from regmax.nn.omega import Omega

from .peers import CHECKED, OMEGAS
from .timing import Step

CROSS_ENTROPY = "torch CrossEntropyLoss"
LOSSES: dict[str, tuple[str, float | None]] = {
    "regmax SoftmaxLoss": ("SoftmaxLoss", None),
    "regmax SparsemaxLoss": ("SparsemaxLoss", None),
    "regmax Entmax15Loss": ("Entmax15Loss", None),
    "regmax EntmaxLoss α = 1.3": ("EntmaxLoss", 1.3),
    "regmax EntmaxLoss α learned": ("EntmaxLoss", 1.5),
    "regmax PnormmaxLoss": ("PnormmaxLoss", None),
}
"""Class and α."""
SDPA, SDPA_DEFAULT = "torch SDPA math", "torch SDPA default"
TWO_STEPS = "torch linear, cross_entropy"
LONG = ("softmax", "sparsemax", "entmax15")
ATTENTION = ("softmax", "sparsemax", "entmax15", "entmax", "fusedmax", "oscarmax")


def losses(
    x: Tensor, smoothing: float = 0.0, package: bool = False, soft: bool = False
) -> list[Step]:
    """Cross-entropy, and the losses of regmax and the entmax package: the mean over rows. ``soft``:
    of distributions."""
    target = torch.randn_like(x).softmax(-1) if soft else _targets(x)
    plain = nn.CrossEntropyLoss(label_smoothing=smoothing)

    def same(name: str) -> Callable[[Tensor], nn.Module]:
        return functools.partial(_ours, name, smoothing=smoothing)

    found = [_loss(CROSS_ENTROPY, plain, x, target, same("regmax SoftmaxLoss"))]
    found += [_loss(name, _ours(name, x, smoothing), x, target, same(name)) for name in LOSSES]
    if package:
        entmax: Any = importlib.import_module("entmax")
        for name in ("SparsemaxLoss", "Entmax15Loss"):
            loss = getattr(entmax, name)()
            found.append(_loss(f"entmax {name}", loss, x, target, same(f"regmax {name}")))
    return found


def own_losses(omega: regmax.Regularizer, x: Tensor) -> list[Step]:
    """Cross-entropy, and the loss of an Ω by its value."""
    plain, ours, target = nn.CrossEntropyLoss(), regmax.FenchelYoungLoss(omega), _targets(x)
    exact = functools.partial(regmax.FenchelYoungLoss, omega, solver="newton")
    return [
        _loss(CROSS_ENTROPY, plain, x, target, lambda x: regmax.SoftmaxLoss()),
        _loss("regmax by value", ours, x, target, lambda x: exact()),
    ]


def _targets(x: Tensor) -> Tensor:
    """Classes drawn uniformly: the same every time."""
    rows, d = x.shape
    generator = torch.Generator().manual_seed(rows + 31 * d)
    return torch.randint(d, (rows,), generator=generator).to(x.device)


def _ours(name: str, x: Tensor, smoothing: float) -> regmax.FenchelYoungLoss:
    kind, alpha = LOSSES[name]
    hyper: dict[str, Any] = {"label_smoothing": smoothing}
    if alpha is not None:
        hyper["alpha"] = nn.Parameter(torch.tensor(alpha).to(x)) if "learned" in name else alpha
    found: regmax.FenchelYoungLoss = getattr(regmax, kind)(**hyper)
    return found


def _loss(
    name: str, loss: nn.Module, x: Tensor, target: Tensor, same: Callable[[Tensor], nn.Module]
) -> Step:
    """Its error: the distance of a row's gradient to that of the ``same`` loss in float64."""

    def apply(x: Tensor, *learned: Tensor) -> Tensor:
        value: Tensor = loss(x, target)
        return value

    def error(step: Step) -> float:
        grad, few = step.leaves[0].grad, x[:CHECKED].double().requires_grad_()
        same(few)(few, target[:CHECKED]).backward()
        assert grad is not None
        assert few.grad is not None
        return float((grad[:CHECKED].double() * len(x) - few.grad * len(few)).abs().max())

    return Step(name, apply, (x.detach().requires_grad_(), *loss.parameters()), error=error)


def heads(
    shape: tuple[int, int, int, int], causal: bool, device: str, long: bool = False
) -> list[Step]:
    """PyTorch's attention, with its plain backend and by default, and regmax's, on N(0, 1).
    ``long``: not the plain backend, no errors, and entmax15 also all at once."""
    generator = torch.Generator(device=device).manual_seed(shape[2])
    *given, out = torch.randn(4, *shape, device=device, generator=generator)

    def default(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return default(q, k, v)

    def error(step: Step, mapping: str) -> float:
        """The distance of the result to that of regmax in float64."""
        assert step.y is not None
        exact = _heads(mapping, [t.double() for t in given], causal)
        exact.forward()
        assert exact.y is not None
        return float((step.y.detach().double() - exact.y.detach()).abs().max())

    found = []
    for mapping in LONG if long else ATTENTION:
        step = _heads(mapping, given, causal)
        step.v, step.error = out, None if long else functools.partial(error, mapping=mapping)
        found.append(step)
    theirs = {SDPA: plain, SDPA_DEFAULT: default}
    if long:
        whole = _heads("entmax15", given, causal, chunk=shape[2])
        found.append(replace(whole, name=f"{whole.name}, all at once", v=out))
        del theirs[SDPA]
    softmax = found[0]
    return [replace(softmax, name=n, function=f) for n, f in theirs.items()] + found


def _heads(mapping: str, given: Sequence[Tensor], causal: bool, chunk: int | None = None) -> Step:
    """regmax's attention on q, k and v."""
    omega: Omega = mapping
    learned: list[Tensor] = []
    if mapping == "entmax":
        omega = AdaptiveEntmax(given[0].shape[1]).to(given[0])
        learned = list(omega.parameters())

    def apply(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return attention(q, k, v, omega, is_causal=causal, chunk=chunk)

    leaves = (*(t.detach().requires_grad_() for t in given), *learned)
    return Step(f"regmax {mapping}", apply, leaves)


def linear_losses(shape: tuple[int, int, int], device: str) -> list[Step]:
    """A training step of the last layer. ``shape``: rows × features × classes."""
    rows, features, classes = shape
    generator = torch.Generator(device=device).manual_seed(rows)
    weight = torch.randn(classes, features, device=device, generator=generator) / features**0.5
    hidden = torch.randn(rows, features, device=device, generator=generator)
    target = torch.randint(classes, (rows,), device=device, generator=generator)

    def step(name: str, loss: Any) -> Step:
        leaves = (weight.detach().requires_grad_(), hidden.detach().requires_grad_())
        return Step(name, lambda w, h: loss(h, w), leaves)

    def two_steps(h: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w), target)

    def chunked(h: Tensor, w: Tensor) -> Tensor:
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=128, chunking_method=None)
        found: Tensor = F.linear_cross_entropy(h, w, target, options=options)
        return found

    found = [step(TWO_STEPS, two_steps), step("torch linear_cross_entropy, 128 rows", chunked)]
    for name in LONG:
        omega = OMEGAS[name]
        one, two = regmax.LinearFenchelYoungLoss(omega), regmax.FenchelYoungLoss(omega)
        found += [
            step(f"regmax {name}", lambda h, w, one=one: one(h, w, target)),
            step(f"regmax {name}, two steps", lambda h, w, two=two: two(F.linear(h, w), target)),
        ]
    return found
