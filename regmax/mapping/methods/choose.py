"""What computes Π_Ω, found once for calls alike.

In this order: the kernel that Ω offers, also after a prox; a kernel from the value of Ω, also after
a prox; a closed form in PyTorch; a solver. ``layer.explain`` says which one, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...domains import Domain, Simplex
from ...kernels import transforms, wrappers
from ...kernels.base import ASKED, Hyper
from ...regularizers import arguments, serialize
from ...regularizers.expressions import Scaled
from ...regularizers.identity import by_value, names_of, plain, unpenalized, valued
from ...regularizers.penalty import Penalized, who
from ...regularizers.recorded import Recorded, recorded
from ...regularizers.regularizer import Regularizer
from .. import kinks
from ..rows import HALF, Rows
from . import from_value
from .base import METHODS, Method, Missed, laid_out, method, remember
from .closed_form import Computed, compute
from .kernel import (
    ProxThenBase,
    after_prox,
    bare,
    checked,
    declared,
    kernel_of,
    numbers_of,
    prox_of,
)
from .on_domain import Between, OnDomain, bounded, computed
from .solver import Forward, Settings

# -- plain rows, whose method an earlier call found ------------------------------------------------


def known(
    omega: Regularizer, x: Any, gamma: float, settings: Settings, domain: Domain | None = None
) -> tuple[Method, Hyper] | None:
    """What computes a call on rows of plain scores like x, outside of transforms, and the tensors
    among its hyperparameters; None where it must be looked for. It may raise :class:`Missed`."""
    if domain is not None:
        by_kernel = type(domain) is Simplex and not by_value(type(omega))  # type: ignore[arg-type]
        return known_kernel(omega, x, gamma, domain) if by_kernel else None
    if valued(type(omega)):  # type: ignore[arg-type]
        found = from_value.method_of(omega, x, gamma, settings)
        return None if found is None else (found, ())
    return known_kernel(omega, x, gamma)


def known_kernel(
    omega: Regularizer, x: Any, gamma: float, domain: Domain | None = None
) -> tuple[Method, Hyper] | None:
    """The same for an Ω with a kernel. None where Ω may depend on more than its hyperparameters."""
    cls, held = type(omega), omega.__dict__
    if omega._parameters:
        held = {**held, **omega._parameters}
    if type(x) not in transforms.PLAIN or x.ndim == 0 or not (ASKED.get() and transforms.plain()):
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
    if domain is not None:
        limits = tuple([getattr(domain, name) for name in domain.arguments])
        for t in limits:
            if isinstance(t, Tensor):
                return None
        key = (*key, limits)
    try:
        found = METHODS[key]
    except KeyError:
        found = _by_kernel(omega, x, gamma)
        if found is not None and isinstance(domain, Simplex):
            inner = found.direct is not None and bounded(found.kernel, domain)
            found = Between(found, domain.limits(x, -1), x) if inner else None
        remember(key, found)
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


def _by_kernel(omega: Regularizer, x: Tensor, gamma: float) -> Method | None:
    cls: Any = type(omega)
    own, kernel = unpenalized(omega), None
    known = {"gamma", *names_of(omega), "exact"}.issuperset(cls.arguments)
    if known and not isinstance(own, Scaled):
        kernel = kernel_of(own, x)
    fits = x.layout == torch.strided and omega.entries in (None, x.shape[-1]) and x.shape[-1] > 0
    if kernel is None or x.dtype not in kernel.dtypes or not fits:
        return None
    given = [*zip(*declared(own), numbers_of(own, gamma), strict=True)]
    checks = tuple([(name, accepted) for name, accepted, t in given if isinstance(t, Tensor)])
    if any(accepted is None for _, accepted in checks):
        return None
    numbers: Any = [
        t if accepted is None else arguments.hyperparameter(name, t, *accepted)
        for name, accepted, t in given
    ]
    numbers = tuple([None if isinstance(t, Tensor) else t for t in numbers])
    direct = None
    if x.device.type == "cpu" and not kernel.numbers:
        scale: Any
        scale, *theta = [t if t is None else laid_out(kernel, t, x) for t in numbers]
        direct = kernel.direct(x.dtype, x.shape[-1], scale, tuple(theta))
    none = {name: t.new_empty(()) for name, t in own.tensors(fixed=True).items()}
    own = own.with_tensors(none)  # a method keeps no tensor of a call alive
    return Method(kernel, own, numbers, checks, direct)


# -- scores as the user gives them -----------------------------------------------------------------


def recordable(omega: Regularizer, gamma: Any) -> tuple[Regularizer, Any]:
    """Ω and γ as a graph holds them: Ω by the operations of its value if it is no more than that,
    and if they can be recorded."""
    own, scale = bare(omega, gamma)
    if not by_value(type(own)) or isinstance(own, Recorded):  # type: ignore[arg-type]
        return omega, gamma
    try:
        return recorded(own), scale
    except TypeError:
        return omega, gamma


def of_scores(
    omega: Regularizer, x: Any, gamma: Any, dim: int, mask: Any, domain: Domain | None
) -> tuple[Method, Hyper, Tensor, Tensor | None, bool] | None:
    """The method of a kernel that takes the scores x as the user gives them, its tensors, the
    scores and their mask, with rows along the last dimension, and whether they are under a
    transform or a tracer. None: they must be prepared."""
    tracing, kernel, transformed = transforms.tracing(), None, True
    if tracing:
        omega, gamma = recordable(omega, gamma)
    if tracing and isinstance(omega, Recorded):
        if domain is not None or not hollow(x):
            return None
    else:
        if by_value(type(omega)) or transforms.baking():  # type: ignore[arg-type]
            return None
        if not (type(x) in transforms.PLAIN or (tracing and hollow(x))):
            return None
        own, factors = unpenalized(omega), [gamma]
        while isinstance(own, Scaled):
            factors.append(own.c)
            own = own.base
        kernel = kernel_of(own, x)
        if kernel is None or x.is_meta:
            return None
        given = (x, *factors, *numbers_of(own, None)[1:])
        transformed = transforms.under_transform(given)
        if transformed and not _recorded(given, own, tracing):
            return None
        if domain is not None and (transformed or not bounded(kernel, domain)):
            return None
    x, dim, on = arguments.rows(omega, x, dim, mask)
    rows = x.double() if kernel is None else x if x.dtype in kernel.dtypes else x.float()
    if isinstance(omega, Recorded):
        gamma = arguments.per_row("gamma", gamma, arguments.POSITIVE, rows, dim)
        found, tensors = _in_graph(omega, gamma)
    else:
        # hyperparameters are rounded to the dtype that is computed in
        half = rows.dtype in HALF
        like = rows.new_empty((), dtype=torch.float32).expand_as(x) if half else rows
        own, numbers = checked(unpenalized(omega), gamma, like, dim)
        found, tensors = method(kernel, own, numbers)
    last = rows
    if dim != x.ndim - 1:
        last, on = rows.movedim(dim, -1), on if on is None else on.movedim(dim, -1)
    if isinstance(domain, Simplex):
        found = Between(found, domain.limits(rows, dim), last)
    return found, tensors, last, on, transformed


def hollow(x: Any) -> bool:
    """Whether x is a plain tensor, or a tracer's wrapper of one."""
    return isinstance(x, Tensor) and not wrappers.is_dtensor(x) and x.layout == torch.strided


def _recorded(items: tuple[Any, ...], omega: Regularizer, tracing: bool) -> bool:
    """Whether a transform takes the kernel of Ω: plain tensors, under any transform; in a graph, an
    Ω that has a text."""
    tensors = [t for t in items if isinstance(t, Tensor)]
    if any(t.is_meta for t in tensors):
        return False
    if tracing:
        return serialize.has_text(omega) and all(map(hollow, tensors))
    return all(type(t) in transforms.PLAIN for t in tensors)


# -- prepared rows ---------------------------------------------------------------------------------


def of_rows(rows: Rows, settings: Settings, value: bool = True) -> tuple[Method, Sequence[Tensor]]:
    """The method for prepared rows, and the tensors among γ and θ. ``value``: whether it may be a
    kernel from the value, which raises :class:`Missed` where Ω is not what was traced."""
    if rows.bounds is not None:
        return OnDomain(rows, settings, computed(rows, settings)), tensors_of(rows)
    if settings.solver == "auto":
        if not by_value(type(rows.omega)):  # type: ignore[arg-type]
            omega, gamma = bare(rows.omega, rows.gamma)
            kernel = kernel_of(omega, rows.x)
            if kernel is not None:
                found, tensors = method(kernel, omega, numbers_of(omega, gamma))
                after = "prox, then " if isinstance(kernel, ProxThenBase) else ""
                found.said = f"{after}closed form", f"{kernel.name} kernel of {who(omega)}"
                return found, tensors
        traced = _from_value(rows, settings) if value else None
        if traced is not None:
            return traced
    return solved(rows, settings)


def solved(rows: Rows, settings: Settings) -> tuple[Computed, list[Tensor]]:
    """By a closed form in PyTorch, or a solver."""
    result = compute(rows, settings, kinks=True)
    tensors = tensors_of(rows)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (rows.x, *tensors)):
        result = kinks.noted(rows, result, settings)
    return Computed(rows, settings, result), tensors


def tensors_of(rows: Rows) -> list[Tensor]:
    """The tensors that :class:`Computed` and :class:`OnDomain` take for these rows."""
    gamma = [rows.gamma] if isinstance(rows.gamma, Tensor) else []
    bounds = {} if rows.bounds is None else rows.bounds.tensors
    return [*gamma, *rows.omega.tensors(fixed=True).values(), *bounds.values()]


def unsolved(rows: Rows, settings: Settings) -> Computed:
    """What computes rows like these, for their :func:`tensors_of` at each call."""
    return Computed(rows, settings) if rows.bounds is None else OnDomain(rows, settings)


def _from_value(rows: Rows, settings: Settings) -> tuple[Method, Hyper] | None:
    """By a kernel from the value of Ω, or from that of its base after a prox: one that treats all
    entries alike shows that the base is permutation-invariant."""
    if not isinstance(rows.omega, Penalized):
        found = from_value.of_rows(rows, settings)
        return None if found is None else method(*found)
    omega, gamma = bare(rows.omega, rows.gamma)
    if not (isinstance(omega, Penalized) and plain(type(omega)) and omega.penalty.lovasz):  # type: ignore[arg-type]
        return None
    if prox_of(omega.penalty, rows.x) is None:
        return None
    base = replace(rows, omega=omega.base, gamma=gamma)
    found = from_value.of_rows(base, settings, alike=True)
    if found is None:
        return None
    inner, traced, numbers = found
    own = Penalized(traced, omega.penalty, omega.lam)
    return method(
        after_prox(omega, inner, rows.x, False), own, [numbers[0], omega.lam, *numbers[1:]]
    )


def _in_graph(omega: Recorded, gamma: Any) -> tuple[Method, Hyper]:
    """The method of a recorded Ω, whose kernel the operator looks for."""
    own = omega.with_tensors({})
    own.hyperparameters = omega.names  # type: ignore[misc]
    return method(None, own, numbers_of(own, gamma))


def transformed(rows: Rows, settings: Settings) -> tuple[Method, Hyper]:
    """The method of a kernel for prepared rows under a transform or a tracer. Otherwise, and where
    a row is not certified: :class:`Missed`."""
    if settings.solver != "auto" or rows.bounds is not None:
        raise Missed
    omega, gamma = bare(rows.omega, rows.gamma)
    kernel = kernel_of(omega, rows.x)
    given = (rows.x, gamma, *omega.tensors(fixed=True).values())
    if kernel is not None and not rows.x.is_meta and _recorded(given, omega, transforms.tracing()):
        return method(kernel, omega, numbers_of(omega, gamma))
    if transforms.tracing():
        omega, gamma = recordable(omega, gamma)
        if isinstance(omega, Recorded):
            return _in_graph(omega, gamma)
    found = from_value.transformed(rows, settings)
    if found is None:
        raise Missed
    return found


def result_of(method: Method, y: Tensor) -> Forward:
    """How y was computed."""
    kernel, path = method.kernel, ""
    if isinstance(kernel, ProxThenBase):
        kernel, path = kernel.base, "prox, then "
    if isinstance(kernel, from_value.FromValue):
        found, kernel.result = kernel.result, None  # y keeps the kernel: it must not keep y
        assert found is not None
        return replace(found, y=y.detach(), path=f"{path}{found.path}")
    return Forward(y.detach(), *method.said)


@torch.no_grad()
def forward(rows: Rows, settings: Settings, value: bool = False) -> Tensor:
    """Π_Ω(x) of rows, without gradients; ``value`` as for :func:`of_rows`."""
    try:
        found, tensors = of_rows(rows, settings, value)
        return found.forward(rows.x, rows.mask, tensors)[0]
    except Missed:
        return forward(rows, settings)


def of_products(omega: Regularizer, y: Tensor, gamma: Any) -> tuple[Method, Hyper]:
    """The method of the products with J at y, in a graph; its kernel may be None."""
    if isinstance(omega, Recorded):
        return from_value.again(omega, y, gamma) or _in_graph(omega, gamma)
    return method(kernel_of(omega, y), omega, numbers_of(omega, gamma))
