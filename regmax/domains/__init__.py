"""The set D of Π(x) = argmax_{y ∈ D} ⟨y, x⟩ − γΩ(y): the simplex, with bounds, or without a
sum, the plans of a transport, and those of the user's own."""

from __future__ import annotations

from typing import Any

from ..regularizers.printing import brief
from .base import Faced, Region
from .bounded import Bounded
from .domain import Domain
from .plans import Plans
from .projected import Projected
from .sets import AtMost, Box, Simplex
from .transport import Transport
from .unit import Unit

NAMED: dict[str, type[Domain]] = {
    "Simplex": Simplex,
    "AtMost": AtMost,
    "Box": Box,
    "Transport": Transport,
}
__all__ = [
    "NAMED",
    "AtMost",
    "Bounded",
    "Box",
    "Domain",
    "Faced",
    "Plans",
    "Projected",
    "Region",
    "Simplex",
    "Transport",
    "Unit",
    "given",
    "made",
    "told",
]


def given(domain: Domain | None) -> Domain | None:
    """The argument ``domain``, None for the simplex, which is the default."""
    if domain is None:
        return None
    if not isinstance(domain, Domain):
        raise TypeError(
            "domain must be regmax.Simplex(…), regmax.AtMost(…), regmax.Box(…), "
            "regmax.Transport(…), a regmax.Domain of your own or None; got "
            f"{type(domain).__name__} {brief(domain)}"
        )
    return None if domain.plain else domain


def told(domain: Domain | None) -> tuple[Any, ...]:
    """A domain as its name and its arguments, for graphs; () for None, and for plans, which graphs
    do not record."""
    for name, cls in NAMED.items():
        if type(domain) is cls and domain.across is None:
            return (name, *(getattr(domain, key) for key in cls.arguments))
    return ()


def made(told: tuple[Any, ...]) -> Domain | None:
    """The domain of :func:`told`."""
    return NAMED[told[0]](*told[1:]) if told else None
