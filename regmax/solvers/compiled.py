"""Newton steps of short rows in compiled code, for which PyTorch evaluates Ω, ∇Ω and ∇²Ω."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..kernels import asked, simplex
from ..kernels.products import evaluated
from ..optimality.certificates import Certificate
from ..optimality.point import Point
from ..optimality.problem import Problem
from ..regularizers.autodiff import Local
from ..regularizers.curvature import Dense
from .base import Solved

LIMIT = 16
"""Rows up to this length: ∇²Ω is that of d copies of a row."""
PIECE = 1 << 18
"""Entries of the points at which Ω is evaluated at once."""


class _Lost(Exception):
    """Ω cannot be evaluated as this solver does it."""


def compiled(problem: Problem) -> Solved | None:
    """The rows that Newton steps in compiled code solve, with a bound of +inf where they do not;
    None where they cannot.

    The certificate is that of :func:`~regmax.optimality.certificates.certify`, and the tests are
    those of a solve: Ω is strictly convex at the barycentre and at y, no point on the ways of
    :func:`~regmax.optimality.diagnosis.refuted` contradicts its convexity, and it has the same
    value and gradient among other points. A row in which one of them fails is not certified.
    """
    z, omega = problem.z, problem.omega
    plain = z.device.type == "cpu" and z.dtype == torch.float64 and 1 < z.shape[-1] <= LIMIT
    if not (plain and asked()) or problem.start is not None or problem.trace is not None:
        return None
    if problem.base is not problem or problem.beta is not None:
        return None
    if problem.overridden or any(leaf.separable for leaf in omega.leaves()):
        return None
    rows = _rows()
    if rows is None or problem.eps > torch.finfo(z.dtype).eps:
        return None
    try:
        return _solved(problem, *rows)
    except Exception:  # of the user's code: the other solvers raise it again
        return None


@functools.cache
def _rows() -> tuple[Any, Any] | None:
    """The compiled code, and the numbers of its jobs."""
    try:
        from ..kernels.cpu.rows import CompiledRows
        from ..kernels.generated import steps

        return CompiledRows("regmax.kernels.generated.steps"), steps
    except (ModuleNotFoundError, RuntimeError):
        return None


def _solved(problem: Problem, rows: Any, code: Any) -> Solved:
    d, shape = problem.z.shape[-1], problem.z.shape
    z = problem.z.reshape(-1, d).contiguous()
    mask = None if problem.mask is None else problem.mask.reshape(z.shape).contiguous()
    count = len(z)
    state, points = z.new_zeros(count, 5, d), z.new_empty(count, code.COUNT, d)
    state[:, code.TRIAL] = problem.initial().reshape(z.shape)
    numbers = z.new_zeros(count, code.LOW + 1)
    numbers[:, code.BOUND] = torch.inf
    final = 0
    for _ in range(4 * code.STEPS):
        copies = state[:, code.TRIAL].view(shape).expand(d, *shape)
        others = points.movedim(1, 0).reshape(code.COUNT, *shape) if final else copies[:0]
        if final:
            copies = torch.cat([copies, others[code.HALF :].expand(d, *shape), others])
        value, gradient, hessian = _evaluated(problem, copies, d * (1 + final))
        if final:
            value, gradient = value[2 * d :], gradient[2 * d :]
        value = value.reshape(-1, count).T.contiguous()
        gradient = gradient.reshape(-1, count, d).movedim(0, 1).reshape(count, -1)
        arrays = (mask, value, gradient, hessian, state.view(count, -1), numbers)
        rows.run(0, z, *arrays, points.view(count, -1), final)
        status = numbers[:, code.STATUS].tolist()
        final = 0 if code.GOING in status else 1
        if final and code.READY not in status:
            break
    done = numbers[:, code.STATUS] == code.DONE
    bound = torch.where(done, numbers[:, code.BOUND], torch.inf).view(shape[:-1])
    y = state[:, code.TRIAL].reshape(shape)
    at = Point(problem, y)
    certificate = Certificate(
        numbers[:, code.GAP].view(shape[:-1]),
        bound,
        True,
        at.support,
        torch.zeros_like(at.support),
        numbers[:, code.LOW].view(shape[:-1]),
    )
    iterations = numbers[:, code.STEP].long().view(shape[:-1])
    return Solved(at, iterations, certificate, "solver newton")


def _evaluated(problem: Problem, points: Tensor, units: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ω and ∇Ω at the points (n, *batch, d). The first ``units`` are d copies of a point, or of
    two: and ∇²Ω there, with the rows of the matrices one after another."""
    d = points.shape[-1]
    ways = torch.zeros_like(points)
    for k in range(units):
        ways[k, ..., k % d] = 1
    with torch.enable_grad():
        at = simplex.inward(points).requires_grad_()
        value = evaluated(problem.omega.value, at)
        if value.shape != at.shape[:-1]:
            raise ValueError("the value of Ω is not one number per row")
        (g,) = torch.autograd.grad(value.sum(), at, create_graph=True)
    h = torch.zeros_like(points)
    if g.requires_grad:
        (found,) = torch.autograd.grad(g, at, ways, allow_unused=True)
        h = h if found is None else found
    h = h[:units].reshape(units, -1, d).movedim(0, 1).reshape(-1, units * d)
    return value.detach(), g.detach(), h
