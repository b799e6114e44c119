"""The regularizer of a name. A file of its own: both omega.py and dynamo.py import it."""

from __future__ import annotations

import functools
from typing import Any

from ..regularizers.errors import clipped
from ..regularizers.registry import registry, required, suggestion
from ..regularizers.regularizer import Regularizer


@functools.cache
def named(name: str) -> Regularizer:
    """The regularizer of a mapping ("entmax15") or with this name ("tsallis")."""
    found = registry()
    one = found.first(name, "mapping", "regularizer")
    if one is None:
        known = sorted({*found.mappings(), *found.names("regularizer")})
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
