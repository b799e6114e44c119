"""Fenchel–Young losses: ``regmax.FenchelYoungLoss(omega)``, and by name ``SparsemaxLoss()``.

    SoftmaxLoss()  SparsemaxLoss()  EntmaxLoss(alpha=1.5)  Entmax15Loss()  PnormmaxLoss(p=1.5)  …

There is one for each mapping of ``regmax.functional``, including those of third parties. This
chapter imports ``regmax.functional``, ``regmax.nn`` and the chapters below them.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .. import functional
from ..regularizers.errors import PluginError
from ..regularizers.registry import registry, suggestion
from .linear import LinearFenchelYoungLoss as LinearFenchelYoungLoss
from .loss import FenchelYoungLoss as FenchelYoungLoss


def __getattr__(name: str) -> Any:
    if not name.startswith("__") and name.endswith("Loss"):
        found = _mappings().get(name, [])
        if len(found) == 1:
            return _named(*found)
        if found:
            table = registry().by_mapping
            told = [f"{m!r} of {' and '.join(map(str, table[m]))}" for m in found]
            raise PluginError(
                f"the loss name {name!r} stands for the mappings {' and '.join(told)}; use "
                "regmax.FenchelYoungLoss(omega), or uninstall one of their plugins"
            )
        like = suggestion(name, __dir__())
        raise AttributeError(f"no loss is named {name!r}{like}; accepted: {', '.join(__dir__())}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    usable = set(registry().names("mapping"))
    named = [name for name, found in _mappings().items() if len(found) == 1 and usable >= {*found}]
    return list(dict.fromkeys(["FenchelYoungLoss", "LinearFenchelYoungLoss", *named]))


def _mappings() -> dict[str, list[str]]:
    """The mappings by the name of their loss."""
    found: dict[str, list[str]] = {}
    for mapping in sorted(registry().by_mapping):
        found.setdefault(_class_name(mapping), []).append(mapping)
    return found


def _class_name(mapping: str) -> str:
    return "".join(part.capitalize() for part in mapping.split("_")) + "Loss"


@functools.cache
def _named(mapping: str) -> type[FenchelYoungLoss]:
    """The loss class of a mapping of ``regmax.functional``. Its hyperparameters come first."""
    cls, own = functional.hyperparameters_of(mapping)
    preset = cls.presets.get(mapping, {})
    common = list(inspect.signature(FenchelYoungLoss.__init__).parameters.values())[2:]
    signature = inspect.Signature([*own, *common])
    names = tuple(parameter.name for parameter in own)

    def __init__(self: FenchelYoungLoss, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        omega = cls(**preset, **{k: v for k, v in given.items() if k in names})
        rest = {k: v for k, v in given.items() if k not in names}
        FenchelYoungLoss.__init__(self, omega, **rest)

    doc = f"The :class:`regmax.FenchelYoungLoss` of {mapping}: Ω = {functional.documented(mapping)}"
    name = _class_name(mapping)
    inside = {"__init__": __init__, "__doc__": doc, "hyperparameters": names}
    made = type(name, (FenchelYoungLoss,), inside)
    made.__module__, made.__qualname__ = __name__, name
    made.__signature__ = signature  # type: ignore[attr-defined]
    return made
