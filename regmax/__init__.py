"""regmax: a regularizer Ω becomes the differentiable layer argmax_{y ∈ Δ} ⟨y, x⟩ − γΩ(y)."""

from __future__ import annotations

from typing import Any

from . import algebra, analysis, curvature, functional, losses, nn
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
from .losses import FenchelYoungLoss
from .penalty import Penalized, Penalty
from .plugins import KINDS, instance, registry
from .regularizer import Regularizer
from .report import Report
from .solution import Solution, Status, Trace

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "FenchelYoungLoss",
    "Penalized",
    "Penalty",
    "PluginError",
    "PluginWarning",
    "RegularizedMax",
    "Regularizer",
    "RegularizerError",
    "Report",
    "Solution",
    "Status",
    "Trace",
    "__version__",
    "algebra",
    "analysis",
    "available",
    "crosscheck",
    "curvature",
    "functional",
    "hookimpl",
    "losses",
    "nn",
    "penalty",
    "regularizer",
]


def __getattr__(name: str) -> Any:
    """``regmax.SparsemaxLoss`` and its like: the names of :mod:`regmax.losses`."""
    if name.endswith("Loss"):
        return getattr(losses, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def available(kind: str = "regularizer") -> list[str]:
    """The names of all installed regularizers, sorted; or of another kind: ``"penalty"``,
    ``"solver"``, ``"backend"``."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}; got {kind!r}")
    return list(registry().names(kind))


def regularizer(name: str, **hyperparameters: Any) -> Regularizer:
    """The regularizer that goes by ``name`` ("tv"), with its hyperparameters (``lam=0.1``)."""
    omega: Regularizer = _made("regularizer", name, hyperparameters)
    return omega


def penalty(name: str, **hyperparameters: Any) -> Penalty:
    """The penalty that goes by ``name`` ("grid_tv"), with its arguments (``shape=(14, 14)``).

    ``regmax.Penalized(base, penalty, lam)`` is the regularizer base + λR.
    """
    r: Penalty = _made("penalty", name, hyperparameters)
    return r


def _made(kind: str, name: str, hyperparameters: dict[str, Any]) -> Any:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str; got {type(name).__name__}")
    return instance(registry().get(kind, name), kind, name, hyperparameters)
