"""Π_Ω along the keys. Attention takes Ω as a regularizer, a learnable or a name."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from .. import domains
from ..domains import Domain
from ..kernels.transforms import outside_inference
from ..kernels.wrappers import splits
from ..mapping import evaluate
from ..mapping.methods.solver import Settings
from ..regularizers.errors import clipped
from ..regularizers.printing import brief
from ..regularizers.registry import registry, required, suggestion
from ..regularizers.regularizer import Regularizer
from .learnable import Learnable

Omega = Regularizer | Learnable | str
SETTINGS = Settings()
CERTIFIED = Settings(certify=True)


def named(name: str) -> Regularizer:
    """The regularizer of a mapping ("entmax15") or with this name ("tsallis")."""
    return _named(name)


@functools.cache
def _named(name: str) -> Regularizer:
    found = registry()
    one = found.first(name, "mapping", "regularizer")
    if one is None:
        known = sorted({*found.names("mapping"), *found.names("regularizer")})
        raise ValueError(
            f"omega must be one of {', '.join(known)}; got {clipped(name, 100)!r}"
            f"{suggestion(name, known)}"
        )
    cls = one[1]
    preset: dict[str, Any] = cls.presets.get(name.rpartition(".")[2], {})
    missing = [key for key in required(cls) if key not in preset]
    if missing:
        raise ValueError(
            f"omega={name!r} has no default for {', '.join(missing)}: pass "
            f"regmax.regularizer({cls.name!r}, {missing[0]}=...) instead"
        )
    made: Regularizer = cls(**preset)
    return made


def resolved(omega: Any) -> Regularizer | Learnable:
    """``omega`` as an object. A name gives the regularizer; other types raise a TypeError."""
    if isinstance(omega, str):
        return _named(omega)
    if not isinstance(omega, Regularizer | Learnable):
        raise TypeError(
            "omega must be a regmax.Regularizer, a regmax.nn.Learnable or the name of a mapping; "
            f"got {type(omega).__name__} {brief(omega)}"
        )
    return omega


def at_present(omega: Omega) -> Regularizer:
    """Ω with the present values of what it learns."""
    omega = resolved(omega)
    return omega() if isinstance(omega, Learnable) else omega


def fresh(omega: Any) -> Regularizer | Learnable:
    """``omega`` as an object of a module, which may change it: a new one for a name."""
    found = resolved(omega)
    return copy.deepcopy(found) if isinstance(omega, str) else found


def mapped(
    omega: Omega,
    scores: Tensor,
    gamma: float | Tensor,
    mask: Tensor | None,
    certify: bool = False,
    domain: Domain | None = None,
) -> Tensor:
    """Π_Ω(scores) along the last dimension; ``certify`` and ``domain`` as in
    :class:`regmax.RegularizedMax`."""
    if not torch.compiler.is_dynamo_compiling():
        return _plain(omega, scores, gamma, mask, certify, domain)
    from ..mapping import dynamo  # loads the compiler

    if isinstance(omega, str):
        text, inside = dynamo.of_name(named, omega, domain is not None)
    elif isinstance(omega, Learnable):
        text, inside = dynamo.text_of(omega.base, SETTINGS, domain, **omega.values())
    else:
        text, inside = dynamo.text_of(omega, SETTINGS, domain)
    told = domains.told(domain)
    if not text or certify or splits(scores, -1) or (domain is not None and not told):
        outside: Tensor = dynamo.outside(_plain, omega, scores, gamma, mask, certify, domain)
        return outside
    return dynamo.mapping(text, scores, gamma, -1, mask, told, *inside)


@outside_inference
def _plain(
    omega: Omega,
    scores: Tensor,
    gamma: float | Tensor,
    mask: Tensor | None,
    certify: bool,
    domain: Domain | None,
) -> Tensor:
    settings = CERTIFIED if certify else SETTINGS
    return evaluate.mapping(at_present(omega), scores, gamma, -1, mask, settings, domain)
