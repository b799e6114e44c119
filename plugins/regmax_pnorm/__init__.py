"""Squared p-norms: sq-pnorm-max."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy
from regmax.kernels.roots import increasing_root
from regmax.kernels.simplex import normalize
from regmax.kernels.transforms import number
from regmax.regularizers import threshold
from regmax.regularizers.curvature import DiagonalPlusRankOne

KERNELS = Lazy(cpu="regmax_pnorm._cpu", cuda="regmax_pnorm._gpu")
LEAST = -64.0
"""Below the logarithm of s for any number of participants that lies on several devices."""


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
        """y = u/Σu with u_i = (x_i/γ − t)₊^q, q = 1/(p−1), at the root t of ‖u‖_p^(p−2) Σu = 1.

        In float64, because float32 sums of differences of nearby numbers are inaccurate.
        """
        z, p = x.double() / number(gamma, x), number(self.p, x)
        z = z if mask is None else z.masked_fill(~mask, -torch.inf)
        count = (z > -torch.inf).sum(-1, keepdim=True)
        s = _root(z, p, super().row_sums, low=(2 / p - 2) * count.double().log())
        return normalize(_powers(z, p, s)[0]).to(x.dtype)

    def sharded_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor) -> Tensor:
        z, p = (x / gamma).masked_fill(~mask, -torch.inf), number(self.p, x)
        parts = functools.partial(_root, p=p, row_sums=super().row_sums)
        start = threshold.upper_bound(self, z, parts, lambda s, top: s - top)
        v = _powers(z, p, _root(z, p, self.row_sums, start=start))[0]
        return v / self.row_sums(v)[0]

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        p = float(self.p)
        return 0.5 * (cvxpy.sum_squares(y) if p == 2 else cvxpy.square(cvxpy.pnorm(y, p)))


def _powers(z: Tensor, p: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """v_i = (1 + z_i/s)₊^q, q = 1/(p−1), v^p, and −z/s, 0 where v is 0."""
    inside = z > -s
    ratio = torch.where(inside, -z / s, 0)
    log = torch.log1p(-ratio) / (p - 1)
    v, vp = (torch.where(inside, t.exp(), 0) for t in (log, p * log))
    return v, vp, ratio


def _root(
    z: Tensor,
    p: Tensor,
    row_sums: Callable[..., tuple[Tensor, ...]],
    low: Tensor | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """s, the distance of the threshold to the largest score 0: the root of log s + (p−2)/p log Σv^p
    + log Σv, which increases in log s; s is in [m^(2/p − 2), 1] for m participants."""

    def residual(log_s: Tensor) -> tuple[Tensor, Tensor]:
        v, vp, ratio = _powers(z, p, log_s.exp())
        # d log v_i / d log s
        rate = ratio / (1 - ratio) / (p - 1)
        sum_v, sum_vp, moved, moved_p = row_sums(v, vp, v * rate, vp * rate)
        slope = 1 + (p - 2) * moved_p / sum_vp + moved / sum_v
        return log_s + (p - 2) / p * sum_vp.log() + sum_v.log(), slope

    top = torch.zeros_like(z[..., :1])
    low = torch.full_like(top, LEAST) if low is None else low
    start = top if start is None else start.log().clamp(LEAST, 0)
    return increasing_root(residual, low, top, start, 32).exp()


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [PNorm]
