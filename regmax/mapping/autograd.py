"""Derivatives of Π_Ω: Proposition 1 on the support, for scores and every hyperparameter.

For any θ that x, γ or Ω depend on (Niculae & Blondel 2017, Prop. 1),

    dy* = J d( x/γ − ∇Ω(y*; θ) )|_{y* fixed},       J symmetric positive semidefinite,

so backward is v ↦ Jv followed by the vector–Jacobian product of x/γ − ∇Ω(y*; θ). With a penalty,
J averages over the groups of y* first and ∇Ω gains λu, u ∈ ∂R(y*): a constant on each group.

Backward consists of differentiable operations on y* itself, so it can be differentiated again.
:func:`restate` says the same to transforms (torch.func, forward mode, compile), which cannot use a
hand-written backward. :func:`dense_jacobian` is the formula as printed, to compare with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import simplex, transforms
from ..regularizers.curvature import Inverse
from ..regularizers.penalty import (
    Penalty,
    averaging,
    jacobian_product,
    penalty_of,
    smooth_part,
    structured,
    value_of,
)
from ..regularizers.regularizer import Regularizer, frozen, overrides


def attach(
    y: Tensor,
    z: Tensor,
    omega: Regularizer,
    mask: Tensor | None,
    inverse: Callable[[Tensor], Inverse | None] | None = None,
) -> Tensor:
    """y = Π_Ω(x), found without gradients, made a differentiable function of z = x/γ and of Ω.

    ``inverse`` gives J on a support where a solver has factorised it already.
    """
    if not torch.is_grad_enabled():
        return y
    if structured(omega):
        z = omega.reduced(z, y, mask)
    smooth = smooth_part(omega, mask)
    learnt = smooth.tensors()
    if may_hide_tensors(smooth):
        z = _through_hidden(y, z, smooth, learnt)
    if not (z.requires_grad or learnt):
        return y
    tensors = smooth.tensors(fixed=True)
    out: Tensor = _Argmax.apply(  # type: ignore[no-untyped-call]
        y,
        z,
        mask,
        frozen(smooth),
        penalty_of(omega),
        inverse and inverse(movable(y)),
        tuple(tensors),
        *tensors.values(),
    )
    return out


def restate(y: Tensor, z: Tensor, omega: Regularizer, mask: Tensor | None) -> Tensor:
    """As :func:`attach`, in PyTorch operations that any transform can follow: its twin.

    From y0 = y, a constant, k Newton steps y ← y + J(y) (z − ∇Ω(y)) have value y, and the
    derivatives of Π_Ω up to order 2^k − 1, as Newton's method squares the distance: 7 for k = 3.
    """
    if structured(omega):
        z = omega.reduced(z, y, mask)
    smooth = smooth_part(omega, mask)
    support, average = movable(y), averaging(penalty_of(omega), y, mask)
    for _ in range(3):
        slope = z - smooth.grad(smooth.seen(y))
        step = jacobian_product(smooth, average, y, slope, support)
        y = y + (step - step.detach())
    return y


def movable(y: Tensor) -> Tensor:
    """The support of y, without those of one entry: at a vertex J = 0, whatever the curvature."""
    support = y > 0
    return support & (support.sum(-1, keepdim=True) > 1)


class _Argmax(torch.autograd.Function):
    """Returns y; its backward is the adjoint of the optimality condition at y."""

    @staticmethod
    def forward(
        y: Tensor,
        z: Tensor,
        mask: Tensor | None,
        smooth: Regularizer,
        penalty: Penalty | None,
        inverse: Inverse | None,
        names: tuple[str, ...],
        *tensors: Tensor,
    ) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, mask, ctx.smooth, ctx.penalty, ctx.inverse, ctx.names, *tensors = inputs
        ctx.save_for_backward(output, mask, *tensors)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        y, mask, *tensors = ctx.saved_tensors
        smooth = ctx.smooth.with_tensors(dict(zip(ctx.names, tensors, strict=True)))
        with transforms.full_precision(y.device.type):
            average = averaging(ctx.penalty, y, mask)
            again = torch.is_grad_enabled() or transforms.watched((v,)) or transforms.batched(v)
            if ctx.inverse is not None and not again:
                w = ctx.inverse(v if average is None else average(v))
                w = w if average is None else average(w)
                # a solver looks at Ω away from 0, derivatives at y itself
                small = ((y > 0) & (y <= torch.finfo(y.dtype).eps ** 2)).any(-1, keepdim=True)
                if bool(small.any()):
                    w = torch.where(small, jacobian_product(smooth, average, y, v, movable(y)), w)
            else:
                w = jacobian_product(smooth, average, y, v, movable(y))
            wanted = ctx.needs_input_grad[7:]
            theta = hyperparameter_product(smooth, ctx.names, tensors, wanted, y, w)
        return None, w, None, None, None, None, None, *theta


def hyperparameter_product(
    smooth: Regularizer,
    names: tuple[str, ...],
    tensors: list[Tensor],
    wanted: tuple[bool, ...],
    y: Tensor,
    w: Tensor,
) -> list[Tensor | None]:
    """−(∂∇Ω(y; θ)/∂θ)ᵀ w with y and w held fixed, for every tensor θ of Ω that wants it."""
    found: list[Tensor | None] = [None for _ in tensors]
    if not any(wanted):
        return found
    keep = torch.is_grad_enabled()
    chosen = {name: t for name, t, wants in zip(names, tensors, wanted, strict=True) if wants}
    if transforms.watched((y, w, *chosen.values())):

        def slope(inside: dict[str, Tensor]) -> Tensor:
            return smooth.with_tensors(inside).grad(smooth.seen(y))

        (pulled,) = torch.func.vjp(slope, chosen)[1](0 - w)
        return [pulled.get(name) for name in names]
    with torch.enable_grad():
        aliases = {name: alias(t) for name, t in chosen.items()}
        gradient = smooth.with_tensors(aliases).grad(smooth.seen(y))
        if gradient.requires_grad:
            products = torch.autograd.grad(
                gradient, list(aliases.values()), 0 - w, create_graph=keep, allow_unused=True
            )
            for name, product in zip(aliases, products, strict=True):
                found[names.index(name)] = product
    return found


def alias(t: Tensor) -> Tensor:
    """t as a variable of its own: y also depends on t, and only the direct dependence is wanted."""
    return t.view_as(t) if t.requires_grad else t.detach().requires_grad_()


def may_hide_tensors(omega: Regularizer) -> bool:
    """Whether Ω may depend on tensors that are no attributes: not where a class declares its
    hyperparameters and writes its gradient down, and neither it nor its attributes hold one."""
    leaves = smooth_part(omega).leaves()
    if any(leaf.hyperparameters is None or not overrides(leaf, "grad") for leaf in leaves):
        return True
    return hold_tensors(omega) or any(
        _closes_over(type(leaf))  # type: ignore[arg-type]
        for leaf in leaves
    )


def hold_tensors(module: nn.Module) -> bool:
    """Whether an attribute that is no tensor holds one: a container, an object, a function."""
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
"""How many containers and objects are looked into."""


@functools.cache
def _closes_over(cls: type[Regularizer]) -> bool:
    """Whether what a class defines holds a floating tensor."""
    own = cls.__mro__[: cls.__mro__.index(Regularizer)]
    return any(_hides(item) for c in own for item in vars(c).values())


def _hides(item: Any, seen: set[int] | None = None) -> bool:
    """Whether a floating tensor is inside of what is no attribute: an entry of a container, an
    attribute of an object, what a function closes over or finds under a global name."""
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


def objective(
    omega: Regularizer,
    x: Tensor,
    gamma: float | Tensor,
    y: Tensor,
    mask: Tensor | None,
    at: Tensor | None = None,
) -> Tensor:
    """⟨y, x⟩ − γΩ(y), one number per row, with Ω evaluated ``at`` y lifted off 0 unless given."""
    gamma = gamma.squeeze(-1) if isinstance(gamma, Tensor) else gamma
    linear = simplex.row_dot(y, x).squeeze(-1)
    return linear - gamma * value_of(omega, simplex.inward(y) if at is None else at, mask)


def envelope(
    value: Tensor,
    x: Tensor,
    gamma: float | Tensor,
    omega: Regularizer,
    y: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """max_Ω(x), whose value is known, with the derivatives of ⟨y, x⟩ − γΩ(y) for fixed y (Danskin).

    To differentiate through y as well would add J·0, with whatever rounding leaves of that 0.
    """
    if not torch.is_grad_enabled():
        return value
    tensors = omega.tensors(fixed=True)
    given = gamma if isinstance(gamma, Tensor) else x.new_full((), gamma)
    out: Tensor = _Envelope.apply(  # type: ignore[no-untyped-call]
        value, y, frozen(omega), mask, tuple(tensors), x, given, *tensors.values()
    )
    return out


class _Envelope(torch.autograd.Function):
    @staticmethod
    def forward(
        value: Tensor,
        y: Tensor,
        omega: Regularizer,
        mask: Tensor | None,
        names: tuple[str, ...],
        *arguments: Tensor,
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, y, ctx.omega, mask, ctx.names, *arguments = inputs
        ctx.save_for_backward(y, mask, *arguments)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        y, mask, *arguments = ctx.saved_tensors
        wanted = ctx.needs_input_grad[5:]
        keep = torch.is_grad_enabled()
        with torch.enable_grad(), transforms.full_precision(y.device.type):
            aliases = [alias(t) if wants else t for t, wants in zip(arguments, wanted, strict=True)]
            x, gamma, *tensors = aliases
            omega = ctx.omega.with_tensors(dict(zip(ctx.names, tensors, strict=True)))
            total = objective(omega, x, gamma, y, mask)
            free = [t for t, wants in zip(aliases, wanted, strict=True) if wants]
            found = iter(
                torch.autograd.grad(total, free, v, create_graph=keep, allow_unused=True)
                if free
                else ()
            )
        return None, None, None, None, None, *(next(found) if w else None for w in wanted)


def _through_hidden(y: Tensor, z: Tensor, omega: Regularizer, tensors: dict[str, Tensor]) -> Tensor:
    """z with the first-order dependence of ∇Ω on tensors that are not attributes of Ω.

    A ``value`` may close over a tensor that regmax cannot name. Its gradient flows through
    z − (∇Ω(y) − ∇Ω(y)|detached): exact once, refused with a message when asked for twice.
    """
    known = omega.with_tensors({name: t.detach() for name, t in tensors.items()})
    leaf = y.detach().requires_grad_()
    gradient = known.grad(known.seen(leaf))
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
    """The identity on its first argument, which may be differentiated once.

    Its backward stays connected to everything that a second derivative could be asked for, and
    refuses there, instead of dropping the terms that it cannot know.
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


def dense_jacobian(omega: Regularizer, y: Tensor) -> Tensor:
    """∂Π_Ω/∂z of one row y (d,), from (I + A(B − I)) J = A as printed: the oracle for ``attach``.

    A = diag(s) − ssᵀ/|S| is the Jacobian of P_Δ on the support S of y, B = ∇²Ω(y) by autograd.
    """
    s = (y > 0).to(y.dtype)
    a = torch.diag(s) - torch.outer(s, s) / s.sum()
    b: Tensor = torch.autograd.functional.hessian(omega.value, simplex.inward(y))
    b = b * torch.outer(s, s)  # A hides the rest, where B may be infinite
    eye = torch.eye(len(y), dtype=y.dtype, device=y.device)
    j: Tensor = torch.linalg.solve(eye + a @ (b - eye), a)
    return j
