"""Wrappers of transformers' methods, so that saved models keep their Ω.

transformers writes no ``attn_implementation`` into config.json, and has no hook for submodules that
an attention implementation adds. So :func:`teach` wraps four methods of its base classes:

    PreTrainedConfig.to_dict                   writes the entries for Ω, or removes them
    PreTrainedModel.post_init                  makes Ω before the parameters are loaded
    PreTrainedModel.from_pretrained            refuses a file without Ω's parameters
    PreTrainedModel.set_attn_implementation    adds Ω, or removes it
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import attached
from .attached import OMEGAS


@functools.cache
def teach() -> None:
    """Wrap transformers' methods, once."""
    from transformers import PreTrainedConfig, PreTrainedModel

    PreTrainedConfig.to_dict = _to_dict(PreTrainedConfig.to_dict)
    PreTrainedModel.post_init = _post_init(PreTrainedModel.post_init)
    loads = PreTrainedModel.from_pretrained.__func__
    PreTrainedModel.from_pretrained = classmethod(_from_pretrained(loads))
    sets = PreTrainedModel.set_attn_implementation
    PreTrainedModel.set_attn_implementation = _set_attn_implementation(sets)


def _to_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to_dict(self: Any) -> Any:
        found, name = original(self), attached.spoken(self)
        if name is not None:
            found["attn_implementation"] = name
        elif str(found.get("attn_implementation")) in OMEGAS:
            del found["attn_implementation"]
        if not attached.own(self):
            if attached.is_form(found.get("regmax")):
                del found["regmax"]
        elif "regmax" not in found:
            omega = attached.registered(self._attn_implementation)
            found |= {} if omega is None else {"regmax": attached.form(omega, False)}
        return found

    return to_dict


def _post_init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def post_init(self: Any) -> None:
        original(self)
        if self.config._attn_implementation in OMEGAS:
            attached.check_layers(self)
        if attached.own(self.config):
            attached.place(self)

    return post_init


def _from_pretrained(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_pretrained(
        cls: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        token = attached.LOADING.set(True)
        try:
            model, info = original(cls, *args, output_loading_info=True, **kwargs)
        finally:
            attached.LOADING.reset(token)
        unread = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
        if lost := sorted(unread & set(attached.parameters(model))):
            raise ValueError(
                f"the file of {cls.__name__} lacks parameters of its Ω, or has them in another "
                f"shape: {', '.join(lost)}"
            )
        attached.settle(model)
        return (model, info) if output_loading_info else model

    return from_pretrained


def _set_attn_implementation(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_attn_implementation(self: Any, *args: Any, **kwargs: Any) -> None:
        before = {id(config): config._attn_implementation for config in attached.configs(self)}
        original(self, *args, **kwargs)
        if attached.ATTACHING.get():
            return
        changed = [c for c in attached.configs(self) if c._attn_implementation != before[id(c)]]
        if any(config._attn_implementation == attached.ATTACHED for config in changed):
            attached.restore(self, before)
            raise attached.without(self)
        for config in changed:
            attached.forget(config)
        layers = attached.attention_layers(self)
        attached.drop(self, [x for x in layers if any(x.config is c for c in changed)])
        attached.settle(self)

    return set_attn_implementation
