"""The generic method: value-only Ω, a certified solver, and Proposition 1 by autograd."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from ...mapping.evaluate import argmax
from ...mapping.methods.solver import Settings
from ...mapping.rows import Rows
from ...optimality.problem import Problem
from ...regularizers.penalty import Penalized
from ...regularizers.regularizer import Definition, Regularizer
from .base import Answer, Backend, Task, tolerances


def definition(omega: Regularizer) -> Regularizer:
    """Ω without its optional methods: autograd gives its gradient and curvature from its value."""
    if isinstance(omega, Penalized):
        return Penalized(definition(omega.base), omega.penalty, omega.lam)
    return omega if isinstance(omega, Definition) else Definition(omega)


def own_answer(rows: Rows, v: Tensor) -> Answer:
    """The answer of a layer, named by its method; J v is in z = x/γ, as that of every backend."""
    start = time.perf_counter()
    x = rows.x.detach().requires_grad_()
    with torch.enable_grad():
        y, result = argmax(replace(rows, x=x), Settings(on_failure="ignore"))
        (vjp,) = torch.autograd.grad(y, x, v)
    seconds, vjp = time.perf_counter() - start, vjp * rows.gamma
    tol, vjp_tol = tolerances(y.dtype)
    return Answer(result.path, y.detach(), vjp, seconds, tol, vjp_tol, exact_zeros=True)


class Generic(Backend):
    """The solvers of regmax, from the value of Ω alone, in float64."""

    name: ClassVar[str] = "generic"
    domains: ClassVar[bool] = True

    def missing(self) -> str | None:
        return None

    def unsuitable(self, omega: Regularizer) -> str | None:
        return None

    def answers(self, task: Task) -> list[Answer]:
        wide = Problem(task.omega, task.z.detach(), task.mask, bounds=task.bounds).widened()
        z = wide.z.detach()
        top = z.amax(-1, keepdim=True) * (wide.bounds is None or wide.bounds.fixed_total)
        rows = Rows(
            x=z - top,
            gamma=1.0,
            mask=task.mask,
            omega=definition(wide.omega),
            shift=top,
            empty=None,
            spoilt=None,
            dim=z.ndim - 1,
            dtype=z.dtype,
            bounds=wide.bounds,
        )
        found = own_answer(rows, task.v.to(z))
        tol, vjp_tol = tolerances(task.z.dtype)
        return [replace(found, method="generic", tol=tol, vjp_tol=vjp_tol)]
