"""regmax: a regularizer Ω becomes the differentiable layer argmax_{y ∈ Δ} ⟨y, x⟩ − γΩ(y)."""

from __future__ import annotations

from typing import Any

from . import curvature, functional
from ._version import __version__
from .crosscheck import crosscheck
from .errors import (
    ConvergenceError,
    ConvergenceWarning,
    PluginError,
    PluginWarning,
    RegularizerError,
)
from .hooks import hookimpl
from .layer import RegularizedMax
from .penalty import Penalized, Penalty
from .plugins import registry
from .regularizer import Regularizer, parameters_of
from .report import Report
from .solution import Solution

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "Penalized",
    "Penalty",
    "PluginError",
    "PluginWarning",
    "RegularizedMax",
    "Regularizer",
    "RegularizerError",
    "Report",
    "Solution",
    "__version__",
    "available",
    "crosscheck",
    "curvature",
    "functional",
    "hookimpl",
    "regularizer",
]


def available() -> list[str]:
    """The names of all installed regularizers, sorted."""
    return list(registry().regularizers())


def regularizer(name: str, **hyperparameters: Any) -> Regularizer:
    """The regularizer that goes by ``name`` ("tv"), with its hyperparameters (``lam=0.1``)."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str; got {type(name).__name__}")
    cls = registry().get("regularizer", name)
    accepted = parameters_of(cls)
    unknown = [key for key in hyperparameters if key not in accepted]
    if unknown:
        raise TypeError(
            f"regularizer {name!r} has no hyperparameter {', '.join(map(repr, unknown))}; "
            f"accepted: {', '.join(accepted) or '(none)'}"
        )
    omega: Regularizer = cls(**hyperparameters)
    return omega
