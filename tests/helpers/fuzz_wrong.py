"""Wrong arguments: a ValueError, TypeError or, for a name, PluginError that names the argument."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fuzz_cases import Scores

import regmax
from regmax import functional

INT = torch.tensor([[2]])
NUMBERS: tuple[Any, ...] = (0.0, -1.0, math.nan, math.inf, "1", None, True, [1.0], 1j, INT)
WRONG: dict[str, tuple[Any, ...]] = {
    "x": (None, 1.0, [1.0, 2.0], torch.tensor(1.0), torch.ones(2, 3).long(), torch.ones(3, 0)),
    "dim": (7, -7, 1.0, True, None, "0"),
    "mask": (
        True,
        [True],
        torch.ones(7),
        torch.ones(2, 3, dtype=torch.int64),
        torch.ones(11).bool(),
    ),
    "gamma": NUMBERS,
    "alpha": NUMBERS,
    "p": (*NUMBERS, 1.0, 2.5, torch.tensor(1.0)),
    "lam": (-1.0, *NUMBERS[2:]),
    "exact": (None, 1, "yes"),
    "target": (None, 1, torch.ones(11).long(), torch.full((2,), 99), torch.ones(2).bool()),
    "weight": ([1.0], torch.ones(2, 2), -torch.ones(5), torch.ones(11)),
    "ignore_index": (None, 1.0, True),
    "reduction": ("max", None, 1),
    "label_smoothing": (-0.1, 1.1, None, "0", math.nan, True),
    "solver": ("none such", None, 3),
    "tol": (0.0, -1.0, "1", math.nan, True),
    "max_iter": (0, 1.5, None, True),
    "on_failure": ("stop", None),
    "omega": (None, "gini", regmax.Regularizer),
}
LOSS = ("weight", "ignore_index", "reduction", "label_smoothing", "dim", "gamma", "max_iter")


@dataclass(frozen=True)
class Refused:
    """``what``: a mapping's name, "layer" or "loss"; ``value``: which of the wrong ones."""

    what: str
    argument: str
    value: int


def arguments(what):
    """Those of a callable that can be wrong."""
    if what == "layer":
        return ("x", "mask", "dim", "gamma", "solver", "tol", "max_iter", "on_failure", "omega")
    if what == "loss":
        return ("input", "target", "mask", *LOSS)
    own = [p.name for p in functional.hyperparameters_of(what)[1]]
    return ("x", "dim", "gamma", "mask", *own)


def check_refused(case):
    """The wrong argument is refused, and named."""
    values = WRONG["x" if case.argument == "input" else case.argument]
    value = values[case.value % len(values)]
    accepted = (ValueError, TypeError, regmax.PluginError)
    with pytest.raises(accepted, match=case.argument):
        call(case.what, case.argument, value)


def call(what, argument, value):
    given = {argument: value}
    x = {"x": Scores((2,), 5, -1).make()}
    if what == "layer":
        late = {k: given.pop(k) for k in ("x", "mask") if k in given}
        regmax.RegularizedMax(**{"omega": regmax.regularizer("gini"), **given})(**x | late)
    elif what == "loss":
        late = {k: given.pop(k) for k in ("input", "target", "mask") if k in given}
        first = {"input": x["x"], "target": torch.tensor([0, 1])}
        regmax.SparsemaxLoss(**given)(**first | late)
    else:
        getattr(functional, what)(**x | given)
