"""Functions of :mod:`regmax.mapping.function` inside of ``torch.func.grad`` and ``vjp``.

PyTorch builds a class, binds a signature and walks through nested containers at each call there,
which costs more than a kernel. :func:`apply` takes the same steps for a flat list of arguments:
unwrap the tensors of this level of differentiation, call the function one level below, wrap what it
returns, and record the node. Other transforms take PyTorch's way.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import GradInterpreter, temporarily_pop_interpreter_stack
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from ..kernels import transforms


def apply(function: Any, *inputs: Any) -> Any:
    """``function.apply(*inputs)``; the arguments are tensors and constants, none in containers."""
    if transforms.plain() and not any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
        return function.forward(*transforms.living(inputs))
    inner = _differentiated()
    if inner is None:
        return function.apply(*inputs)
    lifted = [inner._cptr.lift(t) if isinstance(t, Tensor) else t for t in inputs]
    before = functorch.get_single_level_autograd_function_allowed()
    functorch.set_single_level_autograd_function_allowed(True)
    try:
        return _at_a_level(function).apply(*lifted)
    finally:
        functorch.set_single_level_autograd_function_allowed(before)


def _differentiated() -> Any:
    """The innermost transform, if it is a level of reverse mode outside of graphs."""
    inner = functorch.peek_interpreter_stack()
    if inner is None or inner.key() != functorch.TransformType.Grad or transforms.tracing():
        return None
    return GradInterpreter(inner)


@functools.cache
def _at_a_level(function: Any) -> Any:
    """The function at one level of differentiation."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        inner = _differentiated()
        level = inner.level()
        below = [
            functorch._unwrap_for_grad(t, level) if isinstance(t, Tensor) else t for t in inputs
        ]
        with (
            torch.set_grad_enabled(inner.prev_grad_mode()),
            _set_fwd_grad_enabled(True),
            temporarily_pop_interpreter_stack(),
        ):
            found = apply(function, *below)
        if isinstance(found, Tensor):
            found = functorch._wrap_for_grad(found, level)
        else:
            found = tuple([functorch._wrap_for_grad(t, level) for t in found])
        function.setup_context(ctx, inputs, found)
        return found

    methods = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    return type(f"{function.__name__}AtALevel", (_SingleLevelFunction,), methods)
