"""Tsallis entropies: entmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.checks import hyperparameter
from regmax.curvature import Diagonal
from regmax.roots import increasing_root
from regmax.simplex import normalize, project


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
    permutation_invariant = True
    separable = True

    def __init__(self, alpha: float | Tensor = 1.5) -> None:
        self.alpha = hyperparameter("alpha", alpha, "> 0", lambda a: a > 0)

    @property
    def strong_convexity(self) -> float | Tensor | None:
        alpha = self.alpha
        convex = bool((alpha <= 2).all()) if isinstance(alpha, Tensor) else alpha <= 2
        return 1.0 if convex else None  # ∇²Ω = diag(y^(α−2)) vanishes at 0 for α > 2

    def value(self, y: Tensor) -> Tensor:
        # (Σ y^α − 1)/(α(α−1)) = Σ y log_α(y) / α where Σ y = 1, which has a limit at α = 1
        log = y.clamp_min(torch.finfo(y.dtype).tiny).log()
        total: Tensor = (y * _log_alpha(self.alpha, log) / self.alpha).sum(-1)
        return total

    def grad(self, y: Tensor) -> Tensor:
        """log_α(y) + 1/α, with log_α(y) = (y^(α−1) − 1)/(α − 1)."""
        return _log_alpha(self.alpha, y.log()) + 1 / self.alpha

    def curvature(self, y: Tensor) -> Diagonal:
        """diag(y^(α−2))."""
        return Diagonal(y ** (self.alpha - 2))

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """y_i = [1 + (α−1)(x_i/γ − τ)]₊^{1/(α−1)} with Σ y = 1 (2019, Lemma 2)."""
        z = x / gamma
        if mask is not None:
            z = z.masked_fill(~mask, -torch.inf)
        if isinstance(self.alpha, Tensor):
            return _by_root(z, self.alpha)
        if self.alpha == 1:
            return z.softmax(-1)
        if self.alpha == 1.5:
            return _entmax15(z)
        if self.alpha == 2:
            return project(z)
        return _by_root(z, torch.tensor(self.alpha, dtype=z.dtype, device=z.device))

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        a = float(self.alpha)
        if a == 1:
            return -cvxpy.sum(cvxpy.entr(y))
        if a == 2:
            return 0.5 * (cvxpy.sum_squares(y) - 1)
        return (cvxpy.sum(cvxpy.power(y, a)) - 1) / (a * (a - 1))


def _log_alpha(alpha: float | Tensor, log: Tensor) -> Tensor:
    """log_α(y) = (y^a − 1)/a, a = α − 1, from log y: log y itself at a = 0."""
    a = alpha - 1
    if not isinstance(a, Tensor):
        return torch.expm1(a * log) / a if a else log
    u = a * log
    # φ(u) = (e^u − 1)/u; by its series near 0, where derivatives in α would cancel
    near = u.abs() < 1
    small = torch.where(near, u, 0)
    series = torch.ones_like(small)
    for k in range(20, 0, -1):  # φ(u) = 1 + u/2 (1 + u/3 (1 + …))
        series = 1 + small / (k + 1) * series
    large = torch.where(near, 1, u)
    return log * torch.where(near, series, torch.expm1(large) / large)


def _by_root(z: Tensor, alpha: Tensor) -> Tensor:
    """α-entmax for any α > 0, by the logarithm ℓ of its largest entry.

    With δ_i ≥ 0 the distance of z_i to the maximum, y_i = e^ℓ [1 − a δ_i e^(−aℓ)]₊^(1/a): exact in
    relative terms for every a = α − 1, through 0, where it is e^(ℓ−δ_i). log Σ y increases in ℓ,
    and ℓ lies in [−log m, 0] for m participants.
    """
    a, delta = alpha - 1, z.amax(-1, keepdim=True) - z
    on = delta < torch.inf
    delta = torch.where(on, delta, 0)
    zero = a == 0
    divisor = torch.where(zero, 1, a)

    def entries(log_top: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.where(delta > 0, delta * (-a * log_top).exp(), 0)
        base = 1 - a * t
        inside = on & (base > 0)
        base = torch.where(inside, base, 1)
        t = torch.where(inside, t, 0)
        power = torch.where(zero, -t, torch.log1p(-a * t) / divisor)
        return torch.where(inside, (log_top + power).exp(), 0), base

    def residual(log_top: Tensor) -> tuple[Tensor, Tensor]:
        y, base = entries(log_top)
        total = y.sum(-1, keepdim=True)
        # dy_i/dℓ = y_i / (1 − a δ_i e^(−aℓ))
        return total.log(), (y / base).sum(-1, keepdim=True) / total

    low = -on.sum(-1, keepdim=True).to(z.dtype).log()
    log_top = increasing_root(residual, low, torch.zeros_like(low))
    return normalize(entries(log_top)[0])


def _entmax15(z: Tensor) -> Tensor:
    """1.5-entmax by sorting (2019, Prop. 3 and Algorithm 2): y = [z/2 − τ]₊².

    On the k largest entries the threshold is τ_k = M_k − sqrt((1 − S_k)/k), M_k their mean and S_k
    their sum of squared deviations; the right k is the number of thresholds below their entry.
    """
    half = (z - z.amax(-1, keepdim=True)) / 2
    half = half.clamp_min(-2)  # no entry further than 1 below the maximum is in the support
    ordered = half.sort(-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    mean = ordered.cumsum(-1) / k
    spread = ordered.square().cumsum(-1) - k * mean.square()
    tau = mean - ((1 - spread).clamp_min(0) / k).sqrt()
    size = (tau <= ordered).sum(-1, keepdim=True)
    # once more from the support alone, without the rounding of the running sums
    inside = half >= ordered.gather(-1, size - 1)
    count = inside.sum(-1, keepdim=True)
    center = torch.where(inside, half, 0).sum(-1, keepdim=True) / count
    spread = torch.where(inside, half - center, 0).square().sum(-1, keepdim=True)
    tau = center - ((1 - spread).clamp_min(0) / count).sqrt()
    return normalize((half - tau).clamp_min(0).square())


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [Tsallis]
