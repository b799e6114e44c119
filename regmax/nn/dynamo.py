"""Ω by a mapping's name, as a constant of torch.compile's graph.

``assume_constant_result`` imports the compiler, so this module is imported only while Dynamo
records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..mapping import dynamo
from ..mapping.methods.closed_form import has_inverse
from ..mapping.methods.solver import Settings
from ..regularizers.regularizer import Regularizer


def _text_of(named: Callable[[str], Regularizer], name: str, domain: bool) -> tuple[str, list[Any]]:
    """The text of the regularizer ``named(name)``, and its arguments, which are numbers;
    ``domain``: on another domain than the simplex."""
    if domain and not has_inverse(named(name)):
        return "", []
    return dynamo.text_of(named(name), Settings())


text_of: Callable[..., tuple[str, list[Any]]] = torch.compiler.assume_constant_result(_text_of)
