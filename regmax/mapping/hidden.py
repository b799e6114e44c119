"""Tensors that Ω depends on and that are not its attributes.

A ``value`` may close over a tensor, or keep one in a container or an object. regmax cannot name
such a tensor. Its gradient comes from autograd through ∇Ω and cannot be differentiated again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..regularizers.penalty import smooth_part
from ..regularizers.regularizer import Regularizer, overrides


def may_hide_tensors(omega: Regularizer) -> bool:
    """Whether Ω may depend on tensors that are not attributes. It does not where its class declares
    ``hyperparameters`` and defines ``grad``, and neither the class nor the attributes hold one."""
    leaves = smooth_part(omega).leaves()
    if any(leaf.hyperparameters is None or not overrides(leaf, "grad") for leaf in leaves):
        return True
    return hold_tensors(omega) or any(
        _closes_over(type(leaf))  # type: ignore[arg-type]
        for leaf in leaves
    )


def hold_tensors(module: nn.Module) -> bool:
    """Whether an attribute that is not a tensor holds one: a container, an object, a function."""
    return any(
        _hides(v)
        for m in module.modules()
        for k, v in vars(m).items()
        if type(v) not in _PLAIN and k not in _OF_MODULES and not isinstance(v, Tensor)
    )


_OF_MODULES = frozenset(vars(nn.Module()))
_PLAIN = frozenset((int, float, complex, bool, str, type(None)))
_SEQUENCES = (list, tuple, set, frozenset)
_MOST = 1000
"""How many containers and objects are searched."""


@functools.cache
def _closes_over(cls: type[Regularizer]) -> bool:
    """Whether what a class defines holds a floating tensor."""
    own = cls.__mro__[: cls.__mro__.index(Regularizer)]
    return any(_hides(item) for c in own for item in vars(c).values())


def _hides(item: Any, seen: set[int] | None = None) -> bool:
    """Whether a floating tensor is inside ``item``: an entry of a container, an attribute of an
    object, what a function closes over or reads from a global name."""
    if isinstance(item, Tensor):
        return item.is_floating_point()
    if type(item) in _PLAIN or isinstance(item, type | ModuleType):
        return False
    seen = set() if seen is None else seen
    if id(item) in seen:
        return False
    seen.add(id(item))
    return len(seen) > _MOST or any(_hides(each, seen) for each in _inside(item))


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    if isinstance(item, _SEQUENCES):
        return () if _PLAIN.issuperset(map(type, item)) else item
    if isinstance(item, FunctionType):
        try:
            closed_over = [cell.cell_contents for cell in item.__closure__ or ()]
        except ValueError:  # one is not yet filled
            closed_over = []
        named = map(item.__globals__.get, item.__code__.co_names)
        return [*closed_over, *(v for v in named if isinstance(v, Tensor))]
    if isinstance(item, property | staticmethod | classmethod | MethodType | functools.partial):
        names = ("fget", "__func__", "__self__", "func", "args", "keywords")
        return [getattr(item, name, None) for name in names]
    return getattr(item, "__dict__", {}).values()


def through_hidden(y: Tensor, z: Tensor, omega: Regularizer, tensors: dict[str, Tensor]) -> Tensor:
    """z with the first-order dependence of ∇Ω on tensors that are not attributes of Ω.

    The gradient flows through z − (∇Ω(y) − ∇Ω(y)|detached): exact once, refused with a message when
    asked for twice.
    """
    known = omega.with_tensors({name: t.detach() for name, t in tensors.items()})
    leaf = y.detach().requires_grad_()
    gradient = known.grad(known.lifted(leaf))
    if leaves(gradient) <= {leaf}:
        return z
    once: Tensor = _Once.apply(gradient, z, *tensors.values())  # type: ignore[no-untyped-call]
    return z - (once - once.detach())


def leaves(t: Tensor, ends: Iterable[Any] = ()) -> set[Tensor]:
    """The tensors that require grad at the ends of the graph of ``t``, which is not followed past
    the nodes ``ends``."""
    found: set[Tensor] = set()
    seen: set[Any] = set(ends)
    stack = [t.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        stack += [following for following, _ in node.next_functions]
    return found


class _Once(torch.autograd.Function):
    """The identity on its first argument; it can be differentiated once.

    Its backward depends on all tensors that a second derivative may be asked for, and raises there:
    without an error, terms would be missing.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(v, *others)
        return v.clone()

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        out = _Refuse.apply(u, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return out, *(None for _ in ctx.saved_tensors[1:])


class _Refuse(torch.autograd.Function):
    """The identity on its first argument, not differentiable."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *others: Tensor) -> Tensor:
        return u.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "Ω depends on a tensor that is not one of its attributes (a closure, or a tensor in a "
            "list): its gradient is exact, but cannot be differentiated again. Store the tensor as "
            "an attribute of the Regularizer (self.w = w) for double backward"
        )
