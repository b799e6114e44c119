"""Ω by a mapping's name, as a constant of torch.compile's graph.

``assume_constant_result`` imports the compiler, so this module is imported only while Dynamo
records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..mapping import dynamo
from ..mapping.methods.solver import Settings
from ..regularizers.regularizer import Regularizer


def _text_of(named: Callable[[str], Regularizer], name: str) -> tuple[str, list[Any]]:
    """The text of the regularizer ``named(name)``, and its arguments, which are numbers."""
    return dynamo.text_of(named(name), Settings())


text_of: Callable[..., tuple[str, list[Any]]] = torch.compiler.assume_constant_result(_text_of)
