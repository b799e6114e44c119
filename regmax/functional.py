"""Every mapping by name: ``from regmax.functional import sparsemax``.

    sparsemax(x, dim=-1, gamma=1.0, mask=None, domain=None)
    entmax(x, alpha=1.5, dim=-1, gamma=1.0, mask=None, domain=None)

The names come from the plugins, including those of third parties. A mapping takes the scores, the
hyperparameters of its regularizer, and ``dim``, ``gamma``, ``mask`` and ``domain`` as in
:class:`regmax.RegularizedMax`. It returns Π_Ω(x).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import domains
from .kernels.transforms import outside_inference
from .kernels.wrappers import splits
from .mapping import evaluate
from .mapping.methods.solver import Settings
from .regularizers.errors import PluginError
from .regularizers.operand import parameters_of
from .regularizers.registry import registry
from .regularizers.regularizer import Regularizer

_SETTINGS = Settings()
_COMMON = (("dim", -1), ("gamma", 1.0), ("mask", None), ("domain", None))


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__") or "." in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return _mapping(name)
    except PluginError as error:
        if registry().first(name, "mapping") is None:
            raise AttributeError(str(error)) from None
        raise


def __dir__() -> list[str]:
    return list(registry().names("mapping"))


def _made(cls: type[Regularizer], given: dict[str, Any]) -> Regularizer:
    """Ω of the arguments that its class has, cached if they are numbers."""
    hyper = {key: given[key] for key in cls.arguments}
    kinds = tuple(map(type, hyper.values()))
    if _NUMBERS.issuperset(kinds):
        return _from_numbers(cls, tuple(hyper.items()), kinds)  # type: ignore[arg-type]
    return cls(**hyper)


_NUMBERS = frozenset((float, int, bool))


@functools.lru_cache(maxsize=256)
def _from_numbers(
    cls: type[Regularizer], hyper: tuple[tuple[str, Any], ...], types: tuple[type, ...]
) -> Regularizer:
    return cls(**dict(hyper))


def hyperparameters_of(name: str) -> tuple[type[Regularizer], list[inspect.Parameter]]:
    """The class of Ω of a mapping, and the arguments of Ω that the mapping's name does not set."""
    cls: type[Regularizer] = registry().get("mapping", name)
    preset: dict[str, Any] = cls.presets.get(name, {})
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return cls, [p.replace(kind=kind) for k, p in parameters_of(cls).items() if k not in preset]


def documented(name: str) -> str:
    """Ω of a mapping and its documentation, without the hyperparameters that the name sets."""
    cls: type[Regularizer] = registry().get("mapping", name)
    preset: dict[str, Any] = cls.presets.get(name, {})
    text = inspect.getdoc(cls) or ""
    for key in preset:
        text = re.sub(rf"(?m)^``{key}``:[^.]*\.\s*", "", text)
    numbers = ", ".join(f"{key}={value!r}" for key, value in preset.items())
    return f"{cls.__name__}({numbers}).\n\n{text}" if preset else f"{cls.__name__}.\n\n{text}"


@functools.cache
def _mapping(name: str) -> Callable[..., Tensor]:
    cls, own = hyperparameters_of(name)
    preset: dict[str, Any] = cls.presets.get(name, {})
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            inspect.Parameter("x", kind),
            *own,
            *(inspect.Parameter(key, kind, default=value) for key, value in _COMMON),
        ]
    )
    names, arguments = tuple(signature.parameters), cls.arguments
    parameters = signature.parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    every = frozenset(names)

    @outside_inference
    def mapping(*args: Any, **kwargs: Any) -> Tensor:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        twice = kwargs and any(key in kwargs for key in names[: len(args)])
        if given.keys() != every or len(args) > len(names) or twice:
            try:
                signature.bind(*args, **kwargs)  # says what is wrong
            except TypeError as error:
                raise TypeError(f"{name}: {error}; accepted: {', '.join(names)}") from None
        x, dim, gamma, mask = given["x"], given["dim"], given["gamma"], given["mask"]
        given.update(preset)
        domain = given["domain"]
        domain = None if domain is None else domains.given(domain)
        if torch.compiler.is_dynamo_compiling():
            from .mapping import dynamo  # loads the compiler

            text, _ = dynamo.of_form((cls, arguments, ()))
            if not (text and dynamo.records(cls, domain)) or splits(x, dim):
                outside: Tensor = dynamo.outside(mapping, *map(given.get, names))
                return outside
            told = domains.told(domain)
            return dynamo.mapping(text, x, gamma, dim, mask, told, *map(given.get, arguments))
        return evaluate.mapping(_made(cls, given), x, gamma, dim, mask, _SETTINGS, domain)

    mapping.__name__ = mapping.__qualname__ = name
    mapping.__module__ = __name__
    mapping.__signature__ = signature  # type: ignore[attr-defined]
    mapping.__doc__ = (
        f"{name}(x) = argmax over the simplex of ⟨y, x⟩ − γΩ(y), Ω = {documented(name)}"
    )
    return mapping
