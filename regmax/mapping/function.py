"""Π_Ω as one differentiable function, and its product with J, by a method.

:class:`Mapping` and :class:`Product` define vmap and jvp, so ``torch.func`` and forward mode need
nothing else. In a graph (compile, export) both call the operators ``regmax::argmax`` and
``regmax::jacobian_product`` of :mod:`regmax.mapping.operator`. Second derivatives consist of
operations of :mod:`regmax.optimality.jacobian`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..domains import Bounded, Plans
from ..kernels import simplex, transforms
from ..optimality.jacobian import averaging, jacobian_product, movable, slope
from ..regularizers import serialize
from ..regularizers.penalty import smooth_part, structured
from ..regularizers.regularizer import Regularizer
from . import inside_grad
from .methods.base import Method, reduced


class Mapping(torch.autograd.Function):
    """y = Π_Ω(x). Backward is v ↦ Jv with the products of γ and θ, forward mode the same J.

    ``tensors``: those of γ and θ that the method does not hold. ``kept``: in plain PyTorch, a list
    for what the method keeps; else None.
    """

    @staticmethod
    def forward(
        x: Tensor, mask: Tensor | None, method: Method, kept: list[Any] | None, *tensors: Tensor
    ) -> Tensor:
        if kept is None and (x.is_meta or transforms.tracing()):
            text, given = _recorded(method, tensors)
            recorded: Tensor = torch.ops.regmax.argmax(x, mask, given, text)
            return recorded
        y, part = method.forward(x, mask, tensors)
        if kept is not None:
            kept.append(part)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, mask, method, kept, *tensors = inputs
        ctx.method, ctx.plain, part = method, kept is not None, None
        ctx.set_materialize_grads(False)
        if kept is not None:
            part = kept[0]
        elif structured(method.omega):
            part = x if mask is None else mask
        # γ's gradient needs x: y, rounded, does not tell x/γ
        needed = method.numbers[0] is None and (kept is None or ctx.needs_input_grad[4])
        saved = output, part, x if needed else None, *tensors
        if ctx.plain:
            ctx.save_for_backward(*saved)
        else:
            _keep(ctx, *saved)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        if v is None:  # max_Ω alone was differentiated
            return (None,) * len(ctx.needs_input_grad)
        y, part, x, *tensors = saved if ctx.plain else transforms.living(saved)
        wants = ctx.needs_input_grad[4:]
        gx, found = gradients(ctx.method, y, part, v, tensors, wants)
        if x is not None and wants[0]:
            found[0] = reduced(_along(gx, x, y) / -tensors[0], tensors[0])
        return gx, None, None, None, *found

    @staticmethod
    def jvp(ctx: Any, tx: Tensor | None, *tangents: Any) -> Tensor:
        with transforms.forward_mode():
            y, part, x, *tensors = map(transforms.primal, ctx.saved_tensors)
            method = ctx.method
            moved = _spread(method, tangents[3:])
            along = _change(method, y, part, x, method.filled(tensors), tx, moved).to(y.dtype)
            if transforms.batched(along):  # the vmap of autograd.functional, which has no rule
                return formula(method, part, False)(y, along, *tensors)[0]
            given = (y, part, along, method, False, *tensors)
            return Product.apply(*given)[0]  # type: ignore[no-untyped-call,no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        method = inputs[2]
        names = zip(("gamma", *method.names), method.numbers, strict=True)
        per_row = [name in method.per_row for name, t in names if t is None]
        return stacked(Mapping.apply, info.batch_size, in_dims, inputs, per_row), 0


_plainly = super(torch.autograd.Function, Mapping).apply
"""``Mapping.apply`` outside of transforms, without a look at its signature."""


def argmax(
    method: Method,
    x: Tensor,
    mask: Tensor | None = None,
    tensors: Sequence[Tensor] = (),
    transformed: bool = False,
) -> Tensor:
    """Π_Ω(x) with gradients; ``transformed``: under a transform or a tracer."""
    if transformed:
        if mask is not None and structured(method.omega):  # neighbours among those that take part
            mask = mask & (x.detach() != -torch.inf)
        found: Tensor = inside_grad.apply(Mapping, x, mask, method, None, *tensors)
        return found
    learns = x.requires_grad
    for t in tensors:  # a generator costs as much as a small kernel
        learns = learns or t.requires_grad
    if learns and torch.is_grad_enabled():
        given = transforms.living((x, mask, method, [], *tensors))
        return _plainly(*given)  # type: ignore[no-untyped-call,no-any-return]
    return method.forward(x.detach(), mask, tensors)[0]


def _spread(method: Method, tensors: Sequence[Any]) -> list[Any]:
    """One item for each of γ and θ: that of a tensor, None for a number."""
    found = iter(tensors)
    return [next(found) if t is None else None for t in method.numbers]


class Product(torch.autograd.Function):
    """(Jv/γ, and −⟨Jv, ∂∇Ω(y; θ)/∂θ⟩ for each θ that is a tensor, where ``hyper``).

    ``part``: who takes part, or the scores where only −inf does not; None where y tells enough. Its
    derivatives are those of :meth:`~.methods.base.Method.differentiable`, to any order.
    """

    @staticmethod
    def forward(
        y: Tensor,
        part: Tensor | None,
        v: Tensor,
        method: Method,
        hyper: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        if transforms.tracing():
            text, given = _recorded(method, tensors)
            return tuple(torch.ops.regmax.jacobian_product(y, part, v, given, text, hyper))
        gx, each = method.backward(y, taking_part(part), v, tensors, [hyper] * len(tensors))
        return gx, *(t for t in each if t is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        y, part, v, ctx.method, ctx.hyper, *tensors = inputs
        _keep(ctx, y, part, v, *tensors)

    @staticmethod
    def backward(ctx: Any, *u: Tensor) -> Any:
        y, part, v, *tensors = transforms.living(ctx.saved_tensors)
        product = formula(ctx.method, part, ctx.hyper)
        dy, dv, *rest = torch.func.vjp(product, y, v, *tensors)[1](u)
        return dy, None, dv, None, None, *rest

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
        with transforms.forward_mode():
            y, part, v, *tensors = map(transforms.primal, ctx.saved_tensors)
            at, given = (y, v, *tensors), (tangents[0], tangents[2], *tangents[5:])
            along = tuple(
                torch.zeros_like(p) if t is None else t.to(p)
                for p, t in zip(at, given, strict=True)
            )
            product = formula(ctx.method, part, ctx.hyper)
            found: tuple[Tensor, ...] = _pushed(product, at, along)
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        given = _stacked(info.batch_size, in_dims, inputs, (0, 1, 2))
        found = Product.apply(*given)  # type: ignore[no-untyped-call]
        return found, (0,) * len(found)


def _keep(ctx: Any, *saved: Tensor | None) -> None:
    """Save tensors for both modes."""
    ctx.save_for_backward(*saved)
    if transforms.dual_level() or transforms.transforming():
        ctx.save_for_forward(*saved)


def stacked(
    call: Callable[..., Any], size: int, dims: tuple[Any, ...], inputs: Any, per_row: list[bool]
) -> Tensor:
    """Rows are independent, so a batch of problems, which ``call`` takes as x, mask, … and tensors,
    is one problem with one more dimension in front; unless a tensor of Ω that is not one number
    ``per_row``, a matrix for instance, differs in it."""
    own = dims[len(dims) - len(per_row) :]
    if all(dim is None or each for dim, each in zip(own, per_row, strict=True)):
        found: Tensor = call(*_stacked(size, dims, inputs, (0, 1)))
        return found
    return torch.stack(
        [
            call(*(t if d is None else t.select(d, i) for t, d in zip(inputs, dims, strict=True)))
            for i in range(size)
        ]
    )


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


def _recorded(method: Method, tensors: Sequence[Tensor]) -> tuple[str, list[Tensor]]:
    """What a recorded graph knows Ω by, and its tensors, γ first."""
    number, names = method.numbers[0], method.names
    given = _spread(method, tensors)
    theta = zip(names, given[1:], strict=True)
    inside = {name: t for name, t in theta if t is not None}
    held = method.omega.tensors(fixed=True)
    omega = method.omega.with_tensors({name: t for name, t in inside.items() if name in held})
    first = [given[0]] if number is None else []
    return serialize.call(omega, number, tuple(inside)), [*first, *inside.values()]


def _change(
    method: Method,
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
        total = total - relative(x, y) * (tgamma / gamma)
    names, on = method.names, taking_part(part)
    moved = {name: t for name, t in zip(names, ttheta, strict=True) if t is not None}
    if not moved:
        return total
    held = {k: t for k, t in zip(names, theta, strict=True) if isinstance(t, Tensor)}
    omega = method.omega.with_tensors(held)
    at = {name: held[name] for name in moved}
    along = _pushed(lambda inside: slope(omega, inside, y, on), (at,), (moved,))
    found: Tensor = total - gamma * along
    return found


def _pushed(function: Callable[..., Any], at: tuple[Any, ...], along: tuple[Any, ...]) -> Any:
    """The derivative of ``function`` along tangents, by reverse mode twice, as u ↦ uᵀ∂f is linear:
    forward mode is on already, and PyTorch does not always nest it."""
    pulled: Any = torch.func.vjp(function, *at)
    value, pull = pulled
    zeros = torch.utils._pytree.tree_map(torch.zeros_like, value)
    return torch.func.vjp(pull, zeros)[1](along)[0]


def relative(x: Tensor, y: Tensor) -> Tensor:
    """x relative to its smallest supported entry, 0 outside of the support: where α-entmax is
    steep, at that entry, what rounding leaves of ⟨Jv, 1⟩ is large."""
    on = y.detach() > 0
    least = torch.where(on, y.detach(), torch.inf).argmin(-1, keepdim=True)
    return torch.where(on, x - x.detach().gather(-1, least), 0)


def _along(gx: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """⟨gx, x⟩, one number per row."""
    return simplex.row_dot(gx.double(), relative(x, y).double())  # neither may overflow


def gradients(
    method: Method,
    y: Tensor,
    part: Tensor | None,
    v: Tensor,
    tensors: Sequence[Tensor],
    wants: Sequence[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The gradients of x and of those tensors of θ that are wanted, in any mode; None for γ."""
    found: list[Tensor | None] = [None] * len(tensors)
    first = int(method.numbers[0] is None)
    plain = type(v) is Tensor and transforms.plain() and not transforms.batched(v)
    if not method.general and plain and not torch.is_grad_enabled():
        gx, each = method.backward(y, taking_part(part), v, tensors, wants)
    elif not (method.general or plain) and transforms.under_transform((v, y)):
        hyper = True in wants[first:]
        gx, *each = inside_grad.apply(Product, y, part, v, method, hyper, *tensors)
    else:
        return method.differentiable(y, taking_part(part), v, tensors, wants)
    for k, t in enumerate(each, start=first):
        if wants[k] and t is not None:
            found[k] = reduced(t, tensors[k])
    return gx, found


def formula(method: Method, part: Tensor | None, hyper: bool) -> Callable[..., tuple[Tensor, ...]]:
    """:class:`Product` in differentiable operations, of y, v and the tensors of γ and θ."""

    def products_at(y: Tensor, v: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        first = int(method.numbers[0] is None)
        batch = y.shape[:-1]
        laid = [*tensors[:first]]
        laid += [t.expand(*batch, t.shape[-1] if t.ndim else 1) for t in tensors[first:]]
        wants = [False] * first + [hyper] * len(tensors[first:])
        gx, each = method.differentiable(y, taking_part(part), v, laid, wants)
        if not hyper:
            return (gx,)
        none = torch.zeros((*batch, 1), dtype=torch.float64, device=y.device)
        return gx, *(none if t is None else t.double() for t in each[first:])

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


def newton_steps(
    y: Tensor,
    z: Tensor,
    omega: Regularizer,
    mask: Tensor | None,
    bounds: Bounded | Plans | None = None,
) -> Tensor:
    """y = Π_Ω(x), found without gradients, as PyTorch operations that any transform can
    differentiate: in x, γ, and all that Ω depends on, also in what is no attribute of it.

    k Newton steps y ← y + J(y) (z − ∇Ω(y)) from y0 = y, a constant, have value y and the
    derivatives of Π_Ω up to order 2^k − 1, because Newton's method squares the distance. k = 3
    gives order 7. With ``bounds`` y0 is on the face of y, and moves with it.
    """
    if structured(omega):
        z = omega.reduced(z, y, mask)
    smooth = smooth_part(omega, mask)
    support, average = movable(y), averaging(omega, y, mask)
    face = None if bounds is None else bounds.movable(y)
    y = y if bounds is None else bounds.followed(y)
    for _ in range(3):
        slope = z - smooth.grad(smooth.lifted(y))
        if bounds is None or face is None:
            step = jacobian_product(smooth, average, y, slope, support)
        else:
            step = bounds.jacobian(smooth.curvature(smooth.lifted(y)), slope, face)
            step = step if average is None else average(step)
        y = y + (step - step.detach())
    return y
