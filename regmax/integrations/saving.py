"""How regmax saves objects: pickles name the classes of :func:`classes`; Ω can be a text too.

The list includes PyTorch's classes that layers of regmax hold and that PyTorch does not allow by
default. The text of Ω is its ``repr``, in which classes of third parties have the name of their
distribution in front; :mod:`regmax.regularizers.serialize` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import ModuleDict, ModuleList
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .. import losses, nn
from ..domains import AtMost, Box, Simplex
from ..losses.loss import Probabilities
from ..mapping.methods.solver import Settings
from ..nn.layer import RegularizedMax
from ..regularizers import printing, serialize
from ..regularizers.errors import clipped, told
from ..regularizers.expressions import Scaled, ScaledPenalty, Sum
from ..regularizers.operand import Operand
from ..regularizers.penalty import Penalized
from ..regularizers.registry import registry
from ..regularizers.regularizer import Regularizer

_KINDS = ("regularizer", "penalty", "solver")
_DOMAINS = (Simplex, AtMost, Box)
_OWN = (RegularizedMax, Settings, Penalized, Scaled, ScaledPenalty, Sum, Probabilities, *_DOMAINS)
_LEARNT = (nn.AdaptiveEntmax, nn.Between, nn.Learnable, nn.Positive)
_MODULES = (*_LEARNT, nn.MultiheadAttention)
_TORCH = (ModuleDict, ModuleList, NonDynamicallyQuantizableLinear)


def classes() -> list[type[Any]]:
    """The classes of regmax, of plugins, of the losses by name, and of PyTorch."""
    offered = [offer.cls for kind in _KINDS for offer in registry().offers(kind)]
    return [*_OWN, *_MODULES, *_TORCH, *offered, *_losses()]


def _losses() -> Iterator[type[Any]]:
    for name in dir(losses):
        try:
            yield getattr(losses, name)
        except Exception:  # an Ω without a loss: an argument of its own is called reduction
            continue


def text_of(omega: Regularizer | nn.Learnable) -> str:
    """The text from which :func:`made` makes Ω again, with the present values of its parameters.

    A TypeError says why an Ω has no such text.
    """
    for part in omega.modules():
        _check(part)
    found = _text(omega)
    try:
        again = made(found)
    except Exception as error:  # a plugin's code may raise anything
        reason = told(error)
        raise TypeError(
            f"{clipped(str(omega))} cannot be made again from {clipped(found)!r}: {reason}"
        ) from error
    if _text(again) != found or _shapes(again) != _shapes(omega):
        raise TypeError(
            f"{clipped(str(omega))} cannot be made again from {clipped(found)!r}: that is another Ω"
        )
    return found


def made(text: str) -> Regularizer | nn.Learnable:
    """The Ω of a text, on the CPU. ValueError if it cannot be read, PluginError if a class is
    unknown; Ω's class may raise too."""
    with torch.device("cpu"):
        omega = serialize.read(text, _known())
    if not isinstance(omega, Regularizer | nn.Learnable):
        raise ValueError(f"cannot read Ω from {clipped(text)!r}: that is {type(omega).__name__}")
    return omega


def _check(part: torch.nn.Module) -> None:
    cls = type(part)
    if cls in _TORCH:
        return
    if serialize.word(cls, _known()) is None:
        raise TypeError(
            f"{cls.__module__}.{cls.__qualname__} is no class that regmax or a plugin offers"
        )
    names = part.arguments if isinstance(part, Operand) else ()
    hidden = [k for k in names if not hasattr(part, k)]
    if hidden:
        raise TypeError(
            f"{cls.__name__} cannot be made again from its constructor's arguments: "
            f"{', '.join(hidden)} is no attribute"
        )


def _text(omega: Any) -> str:
    known = _known()
    with printing.whole(lambda cls: serialize.word(cls, known) or cls.__name__):
        return repr(omega)


def _shapes(omega: Any) -> dict[str, torch.Size]:
    return {name: item.shape for name, item in omega.state_dict().items()}


def _known() -> dict[str, Any]:
    return serialize.known(*_LEARNT)
