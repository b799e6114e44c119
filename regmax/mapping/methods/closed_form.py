"""Π_Ω by a closed form in PyTorch, of Ω or of its base after a prox, or else by a solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...kernels import transforms
from ...optimality.certificates import certify
from ...optimality.jacobian import averaging, hyperparameter_product, movable, tied_products
from ...regularizers.errors import RegularizerError
from ...regularizers.identity import unscaled
from ...regularizers.penalty import Penalized, who
from ...regularizers.regularizer import Regularizer, frozen
from .. import kinks
from ..rows import Rows
from .base import Method, Theta, method
from .kernel import kernel_of, numbers_of
from .solver import Forward, Settings, by_solver, report, sampled


def has_formula(omega: Regularizer, own: bool = False) -> bool:
    """Whether Ω has a closed form, of its own, from its ``inverse`` (unless ``own``), or by the
    theorem of :mod:`regmax.penalty`."""
    if omega.declares("closed_form") or (omega.declares("inverse") and not own):
        return True
    return isinstance(omega, Penalized) and omega.composes and has_formula(omega.base, own)


def has_inverse(omega: Regularizer) -> bool:
    """Whether Ω without a penalty has ``inverse``: what a threshold needs on every domain."""
    omega, _ = unscaled(omega, 1.0)
    return has_inverse(omega.base) if isinstance(omega, Penalized) else omega.declares("inverse")


def solves(omega: Regularizer, settings: Settings) -> bool:
    """Whether Π_Ω is computed in float64: by a solver, as in float32 the gradient of an Ω with
    large curvature has no digits, or by a kernel from the value."""
    return omega.exact and (settings.solver != "auto" or not has_formula(omega, own=True))


def compute(rows: Rows, settings: Settings, kinks: bool = False) -> Forward:
    """Compute Π_Ω(x) without gradients; ``kinks``: the answer may be one on kinks of Ω."""
    with torch.no_grad():
        if settings.solver == "auto":
            result = _by_formula(rows.omega, rows.x, rows.gamma, rows.mask, settings)
            if result is not None:
                return result
        return by_solver(rows.omega, rows.z, rows.mask, settings, kinks)


def _by_formula(
    omega: Regularizer, x: Tensor, gamma: float | Tensor, mask: Tensor | None, settings: Settings
) -> Forward | None:
    omega, gamma = unscaled(omega, gamma)
    kernel = kernel_of(omega, x)  # of a base
    if kernel is not None and x.dtype in kernel.dtypes:
        found, tensors = method(kernel, omega, numbers_of(omega, gamma))
        why = f"{kernel.name} kernel of {who(omega)}"
        return Forward(found.forward(x, mask, tensors)[0], "closed form", why)
    y = closed_form(omega, x, gamma, mask)
    if y is not None:
        return Forward(y, "closed form", f"{who(omega)} has one, in PyTorch")
    if isinstance(omega, Penalized) and omega.composes:
        scores = omega.composed(x, gamma, mask)
        result = _by_formula(omega.base, scores, gamma, mask, settings)
        result = result or by_solver(omega.base, scores / gamma, mask, settings)
        check_composed(omega, x, gamma, mask, result.y, settings)
        return Forward(
            result.y,
            f"prox, then {result.path}",
            f"{omega.base.name or who(omega.base)} is permutation-invariant, so "
            f"Π = Π_base ∘ γ prox({omega.penalty.name}); {result.why}",
            result.solved,
            result.iterations,
        )
    return None


def closed_form(
    omega: Regularizer, x: Tensor, gamma: float | Tensor, mask: Tensor | None
) -> Tensor | None:
    """Ω's closed form, refused with a message unless it is a tensor like x."""
    y = omega.closed_form(x, gamma, mask)
    if y is None:
        return None
    if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
        got = f"{tuple(y.shape)}, {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
        raise RegularizerError(
            f"{type(omega).__name__}.closed_form must return a tensor like x: "
            f"{tuple(x.shape)}, {x.dtype}; got {got}"
        )
    return y


def check_composed(
    omega: Penalized,
    x: Tensor,
    gamma: float | Tensor,
    mask: Tensor | None,
    y: Tensor,
    settings: Settings,
) -> None:
    """Certify Π_Ω = Π_base ∘ prox in up to ``LOOKED_AT`` rows, evenly spaced: the penalty may be
    wrong, and the base may not be permutation-invariant."""
    if not transforms.recording() or y.numel() == 0:
        return
    with torch.no_grad():
        tol, path = settings.tolerance(y.dtype), f"prox of {who(omega)}, then its base"
        problem, y = sampled(omega, x, gamma, mask, y)
        if bool(y.isnan().any()):  # of a number out of range, where nobody looks
            return
        report(problem, y, certify(problem.at(y), tested=True), tol, settings, path)


class Computed(Method):
    """What :func:`compute` does. θ is every tensor of Ω, of any shape.

    ``result``: the answer for these rows, if it is known; a solver's factorisation serves backward.
    """

    __slots__ = ("_inverse", "_per_row", "_result", "_settings", "_tied")
    general = True

    def __init__(self, rows: Rows, settings: Settings, result: Forward | None = None) -> None:
        inside = rows.omega.tensors(fixed=True)
        gamma = None if isinstance(rows.gamma, Tensor) else rows.gamma
        super().__init__(None, frozen(rows.omega), (gamma, *(None for _ in inside)))
        self.names, self._settings, self._result = tuple(inside), settings, result
        self._per_row = frozenset(("gamma", *rows.omega.per_row_tensors()))
        self._inverse = None if result is None else result.inverse(movable(result.y))
        self._tied = None if result is None else result.tied

    @property
    def per_row(self) -> frozenset[str]:
        return self._per_row

    def forward(
        self, x: Tensor, mask: Tensor | None, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        result, self._result = self._result, None
        if result is not None:
            return result.y.clone(), mask  # a plugin may own it
        gamma, *theta = self.filled(tensors)
        rows = Rows(x, gamma, mask, self.at(theta), x[..., :1], None, None, x.ndim - 1, x.dtype)
        return kinks.under_transform(rows, compute(rows, self._settings)), mask

    @property
    def answer(self) -> Forward | None:
        """The answer for these rows, until it is handed out."""
        return self._result

    def product(self, omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor) -> Tensor:
        if self._inverse is None or _again(v):
            return super().product(omega, y, part, v)
        average = averaging(omega, y, part)
        w = self._inverse(v if average is None else average(v))
        w = w if average is None else average(w)
        # a solver looks at Ω away from 0, derivatives at y itself
        small = ((y > 0) & (y <= torch.finfo(y.dtype).eps ** 2)).any(-1, keepdim=True)
        if bool(small.any()):
            w = torch.where(small, super().product(omega, y, part, v), w)
        return w

    def products(
        self, omega: Regularizer, y: Tensor, part: Tensor | None, v: Tensor, theta: Theta
    ) -> tuple[Tensor, list[Tensor | None]]:
        """In rows on kinks of Ω, those along the kinks."""
        if self._tied is None:
            return super().products(omega, y, part, v, theta)
        if _again(v):
            raise NotImplementedError(
                f"{who(self.omega)}: y lies on a kink of Ω, where regmax computes first "
                "derivatives alone, by loss.backward() or torch.autograd.grad"
            )
        (names, tensors, wants), w = theta, self.product(omega, y, part, v)
        tied, where = self._tied
        rows = where.unsqueeze(-1)
        at, along = tied_products(*tied.bent, y.double(), torch.where(rows, v, 0).double())
        at, along = (torch.where(rows, t, 0) for t in (at, along))
        wide = {
            f"omega.{name}": t.double() if t.is_floating_point() else t
            for name, t in zip(names, tensors, strict=True)
        }
        own: Any = tied.augmented.with_tensors(wide)
        given = tuple(wide), tuple(wide.values()), wants, y.double()
        away = hyperparameter_product(omega, *theta, y, torch.where(rows, 0, w))
        moved = hyperparameter_product(own, *given, along)
        held = hyperparameter_product(own.lagrangian(), *given, at - along)
        each: list[Tensor | None] = []
        for t, *parts in zip(tensors, away, moved, held, strict=True):
            known = [part.to(t.dtype) for part in parts if part is not None]
            each.append(sum(known[1:], known[0]) if known else None)
        return torch.where(rows, at.to(w.dtype), w), each


def _again(v: Tensor) -> bool:
    """Whether products with v may be differentiated again, or are those of a batch of vectors."""
    return torch.is_grad_enabled() or transforms.batched(v)
