"""Which mappings a kernel computes, and their arguments laid out for
:mod:`regmax.mapping.function`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel, ProxKernel, asked, transforms, wrappers
from ..kernels.base import Hyper
from ..kernels.composed import Composed
from ..regularizers import arguments, serialize
from ..regularizers.expressions import Scaled
from ..regularizers.identity import (
    attribute,
    names_of,
    plain,
    trusted,
    unpenalized,
    unscaled,
)
from ..regularizers.penalty import Penalized, Penalty, structured
from ..regularizers.regularizer import Regularizer
from . import function, levels
from .function import Mapping, formula, taking_part
from .method import Method, laid_out, method
from .rows import HALF, constant, flat


def kernel_of(omega: Regularizer, x: Tensor) -> Kernel | None:
    """The kernel that Ω offers for tensors like x, unless its class redefines what it computes."""
    if not (asked() and omega.exact and trusted(type(omega), "kernel")):  # type: ignore[arg-type]
        return None
    return omega.kernel(x) or _composed(omega, x)


def _composed(omega: Regularizer, x: Tensor) -> Kernel | None:
    """The kernel of base + λR from that of the base and the prox of R."""
    if not (isinstance(omega, Penalized) and omega.composes):
        return None
    cls: Any = type(omega)
    if cls.kernel is not Penalized.kernel or not plain(cls):
        return None
    prox, base = prox_of(omega.penalty, x), omega.base
    kernel = None if prox is None else kernel_of(base, x)
    if prox is None or kernel is None:
        return None
    names = names_of(base)
    learns = any(isinstance(attribute(base, name), Tensor) for name in names)

    def reach(theta: tuple[Tensor, ...]) -> Tensor:
        own = base.with_tensors(dict(zip(names, theta, strict=True))) if learns else base
        found = own.support_radius()
        return found if isinstance(found, Tensor) else constant(found, x.device)

    return Composed(prox, kernel, reach)


def prox_of(penalty: Penalty, x: Tensor) -> ProxKernel | None:
    """The compiled prox of a penalty, unless its class redefines what that computes."""
    known = asked() and trusted(type(penalty), "prox_kernel")
    return penalty.prox_kernel(x) if known else None


def _declared(omega: Regularizer) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The names of γ and the hyperparameters, and their accepted ranges."""
    ranges = _ranges(type(omega))  # type: ignore[arg-type]
    if isinstance(omega, Penalized):
        ranges += _ranges(type(omega.base))  # type: ignore[arg-type]
    return ("gamma", *names_of(omega)), (arguments.POSITIVE, *ranges)


@functools.lru_cache(maxsize=1024)
def _ranges(cls: type[Regularizer]) -> tuple[Any, ...]:
    return tuple(cls.ranges.get(name) for name in cls.hyperparameters or ())


METHODS: dict[tuple[Any, ...], Method | None] = {}
"""By all that they depend on; calls alike share them."""


def method_of(omega: Regularizer, x: Any, gamma: float) -> tuple[Method, Hyper] | None:
    """As :func:`method_by_name`, for an Ω."""
    held = omega.__dict__
    if omega._parameters:
        held = {**held, **omega._parameters}
    return method_by_name(type(omega), held, x, gamma, lambda: omega)


def method_by_name(
    cls: Any, held: dict[str, Any], x: Any, gamma: float, make: Callable[[], Regularizer]
) -> tuple[Method, Hyper] | None:
    """What computes a call on rows of plain scores like x, outside of transforms, and the tensors
    among its hyperparameters; None where Ω may depend on more than these, or has no kernel. Ω,
    which ``make`` gives, is of the class ``cls`` with attributes ``held``."""
    if type(x) not in transforms.PLAIN or x.ndim == 0 or not asked() or not transforms.plain():
        return None
    exact = held.get("exact", cls.exact)
    if type(exact) is not bool:  # a property
        return None
    numbers: list[Any] = []
    theta: list[Tensor] = []
    for name in cls.hyperparameters or ():
        item: Any = held.get(name)
        if type(item) is not float:
            if type(item) not in transforms.PLAIN or not _alike(item, x):
                return None
            theta.append(item)
            item = None
        numbers.append(item)
    key = (cls, exact, gamma, *numbers, x.dtype, x.layout, x.device, x.shape[-1])
    try:
        found = METHODS[key]
    except KeyError:
        if len(METHODS) >= 512:
            METHODS.clear()
        found = METHODS[key] = _method(make(), x, gamma)
    if found is None:
        return None
    if theta:
        for (name, accepted), t in zip(found.checks, theta, strict=True):
            arguments.hyperparameter(name, t, *accepted)
    return found, tuple(theta)


def _alike(t: Tensor, x: Tensor) -> bool:
    """Whether t is one number, or one for each row, in memory like that of x."""
    if t.dtype != x.dtype or not (t.is_cpu and x.is_cpu) or t.layout != torch.strided:
        return False
    if t.is_neg():
        return False
    if t.numel() == 1:
        return t.ndim <= x.ndim
    return t.ndim == x.ndim and t.shape[-1] == 1 and t.shape[:-1] == x.shape[:-1]


def _method(omega: Regularizer, x: Tensor, gamma: float) -> Method | None:
    cls: Any = type(omega)
    bare, kernel = unpenalized(omega), None
    known = {"gamma", *names_of(omega), "exact"}.issuperset(cls.arguments)
    if known and not isinstance(bare, Scaled):
        kernel = kernel_of(bare, x)
    fits = x.layout == torch.strided and omega.entries in (None, x.shape[-1]) and x.shape[-1] > 0
    if kernel is None or isinstance(kernel, Composed) or x.dtype not in kernel.dtypes or not fits:
        return None
    names, ranges = _declared(bare)
    numbers: list[Any] = []
    checks = []
    for name, item, accepted in zip(names, _numbers(bare, gamma), ranges, strict=True):
        if isinstance(item, Tensor):
            if accepted is None:
                return None
            checks.append((name, accepted))
            numbers.append(None)
        else:
            number = item if accepted is None else arguments.hyperparameter(name, item, *accepted)
            numbers.append(number)
    direct = None
    if x.device.type == "cpu" and not kernel.numbers:
        scale: Any
        scale, *theta = [t if t is None else laid_out(kernel, t, x) for t in numbers]
        direct = kernel.direct(x.dtype, x.shape[-1], scale, tuple(theta))
    none = {name: t.new_empty(()) for name, t in bare.tensors(fixed=True).items()}
    bare = bare.with_tensors(none)  # a method keeps no tensor of a call alive
    return Method(kernel, bare, tuple(numbers), tuple(checks), direct)


def argmax(omega: Regularizer, x: Any, gamma: float | Tensor, dim: int, mask: Any) -> Tensor | None:
    """Π_Ω(x) with its gradients, or None where no kernel computes it."""
    tracing = transforms.tracing()
    if transforms.baking() or not (type(x) in transforms.PLAIN or (tracing and _hollow(x))):
        return None
    whole, factors = omega, []
    omega = unpenalized(omega)
    while isinstance(omega, Scaled):
        factors.append(omega.c)
        omega = omega.base
    kernel = kernel_of(omega, x)
    if kernel is None or x.is_meta:
        return None
    names, ranges = _declared(omega)
    given = _numbers(omega, gamma)
    under_transform = transforms.under_transform((x, *given, *factors))
    if under_transform and not _takes((x, *given, *factors), omega, tracing):
        return None
    x, dim, takes_part = arguments.rows(whole, x, dim, mask)
    rows = x if x.dtype in kernel.dtypes else x.float()
    # hyperparameters are rounded to the dtype that is computed in
    like = rows if rows.dtype not in HALF else rows.new_empty((), dtype=torch.float32).expand_as(x)
    checked = arguments.per_row if under_transform else _checked
    numbers = [
        checked(name, item, accepted, like, dim)
        for name, item, accepted in zip(names, given, ranges, strict=True)
    ]
    for c in factors:
        numbers[0] = numbers[0] * checked("c", c, Scaled.ranges["c"], like, dim)
    if dim != x.ndim - 1:
        rows = rows.movedim(dim, -1)
        takes_part = None if takes_part is None else takes_part.movedim(dim, -1)
    if under_transform:
        y = _watched(kernel, omega, rows, takes_part, numbers)
    else:
        y = with_gradients(kernel, omega, rows, takes_part, numbers)
    if dim != x.ndim - 1:
        y = y.movedim(-1, dim)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _hollow(x: Any) -> bool:
    """Whether x is a plain tensor, or a tracer's wrapper of one."""
    return isinstance(x, Tensor) and not wrappers.is_dtensor(x) and x.layout == torch.strided


def _takes(items: tuple[Any, ...], omega: Regularizer, tracing: bool) -> bool:
    """Whether :class:`Mapping` takes these inputs: plain tensors, under any transform; in a graph,
    an Ω that has a text."""
    tensors = [t for t in items if isinstance(t, Tensor)]
    if any(t.is_meta for t in tensors):
        return False
    if tracing:
        return serialize.has_text(omega) and all(map(_hollow, tensors))
    return all(type(t) in transforms.PLAIN for t in tensors)


def with_gradients(
    kernel: Kernel, omega: Regularizer, rows: Tensor, mask: Tensor | None, numbers: list[Any]
) -> Tensor:
    """Π_Ω of prepared rows in plain PyTorch; ``numbers`` are γ and θ."""
    own, tensors = method(kernel, omega, numbers)
    return function.argmax(own, rows, mask, tensors)


def _watched(
    kernel: Kernel, omega: Regularizer, rows: Tensor, mask: Tensor | None, numbers: list[Any]
) -> Tensor:
    if structured(omega) and mask is not None:  # neighbours among those that take part
        mask = mask & (rows.detach() != -torch.inf)
    own, tensors = method(kernel, omega, numbers)
    y: Tensor = levels.apply(Mapping, rows, mask, own, None, *tensors)
    return y


def apply(kernel: Kernel, omega: Regularizer, x: Tensor, gamma: Any, mask: Any) -> Tensor:
    """Π_Ω of prepared rows, with gradients."""
    numbers = _numbers(omega, gamma)
    return with_gradients(kernel, omega, x, mask, numbers)


def under_transform(omega: Regularizer, x: Tensor, gamma: Any, mask: Any) -> Tensor | None:
    """Π_Ω of prepared rows under a transform or a tracer, or None where no kernel computes it."""
    omega, gamma = unscaled(omega, gamma)
    kernel = kernel_of(omega, x)
    given = (x, gamma, *omega.tensors(fixed=True).values())
    if kernel is None or x.is_meta or not _takes(given, omega, transforms.tracing()):
        return None
    numbers = _numbers(omega, gamma)
    return _watched(kernel, omega, x, mask, numbers)


def _checked(name: str, item: Any, accepted: Any, rows: Tensor, dim: int) -> Any:
    if (
        isinstance(item, Tensor)
        and item.ndim == 0
        and item.dtype == rows.dtype
        and item.device.type == rows.device.type == "cpu"
        and accepted is not None
    ):
        return arguments.hyperparameter(name, item, *accepted)  # nothing to lay out
    return arguments.per_row(name, item, accepted, rows, dim)


def _numbers(omega: Regularizer, gamma: Any) -> list[Any]:
    """γ and θ."""
    return [gamma, *(attribute(omega, name) for name in names_of(omega))]


def checked(omega: Regularizer, gamma: Any, x: Tensor) -> dict[str, Any]:
    """γ and θ by name, range-checked and laid out for the rows x."""
    names, ranges = _declared(omega)
    items = zip(names, _numbers(omega, gamma), ranges, strict=True)
    return {
        name: arguments.per_row(name, t, accepted, x, x.ndim - 1) for name, t, accepted in items
    }


def values(kernel: Kernel, omega: Regularizer, x: Tensor, gamma: Any, mask: Any) -> Tensor:
    """Π_Ω of prepared rows, without gradients."""
    own, tensors = method(kernel, omega, _numbers(omega, gamma))
    return own.forward(x.detach(), mask, tensors)[0]


def loss(
    kernel: Kernel,
    omega: Regularizer,
    x: Tensor,
    target: Tensor,
    gamma: Any,
    mask: Tensor | None = None,
    epsilon: float = 0.0,
    learns: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """The losses of all rows of x, their gradients in x, and if it ``learns`` their derivatives in
    γ and θ, by the kernel; None where it computes less."""
    if target.is_floating_point() and not kernel.distributions:
        return None
    gamma, *theta = [laid_out(kernel, t, x) for t in _numbers(omega, gamma)]
    x = flat(x)
    found = kernel.loss(x, target, gamma, tuple(theta), mask, epsilon)
    if found is None or not learns:
        return found and (*found, None)
    slopes = kernel.loss_slopes(found[1], x, target, gamma, tuple(theta), mask, epsilon)
    return None if slopes is None else (*found, slopes)


def product(
    omega: Regularizer,
    y: Tensor,
    part: Tensor | None,
    v: Tensor,
    gamma: float | Tensor,
    hyper: bool,
) -> tuple[Tensor, ...]:
    """:class:`Product` by the kernel of Ω, or by PyTorch operations where it has none here."""
    kernel = kernel_of(omega, y)
    own, tensors = method(kernel, omega, _numbers(omega, gamma))  # type: ignore[arg-type]
    if kernel is not None:
        wants = [hyper] * len(tensors)
        gx, each = own.backward(y, taking_part(part), v, tensors, wants)
        return gx, *(t for t in each if t is not None)
    # inside an operator autograd records nothing: the derivatives of Ω are those of torch.func
    found: Any = torch.func.vjp(formula(own, part, hyper), y, v, *tensors)[0]
    return tuple(t.clone(memory_format=torch.contiguous_format) for t in found)
