"""Squared p-norms: sq-pnorm-max."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.checks import hyperparameter
from regmax.curvature import DiagonalPlusRankOne
from regmax.roots import increasing_root
from regmax.simplex import normalize, row_dot


class PNorm(regmax.Regularizer):
    """Ω(y) = ½‖y‖_p², 1 < p ≤ 2. Π_Ω is sq-pnorm-max; p = 2 is sparsemax.

    ``p``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    (p − 1)-strongly convex in ‖·‖_p, hence in ‖·‖₂ (Niculae & Blondel 2017, §3.1, whose second
    expression of Ω drops the ½; its gradient and Hessian are right).
    """

    name = "pnorm"
    mapping = "pnormmax"
    hyperparameters = ("p",)
    permutation_invariant = True
    separable = False

    def __init__(self, p: float | Tensor = 1.5) -> None:
        self.p = hyperparameter("p", p, "in (1, 2]", lambda p: (p > 1) & (p <= 2))

    @property
    def strong_convexity(self) -> float | Tensor | None:
        return self.p.detach() - 1 if isinstance(self.p, Tensor) else self.p - 1

    def value(self, y: Tensor) -> Tensor:
        return self._norm(y).squeeze(-1).square() / 2

    def _norm(self, y: Tensor) -> Tensor:
        # relative to the largest entry, so that no power under- or overflows
        top = y.detach().amax(-1, keepdim=True)
        return top * ((y / top) ** self.p).sum(-1, keepdim=True) ** (1 / self.p)

    def grad(self, y: Tensor) -> Tensor:
        """y^(p−1) / ‖y‖_p^(p−2)."""
        norm = self._norm(y)
        return norm * (y / norm) ** (self.p - 1)

    def curvature(self, y: Tensor) -> DiagonalPlusRankOne:
        """diag((p−1) (y/‖y‖)^(p−2)) + (2−p) vvᵀ, v = (y/‖y‖)^(p−1)."""
        share = y / self._norm(y)
        root = (2 - self.p) ** 0.5 if not isinstance(self.p, Tensor) else _root(2 - self.p)
        return DiagonalPlusRankOne(
            (self.p - 1) * share ** (self.p - 2), root * share ** (self.p - 1)
        )

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """y = u/Σu with u_i = (x_i/γ − t)₊^q, q = 1/(p−1), at the root t of ‖u‖_p^(p−2) Σu = 1.

        Written with s = max(x/γ) − t and v_i = (1 − δ_i/s)₊^q, where δ_i ≥ 0 is the distance to
        the maximum: log s + (p−2)/p log Σv^p + log Σv = 0, increasing in log s, with
        s in [m^(2/p − 2), 1] for m participants.
        """
        p, delta = self.p, -x / gamma
        on = torch.ones_like(x) if mask is None else mask.to(x.dtype)
        q = 1 / (p - 1)

        def residual(log_s: Tensor) -> tuple[Tensor, Tensor]:
            ratio = delta * (-log_s).exp()
            inside = ratio < 1
            base = torch.where(inside, 1 - ratio, 1)
            log_v = q * base.log()
            v = torch.where(inside, log_v.exp(), 0) * on
            vp = torch.where(inside, (p * log_v).exp(), 0) * on
            sum_v, sum_vp = v.sum(-1, keepdim=True), vp.sum(-1, keepdim=True)
            # d log v_i / d log s = q (δ_i/s) / (1 − δ_i/s)
            rate = q * torch.where(inside, ratio, 0) / base
            slope = 1 + (p - 2) * row_dot(vp, rate) / sum_vp + row_dot(v, rate) / sum_v
            return log_s + (p - 2) / p * sum_vp.log() + sum_v.log(), slope

        low = (2 / p - 2) * on.sum(-1, keepdim=True).log()
        log_s = increasing_root(residual, low, torch.zeros_like(low))
        base = (1 - delta * (-log_s).exp()).clamp_min(0)
        return normalize(base**q * on)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        p = float(self.p)
        return 0.5 * (cvxpy.sum_squares(y) if p == 2 else cvxpy.square(cvxpy.pnorm(y, p)))


def _root(t: Tensor) -> Tensor:
    """√t for t ≥ 0, with derivative 0 instead of ∞ at 0."""
    return torch.where(t > 0, torch.where(t > 0, t, 1).sqrt(), 0)


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [PNorm]
