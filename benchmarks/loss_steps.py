"""Losses beside ``torch.nn.CrossEntropyLoss``: the mean over rows, and its gradient in the logits.

A case is a batch of logits with the index of a class for each row; a step of it is one loss.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import regmax

from .inputs import Case, describe
from .peers import Candidate, Step

CROSS_ENTROPY = "torch CrossEntropyLoss"
FIXED, LEARNT = "α = 1.3", "α learnt"
OURS = (
    ("SoftmaxLoss", ""),
    ("SparsemaxLoss", ""),
    ("Entmax15Loss", ""),
    ("EntmaxLoss", FIXED),
    ("EntmaxLoss", LEARNT),
    ("PnormmaxLoss", ""),
)
"""Class and variant."""
NAMES = tuple(" ".join(filter(None, ("regmax", *loss))) for loss in OURS)
PACKAGE = ("SparsemaxLoss", "Entmax15Loss")
"""What the entmax package has of these."""


@dataclass(frozen=True)
class Batch:
    """Logits (rows, classes), and a class for each row."""

    kind: str
    x: Tensor
    target: Tensor
    smoothing: float

    def describe(self) -> dict[str, Any]:
        """The keys by which rows of the results are matched."""
        rows, d = self.x.shape
        dtype = str(self.x.dtype).removeprefix("torch.")
        smoothed = f", label smoothing {self.smoothing:g}" if self.smoothing else ""
        return {"rows": rows, "d": d, "dtype": dtype, "input": describe(self.kind) + smoothed}


def batch(case: Case, smoothing: float = 0.0) -> Batch:
    """The scores of a case, with classes drawn uniformly: the same every time."""
    rows, d = case.x.shape
    drawn = torch.randint(d, (rows,), generator=torch.Generator().manual_seed(rows + 31 * d))
    return Batch(case.kind, case.x, drawn.to(case.x.device), smoothing)


def steps(given: Batch, *, package: bool) -> list[Step]:
    """Cross-entropy, every loss of regmax and, if asked, the entmax package's."""
    reference = nn.CrossEntropyLoss(label_smoothing=given.smoothing)
    found = [_step("torch", "CrossEntropyLoss", "", reference, given)]
    found += [_step("regmax", *loss, _ours(*loss, given), given) for loss in OURS]
    if package:
        theirs: Any = importlib.import_module("entmax")
        found += [_step("entmax", name, "", getattr(theirs, name)(), given) for name in PACKAGE]
    return found


def _step(family: str, name: str, variant: str, loss: nn.Module, given: Batch) -> Step:
    target = given.target

    def apply(x: Tensor, *learnt: Tensor) -> Tensor:
        value: Tensor = loss(x, target)
        return value

    leaves = (given.x.detach().requires_grad_(), *loss.parameters())
    return Step(Candidate(family, name, apply, variant), leaves, None)


def _ours(name: str, variant: str, given: Batch) -> regmax.FenchelYoungLoss:
    hyper: dict[str, Any] = {"label_smoothing": given.smoothing}
    if variant == FIXED:
        hyper["alpha"] = 1.3
    elif variant == LEARNT:
        hyper["alpha"] = nn.Parameter(torch.tensor(1.5).to(given.x))
    found: regmax.FenchelYoungLoss = getattr(regmax, name)(**hyper)
    return found


def facts(step: Step, given: Batch, checked: int) -> dict[str, float]:
    """After a step: the share of exact zeros in the gradient, and the distance of each row's from
    that of the same loss of regmax in float64, on the first ``checked`` rows."""
    name, variant = step.candidate.mapping, step.candidate.variant
    x, target = given.x[:checked].double(), given.target[:checked]
    few = Batch(given.kind, x, target, given.smoothing)
    same = "SoftmaxLoss" if name == "CrossEntropyLoss" else name
    exact = _step("regmax", same, variant, _ours(same, variant, few), few)
    exact.forward()
    exact.backward()
    of, wanted = step.leaves[0].grad, exact.leaves[0].grad
    assert of is not None
    assert wanted is not None
    error = (of[:checked].double() * len(given.x) - wanted * len(x)).abs().max()
    return {"zeros": float((of == 0).sum()) / of.numel(), "error": float(error)}
