"""Π_Ω and its product with J as operators of PyTorch, for graphs: compile, export, make_fx.

``regmax::argmax`` is :func:`regmax.mapping.methods.choose.forward`, without gradients. A graph
holds Ω as a text (:func:`regmax.regularizers.serialize.call`), so another process can load it. An Ω
without a kernel has its gradients from :func:`regmax.mapping.function.newton_steps`.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from ..domains import Bounded
from ..kernels import transforms
from ..regularizers import serialize
from ..regularizers.recorded import Recorded, read
from ..regularizers.registry import registry
from ..regularizers.regularizer import Regularizer, as_written
from . import decomposed, function
from .methods import choose, from_value
from .methods.base import Missed
from .methods.closed_form import has_formula, has_inverse
from .methods.solver import Settings
from .rows import Rows, prepare


@dataclass(frozen=True)
class _Serialized:
    """Ω without its tensors ``held``; γ is a number or the first tensor. ``names``: those of the
    tensors after γ, of Ω and then of its domain."""

    omega: Regularizer
    names: tuple[str, ...]
    held: frozenset[str]
    per_row: frozenset[str]
    gamma: float | None

    def made(self, tensors: list[Tensor]) -> tuple[Regularizer, float | Tensor]:
        """Ω and γ with these tensors."""
        gamma = tensors[0] if self.gamma is None else self.gamma
        inside = {name: t for name, t in self.named(tensors).items() if name in self.held}
        return self.omega.with_tensors(inside) if inside else self.omega, gamma

    def named(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        """The tensors after γ."""
        return dict(zip(self.names, tensors[self.gamma is None :], strict=True))

    def rows(self, x: Tensor, mask: Tensor | None, tensors: list[Tensor]) -> Rows:
        omega, gamma = self.made(tensors)
        none = torch.zeros_like(x[..., :1])
        bounds = Bounded.named(self.named(tensors), x)
        omega = omega if bounds is None or bounds.fixed_total else as_written(omega)
        return Rows(x, gamma, mask, omega, none, None, None, x.ndim - 1, x.dtype, bounds)

    def one_per_row(self) -> list[bool]:
        """Which of the tensors have one number per row."""
        return [True] * (self.gamma is None) + [
            name in self.per_row or name not in self.held for name in self.names
        ]


def not_recordable(omega: Regularizer, settings: Settings, domain: bool = False) -> str | None:
    """Why torch.compile and torch.export cannot record Π_Ω in one graph, or None; ``domain``: on
    another domain than the simplex."""
    if settings.solver != "auto":
        return f"torch.compile and torch.export record closed forms, not solver={settings.solver!r}"
    if settings.certify:
        return "torch.compile and torch.export record no certificates: leave certify=False"
    try:
        own = not (has_formula(omega) or serialize.has_text(omega))
        read(omega) if own else serialize.text_of(omega)
    except TypeError as error:
        return str(error)
    if not (own or has_formula(omega)):
        return (
            f"torch.compile and torch.export record closed forms, and {omega} has none (compile "
            "without fullgraph, or outside of this layer)"
        )
    if domain and not has_inverse(omega):
        return (
            f"torch.compile and torch.export record domain= where Ω has an inverse, and {omega} "
            "has none (compile without fullgraph, or outside of this layer)"
        )
    return None


def _read(text: str) -> _Serialized:
    return _made(text, registry())


@functools.lru_cache(maxsize=256)
def _made(text: str, known: object) -> _Serialized:
    omega, gamma, *names = serialize.made(text)
    per_row = frozenset(prefix + name for prefix, name, _ in omega.declared())
    held = frozenset(omega.tensors(fixed=True))
    return _Serialized(omega, tuple(names), held, per_row, gamma)


def _argmax(x: Tensor, mask: Tensor | None, tensors: list[Tensor], text: str) -> Tensor:
    read = _read(text)
    omega, gamma = read.made(tensors)
    by_value = isinstance(omega, Recorded)
    on = function.taking_part(mask) if by_value else mask
    if on is None and type(gamma) is float and (by_value or not tensors):
        with contextlib.suppress(Missed):
            found = choose.known(omega, x, gamma, Settings())
            if found is not None:
                return found[0].forward(x, None, found[1])[0]
    if by_value:
        y = _by_value(omega, gamma, x, on)
    else:
        y = choose.forward(read.rows(x, mask, tensors), Settings())
    memory = y.untyped_storage().data_ptr()
    if any(memory == t.untyped_storage().data_ptr() for t in (x, *tensors)):
        y = y.clone()  # an operator must not return what it was given
    return y.contiguous()


def _by_value(omega: Regularizer, gamma: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """By the kernel that is made of e, of scores as the user gives them."""
    rows = prepare(omega, x, gamma, -1, mask, wide=True)
    with contextlib.suppress(Missed):
        found = from_value.again(rows.omega, rows.x, rows.gamma)
        if found is not None:
            return rows.restore(found[0].forward(rows.x, rows.mask, found[1])[0])
    # autograd, which derivatives of e need, records nothing inside an operator
    return rows.restore(transforms.apart(choose.forward, rows, Settings(), True))


def _argmax_like(x: Tensor, mask: Tensor | None, tensors: list[Tensor], text: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _argmax_in_graph(
    mode: ProxyTorchDispatchMode, op: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if not decomposed.asked(mode):
        return mode.__torch_dispatch__(op, types, args, kwargs)
    x, mask, tensors, text = args
    if Bounded.named(_read(text).named(tensors), x) is not None:
        raise NotImplementedError(
            "domain= has no form in operations of ATen, which ONNX, AOTInductor, ExecuTorch and "
            "run_decompositions need. run_decompositions({}) keeps the operator of regmax, for "
            "processes that import it"
        )
    with mode:
        return decomposed.argmax(*_read(text).made(tensors), x, mask)


def _argmax_of_batch(
    info: Any,
    in_dims: tuple[Any, ...],
    x: Tensor,
    mask: Tensor | None,
    tensors: list[Tensor],
    text: str,
) -> tuple[Tensor, int]:
    def again(x: Tensor, mask: Tensor | None, *tensors: Tensor) -> Any:
        return torch.ops.regmax.argmax(x, mask, [*tensors], text)

    x_dim, mask_dim, dims, _ = in_dims
    given = info.batch_size, (x_dim, mask_dim, *dims), (x, mask, *tensors)
    return function.stacked(again, *given, _read(text).one_per_row()), 0


def _jacobian_product(
    y: Tensor, mask: Tensor | None, v: Tensor, tensors: list[Tensor], text: str, hyper: bool
) -> list[Tensor]:
    omega, gamma = _read(text).made(tensors)
    if isinstance(omega, Recorded) and y.dtype != torch.float64:
        wide = _jacobian_product(y.double(), mask, v.double(), tensors, text, hyper)
        return [wide[0].to(y.dtype), *wide[1:]]
    method, given = choose.of_products(omega, y, gamma)
    if method.kernel is not None:
        wants = [hyper] * len(given)
        gx, each = method.backward(y, function.taking_part(mask), v, given, wants)
        found: Any = [gx, *(t for t in each if t is not None)]
        return [t.contiguous() for t in found]  # a kernel of rows may leave room between them
    # inside an operator autograd records nothing: the derivatives of Ω are those of torch.func
    product = function.formula(method, mask, hyper)
    found = torch.func.vjp(product, y, v, *given)[0]
    return [t.clone(memory_format=torch.contiguous_format) for t in found]


def _product_like(
    y: Tensor, mask: Tensor | None, v: Tensor, tensors: list[Tensor], text: str, hyper: bool
) -> list[Tensor]:
    theta = list(_read(text).named(tensors).values()) if hyper else []
    first = torch.empty_like(y, memory_format=torch.contiguous_format)
    wide = [(*y.shape[:-1], t.shape[-1] if t.ndim else 1) for t in theta]
    return [first, *(y.new_empty(shape, dtype=torch.float64) for shape in wide)]


# not torch.library.custom_op: its checks cost as much as a kernel of short rows
_LIBRARY = torch.library.Library("regmax", "DEF")
_LIBRARY.define("argmax(Tensor x, Tensor? mask, Tensor[] tensors, str text) -> Tensor")
_LIBRARY.define(
    "jacobian_product(Tensor y, Tensor? mask, Tensor v, Tensor[] tensors, str text, bool hyper)"
    " -> Tensor[]"
)
_LIBRARY.impl("argmax", _argmax, "CompositeExplicitAutograd")
_LIBRARY.impl("jacobian_product", _jacobian_product, "CompositeExplicitAutograd")
torch.library.register_fake("regmax::argmax", _argmax_like, lib=_LIBRARY)
torch.library.register_fake("regmax::jacobian_product", _product_like, lib=_LIBRARY)
torch.library.register_torch_dispatch(
    "regmax::argmax", ProxyTorchDispatchMode, _argmax_in_graph, lib=_LIBRARY
)
torch.library.register_vmap("regmax::argmax", _argmax_of_batch, lib=_LIBRARY)
