"""The α-norm as a regularizer: normmax, whose weights are nearly equal on their support."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels.roots import increasing_root
from regmax.kernels.simplex import normalize, row_dot
from regmax.regularizers.curvature import MatrixFree


class Norm(regmax.Regularizer):
    """Ω(y) = ‖y‖_α, α > 1. Π_Ω is normmax: exact zeros, and positive weights that are more equal
    for larger α.

    ``alpha``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    (Blondel, Martins & Niculae 2020, "Learning with Fenchel-Young losses": norm entropies.)
    """

    name = "norm"
    mapping = "normmax"
    hyperparameters = ("alpha",)
    ranges = {"alpha": ("> 1", lambda alpha: alpha > 1)}  # noqa: RUF012
    permutation_invariant = True
    separable = False
    ignores_zeros = True
    # Strictly convex on Δ, as no point of Δ is a multiple of another. No strong_convexity: at a
    # vertex the curvature along Δ is 1/d for α = 2 and 0 for α > 2, so no β > 0 holds for all rows.

    def __init__(self, alpha: float | Tensor = 2.0) -> None:
        self.alpha = self.checked("alpha", alpha)

    def value(self, y: Tensor) -> Tensor:
        return self._norm(y).squeeze(-1)

    def _norm(self, y: Tensor) -> Tensor:
        # divided by the largest entry, so that no power under- or overflows
        top = y.detach().amax(-1, keepdim=True)
        return top * ((y / top) ** self.alpha).sum(-1, keepdim=True) ** (1 / self.alpha)

    def grad(self, y: Tensor) -> Tensor:
        """u^(α−1), u = y/‖y‖_α."""
        return (y / self._norm(y)) ** (self.alpha - 1)

    def curvature(self, y: Tensor) -> NormCurvature:
        norm = self._norm(y)
        return NormCurvature(y / norm, (self.alpha - 1) / norm, self.alpha)

    def min_positive(self, tiny: float) -> float:
        return tiny  # ``curvature`` computes powers by logarithms, so derivatives stay finite

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """y = u/Σu with u_i = (x_i/γ − τ)₊^(1/(α−1)), at the root τ of ‖u‖_α = 1.

        With δ ≥ 0 the distances of x/γ to its maximum, t that of τ, and r = δ/t, the root is that
        of log t + (1 − 1/α) log Σ (1 − r_i)₊^(α/(α−1)), which increases in log t; t is in
        [m^(1/α − 1), 1] for m participants. In float64: for α > 2 rounding in float32 near the
        threshold would change y much.
        """
        on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        delta = -x.double() / gamma
        alpha = torch.as_tensor(self.alpha, dtype=delta.dtype, device=x.device)

        def entries(log_t: Tensor) -> tuple[Tensor, Tensor]:
            """u over its largest entry, and r, which is 0 where u is."""
            r = delta * (-log_t).exp()
            inside = on & (r < 1)
            r = torch.where(inside, r, 0)
            return torch.where(inside, (torch.log1p(-r) / (alpha - 1)).exp(), 0), r

        def residual(log_t: Tensor) -> tuple[Tensor, Tensor]:
            u, r = entries(log_t)
            total = (u * (1 - r)).sum(-1, keepdim=True)
            return log_t + (1 - 1 / alpha) * total.log(), 1 + row_dot(u, r) / total

        low = (1 / alpha - 1) * on.sum(-1, keepdim=True).double().log()
        log_t = increasing_root(residual, low, torch.zeros_like(low))
        return normalize(entries(log_t)[0]).to(x.dtype)

    def support_radius(self) -> float:
        return 1.0  # t ≤ 1

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        # 2y, not y: with some solvers cvxpy drops a cone of variables alone
        return cvxpy.pnorm(2 * y, float(self.alpha)) / 2


class NormCurvature(MatrixFree):
    """∇²Ω = k (D − vvᵀ) with D = diag(u^(α−2)), v = u^(α−1), k = (α − 1)/‖y‖_α.

    Products define the matrix. J = ∂Π_Ω/∂x, which backward applies, has a closed form.
    """

    def __init__(self, u: Tensor, k: Tensor, alpha: float | Tensor) -> None:
        log = u.log()
        d, v = ((alpha - 2) * log).exp(), ((alpha - 1) * log).exp()
        self.u, self.v, self.k, self.inverse_d = u, v, k, ((2 - alpha) * log).exp()

        def product(w: Tensor) -> Tensor:
            return k * (d * w - v * row_dot(v, w))

        super().__init__(product, u.dtype)

    def jacobian(self, v: Tensor, support: Tensor) -> Tensor:
        """w = (a − u Σa/Σu)/k, a = D⁻¹(v − τ1), all on S: H_SS w + τ1 = v_S and Σw = 0, because
        D⁻¹ u^(α−1) = u. These determine τ, which is ⟨y, v⟩ if S is the support of y.
        """
        u, inverse_d, v = (torch.where(support, t, 0) for t in (self.u, self.inverse_d, v))
        total = torch.where(support.any(-1, keepdim=True), u.sum(-1, keepdim=True), 1)
        off = torch.where(support, 0, self.u * self.v).sum(-1, keepdim=True)  # 1 − Σ_S u^α
        tau = total * row_dot(u, v) + off * row_dot(inverse_d, v)
        a = inverse_d * (v - tau / (total.square() + off * inverse_d.sum(-1, keepdim=True)))
        return (a - u * (a.sum(-1, keepdim=True) / total)) / self.k


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Norm]
