"""Ω by a mapping's name, as a constant of torch.compile's graph.

``assume_constant_result`` imports the compiler, so this module is imported only while Dynamo
records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..mapping import dynamo
from ..mapping.forward import Settings
from ..regularizers import serialize
from .names import named


def _text_of(name: str) -> tuple[str, list[Any]]:
    """The text of the regularizer ``named(name)``, and its arguments, which are numbers."""
    omega = named(name)
    text, names = dynamo.text_of(omega, Settings())
    return text, [serialize.attribute(omega, key) for key in names]


text_of: Callable[[str], tuple[str, list[Any]]] = torch.compiler.assume_constant_result(_text_of)
