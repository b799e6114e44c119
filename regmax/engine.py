"""Π_Ω(x) with its gradients, max_Ω(x), and solutions with certificates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import composition, fused, opaque, transforms
from .adjoint import attach, envelope, may_hide_tensors, objective, restate
from .errors import RegularizerError
from .optimality import Problem
from .regularizer import Regularizer, overrides
from .roads import Road, Settings, closed_form, travel
from .rows import Rows, prepare
from .solution import Solution, Status


def mapping(
    omega: Regularizer, x: Any, gamma: float | Tensor, dim: int, mask: Any, settings: Settings
) -> Tensor:
    """Π_Ω(x), as the user calls it."""
    if settings.solver == "auto":
        y = fused.argmax(omega, x, gamma, dim, mask)
        if y is not None:
            return y
    rows = prepare(omega, x, gamma, dim, mask)
    return rows.restore(argmax(rows, settings)[0])


def argmax(rows: Rows, settings: Settings) -> tuple[Tensor, Road]:
    """Π_Ω(x), with gradients, and the road taken."""
    omega = rows.omega
    seen = transforms.watched((rows.x, rows.gamma, *omega.tensors(fixed=True).values()))
    with transforms.full_precision(rows.x.device.type):
        if not omega.exact:
            if seen:
                raise NotImplementedError(
                    f"{omega!r} approximates, and is differentiated as it is written: by autograd "
                    "in reverse mode only, without torch.func, forward mode, compile or export"
                )
            # it may depend on where the scores' 0 is
            y = closed_form(omega, rows.x + rows.shift, rows.gamma, rows.mask)
            if y is None:
                raise RegularizerError(
                    f"{type(omega).__name__} is not exact and has no closed form"
                )
            return y, Road(y, "closed form", "an approximation, differentiated as it is written")
        if seen:
            y = opaque.find(rows, settings)
            road = Road(y, "one operator", "a transform or a tracer looks on")
            return restate(y, rows.z_from(y), omega, rows.mask), road
        if settings.solver == "auto" and torch.is_grad_enabled():
            composed = composition.argmax(rows)
            if composed is not None:
                return composed, Road(composed, "prox, then closed form", "kernels of both")
        with torch.no_grad():
            road = travel(rows, settings)
        y = attach(road.y, rows.z_from(road.y), omega, rows.mask, road.inverse)
        return y, road


def smooth_max(rows: Rows, y: Tensor) -> Tensor:
    """max_Ω(x) = ⟨y, x⟩ − γΩ(y) at y = Π_Ω(x), (*batch); its gradient in x is y."""
    omega, gamma = rows.omega, rows.gamma
    with transforms.full_precision(rows.x.device.type):
        value = objective(omega, rows.x, gamma, y, rows.mask)
        with torch.no_grad():
            best = None
            if overrides(omega, "conjugate"):
                best = omega.conjugate(rows.x, gamma, rows.mask)
            if best is None:  # at the exact zeros of y, where Ω is finite there
                best = objective(omega, rows.x, gamma, y, rows.mask, at=y)
            best = torch.where(torch.isfinite(best), best, value)
        if transforms.watched((rows.x, y)) or may_hide_tensors(omega):
            value = value + (best - value).detach()
        else:
            value = envelope(best, rows.x, rows.gamma, omega, y, rows.mask)
    return rows.restore_rows(value + rows.shift.squeeze(-1))


def solution(rows: Rows, settings: Settings) -> Solution:
    """Π_Ω(x) with its certificate."""
    if transforms.compiling() or transforms.transforming():
        raise NotImplementedError(
            "a certificate looks at numbers, which transforms and tracers hide: call solve outside"
        )
    y, road = argmax(rows, settings)
    # a prox composed with a solve is certified for the whole Ω, as any answer
    problem = Problem(rows.omega, rows.z.detach(), rows.mask)
    try:
        certificate = problem.widened().certify(y.detach().double())
    except RuntimeError:  # Ω closes over a float32 tensor that does not mix with float64
        certificate = problem.certify(y.detach())
    bound = rows.restore_rows(certificate.error_bound.to(y.dtype))
    iterations = torch.zeros_like(bound, dtype=torch.int64)
    if road.solved is not None:
        iterations = rows.restore_rows(road.solved.iterations)
    converged = bound <= settings.tolerance(rows.x.dtype)
    return Solution(
        y=rows.restore(y),
        value=smooth_max(rows, y),
        gap=rows.restore_rows(certificate.gap.to(y.dtype)),
        error_bound=bound,
        iterations=iterations,
        converged=converged,
        path=road.path,
        estimated=certificate.estimated,
        status=_status(rows, converged, iterations >= settings.max_iter),
        trace=settings.trace and settings.trace.restored(rows.restore_rows),
    )


def _status(rows: Rows, converged: Tensor, spent: Tensor) -> Tensor:
    status = torch.where(spent, Status.BUDGET, Status.STALLED)
    status = torch.where(converged, Status.CONVERGED, status)
    for where, what in ((rows.empty, Status.EMPTY), (rows.spoilt, Status.SPOILT)):
        if where is not None:
            status = torch.where(where.squeeze(-1), what, status)
    return status.to(torch.int8)
