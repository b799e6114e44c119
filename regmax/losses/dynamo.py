"""L_Ω for ``torch.compile``, as :mod:`regmax.mapping.dynamo` is for Π_Ω."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..mapping.dynamo import outside, text_of
from ..mapping.methods.solver import Settings
from ..regularizers import serialize
from . import fenchel_young
from .targets import Target

__all__ = ["losses", "outside", "text_of"]


def _losses(text: str, x: Tensor, gamma: Any, dim: int, mask: Tensor | None, *rest: Any) -> Tensor:
    """L_Ω(x; t), one number per row. ``rest``: the parts of t, the rows to skip, Ω's arguments."""
    *target, skip = rest[: len(Target._fields) + 1]
    omega = serialize.made(text, list(rest[len(Target._fields) + 1 :]))
    t = Target(*target)
    return fenchel_young.losses(omega, x, gamma, dim, mask, t, skip, Settings())


losses: Callable[..., Tensor] = torch.compiler.allow_in_graph(_losses)
