"""A validation backend computes Π_Ω(x) and its vector–Jacobian products independently."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...domains import Bounded, Plans, Projected
from ...regularizers.regularizer import Regularizer


@dataclass(frozen=True, eq=False)
class Task:
    """What to compute: argmax_{y ∈ D} ⟨y, z⟩ − Ω(y) for z (rows, d), and J v for v (rows, d).

    ``mask`` (rows, d) is None if nothing is masked; entries of z are finite. ``bounds``: D, None
    for the simplex. Per-row hyperparameters of ``omega`` are floats or have shape (1, 1) or
    (rows, 1).
    """

    omega: Regularizer
    z: Tensor
    v: Tensor
    mask: Tensor | None
    bounds: Bounded | Plans | Projected | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """One method's answer. ``vjp`` is None if the method gives values only.

    ``tol`` and ``vjp_tol``: the method is wrong if its error bounds exceed these, which it is known
    to reach. ``exact_zeros``: whether zeros and ties in y are exact, so that y has the support and
    the groups.
    """

    method: str
    y: Tensor
    vjp: Tensor | None
    seconds: float
    tol: float
    vjp_tol: float
    exact_zeros: bool = False


def tolerances(dtype: torch.dtype) -> tuple[float, float]:
    """The error bounds on y and on J v that a closed form or a polished solve must reach."""
    return (1e-7, 1e-5) if dtype == torch.float64 else (1e-4, 1e-3)


class Backend(ABC):
    """Independent methods for Π_Ω."""

    name: ClassVar[str] = ""
    domains: ClassVar[bool] = False
    """Whether it takes every domain, and not the simplex alone."""

    @abstractmethod
    def missing(self) -> str | None:
        """What must be installed before this backend runs, or None."""

    @abstractmethod
    def unsuitable(self, omega: Regularizer) -> str | None:
        """Why this backend cannot take Ω, or None."""

    @abstractmethod
    def answers(self, task: Task) -> list[Answer]:
        """One answer per method of this backend, for instance per convex solver."""
