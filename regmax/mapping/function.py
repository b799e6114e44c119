"""Π_Ω as one differentiable function, and its product with J, by the kernel of Ω.

:class:`Mapping` and :class:`Product` define vmap and jvp, so ``torch.func`` and forward mode need
nothing else. In a graph (compile, export) both call the operators ``regmax::argmax`` and
``regmax::jacobian_product`` of :mod:`regmax.mapping.operator`. Plain PyTorch uses :class:`Eager`,
which costs less. Second derivatives consist of operations of :mod:`regmax.optimality.jacobian`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel, simplex, transforms, wrappers
from ..optimality.jacobian import averaging, hyperparameter_product, jacobian_product, movable
from ..regularizers import serialize
from ..regularizers.penalty import names_of, penalty_of, smooth_part, structured
from ..regularizers.regularizer import Regularizer
from . import levels
from .rows import HALF, flat, numbered


class Mapping(torch.autograd.Function):
    """y = Π_Ω(x). Backward is v ↦ Jv with the products of γ and θ, forward mode the same J."""

    @staticmethod
    def forward(
        x: Tensor, mask: Tensor | None, kernel: Kernel, omega: Regularizer, *numbers: Any
    ) -> Tensor:
        if not transforms.tracing():
            return forward(kernel, x, mask, list(numbers))[0]
        text, tensors = _recorded(omega, numbers)
        y: Tensor = torch.ops.regmax.argmax(x, mask, tensors, text)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, mask, ctx.kernel, ctx.omega, *numbers = inputs
        part = (x if mask is None else mask) if structured(ctx.omega) else None
        _keep(ctx, numbers, output, part, x if isinstance(numbers[0], Tensor) else None)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        y, part, x, *tensors = transforms.living(ctx.saved_tensors)
        numbers = _merged(ctx.fixed, tensors)
        wants = ctx.needs_input_grad[4:]
        gx, dtheta = gradients(ctx.kernel, ctx.omega, y, part, v, numbers, wants[1:])
        dgamma = None
        if x is not None and wants[0]:
            dgamma = reduced(_along(gx, x, y) / -numbers[0], numbers[0])
        return gx, None, None, None, dgamma, *dtheta

    @staticmethod
    def jvp(ctx: Any, tx: Tensor | None, *tangents: Any) -> Tensor:
        with transforms.forward_mode():
            y, part, x, *tensors = map(transforms.primal, ctx.saved_tensors)
            numbers = _merged(ctx.fixed, tensors)
            along = _change(ctx.omega, y, part, x, numbers, tx, tangents[3:]).to(y.dtype)
            if transforms.batched(along):  # the vmap of autograd.functional, which has no rule
                return formula(ctx.omega, part, False, ctx.fixed)(y, along, *tensors)[0]
            given = (y, part, along, ctx.kernel, ctx.omega, False, *numbers)
            return Product.apply(*given)[0]  # type: ignore[no-untyped-call,no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        given = _stacked(info.batch_size, in_dims, inputs, (0, 1))
        return Mapping.apply(*given), 0  # type: ignore[no-untyped-call]


class Eager(Mapping):
    """The same in plain PyTorch: forward and its context in one call, which costs less."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, mask: Tensor | None, kernel: Kernel, omega: Regularizer, *numbers: Any
    ) -> Tensor:
        y, part = forward(kernel, x, mask, list(numbers))
        ctx.kernel, ctx.omega = kernel, omega
        # γ's gradient needs x: y, rounded, does not tell x/γ
        _keep(ctx, numbers, y, part, x if ctx.needs_input_grad[4] else None)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        again = torch.is_grad_enabled() or transforms.batched(v) or type(v) is not Tensor
        if again or any(ctx.needs_input_grad[4:]) or not transforms.plain():
            return Mapping.backward(ctx, v)
        y, part, _, *tensors = ctx.saved_tensors
        numbers = _merged(ctx.fixed, tensors)
        (gx,) = products(ctx.kernel, y, taking_part(part), v, numbers, False)
        return gx, None, None, None, *[None] * len(numbers)

    setup_context = torch.autograd.Function.setup_context


class Product(torch.autograd.Function):
    """(Jv/γ, and −⟨Jv, ∂∇Ω(y; θ)/∂θ⟩ for each θ where ``hyper``), of y, v, γ and θ.

    ``part``: who takes part, or the scores where only −inf does not; None where y tells enough. Its
    derivatives are those of :func:`differentiable`, to any order.
    """

    @staticmethod
    def forward(
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        kernel: Kernel,
        omega: Regularizer,
        hyper: bool,
        *numbers: Any,
    ) -> tuple[Tensor, ...]:
        if transforms.tracing():
            text, tensors = _recorded(omega, numbers)
            return tuple(torch.ops.regmax.jacobian_product(y, part, v, tensors, text, hyper))
        return products(kernel, y, taking_part(part), v, list(numbers), hyper)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        y, part, v, _, ctx.omega, ctx.hyper, *numbers = inputs
        _keep(ctx, numbers, y, part, v)

    @staticmethod
    def backward(ctx: Any, *u: Tensor) -> Any:
        y, part, v, *tensors = transforms.living(ctx.saved_tensors)
        product = formula(ctx.omega, part, ctx.hyper, ctx.fixed)
        dy, dv, *rest = torch.func.vjp(product, y, v, *tensors)[1](u)
        found = iter(rest)
        numbers = [next(found) if t is None else None for t in ctx.fixed]
        return dy, None, dv, None, None, None, *numbers

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        with transforms.forward_mode():
            y, part, v, *tensors = map(transforms.primal, ctx.saved_tensors)
            moves = zip(ctx.fixed, tangents[6:], strict=True)
            given = [tangents[0], tangents[2], *(t for number, t in moves if number is None)]
            at = (y, v, *tensors)
            along = tuple(
                torch.zeros_like(p) if t is None else t.to(p)
                for p, t in zip(at, given, strict=True)
            )
            product = formula(ctx.omega, part, ctx.hyper, ctx.fixed)
            found: tuple[Tensor, ...] = _pushed(product, at, along)
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        given = _stacked(info.batch_size, in_dims, inputs, (0, 1, 2))
        found = Product.apply(*given)  # type: ignore[no-untyped-call]
        return found, (0,) * len(found)


def _keep(ctx: Any, numbers: Any, *tensors: Tensor | None) -> None:
    """Save tensors, and γ and θ, for both modes."""
    ctx.fixed = tuple([None if isinstance(t, Tensor) else t for t in numbers])
    saved = (*tensors, *[t for t in numbers if isinstance(t, Tensor)])
    ctx.save_for_backward(*saved)
    if transforms.dual_level() or transforms.transforming():
        ctx.save_for_forward(*saved)


def _merged(fixed: tuple[Any, ...], tensors: Any) -> list[Any]:
    """γ and θ, of which the numbers are ``fixed``."""
    saved = iter(tensors)
    return [next(saved) if t is None else t for t in fixed]


def _stacked(size: int, dims: tuple[Any, ...], inputs: Any, rows: tuple[int, ...]) -> list[Any]:
    """Inputs with the dimension that vmap maps over in front: those at ``rows`` are (*batch, d),
    other tensors broadcast to (*batch, 1)."""
    at = next(i for i in rows if isinstance(inputs[i], Tensor))
    ndim = inputs[at].ndim + (dims[at] is None)

    def front(i: int, t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        if dims[i] is None:
            return t.unsqueeze(0).expand(size, *t.shape) if i in rows else t
        t = t.movedim(dims[i], 0)
        return t.reshape(size, *(1,) * (ndim - t.ndim), *t.shape[1:])

    return [front(i, t) for i, t in enumerate(inputs)]


def _recorded(omega: Regularizer, numbers: Any) -> tuple[str, list[Tensor]]:
    """What a recorded graph knows Ω by, and its tensors, γ first."""
    gamma, *theta = numbers
    names = names_of(omega)
    inside = {name: t for name, t in zip(names, theta, strict=True) if isinstance(t, Tensor)}
    number = None if isinstance(gamma, Tensor) else gamma
    given = [gamma] if isinstance(gamma, Tensor) else []
    omega = omega.with_tensors(inside)
    return serialize.call(omega, number, tuple(inside)), [*given, *inside.values()]


def _change(
    omega: Regularizer,
    y: Tensor,
    part: Tensor | None,
    x: Tensor | None,
    numbers: list[Any],
    tx: Tensor | None,
    tangents: Any,
) -> Tensor:
    """γ d(x/γ − ∇Ω(y; θ)) for fixed y, along tangents of x, γ and θ."""
    gamma, *theta = numbers
    tgamma, *ttheta = tangents
    total = torch.zeros_like(y) if tx is None else tx
    if tgamma is not None:
        assert x is not None
        total = total - _relative(x, y) * (tgamma / gamma)
    names = names_of(omega)
    moved = {name: t for name, t in zip(names, ttheta, strict=True) if t is not None}
    if not moved:
        return total
    held = dict(zip(names, theta, strict=True))
    omega = omega.with_tensors({k: t for k, t in held.items() if isinstance(t, Tensor)})
    if structured(omega) and (t := moved.pop("lam", None)) is not None:
        total = total - gamma * t * omega.penalty.any_subgradient(y, taking_part(part))
    if moved:
        smooth = smooth_part(omega, taking_part(part))
        inside = len("base.") if structured(omega) else 0

        def slope(theta: dict[str, Tensor]) -> Tensor:
            own = smooth.with_tensors(theta)
            return own.grad(own.lifted(y))

        at = {name[inside:]: held[name] for name in moved}
        along = {name[inside:]: t for name, t in moved.items()}
        total = total - gamma * _pushed(slope, (at,), (along,))
    return total


def _pushed(function: Callable[..., Any], at: tuple[Any, ...], along: tuple[Any, ...]) -> Any:
    """The derivative of ``function`` along tangents, by reverse mode twice, as u ↦ uᵀ∂f is linear:
    forward mode is on already, and PyTorch does not always nest it."""
    pulled: Any = torch.func.vjp(function, *at)
    value, pull = pulled
    zeros = torch.utils._pytree.tree_map(torch.zeros_like, value)
    return torch.func.vjp(pull, zeros)[1](along)[0]


def _relative(x: Tensor, y: Tensor) -> Tensor:
    """x relative to its smallest supported entry, 0 outside of the support: where α-entmax is
    steep, at that entry, what rounding leaves of ⟨Jv, 1⟩ is large."""
    on = y.detach() > 0
    least = torch.where(on, y.detach(), torch.inf).argmin(-1, keepdim=True)
    return torch.where(on, x - x.detach().gather(-1, least), 0)


def _along(gx: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """⟨gx, x⟩, one number per row."""
    return simplex.row_dot(gx.double(), _relative(x, y).double())  # neither may overflow


def reduced(t: Tensor, item: Tensor) -> Tensor:
    """One number per row, (*batch, 1), summed to the shape of the hyperparameter."""
    if t.shape != item.shape:
        t = t.sum().view(item.shape) if item.numel() == 1 else t.sum_to_size(item.shape)
    return t if t.dtype == item.dtype else t.to(item.dtype)


def gradients(
    kernel: Kernel,
    omega: Regularizer,
    y: Tensor,
    part: Tensor | None,
    v: Tensor,
    numbers: list[Any],
    wants: Any,
) -> tuple[Tensor, list[Tensor | None]]:
    """The gradients of x and of those of θ that are wanted, in any mode."""
    if transforms.under_transform((v, y)):
        given = (y, part, v, kernel, omega, any(wants), *numbers)
        gx, *each = levels.apply(Product, *given)
    elif torch.is_grad_enabled() or transforms.batched(v):
        return differentiable(omega, y, taking_part(part), v, numbers, wants)
    else:
        gx, *each = products(kernel, y, taking_part(part), v, numbers, any(wants))
    if not each:
        return gx, [None for _ in wants]
    return gx, [
        reduced(t, item) if want else None
        for t, item, want in zip(each, numbers[1:], wants, strict=True)
    ]


def products(
    kernel: Kernel, y: Tensor, part: Tensor | None, v: Tensor, numbers: Sequence[Any], hyper: bool
) -> tuple[Tensor, ...]:
    """Jv/γ, and where ``hyper`` the products of each θ, one number per row, by the kernel."""
    gamma, *theta = [laid_out(kernel, t, y) for t in numbers]
    v = flat(wrappers.allocated(v))
    on = None if part is None else flat(part).contiguous()
    gx, dtheta = kernel.backward(flat(y), v, gamma, tuple(theta), on, hyper)
    if gx.shape != y.shape:
        gx = gx.view(y.shape)
    if dtheta is None:
        return (gx,)
    batch = y.shape[:-1]
    rows = batch.numel()
    return gx, *(
        t.view(*batch, t.shape[1] if t.ndim > 1 else 1) if len(t) == rows else t for t in dtheta
    )


def differentiable(
    omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor, numbers: list[Any], wants: Any
) -> tuple[Tensor, list[Tensor | None]]:
    """The same by operations that can be differentiated again: with w = Jv, w/γ and
    −⟨w, ∂∇Ω(y; θ)/∂θ⟩, and −⟨w, u⟩ for the weight of a penalty, u ∈ ∂R(y)."""
    gamma, *theta = numbers
    dtype = y.dtype
    if dtype in HALF:
        y, v = y.float(), v.float()
    names = names_of(omega)
    omega = omega.with_tensors(dict(zip(names, theta, strict=True)))
    smooth = smooth_part(omega, part)
    y = torch.where(torch.isnan(y.detach()), 0, y)
    with transforms.full_precision(y.device.type):
        average = averaging(penalty_of(omega), y, part)
        w = jacobian_product(smooth, average, y, v, movable(y))
        tensors = smooth.tensors(fixed=True)
        items = list(tensors.values())
        asked_for = {name for name, want in zip(names, wants, strict=True) if want}
        outside = "base." if structured(omega) else ""
        learnt = tuple(outside + name in asked_for for name in tensors)
        products = hyperparameter_product(smooth, tuple(tensors), items, learnt, y, w)
        found = {outside + name: t for name, t in zip(tensors, products, strict=True)}
        if structured(omega):
            u = omega.penalty.any_subgradient(y, part)
            found["lam"] = -simplex.row_dot(w, u)
    each = [
        reduced(t, item) if want and (t := found.get(name)) is not None else None
        for name, item, want in zip(names, theta, wants, strict=True)
    ]
    return (w / gamma).to(dtype), each


def formula(
    omega: Regularizer, part: Tensor | None, hyper: bool, fixed: tuple[Any, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    """:class:`Product` in differentiable operations, of y, v and the tensors of γ and θ."""

    def products_at(y: Tensor, v: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        on = taking_part(part)
        gamma, *theta = _merged(fixed, tensors)
        theta = [
            t.expand(*y.shape[:-1], t.shape[-1] if t.ndim else 1) if isinstance(t, Tensor) else t
            for t in theta
        ]
        wants = [hyper and isinstance(t, Tensor) for t in theta]
        gx, dtheta = differentiable(omega, y, on, v, [gamma, *theta], wants)
        if not hyper:
            return (gx,)
        none = torch.zeros((*y.shape[:-1], 1), dtype=torch.float64, device=y.device)
        return gx, *(none if t is None else t.double() for t in dtheta)

    return products_at


def taking_part(part: Tensor | None) -> Tensor | None:
    """Who takes part, None for all of them where that can be seen."""
    if part is None:
        return None
    look = transforms.may_look(part) and part.numel() > 0
    if part.dtype == torch.bool:
        return None if look and bool(part.all()) else part
    if look and part.detach().amin().item() > -torch.inf:
        return None
    return part.detach() != -torch.inf


def forward(
    kernel: Kernel, x: Tensor, mask: Tensor | None, numbers: list[Any]
) -> tuple[Tensor, Tensor | None]:
    gamma, *theta = [laid_out(kernel, t, x) for t in numbers]
    on = None if mask is None else flat(wrappers.allocated(mask)).contiguous()
    y, part = kernel.forward(flat(x), gamma, tuple(theta), on)
    if y.shape == x.shape:
        return y, part
    return y.view(x.shape), None if part is None else part.view(x.shape)


def laid_out(kernel: Kernel, item: Any, x: Tensor) -> Any:
    """A hyperparameter as the kernel takes it."""
    return item if kernel.numbers and not isinstance(item, Tensor) else numbered(item, x)
