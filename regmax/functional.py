"""Every mapping by name: ``from regmax.functional import sparsemax``.

    sparsemax(x, dim=-1, gamma=1.0, mask=None)
    entmax(x, alpha=1.5, dim=-1, gamma=1.0, mask=None)

The names come from the plugins, a third party's among them. A mapping takes the scores, then the
hyperparameters of its regularizer, then ``dim``, ``gamma`` and ``mask`` as
:class:`regmax.RegularizedMax` does, and returns Π_Ω(x).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import checks, engine
from .errors import PluginError
from .plugins import registry
from .regularizer import parameters_of
from .rows import outside_inference, prepare

_COMMON = (("dim", -1), ("gamma", 1.0), ("mask", None))


def __getattr__(name: str) -> Callable[..., Tensor]:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return _mapping(name)
    except PluginError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    return registry().mappings()


@functools.cache
def _mapping(name: str) -> Callable[..., Tensor]:
    cls = registry().mapping(name)
    preset: dict[str, Any] = cls.presets.get(name, {})
    own = [p for key, p in parameters_of(cls).items() if key not in preset]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [p.replace(kind=kind) for p in own]
    signature = inspect.Signature(
        [
            inspect.Parameter("x", kind),
            *own,
            *(inspect.Parameter(key, kind, default=value) for key, value in _COMMON),
        ]
    )
    hyper = tuple(p.name for p in own)

    @outside_inference
    def mapping(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        gamma = checks.hyperparameter("gamma", given["gamma"], "> 0", lambda g: g > 0)
        omega = cls(**{key: given[key] for key in hyper}, **preset)
        rows = prepare(omega, given["x"], gamma, given["dim"], given["mask"])
        return rows.restore(engine.argmax(rows, engine.Settings())[0])

    mapping.__name__ = mapping.__qualname__ = name
    mapping.__module__ = __name__
    mapping.__signature__ = signature  # type: ignore[attr-defined]
    mapping.__doc__ = (
        f"{name}(x) = argmax over the simplex of ⟨y, x⟩ − γΩ(y), Ω = {cls.__name__}.\n\n"
        f"{inspect.getdoc(cls) or ''}"
    )
    return mapping
