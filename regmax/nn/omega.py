"""Π_Ω along the keys, for each form in which attention takes Ω: object, name, learnable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.transforms import outside_inference
from ..mapping import engine
from ..mapping.forward import Settings
from ..regularizers import serialize
from ..regularizers.regularizer import Regularizer
from .learnable import Learnable
from .names import named

Omega = Regularizer | Learnable | str
SETTINGS = Settings()
CERTIFIED = Settings(certify=True)


def resolved(omega: Any) -> Regularizer | Learnable:
    """``omega``, a name made into the regularizer, or an error that says what is accepted."""
    if isinstance(omega, str):
        return named(omega)
    if not isinstance(omega, Regularizer | Learnable):
        raise TypeError(
            "omega must be a regmax.Regularizer, a regmax.nn.Learnable or the name of a mapping; "
            f"got {type(omega).__name__} {omega!r}"
        )
    return omega


def mapped(
    omega: Omega,
    scores: Tensor,
    gamma: float | Tensor,
    mask: Tensor | None,
    certify: bool = False,
) -> Tensor:
    """Π_Ω(scores) along the last dimension; ``certify`` as in :class:`regmax.RegularizedMax`."""
    if torch.compiler.is_dynamo_compiling():
        return _recorded(omega, scores, gamma, mask, certify)
    return _plain(omega, scores, gamma, mask, certify)


@outside_inference
def _plain(
    omega: Omega, scores: Tensor, gamma: float | Tensor, mask: Tensor | None, certify: bool
) -> Tensor:
    omega = resolved(omega)
    present = omega() if isinstance(omega, Learnable) else omega
    settings = CERTIFIED if certify else SETTINGS
    return engine.mapping(present, scores, gamma, -1, mask, settings)


def _recorded(
    omega: Omega, scores: Tensor, gamma: Any, mask: Tensor | None, certify: bool
) -> Tensor:
    """One call in the graph of torch.compile, or a call outside of it: as RegularizedMax does."""
    from ..mapping import dynamo  # loads the compiler

    if isinstance(omega, str):
        from . import constants

        text, arguments = constants.text_of(omega)
    else:
        text, arguments = _text_of(omega)
    if not text or certify:
        outside: Tensor = dynamo.outside(_plain, omega, scores, gamma, mask, certify)
        return outside
    return dynamo.mapping(text, scores, gamma, -1, mask, *arguments)


def _text_of(omega: Any) -> tuple[str, list[Any]]:
    """Ω as a text and its arguments, tensors that learn among them; no text if there is none."""
    from ..mapping import dynamo

    base, learned = omega, {}
    if isinstance(omega, Learnable):
        base, learned = omega.base, omega.values()
    text, names = dynamo.text_of(base, SETTINGS)
    return text, [
        learned[name] if name in learned else serialize.attribute(base, name) for name in names
    ]
