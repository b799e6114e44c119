"""Solutions: Π_Ω(x) and max_Ω(x) with a certificate, and how each row ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain
from ..kernels import transforms
from ..optimality.certificates import certify
from ..optimality.solution import Solution, Status
from ..regularizers.arguments import few
from ..regularizers.errors import ConvergenceError
from ..regularizers.penalty import who
from ..regularizers.regularizer import Regularizer, per_row
from .evaluate import argmax, check_exact, check_zeros
from .maximum import smooth_max
from .methods.closed_form import solves
from .methods.solver import Settings
from .rows import Rows, prepare


def solution(
    omega: Regularizer,
    x: Any,
    gamma: float | Tensor,
    dim: int,
    mask: Any,
    settings: Settings,
    y0: Any = None,
    domain: Domain | None = None,
) -> Solution:
    """Π_Ω(x) with its certificate, which holds for the answer as rounded to its dtype and for the
    scores before any rounding."""
    meta = isinstance(x, Tensor) and x.is_meta
    if transforms.compiling() or transforms.transforming() or meta:
        raise NotImplementedError(
            "a certificate looks at numbers, which transforms, tracers and the meta device hide: "
            "call solve outside"
        )
    rows = prepare(omega, x, gamma, dim, mask, solves(omega, settings), domain)
    if y0 is not None:
        settings = replace(settings, start=rows.start(y0))
    y, result = argmax(rows, settings)
    if omega.exact:
        check_exact(rows, y.detach(), result)
    answer = rows.restore(y)
    with torch.no_grad():
        wide = prepare(omega, x, gamma, dim, mask, True, domain)
        # a prox composed with a solve is certified for the whole Ω, as any answer
        problem = wide.problem
        found = wide.point(y.detach())
        if result.solved is not None and result.solved.at.problem.omega is rows.omega:
            certificate = result.solved.certificate
        else:
            certificate = certify(problem.at(found), tested=True)
        if omega.exact and result.solved is None:
            check_zeros(certificate, found, f"{who(omega)}, {result.path}")
        rounded = (wide.inner(answer.detach()) - found).norm(dim=-1)
        bound = certificate.error_bound.double() + rounded
    bound = rows.restore_rows(_rounded_up(bound, answer.dtype))
    iterations = torch.zeros_like(bound, dtype=torch.int64)
    if result.iterations is not None:
        iterations = rows.restore_rows(result.iterations)
    converged = bound <= settings.tolerance(answer.dtype)
    status = _status(rows, converged, iterations >= settings.max_iter)
    missed = (status == Status.BUDGET) | (status == Status.STALLED)
    if settings.on_failure == "raise" and bool(missed.any()):
        at = few(missed)
        worst = torch.where(missed, bound, 0).max().item()
        raise ConvergenceError(
            f"{result.path}: {int(missed.sum())} of {missed.numel()} rows are not certified to "
            f"{settings.tolerance(answer.dtype):g} (rows {at}; worst certified error {worst:.2g})"
        )
    known = certificate.error_bound <= settings.tolerance(answer.dtype)
    slack = torch.where(known, certificate.gap * per_row(wide.gamma), torch.inf).detach()
    return Solution(
        y=answer,
        value=smooth_max(rows.literal, y, result, slack).to(answer.dtype),
        gap=rows.restore_rows(certificate.gap.to(answer.dtype)),
        error_bound=bound,
        iterations=iterations,
        converged=converged,
        path=result.path,
        estimated=certificate.estimated,
        status=status,
        trace=settings.trace and settings.trace.restored(rows.restore_rows),
    )


def _rounded_up(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """A bound in a dtype in which it may round down to less than it was."""
    near = bound.to(dtype)
    return torch.where(near < bound, torch.nextafter(near, near.new_full((), torch.inf)), near)


def _status(rows: Rows, converged: Tensor, spent: Tensor) -> Tensor:
    status = torch.where(spent, Status.BUDGET, Status.STALLED)
    status = torch.where(converged, Status.CONVERGED, status)
    for where, what in ((rows.empty, Status.EMPTY), (rows.spoilt, Status.SPOILT)):
        if where is not None:
            status = torch.where(where.squeeze(-1), what, status)
    return status.to(torch.int8)
