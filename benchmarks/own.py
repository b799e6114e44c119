"""An Ω by its value alone, as a user writes it; and compositions of a base with a penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regmax
from regmax.regularizers.curvature import DENSE_LIMIT

from .inputs import Case
from .peers import OMEGAS, Candidate, Program, conic, regmax_candidate
from .timing import Step


class Tsallis15(regmax.Regularizer):
    """(Σ y^α − 1) / (α(α − 1)), α = 3/2."""

    def value(self, y: Tensor) -> Tensor:
        return (y.pow(1.5).sum(-1) - 1) / 0.75


class Gini(regmax.Regularizer):
    """½ ‖y‖²."""

    def value(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / 2


class Entropy(regmax.Regularizer):
    """Σ y log y."""

    def value(self, y: Tensor) -> Tensor:
        return (y * y.log()).sum(-1)


class Cubic(regmax.Regularizer):
    """½ ‖y‖² + Σ y³/6."""

    def value(self, y: Tensor) -> Tensor:
        return (y.square() / 2 + y.pow(3) / 6).sum(-1)


class Quadratic(regmax.Regularizer):
    """½ yᵀQy + Σ y³/6: neither separable nor permutation-invariant."""

    def __init__(self, d: int) -> None:
        """Q = AAᵀ/d + 0.1·I, with A drawn from N(0, 1)."""
        a = torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
        self.q = a @ a.mT / d + 0.1 * torch.eye(d, dtype=torch.float64)

    def value(self, y: Tensor) -> Tensor:
        return ((y @ self.q) * y).sum(-1) / 2 + y.pow(3).sum(-1) / 6


def _cubic(cp: Any, y: Any, d: int) -> Any:
    return cp.sum_squares(y) / 2 + cp.sum(cp.power(y, 3)) / 6


def _quadratic(cp: Any, y: Any, d: int) -> Any:
    root = torch.linalg.cholesky(Quadratic(d).q).mT.numpy()
    return cp.sum_squares(root @ y) / 2 + cp.sum(cp.power(y, 3)) / 6


@dataclass(frozen=True)
class Own:
    """An Ω by its value; and as a convex program, or as the mapping that has a kernel for it."""

    make: Callable[[int], regmax.Regularizer]
    program: Program | None = None
    separable: bool = True
    closed: str = ""

    def layer(self, d: int, solver: str = "auto") -> regmax.RegularizedMax:
        """Without a warning: the certified error is in the table."""
        return regmax.RegularizedMax(self.make(d), solver=solver, on_failure="ignore")

    def candidate(self, d: int, solver: str = "auto") -> Candidate:
        layer = self.layer(d, solver)
        return Candidate("regmax", "by value", lambda x, a: layer(x))

    def exact(self, d: int) -> Candidate:
        """What errors are measured against."""
        return regmax_candidate(self.closed) if self.closed else self.candidate(d, "newton")

    def steps(self, case: Case, scores: int) -> Iterator[Step]:
        """By its value, by the kernel that is written by hand, and by cvxpylayers, whose times for
        the first rows, with ``scores`` in all, are scaled to all rows."""
        rows, d = case.x.shape
        exact, few = self.exact(d), min(rows, scores // d)
        yield self.candidate(d).step(case, exact=exact)
        if self.closed:
            yield exact.step(case, name="regmax by hand")
        if self.program:
            for theirs in (conic(self.program, d, None), conic(self.program, d)):
                yield theirs.step(case.head(few), per=few / rows, exact=exact)

    def certified(self, step: Step) -> float:
        """The certified error of the worst row."""
        x = step.leaves[0].detach()
        return float(self.layer(x.shape[1]).solve(x).error_bound.max())

    def rows(self, elements: int, d: int) -> int:
        """``elements`` scores in all; a quarter where the Hessian is not a stored matrix."""
        rows = elements // d
        return max(1, rows if self.separable or d <= DENSE_LIMIT else rows // 4)


SEPARABLE = "½‖y‖² + Σy³/6"
OWN = {
    SEPARABLE: Own(lambda d: Cubic(), _cubic),
    "½yᵀQy + Σy³/6": Own(Quadratic, _quadratic, separable=False),
    "Tsallis, α = 1.5": Own(lambda d: Tsallis15(), closed="entmax15"),
    "Gini": Own(lambda d: Gini(), closed="sparsemax"),
    "entropy": Own(lambda d: Entropy(), closed="softmax"),
}


def composed(d: int) -> dict[str, list[Candidate]]:
    """By name: the base alone, and the base with the penalty."""
    entropy, tsallis, pnorm = (OMEGAS[m] for m in ("softmax", "entmax15", "pnormmax"))
    grid = regmax.penalty("grid_tv", shape=(8, d // 8))
    pairs = {
        "tsallis + 0.1·tv": (tsallis, tsallis + 0.1 * regmax.penalty("tv")),
        "entropy + 0.02·oscar": (entropy, entropy + 0.02 * regmax.penalty("oscar")),
        "pnorm + 0.1·grid_tv": (pnorm, pnorm + 0.1 * grid),
    }
    return {
        name: [_mapping("base alone", base), _mapping("regmax", whole)]
        for name, (base, whole) in pairs.items()
    }


def _mapping(name: str, omega: regmax.Regularizer) -> Candidate:
    layer = regmax.RegularizedMax(omega)
    return Candidate(name, "", lambda x, a: layer(x))
