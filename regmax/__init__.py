"""regmax turns a regularizer Ω into the differentiable layer argmax_{y ∈ Δ} ⟨y, x⟩ − γΩ(y)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import functional
from .domains import AtMost, Box, Domain, Simplex, Transport
from .optimality.solution import Solution, Status, Trace
from .regularizers import algebra as algebra  # + and * of regularizers
from .regularizers.errors import (
    ConvergenceError,
    ConvergenceWarning,
    PluginError,
    PluginWarning,
    RegularizerError,
)
from .regularizers.hooks import hookimpl
from .regularizers.penalty import Penalized, Penalty
from .regularizers.registry import KINDS, instance, registry
from .regularizers.regularizer import Regularizer

if TYPE_CHECKING:
    from . import analysis, losses, nn
    from .losses import FenchelYoungLoss
    from .nn.layer import RegularizedMax
    from .testing.crosscheck import crosscheck
    from .testing.report import Report

__version__ = "0.1.0"

__all__ = [
    "AtMost",
    "Box",
    "ConvergenceError",
    "ConvergenceWarning",
    "Domain",
    "FenchelYoungLoss",
    "Penalized",
    "Penalty",
    "PluginError",
    "PluginWarning",
    "RegularizedMax",
    "Regularizer",
    "RegularizerError",
    "Report",
    "Simplex",
    "Solution",
    "Status",
    "Trace",
    "Transport",
    "__version__",
    "analysis",
    "available",
    "crosscheck",
    "functional",
    "hookimpl",
    "losses",
    "nn",
    "penalty",
    "regularizer",
    "safe_globals",
]


_LATER = {
    "RegularizedMax": "nn.layer",
    "Report": "testing.report",
    "crosscheck": "testing.crosscheck",
}


def __getattr__(name: str) -> Any:
    """Import lazily: chapters that ``import regmax`` leaves out, the cross-check, and the losses by
    name, such as ``regmax.SparsemaxLoss``."""
    if name in ("analysis", "integrations", "losses", "nn", "plots", "testing"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER or name.endswith("Loss"):
        module = importlib.import_module(f"{__name__}.{_LATER.get(name, 'losses')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def available(kind: str = "regularizer") -> list[str]:
    """The sorted names of all installed regularizers, or of another ``kind``: ``"penalty"``,
    ``"solver"`` or ``"backend"``."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}; got {kind!r}")
    return list(registry().names(kind))


def regularizer(name: str, **hyperparameters: Any) -> Regularizer:
    """The regularizer called ``name`` ("tv"), with its hyperparameters (``lam=0.1``).

    ``regmax.tv``, with the distribution in front, where another package uses the name too.
    """
    omega: Regularizer = _made("regularizer", name, hyperparameters)
    return omega


def penalty(name: str, **hyperparameters: Any) -> Penalty:
    """The penalty called ``name`` ("grid_tv"), with its arguments (``shape=(14, 14)``).

    ``regmax.Penalized(base, penalty, lam)`` is the regularizer base + λR.
    """
    r: Penalty = _made("penalty", name, hyperparameters)
    return r


def safe_globals() -> list[type[Any]]:
    """The classes that ``torch.load(weights_only=True)`` must allow to load a whole layer, loss or
    regularizer, including those of installed plugins.

        with torch.serialization.safe_globals(regmax.safe_globals()):
            layer = torch.load("layer.pt")

    Add your own classes. A ``state_dict`` needs none of this. A file can make objects of these
    classes with any content. It can call their constructors, which check and store their arguments.
    It cannot run code of its own.
    """
    from .integrations import saving

    return saving.classes()


def _made(kind: str, name: str, hyperparameters: dict[str, Any]) -> Any:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str; got {type(name).__name__}")
    return instance(registry().get(kind, name), kind, name, hyperparameters)
