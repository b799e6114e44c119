"""Tsallis entropies: entmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy
from regmax.kernels.simplex import normalize, project, softmax
from regmax.regularizers.curvature import Diagonal
from regmax.regularizers.powers import exp_alpha, log_alpha

KERNELS = Lazy(cpu="regmax.kernels.cpu.tsallis", cuda="regmax_tsallis._gpu")


class Tsallis(regmax.Regularizer):
    """Ω(y) = (Σ y_i^α − 1) / (α(α − 1)), α > 0. Π_Ω is α-entmax: softmax at α = 1 (the limit),
    sparsemax at α = 2.

    ``alpha``: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    1-strongly convex in ‖·‖₂ for α ≤ 2. (Peters, Niculae & Martins 2019; its gradient in α:
    Correia, Niculae & Martins 2019, Prop. 1.)
    """

    name = "tsallis"
    mapping = ("entmax", "entmax15")
    presets = {"entmax15": {"alpha": 1.5}}  # noqa: RUF012
    hyperparameters = ("alpha",)
    ranges = {"alpha": ("> 0", lambda alpha: alpha > 0)}  # noqa: RUF012
    permutation_invariant = True
    separable = True
    ignores_zeros = True

    def __init__(self, alpha: float | Tensor = 1.5) -> None:
        self.alpha = self.checked("alpha", alpha)

    @property
    def formula(self) -> str:  # type: ignore[override]
        if not isinstance(self.alpha, Tensor) and self.alpha == 1:
            return r"\sum_i y_i \log y_i"
        return r"\frac{\sum_i y_i^{$alpha} - 1}{$alpha\, ($alpha - 1)}"

    @property
    def strong_convexity(self) -> float | Tensor | None:
        alpha = self.alpha
        convex = bool((alpha <= 2).all()) if isinstance(alpha, Tensor) else alpha <= 2
        return 1.0 if convex else None  # ∇²Ω = diag(y^(α−2)) vanishes at 0 for α > 2

    def value(self, y: Tensor) -> Tensor:
        # for α < 2 as Σ y log_α(y)/α: equal on Σ y = 1, and with a limit at α = 1
        log = y.clamp_min(torch.finfo(y.dtype).tiny).log()
        return self._by_range(
            lambda alpha: (y * log_alpha(alpha, log)).sum(-1, keepdim=True) / alpha,
            lambda alpha: ((y**alpha).sum(-1, keepdim=True) - 1) / (alpha * (alpha - 1)),
        ).squeeze(-1)

    def grad(self, y: Tensor) -> Tensor:
        """y^(α−1)/(α−1) for α ≥ 2; log_α(y) + 1/α, log_α(y) = (y^(α−1) − 1)/(α − 1), below.

        The two differ by a constant, which J maps to 0 up to rounding. For α > 2 the constant must
        be 0, as J may be as large as y^(2−α).
        """
        return self._by_range(
            lambda alpha: log_alpha(alpha, y.log()) + 1 / alpha,
            lambda alpha: y ** (alpha - 1) / (alpha - 1),
        )

    def curvature(self, y: Tensor) -> Diagonal:
        """diag(y^(α−2)), kept positive and finite where the power under- or overflows."""
        info = torch.finfo(y.dtype)
        return Diagonal(((self.alpha - 2) * y.log()).exp().clamp(info.tiny, info.max))

    def min_positive(self, tiny: float) -> float | Tensor:
        # y^(α−2) is finite there for α ≥ 1
        alpha = self.alpha
        if isinstance(alpha, Tensor):
            return torch.where(alpha.detach() >= 1, tiny, tiny**0.5)
        return tiny if alpha >= 1 else tiny**0.5

    def support_radius(self) -> float | Tensor:
        """1/(α − 1) for α > 1, at most 800, since y_i is below exp(−δ_i)."""
        alpha = self.alpha
        if not isinstance(alpha, Tensor):
            return min(1 / (alpha - 1), 800.0) if alpha > 1 else 800.0 if alpha == 1 else math.inf
        above = alpha.detach() - 1
        reach = (1 / above).clamp(max=800.0)
        return torch.where(above > 0, reach, torch.where(above == 0, 800.0, torch.inf))

    def kernel(self, x: Tensor) -> Kernel | None:
        return KERNELS.get(x.device.type)

    def inverse(self, u: Tensor) -> Tensor:
        """[1 + (α−1)(u − 1/α)]₊^{1/(α−1)} (2019, Lemma 2), and [(α−1)u]₊^{1/(α−1)} for α ≥ 2."""
        return self._by_range(
            lambda alpha: exp_alpha(alpha, u - 1 / alpha),
            lambda alpha: ((alpha - 1) * u).clamp_min(0) ** (1 / (alpha - 1)),
        )

    @property
    def steep(self) -> bool | Tensor:  # type: ignore[override]
        return self.alpha > 2

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Any:
        special: dict[float, Callable[[Tensor], Tensor]]
        special = {1.0: softmax, 1.5: _entmax15, 2.0: project}
        if isinstance(self.alpha, Tensor) or self.alpha not in special:
            return super().closed_form(x, gamma, mask)
        z = x / gamma
        return special[self.alpha](z if mask is None else z.masked_fill(~mask, -torch.inf))

    def _by_range(self, below: Callable[[Any], Tensor], above: Callable[[Any], Tensor]) -> Tensor:
        """``below(α)`` for α < 2, on the simplex, or α = 1; else ``above(α)``."""
        alpha = self.alpha
        if not isinstance(alpha, Tensor):
            return above(alpha) if alpha >= 2 or (self.written and alpha != 1) else below(alpha)
        high = (alpha >= 2) | (alpha != 1) if self.written else alpha >= 2
        return torch.where(
            high, above(torch.where(high, alpha, 2)), below(torch.where(high, 1, alpha))
        )

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        a = float(self.alpha)
        if a == 1:
            return -cvxpy.sum(cvxpy.entr(y))
        if a == 2:
            return 0.5 * (cvxpy.sum_squares(y) - 1)
        return (cvxpy.sum(cvxpy.power(y, a)) - 1) / (a * (a - 1))


def _entmax15(z: Tensor) -> Tensor:
    """1.5-entmax by sorting (2019, Prop. 3 and Algorithm 2): y = [z/2 − τ]₊².

    On the k largest entries the threshold is τ_k = M_k − sqrt((1 − S_k)/k), M_k their mean and S_k
    their sum of squared deviations. The right k is the number of entries above their threshold τ_k,
    among the entries less than 1 below the largest. Sums are in float64: in float32, rounding in
    the sum of a million scores changes the support.
    """
    ordered = z.sort(-1, descending=True).values.double() / 2
    half = (z.double() / 2 - ordered[..., :1]).clamp_min(-1)
    ordered = (ordered - ordered[..., :1]).clamp_min(-1)
    k = torch.arange(1, z.shape[-1] + 1, device=z.device)
    mean = ordered.cumsum(-1) / k
    spread = ordered.square().cumsum(-1) - k * mean.square()
    tau = mean - ((1 - spread).clamp_min(0) / k).sqrt()
    size = ((tau <= ordered) & (ordered > -1)).sum(-1, keepdim=True).clamp_min(1)
    # again from the support alone, without the rounding of the running sums
    inside = half >= ordered.gather(-1, size - 1)
    count = inside.sum(-1, keepdim=True)
    center = torch.where(inside, half, 0).sum(-1, keepdim=True) / count
    spread = torch.where(inside, half - center, 0).square().sum(-1, keepdim=True)
    tau = center - ((1 - spread).clamp_min(0) / count).sqrt()
    return normalize((half - tau).clamp_min(0).square()).to(z.dtype)


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Tsallis]
