"""L_Ω for ``torch.compile``, as :mod:`regmax.mapping.dynamo` is for Π_Ω."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import domains
from ..mapping.dynamo import in_graph, made, outside, text_of
from ..mapping.methods.solver import Settings
from . import fenchel_young
from .targets import Target

__all__ = ["losses", "outside", "text_of"]


@in_graph
def losses(
    text: str, x: Tensor, gamma: Any, dim: int, mask: Tensor | None, domain: Any, *rest: Any
) -> Tensor:
    """L_Ω(x; t), one number per row. ``rest``: the parts of t, Ω's arguments."""
    parts = len(Target._fields)
    target, omega = Target(*rest[:parts]), made(text, list(rest[parts:]))
    D = domains.made(domain)
    return fenchel_young.losses(omega, x, gamma, dim, mask, target, Settings(), D)
