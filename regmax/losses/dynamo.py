"""L_Ω for ``torch.compile``, as :mod:`regmax.mapping.dynamo` is for Π_Ω."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import domains
from ..mapping.dynamo import made, outside, text_of
from ..mapping.methods.solver import Settings
from . import fenchel_young
from . import on_domain as apart
from .targets import Target

__all__ = ["losses", "on_domain", "outside", "text_of"]


def _losses(text: str, x: Tensor, gamma: Any, dim: int, mask: Tensor | None, *rest: Any) -> Tensor:
    """L_Ω(x; t), one number per row. ``rest``: the parts of t, the rows to skip, Ω's arguments."""
    *target, skip = rest[: len(Target._fields) + 1]
    omega = made(text, list(rest[len(Target._fields) + 1 :]))
    t = Target(*target)
    return fenchel_young.losses(omega, x, gamma, dim, mask, t, skip, Settings())


def _on_domain(
    text: str,
    x: Tensor,
    gamma: Any,
    dim: int,
    mask: Tensor | None,
    target: Tensor,
    skip: Tensor | None,
    domain: tuple[Any, ...],
    *arguments: Any,
) -> Tensor:
    """The same on another domain than the simplex."""
    omega, D = made(text, list(arguments)), domains.made(domain)
    assert D is not None
    return apart.losses(omega, x, gamma, dim, mask, target, Settings(), D, skip)


on_domain: Callable[..., Tensor] = torch.compiler.allow_in_graph(_on_domain)
losses: Callable[..., Tensor] = torch.compiler.allow_in_graph(_losses)
