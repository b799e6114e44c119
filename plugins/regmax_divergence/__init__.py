"""f-divergences from a prior, and the Fermi–Dirac entropy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

import regmax
from regmax.kernels import Kernel, Lazy
from regmax.kernels.roots import increasing_root
from regmax.kernels.simplex import normalize
from regmax.kernels.transforms import number
from regmax.regularizers.arguments import POSITIVE
from regmax.regularizers.curvature import Diagonal
from regmax.regularizers.powers import exp_alpha, log_alpha

LOG2 = math.log(2)


class _FromPrior(regmax.Regularizer):
    """Ω(y) = Σ q_i f(t_i), t = y/q, from f, f' + c, f'' and the inverse of f' + c. On the simplex
    c Σ y is a constant, with which f' + c loses no digits where t is large."""

    hyperparameters: ClassVar[tuple[str, ...]] = ()
    per_entry = ("prior",)
    ranges = {"prior": POSITIVE}  # noqa: RUF012
    separable = True
    prior: float | Tensor
    _c: Any
    _f: Any
    _slope: Any
    _bend: Any
    _ratio: Any

    @property
    def permutation_invariant(self) -> bool:  # type: ignore[override]
        return not isinstance(self.prior, Tensor) or self.prior.numel() == 1

    @property
    def sharded(self) -> bool:
        return False  # q and c Σ y are those of the whole row

    def value(self, y: Tensor) -> Tensor:
        each = self._each(y).sum(-1, keepdim=True)
        value: Tensor = each + self._c * (y.sum(-1, keepdim=True) - 1)
        return value.squeeze(-1)

    def _each(self, y: Tensor) -> Tensor:
        found: Tensor = self.prior * self._f(y / self.prior)
        return found

    def grad(self, y: Tensor) -> Tensor:
        slope: Tensor = self._slope(y / self.prior)
        return slope

    def curvature(self, y: Tensor) -> Diagonal:
        info = torch.finfo(y.dtype)
        return Diagonal((self._bend(y / self.prior) / self.prior).clamp(info.tiny, info.max))

    def inverse(self, u: Tensor) -> Tensor:
        y: Tensor = self.prior * self._ratio(u)
        return y


class Divergence(_FromPrior):
    """Ω(y) = Σ q f(y/q), f(t) = (t^α − αt + α − 1)/(α(α − 1)): reverse KL divergence at α = 0
    (the limit), Hellinger ½, KL 1 (the limit), χ² 2.

    ``alpha`` ≥ 0: a float, or a tensor that broadcasts to the scores with size 1 along ``dim``.
    ``prior`` q > 0: a float, or a tensor that broadcasts to the scores; it need not sum to 1. With
    q = 1 this is the Ω of α-entmax up to a constant. Both get their gradients; one out of range
    raises ValueError. (Roulet, Liu, Vieillard, Sander & Blondel 2025.)
    """

    name = "divergence"
    hyperparameters = ("alpha",)
    ranges = {**_FromPrior.ranges, "alpha": (">= 0", lambda alpha: alpha >= 0)}  # noqa: RUF012

    def __init__(self, alpha: float | Tensor = 1.0, prior: float | Tensor = 1.0) -> None:
        self.alpha = self.checked("alpha", alpha)
        self.prior = self.checked("prior", prior)

    @property
    def formula(self) -> str:  # type: ignore[override]
        return r"\sum_i q_i f_{$alpha}(y_i / q_i)"

    @property
    def steep(self) -> bool | Tensor:  # type: ignore[override]
        return self.alpha > 2

    @property
    def _c(self) -> Any:
        return _either(
            self.alpha, self._far, lambda alpha: 1 / (alpha - 1), lambda alpha: 0 * alpha
        )

    def _each(self, y: Tensor) -> Tensor:
        if isinstance(self.alpha, Tensor) or self.alpha not in (0, 1):
            return super()._each(y)
        prior = torch.as_tensor(self.prior, dtype=y.dtype, device=y.device)
        found: Tensor
        if self.alpha == 0:
            found = y - prior - prior * (y.log() - prior.log())
        else:  # q is in a linear term alone
            found = prior - y - torch.special.entr(y) - y * prior.log()
        return found

    def _f(self, t: Tensor) -> Any:
        log = t.clamp_min(torch.finfo(t.dtype).tiny).log()
        limits = (
            lambda alpha: alpha >= 0.5,
            lambda alpha: (t * log_alpha(alpha, log) - (t - 1)) / alpha,
            lambda alpha: (log_alpha(alpha + 1, log) - (t - 1)) / (alpha - 1),
        )
        return _either(
            self.alpha,
            lambda alpha: abs(alpha * (alpha - 1)) >= 0.05,
            lambda alpha: (t**alpha - alpha * t + alpha - 1) / (alpha * (alpha - 1)),
            lambda alpha: _either(alpha, *limits),
        )

    def _slope(self, t: Tensor) -> Any:
        return _either(
            self.alpha,
            self._far,
            lambda alpha: t ** (alpha - 1) / (alpha - 1),
            lambda alpha: log_alpha(alpha, t.log()),
        )

    def _bend(self, t: Tensor) -> Tensor:
        return ((self.alpha - 2) * t.log()).exp()

    def _ratio(self, u: Tensor) -> Any:
        return _either(
            self.alpha,
            self._far,
            lambda alpha: ((alpha - 1) * u).clamp_min(0) ** (1 / (alpha - 1)),
            lambda alpha: exp_alpha(alpha, u),
        )

    def _far(self, alpha: Any) -> Any:
        return (abs(alpha - 1) >= 0.5) & (not self.written)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        a, q = float(self.alpha), _numbers(self.prior)
        t = y / q
        if a == 0:
            f = t - 1 - cvxpy.log(t)
        elif a == 1:
            f = -cvxpy.entr(t) - t + 1
        else:
            f = (cvxpy.power(t, a) - a * t + a - 1) / (a * (a - 1))
        return cvxpy.sum(cvxpy.multiply(q, f))


class JensenShannon(_FromPrior):
    """Ω(y) = ½ Σ y log(y/m) + ½ Σ q log(q/m), m = (y + q)/2. ``prior``: as for
    :class:`Divergence`, with the same source."""

    name = "jensen_shannon"
    formula = (
        r"\tfrac{1}{2} \sum_i \bigl(y_i \log \tfrac{2 y_i}{y_i + q_i}"
        r" + q_i \log \tfrac{2 q_i}{y_i + q_i}\bigr)"
    )

    def __init__(self, prior: float | Tensor = 1.0) -> None:
        self.prior = self.checked("prior", prior)

    @property
    def _c(self) -> Any:
        return 0.0 if self.written else -LOG2 / 2

    def _f(self, t: Tensor) -> Any:
        m = (1 + t).log() - LOG2
        return -(torch.special.entr(t) + t * m + m) / 2

    def _slope(self, t: Tensor) -> Any:
        return LOG2 / 2 + self._c - torch.log1p(1 / t) / 2

    def _bend(self, t: Tensor) -> Tensor:
        return 1 / (2 * t * (1 + t))

    def _ratio(self, u: Tensor) -> Any:
        """s/(2 − s), s = exp(2(u − c)); +∞ from s = 2 on."""
        return 1 / torch.expm1((LOG2 + 2 * self._c - 2 * u).clamp_min(0))

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        q = _numbers(self.prior)
        m = (y + q) / 2
        return cvxpy.sum(cvxpy.rel_entr(y, m) + cvxpy.rel_entr(q, m)) / 2


_KERNELS = Lazy(cpu="regmax_divergence._cpu")


class FermiDirac(regmax.Regularizer):
    """Ω(y) = Σ y_i log y_i + (1 − y_i) log(1 − y_i), finite on [0, 1]: no weight is above 1 on
    any domain. Sigmoid on a box, soft top-k where Σy = k (LML: Amos, Koltun & Kolter 2019).
    4-strongly convex in ‖·‖₂, as 1/(y(1 − y)) ≥ 4."""

    name = "fermi_dirac"
    formula = r"\sum_i y_i \log y_i + (1 - y_i) \log (1 - y_i)"
    hyperparameters = ()
    permutation_invariant = True
    separable = True
    ignores_zeros = True
    strong_convexity = 4.0
    highest = 1.0

    @property
    def sharded(self) -> bool:
        return False  # next to a vertex, y(t) of the largest entry t has no digits

    def value(self, y: Tensor) -> Tensor:
        rest = _rest(y)
        at_one = rest * rest.log() * (y >= 1)  # where Ω is 0, and its slope that of the last ulp
        value: Tensor = rest * rest.log() - at_one.detach() - torch.special.entr(y)
        return value.sum(-1)

    def grad(self, y: Tensor) -> Tensor:
        return y.log() - _rest(y).log()

    def curvature(self, y: Tensor) -> Diagonal:
        return Diagonal((-y.log()).exp() + (-_rest(y).log()).exp())

    def inverse(self, u: Tensor) -> Tensor:
        return _sigmoid(u)

    def min_positive(self, tiny: float) -> float:
        return tiny

    def kernel(self, x: Tensor) -> Kernel | None:
        return _KERNELS.get(x.device.type)

    def closed_form(self, x: Tensor, gamma: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """σ(z − τ), the largest score 0, where Σ σ(z_i − τ) over the others is σ(τ): 1 − y of the
        largest entry, which has no digits next to y = 1."""
        z = x.double() / number(gamma, x)
        z = z if mask is None else z.masked_fill(~mask, -torch.inf)
        first = z.argmax(-1, keepdim=True)
        others = z.scatter(-1, first, -torch.inf)
        second = others.amax(-1, keepdim=True)
        others = torch.where(second > -torch.inf, others, z)  # one entry alone, which has all

        def residual(tau: Tensor) -> tuple[Tensor, Tensor]:
            y = _sigmoid(others - tau)
            total, rate = y.sum(-1, keepdim=True), (y - y * y).sum(-1, keepdim=True)
            return -torch.log1p((-tau).exp()) - total.log(), _sigmoid(-tau) + rate / total

        low = second.clamp_min(torch.finfo(z.dtype).min) / 2
        high = (z > -torch.inf).sum(-1, keepdim=True).to(z.dtype).log()
        tau = increasing_root(residual, low, high, low, noise=32)
        return normalize(_sigmoid(z - tau)).to(x.dtype)

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        return -cvxpy.sum(cvxpy.entr(y) + cvxpy.entr(1 - y))


def _sigmoid(u: Tensor) -> Tensor:
    """As torch.sigmoid, which rounds otherwise at other places of a batch."""
    return 1 / (1 + (-u).exp())


def _rest(y: Tensor) -> Tensor:
    """1 − y, and where that is 0 half a rounding error, of which the logarithm is finite."""
    return (1 - y) + torch.finfo(y.dtype).eps / 2 * (y >= 1)


def _numbers(prior: float | Tensor) -> Any:
    return prior.detach().double().cpu().numpy() if isinstance(prior, Tensor) else prior


def _either(
    alpha: float | Tensor,
    chosen: Callable[[Any], Any],
    first: Callable[[Any], Any],
    second: Callable[[Any], Any],
) -> Any:
    """``first(α)`` where ``chosen(α)``, else ``second(α)``."""
    if not isinstance(alpha, Tensor):
        return first(alpha) if chosen(alpha) else second(alpha)
    on = chosen(alpha)
    return torch.where(on, first(torch.where(on, alpha, 2)), second(torch.where(on, 0, alpha)))


@regmax.hookimpl
def regmax_regularizers() -> list[type[regmax.Regularizer]]:
    return [FermiDirac, JensenShannon, Divergence]
