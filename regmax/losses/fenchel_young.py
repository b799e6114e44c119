"""Fenchel–Young losses, row by row (Blondel, Martins & Niculae 2020; Peters et al. 2019, App. A.2):

    L_Ω(x; t) = max_Ω(x) + γΩ(t) − ⟨t, x⟩,        ∇_x L = Π_Ω(x) − t,

By the envelope theorem, the derivative in γ and in every θ of Ω is that of γ(Ω(t; θ) − Ω(y; θ))
with y = Π_Ω(x) held fixed. :func:`losses` computes y once and turns it into the gradient in place.
The reference implementation, :func:`reference`, computes the same with PyTorch operations.
Transforms use it, and second derivatives differentiate it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain
from ..kernels import transforms
from ..mapping import evaluate
from ..mapping.maximum import smooth_max
from ..mapping.methods.base import reduced as summed
from ..mapping.methods.closed_form import solves
from ..mapping.methods.kernel import kernel_of
from ..mapping.methods.solver import Settings
from ..mapping.rows import HALF, Rows, aligned, computed_in, prepare, refuse_hidden_at
from ..nn import gradients
from ..regularizers import arguments
from ..regularizers.regularizer import Regularizer, frozen, per_row
from . import on_domain
from .by_kernel import Solved, from_its_value, of_rows, scaled
from .targets import F64, Target, times


def losses(
    omega: Regularizer,
    x: Tensor,
    gamma: float | Tensor,
    dim: int,
    mask: Tensor | None,
    target: Target,
    settings: Settings,
    domain: Domain | None = None,
) -> Tensor:
    """L_Ω(x; t) of the scores along ``dim``, with gradients: float64, of x's shape without ``dim``.
    The mask has the shape of x.

    The rows of ``target`` lie along the last dimension. The loss is 0 in rows that it skips and in
    rows without participants, +inf if the target is masked, and NaN if a
    participant is NaN or +inf. Such rows have no gradient.
    """
    if domain is not None:
        return on_domain.losses(omega, x, gamma, dim, mask, target, settings, domain)
    if isinstance(mask, Tensor) and torch.is_grad_enabled():
        mask = mask.clone()  # the caller may write to it before a second backward
    arguments.entries(x, dim, omega.entries, omega)
    like = x.new_empty((), dtype=torch.float32).expand(x.shape) if x.dtype in HALF else x
    gamma = arguments.per_row("gamma", gamma, arguments.POSITIVE, like, dim)
    omega, x = aligned(omega, like, dim), x.movedim(dim, -1)
    mask = None if mask is None else mask.movedim(dim, -1)
    if settings.certify:
        evaluate.mapping(omega, x.to(computed_in(x.dtype)), gamma, -1, mask, settings)
        settings = replace(settings, certify=False)
    tensors = omega.tensors(fixed=True)
    if (
        transforms.under_transform((x, gamma, *tensors.values(), *target))
        or transforms.dual_level()
        or not omega.exact
        or any(map(gradients.learns, target))
    ):
        return reference(omega, x, gamma, mask, target, settings)[0]
    inside, known = tuple(tensors.values()), None
    learns = torch.is_grad_enabled() and any(map(gradients.learns, (gamma, *inside)))
    task = _Losses(frozen(omega), tuple(tensors), mask, target, settings, learns)
    if mask is None:
        known = from_its_value(omega, x, gamma, target, settings)
    task.known = known = known or task.by_kernel(x, gamma, inside)
    if known is None and learns:
        return reference(omega, x, gamma, mask, target, settings)[0]
    out = gradients.apply(task, x, gamma, *inside)
    if known is None:
        refuse_hidden_at(omega, x, mask)
    return out


def reference(
    omega: Regularizer, x: Tensor, gamma: Any, mask: Any, target: Target, settings: Settings
) -> tuple[Tensor, Target, Tensor | None, Rows, Tensor]:
    """The same losses, by max_Ω at y = Π_Ω(x), differentiable; the target and its sum, the rows,
    and y."""
    x = x.to(computed_in(x.dtype))
    target, mass = target.spread_out(x, mask).normalised(x)
    rows = prepare(omega, x, gamma, -1, mask, wide=solves(omega, settings))
    y, result = evaluate.argmax(rows, settings)
    parts = (t.to(rows.x.dtype) if t is not None and t.is_floating_point() else t for t in target)
    t = Target(*parts)
    constant = per_row(rows.gamma) * t.value(rows.omega, rows.x, rows.mask)
    on = x.detach().isfinite() if rows.mask is None else rows.mask & x.detach().isfinite()
    # half of x − max x, as the whole may overflow; not rows.x, which clips very low scores and has
    # no gradient there
    half = torch.where(on, x, rows.shift) / 2 - rows.shift / 2
    linear = 2 * t.dot(half)
    unshifted = replace(rows, shift=torch.zeros_like(rows.shift))  # it cancels
    value = smooth_max(unshifted, y, result).to(F64) + constant - linear
    if rows.mask is not None:
        value = torch.where(t.inside(rows.mask), value, torch.inf)
    value = target.without_skipped(rows.restore_rows(value))
    return times(mass, value), target, mass, rows, y


@dataclass
class _Losses(gradients.Operation):
    """The losses of rows, of x, γ and the tensors ``names`` of Ω. Forward computes the gradient in
    x too, and backward gives it away; a second backward solves again. ``learns``: whether the
    derivatives in γ and Ω are wanted; ``known``: what :meth:`solve` would return."""

    omega: Regularizer
    names: tuple[str, ...]
    mask: Tensor | None
    target: Target
    settings: Settings
    learns: bool
    known: tuple[Tensor, Solved] | None = None
    solved: Solved | None = None

    @property
    def held(self) -> Sequence[Any]:
        return self.target

    def forward(self, grad: bool, x: Tensor, gamma: Any, *tensors: Tensor) -> tuple[Tensor, Any]:
        (value, self.solved), self.known = self.known or self.solve(x, gamma, tensors), None
        return value, ()

    def backward(
        self, wants: Sequence[bool], g: Tensor, kept: Any, x: Tensor, gamma: Any, *tensors: Tensor
    ) -> list[Tensor | None]:
        solved, self.solved = self.solved or self.solve(x, gamma, tensors)[1], None
        inputs = (x, gamma, *tensors)
        found: list[Tensor | None] = [None for _ in inputs]
        if solved.slopes is not None:
            for i, slope in enumerate(solved.slopes.unbind(-1), start=1):
                if i < len(inputs) and wants[i]:
                    found[i] = summed((g * slope).unsqueeze(-1), inputs[i])
        if wants[0]:
            found[0] = scaled(solved.dx, g, x.dtype)
        return found

    def recorded(self, x: Tensor, gamma: Any, *tensors: Tensor) -> Tensor:
        omega = self.regularizer(tensors)
        return reference(omega, x, gamma, self.mask, self.target, self.settings)[0]

    def regularizer(self, tensors: Sequence[Tensor]) -> Regularizer:
        if not self.names:
            return self.omega
        return self.omega.with_tensors(dict(zip(self.names, tensors, strict=True)))

    def by_kernel(
        self, x: Tensor, gamma: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, Solved] | None:
        """As :meth:`solve`, by a kernel that Ω offers, or None."""
        omega, x = self.regularizer(tensors), x.detach()
        kernel = kernel_of(omega, x)
        if kernel is None or self.settings.solver != "auto":
            return None
        x = x if x.dtype in kernel.dtypes else x.to(computed_in(x.dtype))
        with torch.no_grad(), transforms.full_precision(x.device.type):
            return of_rows(kernel, omega, x, gamma, self.mask, self.target, self.learns)

    def solve(self, x: Tensor, gamma: Any, tensors: Sequence[Tensor]) -> tuple[Tensor, Solved]:
        """L and its gradient from one y."""
        found = self.by_kernel(x, gamma, tensors)
        if found is not None:
            return found
        omega, x = self.regularizer(tensors), x.detach().to(computed_in(x.dtype))
        with torch.no_grad(), transforms.full_precision(x.device.type):
            given = self.mask, self.target, self.settings
            value, target, mass, rows, y = reference(omega, x, gamma, *given)
            dx = target.taken_from(y.to(x.dtype, copy=True))
            dx = dx if mass is None else dx.mul_(mass.unsqueeze(-1))
            kept = [] if rows.mask is None else [target.inside(rows.mask)]
            none = [t.squeeze(-1) for t in (rows.spoilt, rows.empty) if t is not None]
            kept += [~t for t in (*none, target.skip) if t is not None]
            plain = functools.reduce(torch.logical_and, kept) if kept else None
            if plain is not None and not (transforms.may_look(dx) and bool(plain.all())):
                dx = dx.masked_fill_(~plain.unsqueeze(-1), 0)
        return value, Solved(dx)
