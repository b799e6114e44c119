"""An Ω under test: its declared properties, its layer's answers, and what its value implies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..kernels import simplex
from ..mapping.methods.closed_form import has_formula
from ..nn.layer import RegularizedMax
from ..optimality.certificates import certify
from ..optimality.problem import Problem
from ..optimality.solution import Solution
from ..regularizers.curvature import Curvature
from ..regularizers.penalty import Penalized, Penalty, smooth_part, value_of
from ..regularizers.regularizer import Definition, Regularizer
from .backends.generic import definition
from .inputs import normal
from .promise import Tested
from .search import Case, fixed_cases, random_cases

T = TypeVar("T")
SIZES = (1, 2, 3, 5)
MAX_ITER = 100
"""Enough for a solver that converges; check_optimality finds one that does not."""


class Subject(Tested):
    """Ω with one number for each hyperparameter. It caches the answers.

    ``smooth``: the differentiable part of Ω. ``truth``: the same with only its value, so that
    autograd gives its gradient and curvature.
    """

    def __init__(self, omega: Regularizer) -> None:
        if not isinstance(omega, Regularizer):
            raise TypeError(
                f"omega must be an instance of regmax.Regularizer; got {omega!r}"
                + (" (a class: call it first)" if isinstance(omega, type) else "")
            )
        # a layer casts these to the dtype of the scores
        inside = omega.tensors(fixed=True)
        single = {k: t.detach().double() for k, t in inside.items() if t.dtype.is_floating_point}
        single |= {k: single[k].reshape(-1)[0] for k in omega.per_row_tensors()}
        self.given = omega
        self.omega = omega.with_tensors(single) if single else omega
        self.smooth = smooth_part(self.omega)
        self.truth = Definition(self.smooth)
        structured = self.omega if isinstance(self.omega, Penalized) else None
        self.penalty: Any = structured.penalty if structured else None
        self.lam: float | Tensor = structured.lam if structured else 0.0
        self.has_formula = has_formula(self.omega)
        self.fuses = self.penalty is not None and self.penalty.lovasz
        self.name = type(self.omega).__name__
        self.label, self.look = f"{self.omega!r}", self.where("value")
        self.id = f"{omega!r}"
        self._known: dict[tuple[Any, ...], Any] = {}

    def written(self, owner: object) -> bool:
        """Whether its class comes from a plugin, or from a user."""
        author = isinstance(owner, Regularizer | Penalty | Curvature)
        return author and not isinstance(owner, Definition)

    def declares(self, method: str) -> bool:
        """Whether the class of Ω, or of its smooth part, defines this method."""
        return self.omega.declares(method) or self.smooth.declares(method)

    def where(self, method: str) -> str:
        """``Class.method``, for the line "look at" of a report."""
        for part in (self.omega, self.smooth):
            if part.declares(method):
                owner = next(c for c in type(part).__mro__ if method in vars(c))
                name = "Penalized" if owner is Penalized else type(part).__name__
                return f"{name}.{method}"
        return f"{self.name}.{method}"

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """The row sizes to test: all of SIZES, unless Ω or a tensor inside it accepts only some."""
        if self.omega.entries is not None:
            return (self.omega.entries,)
        if all(self._accepts(d) for d in SIZES):
            return SIZES
        inside = {n for t in self.omega.tensors(fixed=True).values() for n in t.shape}
        accepted = [d for d in sorted({*range(2, 11), *inside} - {1}) if self._accepts(d)]
        return tuple(accepted) or SIZES

    @property
    def any_size(self) -> bool:  # type: ignore[override]
        return self.sizes == SIZES

    def cases(self, costly: bool, masks: bool = True) -> Iterable[Case]:
        """Fixed and random cases for a promise; few if a solver answers."""
        fixed = list(fixed_cases(self.sizes, masks))
        if not self.has_formula:
            fixed = fixed[-2:] if costly else fixed[1:]
        yield from fixed
        number = (4 if costly else 10) if self.has_formula else 2
        d = 6 if self.any_size else self.sizes[0]
        yield from random_cases(d, self.any_size, masks, number)

    def _accepts(self, d: int) -> bool:
        y = torch.full((2, d), 1 / d, dtype=torch.float64, device="cpu")
        try:
            return bool(self.omega.value(y).shape == (2,))
        except Exception:
            return False

    # -- answers -------------------------------------------------------------------------------

    def layer(self, gamma: float | Tensor = 1.0, dim: int = -1) -> RegularizedMax:
        return layer_of(self.omega, gamma, dim)

    def pi(self, x: Tensor, gamma: float = 1.0, mask: Tensor | None = None) -> Tensor:
        """Π_Ω(x), cached, without gradients."""

        def answer() -> Tensor:
            with torch.no_grad():
                y: Tensor = self.layer(gamma)(x, mask)
            return y

        return self.remember("pi", answer, x, gamma, mask).clone()

    def slack(self, x: Tensor, gamma: float, mask: Tensor | None, eps: float = 2e-15) -> Tensor:
        """How much two correct answers may differ, (rows, 1): the change of Π_Ω when the scores
        change by ``eps`` of their size, plus the error bounds of a solver."""
        y = self.pi(x, gamma, mask)
        size = eps * (1 + torch.where(torch.isfinite(x), x, 0).abs().amax(-1, keepdim=True))
        moves = torch.stack([normal(*x.shape, seed=seed).sign().to(x) for seed in range(4)])
        near = (x + size * moves).flatten(0, 1)
        masks = None if mask is None else mask.repeat(4, 1)
        there = self.pi(near, gamma, masks).unflatten(0, (4, -1))
        moved = (there - y).abs().amax(-1, keepdim=True).amax(0)
        # where Π_Ω is continuous but not Lipschitz (at a kink of α-entmax, α > 2) it moves by √eps
        slack: Tensor = 16 * eps + 4 * moved.clamp_max(2.5 * eps**0.5)
        if not self.has_formula:
            bound = self.bound(y, x, gamma, mask).unsqueeze(-1)
            slack = slack + 2 * bound.clamp_max(1e-6)
        return slack

    def generic(self, x: Tensor, gamma: float, mask: Tensor | None) -> Solution:
        """Π_Ω(x) by a solver that knows only the value of Ω, cached."""

        def answer() -> Solution:
            with torch.no_grad():
                return layer_of(definition(self.omega), gamma).solve(x, mask)

        return self.remember("generic", answer, x, gamma, mask)

    def remember(
        self, what: str, answer: Callable[[], T], x: Tensor, gamma: float, mask: Tensor | None
    ) -> T:
        """``answer()``, computed once per input."""
        key = (what, x.dtype, gamma, *_key(x), *_key(mask))
        if key not in self._known:
            self._known[key] = answer()
        found: T = self._known[key]
        return found

    # -- from the value ------------------------------------------------------------------------

    def problem(self, x: Tensor, gamma: float, mask: Tensor | None) -> Problem:
        """max ⟨y, z⟩ − Ω(y), z = x/γ shifted to a maximum of 0, from Ω's value."""
        on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        top = torch.where(on, x, -torch.inf).amax(-1, keepdim=True)
        return Problem(definition(self.omega), torch.where(on, (x - top) / gamma, 0), mask)

    def bound(self, y: Tensor, x: Tensor, gamma: float, mask: Tensor | None) -> Tensor:
        """A bound on ‖y − Π_Ω(x)‖ for each row, from Ω's value."""
        return certify(self.problem(x, gamma, mask).at(y)).error_bound

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Ω(y) of the participants. If it is not finite at an entry 0, that entry becomes ε²."""
        with torch.no_grad():
            there = value_of(self.omega, y, mask)
            return torch.where(
                torch.isfinite(there), there, value_of(self.omega, simplex.inward(y), mask)
            )

    def maximum(self, x: Tensor, gamma: float, mask: Tensor | None) -> Tensor:
        """⟨y, x⟩ − γΩ(y) at y = Π_Ω(x)."""
        y = self.pi(x, gamma, mask)
        on = y if mask is None else torch.where(mask, y, 0)
        return simplex.row_dot(on, x).squeeze(-1) - gamma * self.value(y, mask)

    def hessian(self, y: Tensor) -> Tensor:
        """∇² of the smooth part at y (rows, d), by autograd through its value: (rows, d, d)."""
        rows: Tensor = torch.autograd.functional.jacobian(
            lambda z: self.truth.grad(z).sum(0), y.detach()
        )
        return rows.permute(1, 2, 0)


def exact(s: Subject) -> bool:
    return s.omega.exact


def layer_of(omega: Regularizer, gamma: float | Tensor, dim: int = -1) -> RegularizedMax:
    return RegularizedMax(omega, gamma, dim, max_iter=MAX_ITER, on_failure="ignore")


def _key(t: Tensor | None) -> tuple[Any, ...]:
    """The bits of ``t`` with its shape and strides."""
    if t is None:
        return (None,)
    bits = t.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
    return tuple(t.shape), t.stride(), bits.numpy().tobytes()
