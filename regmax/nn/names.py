"""Ω by the name of its mapping."""

from __future__ import annotations

import functools
from typing import Any

from ..regularizers.errors import PluginError
from ..regularizers.operand import parameters_of
from ..regularizers.registry import registry, suggestion
from ..regularizers.regularizer import Regularizer


@functools.cache
def named(name: str) -> Regularizer:
    """The regularizer of a mapping's name ("entmax15"), or of its own ("tsallis")."""
    found = registry()
    try:
        cls = found.mapping(name)
    except PluginError:
        if name in found.mappings():
            raise  # two plugins claim it
        if name not in found.names("regularizer"):
            known = sorted({*found.mappings(), *found.names("regularizer")})
            raise ValueError(
                f"omega must be one of {', '.join(known)}; got {name!r}{suggestion(name, known)}"
            ) from None
        cls = found.get("regularizer", name)
    preset: dict[str, Any] = cls.presets.get(name, {})
    missing = [
        key
        for key, p in parameters_of(cls).items()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and key not in preset
    ]
    if missing:
        raise ValueError(
            f"omega={name!r} leaves {', '.join(missing)} open: make it with "
            f"regmax.regularizer({cls.name!r}, {missing[0]}=...) and pass that"
        )
    made: Regularizer = cls(**preset)
    return made
