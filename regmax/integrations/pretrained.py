"""Ω as a part of a Hugging Face model: of its parameters, its configuration and its files.

Ω is the submodule ``regmax``, either of the base model, shared by all attention layers, or of each
layer. ``config.regmax`` keeps the text of Ω. ``attn_implementation`` in config.json names regmax,
so transformers without regmax refuses to load the file.

transformers writes no ``attn_implementation`` into config.json, and has no hook for submodules that
an attention implementation adds. So :func:`wrap_methods` wraps four methods of its base classes:

    PreTrainedConfig.to_dict                   writes the entries for Ω, or removes them
    PreTrainedModel.post_init                  makes Ω before the parameters are loaded
    PreTrainedModel.from_pretrained            refuses a file without Ω's parameters
    PreTrainedModel.set_attn_implementation    adds Ω, or removes it
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from torch import nn

from ..kernels.base import held
from ..nn.learnable import Learnable
from ..regularizers import printing
from ..regularizers.errors import clipped, told
from ..regularizers.regularizer import Regularizer
from . import saving

ATTACHED = "regmax"
"""The ``attn_implementation`` of a model that holds an Ω, also in its config.json."""
OMEGAS: dict[str, Any] = {ATTACHED: None}
"""What each ``attn_implementation`` means: a mapping's name, a registered Ω, or None for the Ω that
the model holds."""
HOW = "attach(model, omega) of regmax.integrations.transformers"

_loading = ContextVar("regmax_loading", default=False)
_attaching = ContextVar("regmax_attaching", default=False)
_given: ContextVar[Regularizer | Learnable | None] = ContextVar("regmax_given", default=None)


# -- the Ω of an attention layer -------------------------------------------------------------------


def omega_of(layer: Any, name: str) -> Regularizer | Learnable | str:
    """Ω of an attention layer that runs under ``name``."""
    known: Regularizer | Learnable | str | None = OMEGAS[name]
    if isinstance(known, str):
        return known
    held: Regularizer | Learnable | None = getattr(layer, "regmax", None)
    if held is not None:
        return held
    if known is None or any(True for _ in known.parameters()):
        raise RuntimeError(
            f"{type(layer).__name__} runs with attn_implementation={name!r}, and its model holds "
            f"no Ω: call {HOW}"
        )
    return known


# -- placing Ω -------------------------------------------------------------------------------------


def attach(model: Any, omega: Regularizer | Learnable, per_layer: bool) -> None:
    """Make Ω a part of the model, and make its attention layers use Ω."""
    before = {id(config): config._attn_implementation for config in _configs(model)}
    with held(_attaching, True):
        model.set_attn_implementation(ATTACHED)
    if not _attention_layers(model, ATTACHED):
        _restore(model, before)
        raise ValueError(
            f"{type(model).__name__} has no attention layer that takes an attn_implementation"
        )
    _put(model, omega, per_layer, None)


def holds(model: Any) -> bool:
    """Whether some attention layer has an Ω of its own."""
    return bool(_held(_attention_layers(model)))


def _put(model: Any, omega: Any, per_layer: bool, saved: dict[str, Any] | None) -> None:
    """Give Ω to the layers of the model that have its ``attn_implementation``."""
    name = model.config._attn_implementation
    layers = _attention_layers(model, name)
    _drop(model, layers)
    if not layers:
        return
    if per_layer or model.device.type == "meta":
        omega = copy.deepcopy(omega)  # the caller's Ω stays unchanged
    if not _loading.get():
        omega.to(device=model.device, dtype=model.dtype)
    for part in omega.modules():
        part._is_hf_initialized = True  # the model's _init_weights must skip it
    if per_layer:
        for layer in layers:
            layer.regmax = copy.deepcopy(omega)
    else:
        model.base_model.regmax = omega
        for layer in layers:
            vars(layer)["regmax"] = omega  # a reference: Ω is one submodule of the model
    for config in _configs(model):
        if config._attn_implementation == name:
            config.regmax = dict(saved or _form(omega, per_layer))


def _held(layers: list[Any]) -> list[Any]:
    """The distinct Ω of these layers."""
    found = {id(x.regmax): x.regmax for x in layers if hasattr(x, "regmax")}
    return list(found.values())


def _drop(model: Any, layers: list[Any]) -> None:
    """Remove Ω from these layers, and from the model if no other layer uses it."""
    gone = _held(layers)
    for layer in layers:
        vars(layer).pop("regmax", None)
        layer._modules.pop("regmax", None)
    used = _held(_attention_layers(model))
    gone = [omega for omega in gone if all(omega is not other for other in used)]
    for part in list(model.modules()):
        if any(part._modules.get("regmax") is omega for omega in gone):
            del part._modules["regmax"]


def _place(model: Any) -> None:
    """Give the model the Ω that its config asks for."""
    name = model.config._attn_implementation
    saved, known, given = _saved(model.config), OMEGAS[name], _given.get()
    if saved is None:
        if known is None:
            raise _without(model)
        if given is None and not _loading.get():  # else _settle() does so after loading
            _put(model, known, False, None)
        return
    per_layer, found = saved["per_layer"], known if given is None else given
    if found is None:
        _put(model, _made(saved), per_layer, saved)
    elif given is None and not _loading.get():
        _put(model, known, per_layer, None)  # the config may come from another model
    else:
        _compare(saved, found)
        _put(model, copy.deepcopy(found), per_layer, saved)


def _settle(model: Any) -> None:
    """Give each part the Ω that its config asks for, if it has none. Clean the other configs."""
    for config in _configs(model):
        if not _own(config):
            _forget(config)
    for part in list(model.modules()):
        if _is_model(part) and _own(part.config):
            layers = _attention_layers(part, part.config._attn_implementation)
            if not all(hasattr(layer, "regmax") for layer in layers):
                _place(part)


def giving(omega: Regularizer | Learnable | None) -> AbstractContextManager[None]:
    """A context in which a loaded model gets this Ω, if its file asks for one."""
    return held(_given, omega)


def _without(model: Any) -> ValueError:
    return ValueError(
        f"attn_implementation={ATTACHED!r} needs a model that holds an Ω, and "
        f"{type(model).__name__} has none: call {HOW}"
    )


# -- Ω in the config -------------------------------------------------------------------------------


def _form(omega: Regularizer | Learnable, per_layer: bool) -> dict[str, Any]:
    """The content of ``config.regmax``; ``lacks`` says why the text does not make Ω again."""
    try:
        return {"omega": saving.text_of(omega), "per_layer": per_layer}
    except TypeError as error:
        with printing.whole():
            return {"omega": repr(omega), "per_layer": per_layer, "lacks": str(error)}


def _saved(config: Any) -> dict[str, Any] | None:
    """``config.regmax``, checked: it may come from an untrusted file."""
    saved: dict[str, Any] | None = vars(config).get("regmax")
    if saved is not None and not _is_form(saved):
        raise ValueError(
            f"config.regmax must be {{'omega': a str, 'per_layer': a bool}}; got "
            f"{clipped(repr(saved))}"
        )
    return saved


def _is_form(item: Any) -> bool:
    """Whether ``item`` has the form that :func:`_form` returns."""
    kept = item if isinstance(item, dict) else {}
    return isinstance(kept.get("omega"), str) and isinstance(kept.get("per_layer"), bool)


def _forget(config: Any) -> None:
    """Remove Ω from a config, unless the config's class uses the name ``regmax`` otherwise."""
    if _is_form(vars(config).get("regmax")):
        del config.regmax


def _made(saved: dict[str, Any]) -> Regularizer | Learnable:
    text = saved["omega"]
    try:
        if "lacks" in saved:
            raise ValueError(saved["lacks"])
        return saving.made(text)
    except Exception as error:  # a plugin's code may raise anything
        raise ValueError(
            f"this model was saved with Ω = {clipped(text)}, which its config does not make again: "
            f"{told(error)}. "
            "Install the plugin that offers Ω, or give it: from_pretrained(cls, folder, omega=...) "
            "of regmax.integrations.transformers"
        ) from error


def _compare(saved: dict[str, Any], omega: Regularizer | Learnable) -> None:
    """Refuse an Ω that differs from the file's in more than the values of parameters."""
    given = _form(omega, False)["omega"]
    if _without_values(given) != _without_values(saved["omega"]):
        raise ValueError(
            f"omega is {clipped(given)}, and the model was saved with Ω = {clipped(saved['omega'])}"
        )


def _without_values(text: str) -> str:
    return re.sub(r"torch\.nn\.Parameter\(torch\.tensor\([^()]*\)", "torch.nn.Parameter(", text)


def _spoken(config: Any) -> Any:
    """``attn_implementation`` in config.json: a name, names by sub-config, or None."""
    name = getattr(config, "_attn_implementation", None)
    name = ATTACHED if _own(config) else name if name in OMEGAS else None
    below = {key: _spoken(inner) for key, inner in _inner(config)}
    if all(item == name for item in below.values()):
        return name
    names = {"": name, **below}
    return {key: item for key, item in names.items() if item is not None} or None


# -- transformers' models and configs --------------------------------------------------------------


def _own(config: Any) -> bool:
    """Whether its ``attn_implementation`` means an Ω that is a part of the model."""
    name = getattr(config, "_attn_implementation", None)
    return name in OMEGAS and not isinstance(OMEGAS[name], str)


def _is_model(part: nn.Module) -> bool:
    from transformers import PreTrainedModel

    return isinstance(part, PreTrainedModel)


def _inner(config: Any) -> Iterator[tuple[str, Any]]:
    for key in config.sub_configs:
        if (inner := getattr(config, key, None)) is not None:
            yield key, inner


def _configs(model: Any) -> list[Any]:
    """The configs of the model and of the models in it, each followed by its sub-configs."""
    found: dict[int, Any] = {}

    def add(config: Any) -> None:
        found.setdefault(id(config), config)
        for _, inner in _inner(config):
            add(inner)

    for part in model.modules():
        if _is_model(part):
            add(part.config)
    return list(found.values())


def _attention_layers(model: Any, name: str | None = None) -> list[Any]:
    """The attention layers, or those with one ``attn_implementation``."""
    return [
        part
        for part in model.modules()
        if not _is_model(part)
        and _looks_up(part.__class__)
        and hasattr(part, "config")
        and name in (None, part.config._attn_implementation)
    ]


@functools.lru_cache(maxsize=1024)
def _looks_up(cls: Any) -> bool:
    """Whether a method of the class looks up its attention in transformers' table."""
    for base in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        for method in vars(base).values():
            code = getattr(inspect.unwrap(method), "__code__", None)
            if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
                return True
    return False


def _check_layers(model: Any) -> None:
    """Refuse a model whose layers compute attention in their own code, always with softmax."""
    names = [type(part).__name__ for part in model.modules() if not _is_model(part)]
    attention = [name for name in names if "Attention" in name]
    if attention and not _attention_layers(model):
        raise ValueError(
            f"{type(model).__name__} takes no attn_implementation: {attention[0]} computes softmax "
            f"in its own code; got {model.config._attn_implementation!r}"
        )


def _restore(model: Any, before: dict[int, Any]) -> None:
    for config in _configs(model):
        config._attn_implementation = before[id(config)]


# -- transformers' methods -------------------------------------------------------------------------


@functools.cache
def wrap_methods() -> None:
    """Wrap transformers' methods, once."""
    from transformers import PreTrainedConfig, PreTrainedModel

    _wrap(PreTrainedConfig, _to_dict)
    for method in (_post_init, _from_pretrained, _set_attn_implementation):
        _wrap(PreTrainedModel, method)


def _wrap(cls: Any, method: Callable[..., Any]) -> None:
    """Make ``method(original, self, ...)`` the method of the class that has its name."""
    name = method.__name__.removeprefix("_")
    bound = inspect.ismethod(getattr(cls, name))  # a method of the class itself
    original = getattr(cls, name).__func__ if bound else getattr(cls, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(original, self, *args, **kwargs)

    setattr(cls, name, classmethod(wrapped) if bound else wrapped)


def _to_dict(original: Callable[..., Any], self: Any) -> Any:
    found, name = original(self), _spoken(self)
    if name is not None:
        found["attn_implementation"] = name
    elif str(found.get("attn_implementation")) in OMEGAS:
        del found["attn_implementation"]
    if not _own(self):
        if _is_form(found.get("regmax")):
            del found["regmax"]
    elif "regmax" not in found and (omega := OMEGAS[self._attn_implementation]) is not None:
        found["regmax"] = _form(omega, False)
    return found


def _post_init(original: Callable[..., Any], self: Any) -> None:
    original(self)
    if self.config._attn_implementation in OMEGAS:
        _check_layers(self)
    if _own(self.config):
        _place(self)


def _from_pretrained(
    original: Callable[..., Any],
    cls: Any,
    *args: Any,
    output_loading_info: bool = False,
    **kwargs: Any,
) -> Any:
    with held(_loading, True):
        model, info = original(cls, *args, output_loading_info=True, **kwargs)
    unread = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    omegas = _held(_attention_layers(model))
    parts = [(k, part) for k, part in model.named_modules() if any(part is o for o in omegas)]
    if lost := sorted(unread & {f"{k}.{name}" for k, part in parts for name in part.state_dict()}):
        raise ValueError(
            f"the file of {cls.__name__} lacks parameters of its Ω, or has them in another "
            f"shape: {', '.join(lost)}"
        )
    _settle(model)
    return (model, info) if output_loading_info else model


def _set_attn_implementation(
    original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> None:
    before = {id(config): config._attn_implementation for config in _configs(self)}
    original(self, *args, **kwargs)
    if _attaching.get():
        return
    changed = [c for c in _configs(self) if c._attn_implementation != before[id(c)]]
    if any(config._attn_implementation == ATTACHED for config in changed):
        _restore(self, before)
        raise _without(self)
    for config in changed:
        _forget(config)
    layers = _attention_layers(self)
    _drop(self, [x for x in layers if any(x.config is c for c in changed)])
    _settle(self)
