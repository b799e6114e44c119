"""Squared p-norms: sq-pnorm-max."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy
from regmax.kernels.roots import increasing_root
from regmax.kernels.transforms import number
from regmax.regularizers.curvature import DiagonalPlusRankOne

KERNELS = Lazy(cpu="regmax_pnorm._cpu", cuda="regmax_pnorm._gpu")


class PNorm(regmax.Regularizer):
    """Ω(y) = ½‖y‖_p², 1 < p ≤ 2. Π_Ω is sq-pnorm-max; p = 2 is sparsemax.

    ``p``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    (p − 1)-strongly convex in ‖·‖_p, hence in ‖·‖₂ (Niculae & Blondel 2017, §3.1; its second
    expression of Ω lacks the ½, its gradient and Hessian are correct).
    """

    name = "pnorm"
    mapping = "pnormmax"
    formula = r"\tfrac{1}{2} \lVert y \rVert_{$p}^2"
    hyperparameters = ("p",)
    ranges = {"p": ("in (1, 2]", lambda p: (p > 1) & (p <= 2))}  # noqa: RUF012
    permutation_invariant = True
    separable = False
    ignores_zeros = True

    def __init__(self, p: float | Tensor = 1.5) -> None:
        self.p = self.checked("p", p)

    @property
    def strong_convexity(self) -> float | Tensor | None:
        return self.p.detach() - 1 if isinstance(self.p, Tensor) else self.p - 1

    def value(self, y: Tensor) -> Tensor:
        return self._norm(y).squeeze(-1).square() / 2

    def _norm(self, y: Tensor) -> Tensor:
        # divided by the largest entry, so that no power under- or overflows
        top = self.row_max(y)
        (total,) = self.row_sums((y / top) ** self.p)
        norm: Tensor = top * total ** (1 / self.p)
        return norm

    def grad(self, y: Tensor) -> Tensor:
        """y^(p−1) / ‖y‖_p^(p−2)."""
        norm = self._norm(y)
        return norm * (y / norm) ** (self.p - 1)

    def curvature(self, y: Tensor) -> DiagonalPlusRankOne:
        """diag((p−1) (y/‖y‖)^(p−2)) + (2−p) vvᵀ, v = (y/‖y‖)^(p−1)."""
        p, log = self.p, (y / self._norm(y)).log()
        return DiagonalPlusRankOne((p - 1) * ((p - 2) * log).exp(), ((p - 1) * log).exp(), 2 - p)

    def min_positive(self, tiny: float) -> float:
        return tiny

    def support_radius(self) -> float:
        return 1.0

    def kernel(self, x: Tensor) -> Kernel | None:
        return KERNELS.get(x.device.type)

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """y = u/Σu with u_i = (x_i/γ − t)₊^q, q = 1/(p−1), at the root t of ‖u‖_p^(p−2) Σu = 1."""
        on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        return pnormmax_root(-x / gamma, on, number(self.p, x))

    def sharded_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor) -> Tensor:
        """The root starts from the largest threshold t of a part of the row."""
        p = number(self.p, x)
        delta = torch.where(mask, -x / gamma, 0)
        near = torch.where(mask, delta, torch.inf).amin(-1, keepdim=True)
        some = near < torch.inf
        near = torch.where(some, near, 0)
        own = _root(delta - near, mask | ~some, p, super().row_sums)[1]
        s = torch.where(some, near + own.exp(), 1).nan_to_num(nan=1.0)
        start = (-self.row_max(-s)).log()
        return _root(delta, mask, p, self.row_sums, start)[0]

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        p = float(self.p)
        return 0.5 * (cvxpy.sum_squares(y) if p == 2 else cvxpy.square(cvxpy.pnorm(y, p)))


def pnormmax_root(delta: Tensor, on: Tensor, p: Tensor) -> Tensor:
    """sq-pnorm-max from the distances δ ≥ 0 of x/γ to its maximum; NaN where p is. In float64,
    because float32 sums of differences of nearby numbers are inaccurate."""
    return _root(delta.double(), on, p.double(), _sums)[0].to(delta.dtype)


def _sums(*entries: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.sum(-1, keepdim=True) for t in entries)


def _root(
    delta: Tensor,
    on: Tensor,
    p: Tensor,
    row_sums: Callable[..., tuple[Tensor, ...]],
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y and log s.

    With s = max(x/γ) − t and v_i = (1 − δ_i/s)₊^q, y = v/Σv where log s + (p−2)/p log Σv^p +
    log Σv = 0, increasing in log s, with s in [m^(2/p − 2), 1] for m participants, ``on``.
    """
    q = 1 / (p - 1)

    def powers(log_s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """v, v^p and δ/s (0 where v is 0)."""
        ratio = delta * (-log_s).exp()
        inside = on & (ratio < 1)
        ratio = torch.where(inside, ratio, 0)
        log_v = q * torch.log1p(-ratio)
        v, vp = (torch.where(inside, t.exp(), 0) for t in (log_v, p * log_v))
        return v, vp, ratio

    def residual(log_s: Tensor) -> tuple[Tensor, Tensor]:
        v, vp, ratio = powers(log_s)
        # d log v_i / d log s = q (δ_i/s) / (1 − δ_i/s)
        rate = q * ratio / (1 - ratio)
        sum_v, sum_vp, moved, moved_p = row_sums(v, vp, v * rate, vp * rate)
        slope = 1 + (p - 2) * moved_p / sum_vp + moved / sum_v
        return log_s + (p - 2) / p * sum_vp.log() + sum_v.log(), slope

    if start is None:
        low = (2 / p - 2) * row_sums(on.to(delta.dtype))[0].log()
        log_s = increasing_root(residual, low, torch.zeros_like(low))
    else:  # 1e27 participants at most
        start, noise = start.clamp(-64, 0), 32
        low, high = torch.full_like(start, -64), torch.zeros_like(start)
        log_s = increasing_root(residual, low, high, start, noise)
    v, _, _ = powers(log_s)
    return v / row_sums(v)[0], log_s


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [PNorm]
