"""The set D of Π(x) = argmax_{y ∈ D} ⟨y, x⟩ − γΩ(y): the simplex, with bounds, or without a
sum, and the plans of a transport."""

from __future__ import annotations

from ..regularizers.printing import brief
from .base import Domain, Region
from .bounded import Bounded
from .plans import Plans
from .sets import AtMost, Box, Simplex
from .transport import Transport
from .unit import Unit

__all__ = [
    "AtMost",
    "Bounded",
    "Box",
    "Domain",
    "Plans",
    "Region",
    "Simplex",
    "Transport",
    "Unit",
    "given",
]


def given(domain: Domain | None) -> Domain | None:
    """The argument ``domain``, None for the simplex, which is the default."""
    if domain is None:
        return None
    if not isinstance(domain, Domain):
        raise TypeError(
            "domain must be regmax.Simplex(…), regmax.AtMost(…), regmax.Box(…), "
            "regmax.Transport(…) or None; got "
            f"{type(domain).__name__} {brief(domain)}"
        )
    return None if domain.plain else domain
