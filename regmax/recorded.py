"""The way of ``torch.compile`` to Π_Ω and max_Ω: one call in the graph, traced without Dynamo.

Dynamo cannot follow the making of an nn.Module; what is recorded is therefore one function of
tensors and numbers, which the stages after Dynamo trace into. ``torch.export`` needs none of it.

Imported by Dynamo's own doing, when it meets a mapping: the marks below load the compiler, which
would double the time of ``import regmax``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import engine
from .opaque import not_recordable
from .plugins import registry
from .regularizer import Regularizer
from .roads import Settings
from .rows import prepare


def _mapping(
    name: str, x: Tensor, gamma: Any, dim: int, mask: Tensor | None, *arguments: Any
) -> Tensor:
    """Π_Ω(x), Ω the regularizer of that name with these arguments."""
    return engine.mapping(_make(name, arguments), x, gamma, dim, mask, Settings())


def _smooth_max(
    name: str, x: Tensor, gamma: Any, dim: int, mask: Tensor | None, *arguments: Any
) -> Tensor:
    """max_Ω(x)."""
    rows = prepare(_make(name, arguments), x, gamma, dim, mask)
    return engine.smooth_max(rows, engine.argmax(rows, Settings())[0]).to(x.dtype)


def _make(name: str, arguments: tuple[Any, ...]) -> Regularizer:
    cls = registry().get("regularizer", name)
    omega: Regularizer = cls(**dict(zip(cls.arguments, arguments, strict=True)))
    return omega


mapping: Callable[..., Tensor] = torch.compiler.allow_in_graph(_mapping)
CALLS: dict[str, Callable[..., Tensor]] = {
    "mapping": mapping,
    "max": torch.compiler.allow_in_graph(_smooth_max),
}


def _possible(omega: Regularizer, settings: Settings) -> bool:
    """Whether Π_Ω can be recorded; a graph break is taken where it cannot."""
    return not_recordable(omega, settings) is None


possible: Callable[..., bool] = torch.compiler.assume_constant_result(_possible)


def _outside(function: Callable[..., Any], *arguments: Any) -> Any:
    """A call that the compiler breaks its graph for."""
    return function(*arguments)


outside: Callable[..., Any] = torch.compiler.disable(_outside)
