"""Total variation along a chain: fusedmax."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import regmax
from regmax.kernels import Kernel, Lazy, ProxKernel
from regmax.kernels.base import on_cpu
from regmax.kernels.neighbours import ids_of, participants_first

from .chain import prox_chain_tv

KERNELS = Lazy(cpu="regmax_tv._cpu", cuda="regmax_tv._gpu")


class ChainTV(regmax.Penalty):
    """R(y) = Σ_i |y_{i+1} − y_i| over neighbours.

    Neighbours are neighbours among the participants of a row. R(y) = max ⟨Dᵀt, y⟩ over |t_i| ≤ 1,
    with (Dy)_i = y_{i+1} − y_i. So ∂R(y) = {Dᵀt} with t_i = sign(y_{i+1} − y_i) if y_{i+1} ≠ y_i,
    and t_i in [−1, 1] otherwise.
    """

    lovasz = True
    name = "tv"
    formula = r"\sum_i \lvert y_{i+1} - y_i \rvert"

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return y.diff(dim=-1).abs().sum(-1)
        order = participants_first(mask)
        jumps = y.gather(-1, order).diff(dim=-1).abs()
        return torch.where(mask.gather(-1, order)[..., 1:], jumps, 0).sum(-1)

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        return self.with_gradient(prox_chain_tv(v, step, mask), v, step, mask)

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        """2·step. {prox > t} depends on v_i < t only through min(t − v_i, 2·step), and the maximum
        of the prox is at most 2·step below that of v."""
        return 2 * step

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        order = None if mask is None else participants_first(mask)
        z = z if order is None else z.gather(-1, order)
        return ids_of(z, order)

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Dᵀ sign(Dy)."""
        order = None if mask is None else participants_first(mask)
        y = y if order is None else y.gather(-1, order)
        t = y.diff(dim=-1).sign()
        if mask is not None and order is not None:
            t = torch.where(mask.gather(-1, order)[..., 1:], t, 0)
        u = -pad(t, (1, 1)).diff(dim=-1)
        return u if order is None else torch.zeros_like(u).scatter(-1, order, u)

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        order = None if mask is None else participants_first(mask)
        if mask is not None and order is not None:
            y, near = y.gather(-1, order), torch.where(mask, near, 0).gather(-1, order)
        jump = y.diff(dim=-1)
        # u_i = t_{i−1} − t_i, so t_i = −Σ_{j≤i} u_j
        limit = step.to(y) if isinstance(step, Tensor) else y.new_full((), step)
        inside = torch.minimum(torch.maximum(-near.cumsum(-1)[..., :-1], -limit), limit)
        t = torch.where(jump != 0, jump.sign() * limit, inside)
        if mask is not None and order is not None:
            t = torch.where(mask.gather(-1, order)[..., 1:], t, 0)
        u = -pad(t, (1, 1)).diff(dim=-1)
        return u if order is None else torch.zeros_like(u).scatter(-1, order, u)

    def kernel(self, base: regmax.Regularizer, x: Tensor) -> Kernel | None:
        ours = type(self) is ChainTV and type(base) is _gini()
        found = KERNELS.get(x.device.type) if ours else None
        return found.before(base.kernel(x)) if isinstance(found, ProxKernel) else found

    def prox_kernel(self, x: Tensor) -> ProxKernel | None:
        found = KERNELS.get(x.device.type)
        return found if isinstance(found, ProxKernel) else None

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        return cvxpy.norm1(cvxpy.diff(y)) if y.size > 1 else cvxpy.Constant(0.0)


@functools.cache
def _gini() -> type[regmax.Regularizer]:
    return type(regmax.regularizer("regmax.gini"))


class TV(regmax.Penalized):
    """Ω(y) = ½‖y‖² + λ Σ_i |y_{i+1} − y_i|, λ ≥ 0. Π_Ω is fusedmax.

    ``lam``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    Gini plus a penalty: Π_Ω = P_Δ ∘ prox_TV (Niculae & Blondel 2017, Prop. 2).
    """

    name = "tv"
    mapping = "fusedmax"

    def __init__(self, lam: float | Tensor = 0.1) -> None:
        super().__init__(regmax.regularizer("regmax.gini"), ChainTV(), lam)

    def notes(self, x: Tensor) -> list[str]:
        name = "numba" if on_cpu("regmax_tv._cpu", x) else "torch"
        return [] if self.kernel(x) else [f"prox of total variation: {name} kernel"]


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [TV]


@regmax.hookimpl
def regmax_penalties() -> list[type[regmax.Penalty]]:
    return [ChainTV]
