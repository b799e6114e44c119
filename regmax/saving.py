"""What whole objects of regmax are saved as: the classes in their pickles.

PyTorch's own classes are here where layers of regmax hold them and PyTorch does not accept them by
itself.
"""

from __future__ import annotations

from typing import Any

from torch.nn import ModuleDict, ModuleList
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from . import losses, nn
from .expressions import Scaled, ScaledPenalty, Sum
from .layer import RegularizedMax
from .penalty import Penalized
from .plugins import registry
from .roads import Settings

_KINDS = ("regularizer", "penalty", "solver")
_OWN = (RegularizedMax, Settings, Penalized, Scaled, ScaledPenalty, Sum, losses.Probabilities)
_MODULES = (nn.AdaptiveEntmax, nn.Between, nn.Learnable, nn.MultiheadAttention, nn.Positive)
_TORCH = (ModuleDict, ModuleList, NonDynamicallyQuantizableLinear)


def classes() -> list[type[Any]]:
    """regmax's, those of plugins, the losses by name, and PyTorch's."""
    offered = [cls for kind in _KINDS for cls in registry().names(kind).values()]
    named = [getattr(losses, name) for name in dir(losses)]
    return [*_OWN, *_MODULES, *_TORCH, *offered, *named]
