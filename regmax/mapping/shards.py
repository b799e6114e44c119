"""Π_Ω of rows whose entries lie on several devices.

Each device holds some entries of a row. The only communication is all-reduces of one or a few
numbers per row: the maximum, the sums of the equation that Ω solves, and in backward the sums of
the product with J. :meth:`regmax.Regularizer.sharded_form` has the mathematics of Ω.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.wrappers import dense
from ..regularizers import arguments
from ..regularizers.curvature import Curvature, Diagonal, DiagonalPlusRankOne
from ..regularizers.errors import RegularizerError
from ..regularizers.identity import trusted, unscaled
from ..regularizers.penalty import who
from ..regularizers.regularizer import Regularizer, copied
from . import function
from .maximum import envelope, objective
from .methods.closed_form import Computed
from .methods.solver import Forward, Settings
from .rows import Rows, aligned

F64 = torch.float64
CANDIDATES = 4
"""Ω is solved on the candidates for the support if at most one entry in so many is one."""


def computes(omega: Regularizer) -> bool:
    """Whether Π_Ω can be computed where the entries of a row lie on several devices."""
    bare, _ = unscaled(omega, 1.0)
    known = any(trusted(type(bare), name) for name in ("sharded_form", "inverse"))  # type: ignore[arg-type]
    return bare.exact and known and bare.sharded


class Shards:
    """The devices on which the entries of a row lie: those along the dimensions ``dims`` of a
    mesh."""

    def __init__(self, mesh: Any, dims: list[int]) -> None:
        self.dims, self._groups = dims, [(mesh, i) for i in dims]
        self.size = 1
        for i in dims:
            self.size *= mesh.size(i)

    def sums(self, *entries: Tensor) -> tuple[Tensor, ...]:
        """The sum of each tensor over whole rows, (*batch, 1), differentiable to any order."""
        local = torch.stack([t.sum(-1) for t in entries])
        found: Tensor = _Sum.apply(local, self)  # type: ignore[no-untyped-call]
        return tuple(t.unsqueeze(-1) for t in found.unbind())

    def maximum(self, t: Tensor) -> Tensor:
        """The maximum over whole rows, (*batch, 1)."""
        return self.reduced(t.detach().amax(-1, keepdim=True), "max")

    def reduced(self, t: Tensor, how: str) -> Tensor:
        from torch.distributed import _functional_collectives as collectives

        if not t.numel():
            return t
        for group in self._groups:
            t = collectives.wait_tensor(collectives.all_reduce(t.contiguous(), how, group))
        return t


class _Sum(torch.autograd.Function):
    """The sum over devices, on each of them: a linear map that is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        return shards.reduced(t, "sum")

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _Sum.apply(g, ctx.shards), None  # type: ignore[no-untyped-call]


def prepare(omega: Regularizer, x: Tensor, gamma: Any, dim: int, mask: Any, shards: Shards) -> Rows:
    """As :func:`regmax.mapping.rows.prepare` for a part of each row: float64, less the largest
    participant of the whole row. A part without entries gets one that takes no part."""
    x, dim = arguments.scores(padded(dense("x", x), dim, -torch.inf), dim)
    on = arguments.expanded(None if mask is None else _beside(mask, dim), x)
    rows = x.double()
    gamma = arguments.per_row("gamma", gamma, arguments.POSITIVE, rows, dim)
    omega, gamma = unscaled(aligned(omega, rows, dim), gamma)
    omega = copied(omega)
    omega.__dict__.update(row_sums=shards.sums, row_max=shards.maximum)
    rows = rows.movedim(dim, -1).contiguous()
    scores = rows.detach()
    on = scores != -torch.inf if on is None else on.movedim(dim, -1) & (scores != -torch.inf)
    wrong = on & ~(scores < torch.inf)  # NaN or +inf
    highest = torch.where(on & ~wrong, scores, -torch.inf).amax(-1)
    found = torch.stack([highest, wrong.any(-1).to(F64)])
    top, marked = (t.unsqueeze(-1) for t in shards.reduced(found, "max"))
    spoilt = marked > 0
    empty = ~spoilt & (top == -torch.inf)
    rows = torch.where(on & ~spoilt, rows, 0)
    top = torch.where(spoilt | empty, 0, top)
    on = on | empty | spoilt
    rows = torch.where(on, (rows - top).clamp_min(-(torch.finfo(F64).max ** 0.5)), 0)
    return Rows(rows, gamma, on, omega, top, empty, spoilt, dim, x.dtype)


def padded(t: Tensor, dim: int, value: Any) -> Tensor:
    """``t``, with one entry ``value`` where it has none along ``dim``."""
    if t.ndim == 0 or t.shape[dim]:
        return t
    shape = list(t.shape)
    shape[dim] = 1
    return torch.cat([t, t.new_full(shape, value)], dim)


def _beside(mask: Any, dim: int) -> Any:
    """A mask, padded as the scores are."""
    if not isinstance(mask, Tensor) or -dim > mask.ndim:
        return mask
    return padded(dense("mask", mask), dim, False)


def argmax(rows: Rows, shards: Shards) -> Tensor:
    """Π_Ω of the parts of rows, with gradients, (*batch, d); not filled."""
    omega = rows.omega
    with torch.no_grad():
        y = _solved(omega, rows.x, rows.gamma, rows.mask)
    if not torch.is_grad_enabled():
        return y
    tensors = list(omega.tensors(fixed=True).values())
    return function.argmax(Sharded(rows, y, shards), rows.z, None, tensors)


def maximum(rows: Rows, y: Tensor, shards: Shards) -> Tensor:
    """What this device adds to max_Ω(x) less the largest score, (*batch), with gradients."""
    gamma = per_device(rows, shards)
    with torch.no_grad():
        best = objective(rows.omega, rows.x, gamma, y, None, at=y)
    with transforms.full_precision(y.device.type):
        return envelope(best, rows.x, gamma, rows.omega, y, None)


def per_device(rows: Rows, shards: Shards) -> Any:
    """The factor of Ω of what this device has: Ω of the whole row, where it is no sum."""
    return rows.gamma if rows.omega.separable else rows.gamma / shards.size


def mapping(
    omega: Regularizer, x: Tensor, gamma: Any, dim: int, mask: Any, shards: Shards
) -> Tensor:
    """Π_Ω of the parts of rows along ``dim`` < 0 that this device holds."""
    rows = prepare(omega, x, gamma, dim, mask, shards)
    return rows.restore(argmax(rows, shards)).narrow(dim, 0, x.shape[dim])


def _solved(omega: Regularizer, x: Tensor, gamma: Any, mask: Tensor | None) -> Tensor:
    """Π_Ω without derivatives, from the entries that may be in the support."""
    assert mask is not None
    near = mask & (x > -gamma * omega.support_radius())
    count = int(near.sum(-1).amax()) if near.numel() else 0
    if not 0 < count * CANDIDATES <= x.shape[-1]:
        return omega.sharded_form(x, gamma, mask)
    inside = torch.where(near, x, -torch.inf).topk(count, sorted=False)
    some = inside.values > -torch.inf
    y = omega.sharded_form(torch.where(some, inside.values, 0), gamma, some)
    return torch.zeros_like(x).scatter(-1, inside.indices, torch.where(some, y, 0))


class Sharded(Computed):
    """Π_Ω of the parts of rows x/γ, whose answer is known."""

    __slots__ = ("_shards",)

    def __init__(self, rows: Rows, y: Tensor, shards: Shards) -> None:
        super().__init__(replace(rows, gamma=1.0), Settings(), Forward(y, "", ""))
        self._shards = shards

    def product(self, omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor) -> Tensor:
        """By the adjoint of the optimality condition at y."""
        return _product(omega.curvature(omega.lifted(y)), y > 0, v, self._shards, omega)


def _product(
    curvature: Curvature, support: Tensor, v: Tensor, shards: Shards, omega: Regularizer
) -> Tensor:
    """J v, differentiable, by one all-reduce.

    With s = 1/h on the support, D = diag(s) − ssᵀ/Σs is J for diag(h), and for diag(h) + c uuᵀ
    J = D − c Du uᵀD / (1 + c uᵀDu).
    """
    if not isinstance(curvature, Diagonal | DiagonalPlusRankOne):
        raise RegularizerError(
            f"{who(omega)}.curvature must be Diagonal or DiagonalPlusRankOne for sharded_form; got "
            f"{type(curvature).__name__}"
        )
    s = torch.where(support, (-torch.where(support, curvature.h, 1).log()).exp(), 0)
    v = torch.where(support, v, 0)
    if isinstance(curvature, Diagonal):
        total, along = shards.sums(s, s * v)
        return _centred(s, v, total, along)
    u = torch.where(support, curvature.u, 0)
    total, sv, su, suv, suu = shards.sums(s, s * v, s * u, s * u * v, s * u * u)
    safe = torch.where(total > 0, total, 1)
    dv, du = _centred(s, v, total, sv), _centred(s, u, total, su)
    udv, udu = suv - su * sv / safe, (suu - su * su / safe).clamp_min(0)
    return dv - du * (curvature.c * udv / (1 + curvature.c * udu))


def _centred(s: Tensor, v: Tensor, total: Tensor, along: Tensor) -> Tensor:
    """s ∘ (v − ⟨s, v⟩/Σs); exactly 0 where the row has one entry in its support."""
    w = s * (v - along / torch.where(total > 0, total, 1))
    return torch.where(s == total, 0, w)
