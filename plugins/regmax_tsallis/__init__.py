"""Tsallis entropies: entmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy, transforms
from regmax.kernels.roots import increasing_root
from regmax.kernels.simplex import normalize, project, softmax
from regmax.kernels.transforms import number
from regmax.regularizers.curvature import Diagonal

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
        return _by_range(
            self.alpha,
            lambda alpha: (y * _log_alpha(alpha, log)).sum(-1, keepdim=True) / alpha,
            lambda alpha: ((y**alpha).sum(-1, keepdim=True) - 1) / (alpha * (alpha - 1)),
        ).squeeze(-1)

    def grad(self, y: Tensor) -> Tensor:
        """y^(α−1)/(α−1) for α ≥ 2; log_α(y) + 1/α, log_α(y) = (y^(α−1) − 1)/(α − 1), for α < 2.

        The two differ by a constant, which J maps to 0 up to rounding. For α > 2 the constant must
        be 0, as J may be as large as y^(2−α).
        """
        return _by_range(
            self.alpha,
            lambda alpha: _log_alpha(alpha, y.log()) + 1 / alpha,
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

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """y_i = [1 + (α−1)(x_i/γ − τ)]₊^{1/(α−1)} with Σ y = 1 (2019, Lemma 2)."""
        on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        if isinstance(self.alpha, Tensor):
            return entmax_root(x, on, number(gamma, x), self.alpha)
        z = (x / gamma).masked_fill(~on, -torch.inf)
        if self.alpha == 1:
            return softmax(z)
        if self.alpha == 1.5:
            return _entmax15(z)
        if self.alpha == 2:
            return project(z)
        root = _from_the_bottom if self.alpha > 2 else _from_the_top
        return root(x.double(), on, number(gamma, x), number(self.alpha, x)).to(x.dtype)

    @property
    def sharded(self) -> bool:
        """For α ≤ 2: above, y is infinitely steep at its threshold."""
        alpha = self.alpha
        return bool((alpha.detach() <= 2).all()) if isinstance(alpha, Tensor) else alpha <= 2

    def sharded_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor) -> Tensor:
        """The root starts at an upper bound of ℓ: with δ the distance of the largest entry of a
        part to that of the row, and ℓ' the root of the part alone, (e^(aℓ) − 1)/a is at most
        (e^(aℓ') − 1)/a + δ for a = α − 1."""
        alpha = number(self.alpha, x)
        delta = torch.where(mask, -x / gamma, 0)
        near = torch.where(mask, delta, torch.inf).amin(-1, keepdim=True)
        some = near < torch.inf
        near = torch.where(some, near, 0)
        own = _from_above(delta - near, mask | ~some, alpha, super().row_sums)[1]
        a = alpha - 1
        rise = near * (-a * own).exp()
        rise = torch.where(a == 0, rise, torch.log1p(a * rise) / torch.where(a == 0, 1, a))
        bound = torch.where(some, own + rise, 0).nan_to_num(nan=0.0)
        start = -self.row_max(-bound)
        return _from_above(delta, mask, alpha, self.row_sums, start)[0]

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        a = float(self.alpha)
        if a == 1:
            return -cvxpy.sum(cvxpy.entr(y))
        if a == 2:
            return 0.5 * (cvxpy.sum_squares(y) - 1)
        return (cvxpy.sum(cvxpy.power(y, a)) - 1) / (a * (a - 1))


def _by_range(
    alpha: float | Tensor,
    below: Callable[[Any], Tensor],
    above: Callable[[Any], Tensor],
) -> Tensor:
    """``below(α)`` for α < 2, ``above(α)`` for α ≥ 2."""
    if not isinstance(alpha, Tensor):
        return above(alpha) if alpha >= 2 else below(alpha)
    high = alpha >= 2
    return torch.where(high, above(torch.where(high, alpha, 2)), below(torch.where(high, 1, alpha)))


def _log_alpha(alpha: float | Tensor, log: Tensor) -> Tensor:
    """log_α(y) = (y^a − 1)/a, a = α − 1, from log y: log y itself at a = 0."""
    a = alpha - 1
    if not isinstance(a, Tensor):
        return torch.expm1(a * log) / a if a else log
    u = a * log
    # φ(u) = (e^u − 1)/u; by its series near 0, where derivatives in α suffer from cancellation
    near = u.abs() < 1
    small = torch.where(near, u, 0)
    series = torch.ones_like(small)
    for k in range(20, 0, -1):  # φ(u) = 1 + u/2 (1 + u/3 (1 + …))
        series = 1 + small / (k + 1) * series
    large = torch.where(near, 1, u)
    return log * torch.where(near, series, torch.expm1(large) / large)


def entmax_root(x: Tensor, on: Tensor, gamma: Tensor, alpha: Tensor) -> Tensor:
    """α-entmax of x/γ for any α > 0, ``on`` the participants; NaN where α is.

    In float64, because float32 sums of differences of nearby numbers are inaccurate.
    """
    steep = alpha > 2
    below, above = torch.where(steep, 1, alpha).double(), torch.where(steep, alpha, 3).double()
    wide, gamma = x.double(), gamma.double()
    look = not transforms.tracing()
    if look and bool(steep.all()):
        y = _from_the_bottom(wide, on, gamma, above)
    elif look and not bool(steep.any()):
        y = _from_the_top(wide, on, gamma, below)
    else:
        y = torch.where(
            steep,
            _from_the_bottom(wide, on, gamma, above),
            _from_the_top(wide, on, gamma, below),
        )
    return y.to(x.dtype)


def _from_the_top(x: Tensor, on: Tensor, gamma: Tensor, alpha: Tensor) -> Tensor:
    """α ≤ 2: by the logarithm ℓ of the largest entry.

    With δ_i ≥ 0 the distance of x_i/γ to the maximum, y_i = e^ℓ [1 − a δ_i e^(−aℓ)]₊^(1/a): exact
    in relative terms for every a = α − 1, through 0, where it is e^(ℓ−δ_i). log Σ y increases in
    ℓ, and ℓ lies in [−log m, 0] for m participants.
    """
    x = torch.where(on, x, -torch.inf)
    delta = torch.where(on, (x.amax(-1, keepdim=True) - x) / gamma, 0)

    def residual(log_top: Tensor) -> tuple[Tensor, Tensor]:
        y, base = _entries(delta, on, alpha, log_top)
        total = y.sum(-1, keepdim=True)
        # dy_i/dℓ = y_i / (1 − a δ_i e^(−aℓ))
        return total.log(), (y / base).sum(-1, keepdim=True) / total

    low = -on.sum(-1, keepdim=True).to(x.dtype).log()
    log_top = increasing_root(residual, low, torch.zeros_like(low))
    return normalize(_entries(delta, on, alpha, log_top)[0])


def _entries(delta: Tensor, on: Tensor, alpha: Tensor, log_top: Tensor) -> tuple[Tensor, Tensor]:
    """e^ℓ [1 − a δ_i e^(−aℓ)]₊^(1/a), and the base of that power, 1 where it is not positive."""
    a = alpha - 1
    zero = a == 0
    t = torch.where(delta > 0, delta * (-a * log_top).exp(), 0)
    base = 1 - a * t
    inside = on & (base > 0)
    base = torch.where(inside, base, 1)
    t = torch.where(inside, t, 0)
    power = torch.where(zero, -t, torch.log1p(-a * t) / torch.where(zero, 1, a))
    return torch.where(inside, (log_top + power).exp(), 0), base


def _from_above(
    delta: Tensor,
    on: Tensor,
    alpha: Tensor,
    row_sums: Callable[..., tuple[Tensor, ...]],
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As :func:`_from_the_top`, from the distances δ. y and ℓ.

    In s = e^(aℓ), (Σ y)^a is a norm of (s − aδ)₊, convex, or concave where a < 0: from ``start``
    or 0, ℓ decreases to the root by Newton's method in s.
    """
    a = alpha - 1
    zero = a == 0
    divisor = torch.where(zero, 1, a)
    log_top = torch.zeros_like(delta[..., :1]) if start is None else start
    for _ in range(100):
        y, base = _entries(delta, on, alpha, log_top)
        total, rate = row_sums(y, y / base)  # Σ y and its derivative in ℓ
        excess = total.log()
        moving = excess.abs() > 32 * torch.finfo(y.dtype).eps
        if not bool(moving.any()):
            break
        change = total / rate * torch.where(zero, -excess, torch.expm1(-a * excess))
        step = torch.where(zero, change, torch.log1p(change) / divisor)
        log_top = torch.where(moving, log_top + step, log_top)
    return y / total, log_top


def _from_the_bottom(x: Tensor, on: Tensor, gamma: Tensor, alpha: Tensor) -> Tensor:
    """α > 2: by the smallest entry t of the support, as y is infinitely steep at its threshold.

    With Δ_i ≥ 0 the distance of x_i/γ to the smallest supported score, y_i = (aΔ_i + t^a)^(1/a),
    a = α − 1. The k-th largest score is supported iff Σ (aΔ_i)^(1/a) < 1 for the distances to it.
    Σ y is convex and increases in t, and t lies in [(1 − Σ (aΔ_i)^(1/a))/k, 1/k] for k supported.
    """
    a, x = alpha - 1, torch.where(on, x, -torch.inf)
    ordered = x.sort(-1, descending=True).values

    def log_powers(smallest: Tensor) -> Tensor:
        """log aΔ, −∞ where Δ ≤ 0."""
        return (x - smallest).clamp_min(0).log() + (a / gamma).log()

    def total(k: Tensor) -> Tensor:
        """Σ (aΔ_i)^(1/a) for the distances to the k-th largest score."""
        return (log_powers(ordered.gather(-1, k - 1)) / a).exp().sum(-1, keepdim=True)

    beyond = on.sum(-1, keepdim=True) + 1
    size = torch.ones_like(beyond)
    d = x.shape[-1]
    for _ in range(d.bit_length() if isinstance(d, int) else 32):
        middle = (size + beyond) // 2
        fits = total(middle) < 1
        size, beyond = torch.where(fits, middle, size), torch.where(fits, beyond, middle)
    smallest = ordered.gather(-1, size - 1)
    inside, logs = x >= smallest, log_powers(smallest)

    def log_entries(t: Tensor) -> Tensor:
        return torch.where(inside, torch.logaddexp(logs, a * t.log()) / a, -torch.inf)

    def residual(t: Tensor) -> tuple[Tensor, Tensor]:
        log_y = log_entries(t)
        # dy_i/dt = (t/y_i)^(a−1)
        rate = torch.where(inside, ((a - 1) * (t.log() - log_y)).exp(), 0)
        return log_y.exp().sum(-1, keepdim=True) - 1, rate.sum(-1, keepdim=True)

    count = inside.sum(-1, keepdim=True)
    t = increasing_root(residual, (1 - total(size)) / count, 1 / count.to(x.dtype))
    return normalize(log_entries(t).exp())


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
