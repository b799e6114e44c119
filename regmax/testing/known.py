"""Problems with known answers, on which solvers are checked.

Each Ω is value-only. Each answer comes from the optimality condition in float64, without a solver:
by bisection of one threshold, by trying every support, or by Newton steps on the scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.simplex import project
from ..optimality.problem import Problem
from ..regularizers.penalty import Penalized, Penalty
from ..regularizers.regularizer import Regularizer

Answer = Callable[[Tensor, Tensor], Tensor]
Inverse = Callable[[Tensor], Tensor]
HALVINGS = 120
"""At most: a bisection ends where no float64 lies between its ends."""


@dataclass(frozen=True, eq=False)
class Known:
    """Ω with Π_Ω: ``answer(z, on)`` gives y for float64 rows z (n, d) with participants ``on``.

    ``curved``: whether Ω is strongly convex near the answers, so that a solver can certify its own.
    ``largest``: the longest rows that ``answer`` accepts.
    """

    name: str
    base: Regularizer
    answer: Answer | None
    penalty: Penalty | None = None
    lam: float = 0.0
    curved: bool = True
    largest: int = 2000

    @property
    def omega(self) -> Regularizer:
        return self.around(self.base)

    def around(self, base: Regularizer) -> Regularizer:
        """The same Ω with ``base`` for its smooth part."""
        return base if self.penalty is None else Penalized(base, self.penalty, self.lam)

    def problem(self, z: Tensor, mask: Tensor | None = None) -> Problem:
        return Problem(self.omega, z, mask)

    def __repr__(self) -> str:
        return self.name


# -- value-only Ω ----------------------------------------------------------------------------------


def weights(y: Tensor) -> Tensor:
    """1, 1.5, 2, 1, 1.5, … for rows of any size."""
    return 1 + torch.arange(y.shape[-1], dtype=y.dtype, device=y.device).remainder(3) / 2


def coupling(y: Tensor) -> Tensor:
    """Q_ij = 2^−|i−j|, positive definite for any size."""
    at = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    return torch.exp2(-(at.unsqueeze(-1) - at).abs())


class Square(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / 2


class Weighted(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return (weights(y) * y.square()).sum(-1) / 2


class Power(Regularizer):
    """Σ y^a / (a − 1), a > 1; −2 Σ √y for a = ½."""

    def __init__(self, a: float) -> None:
        self.a = a

    def value(self, y: Tensor) -> Tensor:
        return y.pow(self.a).sum(-1) / (self.a - 1)


class Entropy(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y).sum(-1)


class Coupled(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return ((y @ coupling(y)) * y).sum(-1) / 2


class CoupledEntropy(Regularizer):
    def value(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, y).sum(-1) + ((y @ coupling(y)) * y).sum(-1) / 2


class SquaredNorm(Regularizer):
    """½‖y‖², the norm of exponent 3/2."""

    def value(self, y: Tensor) -> Tensor:
        return y.pow(1.5).sum(-1).pow(4 / 3) / 2


class Largest(Penalty):
    """R(y) = max y; the largest entries form a group."""

    lovasz = True
    name = "largest"

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return _masked(y, mask).amax(-1)

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        if not isinstance(step, Tensor) and step == 0:
            return v
        tau = _threshold(v, step, mask)
        return torch.minimum(v, tau)

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        ids = torch.arange(z.shape[-1], device=z.device).expand(z.shape)
        top = self._top(z, mask)
        return torch.where(top, top.int().argmax(-1, keepdim=True), ids)

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        step = torch.as_tensor(step, dtype=y.dtype, device=y.device)
        return step * project(near / step.clamp_min(1e-300), self._top(y, mask))

    @staticmethod
    def _top(y: Tensor, mask: Tensor | None) -> Tensor:
        seen = _masked(y, mask)
        return seen == seen.amax(-1, keepdim=True)


def _masked(y: Tensor, mask: Tensor | None) -> Tensor:
    return y if mask is None else y.masked_fill(~mask, -torch.inf)


def _threshold(v: Tensor, step: float | Tensor, mask: Tensor | None) -> Tensor:
    """t with Σ max(v − t, 0) = step."""
    u = project(v / step, mask)  # v = z + step·u, u in Δ on the largest
    return torch.where(u > 0, v - step * u, -torch.inf).amax(-1, keepdim=True)


# -- Π_Ω -------------------------------------------------------------------------------------------


def bisected(low: Tensor, high: Tensor, above: Callable[[Tensor], Tensor]) -> Tensor:
    """Where ``above`` turns from true to false between ``low`` and ``high``, row by row."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not bool(((low < middle) & (middle < high)).any()):
            break
        up = above(middle)
        low, high = torch.where(up, middle, low), torch.where(up, high, middle)
    return (low + high) / 2


def one_root(inverse: Inverse, reach: float) -> Answer:
    """y = ``inverse``((z − τ)₊) with Σy = 1; τ lies within ``reach`` of the largest z_i."""

    def answer(z: Tensor, on: Tensor) -> Tensor:
        z = torch.where(on, z, -torch.inf)
        z = z - z.amax(-1, keepdim=True)
        zero = torch.zeros_like(z[..., :1])

        def y(tau: Tensor) -> Tensor:
            return torch.where(on, inverse((z - tau).clamp_min(0)), 0)

        found = y(bisected(zero - reach, zero, lambda tau: y(tau).sum(-1, keepdim=True) > 1))
        return found / found.sum(-1, keepdim=True)

    return answer


def norm(w: Tensor) -> Tensor:
    """Ω = ½‖y‖_{3/2}²: y_i = w_i² / ‖w‖₃ with w = (z − τ)₊."""
    return w.square() / w.pow(3).sum(-1, keepdim=True).pow(1 / 3).clamp_min(1e-300)


def root(z: Tensor, on: Tensor) -> Tensor:
    """Ω = −2 Σ √y: y_i = (τ − z_i)^−2."""
    z = torch.where(on, z, -torch.inf)
    z = z - z.amax(-1, keepdim=True)
    zero = torch.zeros_like(z[..., :1])

    def y(tau: Tensor) -> Tensor:
        return torch.where(on, (tau - z).pow(-2), 0)

    high = zero + z.shape[-1] ** 0.5 + 1
    tau = bisected(zero + 0.5, high, lambda tau: y(tau).sum(-1, keepdim=True) > 1)
    return y(tau) / y(tau).sum(-1, keepdim=True)


def coupled(z: Tensor, on: Tensor) -> Tensor:
    """½ yᵀQy: the support whose KKT conditions hold best, of all supports."""
    n, d = z.shape
    q, best = coupling(z), torch.zeros_like(z)
    worst = torch.full((n, 1), torch.inf, dtype=z.dtype, device="cpu")
    for bits in itertools.product((False, True), repeat=d):
        s = torch.tensor(bits, device="cpu")
        if not bool(s.any()):
            continue
        k = int(s.sum())
        matrix = torch.ones(k + 1, k + 1, dtype=z.dtype, device="cpu")
        matrix[:k, :k], matrix[k, k] = q[s][:, s], 0
        right = torch.cat([z[:, s], torch.ones(n, 1, dtype=z.dtype, device="cpu")], -1)
        solved = torch.linalg.solve(matrix, right.T).T
        y = torch.zeros_like(z)
        y[:, s] = solved[:, :k]
        slack = torch.where(on, z - y @ q - solved[:, k:], 0)
        off = torch.maximum((-y).amax(-1), slack.amax(-1)).unsqueeze(-1)
        off = torch.where((s & ~on).any(-1, keepdim=True), torch.inf, off)
        best, worst = torch.where(off < worst, y, best), torch.minimum(off, worst)
    best = best.clamp_min(0)
    return best / best.sum(-1, keepdim=True)


def coupled_entropy(z: Tensor, on: Tensor) -> Tensor:
    """y = softmax(u) with u = z − Qy, by damped Newton steps on u."""
    q = coupling(z)
    z = torch.where(on, z, -torch.inf)
    z = z - z.amax(-1, keepdim=True)

    def y(u: Tensor) -> Tensor:
        return torch.where(on, u, -torch.inf).softmax(-1)

    def off(u: Tensor) -> Tensor:
        r = torch.where(on, u - (z - y(u) @ q), 0)
        return r - torch.where(on, r, 0).sum(-1, keepdim=True) / on.sum(-1, keepdim=True) * on

    u = torch.where(on, z, 0)
    for _ in range(60):
        p, r = y(u), off(u)
        j = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        step = torch.linalg.solve(
            torch.eye(z.shape[-1], dtype=z.dtype, device="cpu") + q @ j, r.unsqueeze(-1)
        )
        step, t = step.squeeze(-1), torch.ones_like(u[:, :1])
        for _ in range(20):
            worse = off(u - t * step).norm(dim=-1, keepdim=True) > r.norm(dim=-1, keepdim=True)
            t = torch.where(worse, t / 2, t)
        u = torch.where(on, u - t * step, 0)
    return y(u)


def below_the_largest(c: Callable[[Tensor], Tensor], lam: float) -> Answer:
    """½ Σ c y² + λ max y: y_i = (z_i − τ)/c_i clipped to [0, t]. The excess over t sums to λ."""

    def answer(z: Tensor, on: Tensor) -> Tensor:
        w = c(z)
        z = torch.where(on, z, -torch.inf)
        z = z - z.amax(-1, keepdim=True)
        zero = torch.zeros_like(z[..., :1])
        lowest = torch.where(on, z, torch.inf).amin(-1, keepdim=True)

        def y(tau: Tensor, t: Tensor) -> Tensor:
            return torch.where(on, torch.minimum(((z - tau) / w).clamp_min(0), t), 0)

        def tau_of(t: Tensor) -> Tensor:
            low = lowest - 2 * w.amax()
            return bisected(low, zero, lambda tau: y(tau, t).sum(-1, keepdim=True) > 1)

        def exceeds(t: Tensor) -> Tensor:
            over = torch.where(on, z - tau_of(t) - w * t, 0).clamp_min(0)
            return over.sum(-1, keepdim=True) > lam

        t = bisected(1 / on.sum(-1, keepdim=True).to(z.dtype), zero + 1, exceeds)
        found = y(tau_of(t), t)
        return found / found.sum(-1, keepdim=True)

    return answer


def known_problems() -> list[Known]:
    """The table: Ω with and without separability, sparsity, Legendre type and a penalty."""
    return [
        Known("½Σy²", Square(), one_root(lambda v: v, 1.0)),
        Known("½Σcy², c = 1, 1.5, 2, …", Weighted(), one_root(lambda v: v / weights(v), 2.0)),
        Known("2Σy^1.5", Power(1.5), one_root(lambda v: (v / 3).square(), 3.0)),
        Known("½Σy³", Power(3.0), one_root(lambda v: (2 * v / 3).sqrt(), 1.5), curved=False),
        Known("Σy log y", Entropy(), lambda z, on: torch.where(on, z, -torch.inf).softmax(-1)),
        Known("−2Σ√y", Power(0.5), root),
        Known("½yᵀQy", Coupled(), coupled, largest=6),
        Known("Σy log y + ½yᵀQy", CoupledEntropy(), coupled_entropy, largest=64),
        Known("½‖y‖², exponent 3/2", SquaredNorm(), one_root(norm, 1.5), largest=64),
        Known(
            "½Σy² + 0.3 max y",
            Square(),
            below_the_largest(torch.ones_like, 0.3),
            Largest(),
            0.3,
            largest=64,
        ),
        Known(
            "½Σcy² + 0.3 max y",
            Weighted(),
            below_the_largest(weights, 0.3),
            Largest(),
            0.3,
            largest=64,
        ),
    ]
