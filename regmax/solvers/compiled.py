"""Newton steps of short rows in compiled code, for which PyTorch evaluates Ω, ∇Ω and ∇²Ω."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels import asked, simplex
from ..optimality.certificates import Certificate
from ..optimality.premises import check_start
from ..optimality.problem import Point, Problem
from ..regularizers.penalty import Penalized, group_ids, proxed, valued
from ..regularizers.regularizer import like
from .base import Solved
from .evaluation import Evaluated, Unfit, around, evaluated_at, local_at

LIMIT = 16
"""Rows up to this length: ∇²Ω is that of d copies of a row."""
KEPT = 1 << 14
"""Scores up to this number begin at the barycentre with what was computed there before."""
NEARLY = 12
"""Steps to a point near the answer."""


@dataclass(frozen=True, eq=False)
class Known:
    """What depends on Ω alone, for scores of one shape: whether ∇²Ω is diagonal, whether the slope
    of Ω or its curvature is infinite at 0, and Ω, ∇Ω and ∇²Ω at the barycentre, except for many
    scores. ``tensors``: those of Ω then."""

    tensors: list[Tensor]
    ways: Tensor
    steep: bool
    stiff: bool
    start: Evaluated | None

    def same(self, other: Known) -> bool:
        """Whether two calls saw the same Ω."""
        ours, theirs = (self.ways, *(self.start or ())), (other.ways, *(other.start or ()))
        return self.steep == other.steep and all(map(torch.equal, ours, theirs))


Memory = dict[Any, Any]
"""What is known of an Ω, by the shape of the scores."""


def compiled(problem: Problem, memory: Memory, certified: bool = True) -> Solved | None:
    """The rows that Newton steps in compiled code solve, with a bound of +inf where they do not;
    None where they cannot. Unless ``certified`` they are points after up to ``NEARLY`` steps, with
    a bound of 0 where the steps are over.

    The certificate is that of :func:`~regmax.optimality.certificates.certify`, and the tests are
    those of a solve: Ω is strictly convex at the barycentre and at y, no point on the ways of
    :func:`~regmax.optimality.premises.refuted` contradicts its convexity, and it has the same
    value and gradient among other points. A row in which one of them fails is not certified.
    """
    z, base = problem.z, problem.base
    if not _short(problem) or problem.trace is not None:
        return None
    if problem.proximal or problem.overridden or problem.beta is not None:
        return None
    if any(leaf.separable for leaf in problem.smooth.leaves()):
        return None
    rows = _rows()
    if rows is None:
        return None
    try:
        known, looked = memory.get(z.shape), False
        tensors = base.omega.tensors(fixed=True).values()
        changed = known is None or not all(map(torch.equal, tensors, known.tensors))
        if known is None or (certified and changed):
            if len(memory) >= 8:
                memory.clear()
            fresh = None if known is None else _moved(base, known)
            memory[z.shape] = known = fresh or _looked(base)
            looked = fresh is None
        if problem.structured and known.stiff:
            return None
        found = _solved(problem, known, *rows, certified)
        if certified and not looked and bool(torch.isinf(found.certificate.error_bound).any()):
            memory[z.shape] = fresh = _looked(base)  # Ω may have changed in what nobody names
            if not known.same(fresh):
                found = _solved(problem, fresh, *rows)
    except Exception:  # of the user's code: the other solvers raise it again
        return None
    return found


def _short(problem: Problem) -> bool:
    z = problem.z
    plain = z.device.type == "cpu" and z.dtype == torch.float64 and 1 < z.shape[-1] <= LIMIT
    return plain and asked()


@functools.cache
def _rows() -> tuple[Any, Any] | None:
    """The compiled code, and the places in its jobs; None where numba is missing."""
    try:
        from ..kernels.cpu.rows import CompiledRows
        from ..kernels.from_value import layout
    except (ModuleNotFoundError, RuntimeError):
        return None
    rows = CompiledRows("regmax.kernels.from_value.steps", names=("forward",))
    rows.parts = (CompiledRows("regmax.kernels.from_value.grouped", names=("forward",)),)
    return rows, layout


def _looked(problem: Problem) -> Known:
    """What is known of Ω by looking at it, with the tests of it where a solver starts."""
    z, d = problem.z, problem.z.shape[-1]
    check_start(problem)
    if problem.eps > torch.finfo(z.dtype).eps:
        raise Unfit
    with torch.inference_mode(False), torch.no_grad():
        ways = torch.eye(d, dtype=z.dtype, device="cpu")
        if problem.separable and d > 2:
            steps = torch.arange(d, dtype=z.dtype, device="cpu")
            ways = torch.stack([torch.ones_like(steps), (12.9898 * steps).sin() + 2])
        start = _start(problem, ways) if z.numel() <= KEPT else None
        return Known(_copied(problem), ways, problem.legendre, _stiff(problem), start)


def _moved(problem: Problem, known: Known) -> Known | None:
    """What is known of Ω after the numbers of its tensors changed, None where it must be looked at:
    ∇²Ω is not diagonal where it is not so at the barycentre, and a first Newton step is taken only
    where it is positive definite there."""
    d, eps = len(known.ways), torch.finfo(problem.z.dtype).eps
    if d != problem.z.shape[-1] or d == 2 or known.start is None or problem.eps > eps:
        return None
    with torch.inference_mode(False), torch.no_grad():
        start = _start(problem, known.ways)
        h = start[2][0].view(d, d)
        off = h.abs().sum() - h.diagonal().abs().sum()
        if not bool(off > 1e-6 * h.abs().sum()):
            return None
        return Known(_copied(problem), known.ways, problem.legendre, _stiff(problem), start)


def _stiff(problem: Problem) -> bool:
    """Whether the curvature of Ω is infinite at 0: where some entries are next to 0, its slope
    changes by far more than they do."""
    eps, y = torch.finfo(problem.z.dtype).eps, simplex.generic(problem.z)
    small = torch.arange(y.shape[-1], device="cpu") % 2 == 1
    near, nearer = (problem.smooth.grad(torch.where(small, eps**k, y)) for k in (1, 2))
    return bool(((nearer - near).abs() > 1e5 * eps).any())


def _start(problem: Problem, ways: Tensor) -> Evaluated:
    return evaluated_at(problem, simplex.uniform(problem.z, None).unsqueeze(0), ways)


def _copied(problem: Problem) -> list[Tensor]:
    return [t.detach().clone() for t in problem.omega.tensors(fixed=True).values()]


def _solved(problem: Problem, known: Known, rows: Any, code: Any, certified: bool = True) -> Solved:
    if problem.structured:
        return _in_groups(problem, known, rows, code)
    d, shape, ways = problem.z.shape[-1], problem.z.shape, known.ways
    z = problem.z.reshape(-1, d).contiguous()
    mask = None if problem.mask is None else problem.mask.reshape(z.shape).contiguous()
    count, units = len(z), len(ways)
    middle = problem.initial().reshape(count, 1, d)
    state, points = middle.repeat(1, code.VECTORS, 1), middle.repeat(1, code.COUNT, 1)
    state[:, code.TILT] = 0
    numbers = z.new_zeros(count, code.KEPT)
    numbers[:, code.BOUND] = torch.inf
    final, there = False, None
    for k in range(4 * code.STEPS):
        if final:
            found = around(problem, ways, points, code)
            there = found
        elif k == 0 and mask is None and problem.start is None and known.start is not None:
            found = known.start
        else:
            found = evaluated_at(problem, state[:, code.TRIAL].view(1, *shape), ways)
        rows.run(
            *(0, z, mask, *found, state.view(count, -1), numbers, points.view(count, -1)),
            *(units, known.steep, final),
        )
        if k == 0 and problem.start is not None:  # the certificate looks at the barycentre
            middle = simplex.uniform(problem.z, problem.mask)
            start = known.start if mask is None else None
            value, gradient, _ = start or evaluated_at(problem, middle.unsqueeze(0), ways)
            numbers[:, code.VALUE_START] = value[:, 0]
            state[:, code.START] = gradient.view(count, d)
        status = numbers[:, code.STATUS].tolist()
        final = code.GOING not in status
        if not certified and (final or k == NEARLY):
            ready = numbers[:, code.STATUS] == code.READY
            at = torch.where(ready.unsqueeze(-1), code.TRIAL, code.Y).unsqueeze(-1)
            state[:, code.TRIAL] = state.take_along_dim(at.expand(count, 1, d), 1).squeeze(1)
            numbers[:, code.BOUND] = torch.where(ready, 0, torch.inf)
            numbers[:, code.STATUS] = code.DONE
            break
        if final and code.READY not in status:
            break
    return _certified(problem, state, numbers, there, units, code)


def _certified(
    problem: Problem,
    state: Tensor,
    numbers: Tensor,
    there: Evaluated | None,
    units: int,
    code: Any,
) -> Solved:
    """The answers at ``TRIAL``; ``there``: ∇Ω and ∇²Ω at the points of their certificates."""
    shape, batch = problem.z.shape, problem.z.shape[:-1]
    at = Point(problem, state[:, code.TRIAL].reshape(shape))
    if there is not None:
        at.__dict__["verified"] = local_at(there, units, shape)
    done = numbers[:, code.STATUS] == code.DONE
    certificate = Certificate(
        numbers[:, code.GAP].view(batch),
        torch.where(done, numbers[:, code.BOUND], torch.inf).view(batch),
        True,
        at.support,
        torch.zeros_like(at.support),
        numbers[:, code.LOW].view(batch),
    )
    return Solved(at, numbers[:, code.STEP].long().view(batch), certificate, "solver newton")


MODELS, GUESSES, CAREFUL = 10, 30, 5
"""Newton steps of a row with a penalty; groups that are tried for each of them."""


def _in_groups(problem: Problem, known: Known, rows: Any, code: Any) -> Solved:
    """The same for Ω = base + λR: each step maximises the quadratic model of the base minus λR. The
    certificate of y is that of the base for the scores z − λu, u ∈ ∂R(y)."""
    base, omega, z, ways = problem.base, problem.omega, problem.z, known.ways
    assert isinstance(omega, Penalized)
    shape, d, units, count = z.shape, z.shape[-1], len(ways), z[..., 0].numel()
    y = middle = problem.initial()
    flat = z.reshape(-1, d).contiguous()
    mask = None if problem.mask is None else problem.mask.reshape(flat.shape).contiguous()
    start = None if mask is not None else known.start
    start = found = start or evaluated_at(base, y.unsqueeze(0), ways)
    ready = torch.zeros_like(z[..., 0], dtype=torch.bool)
    lost, steps = ready, torch.zeros_like(ready, dtype=torch.int64)
    new, pull, last = y, torch.zeros_like(y), torch.full_like(z[..., 0], torch.inf)
    for k in range(MODELS):
        slope = z - found[1].view(shape)
        p, u = _maximised(problem, y, slope, found[2], rows.parts[0])
        lost = lost | ~(ready | torch.isfinite(p).all(-1))
        going = ~(ready | lost)
        new = torch.where(going.unsqueeze(-1), p, torch.where(ready.unsqueeze(-1), new, middle))
        pull = torch.where(going.unsqueeze(-1), u, pull)
        length = (new - y).norm(dim=-1)
        # the error of a Newton step is about C times its squared length
        ahead = length * torch.where(last < torch.inf, (length / last).square().clamp_max(1), 1)
        ready = ready | going & ((length <= 1e-8) | (ahead <= 1e-13))
        steps, last = torch.where(going, k + 1, steps), torch.where(going, length, last)
        going = going & ~ready
        if not bool(going.any()):
            break
        y = torch.where(going.unsqueeze(-1), new, y)
        fresh = evaluated_at(base, new.unsqueeze(0), ways)
        on = going.view(-1, 1)
        value, gradient, hessian = (
            torch.where(on, b, a) for a, b in zip(found, fresh, strict=True)
        )
        found = value, gradient, hessian
    state, numbers, points = _places(z, y, new, pull, found, start, ready, steps, code)
    if not bool(ready.any()):
        return _certified(problem, state, numbers, None, units, code)

    def run(evaluated: Evaluated, what: int) -> None:
        rows.run(
            *(0, flat, mask, *evaluated, state.view(count, -1), numbers, points.view(count, -1)),
            *(units, False, what),
        )

    run(found, code.ASKED)
    found = around(base, ways, points, code)
    v = new + z - found[1][:, :d].reshape(shape)
    near = v - proxed(omega.penalty, v, omega.lam, problem.mask)
    u = omega.penalty.subgradient(new, near, omega.lam, problem.mask)
    state[:, code.TILT] = like(u, new, f"{type(omega.penalty).__name__}.subgradient").view(count, d)
    run(found, code.CERTIFIED)
    return _certified(problem, state, numbers, found, units, code)


def _places(
    z: Tensor, y: Tensor, new: Tensor, pull: Tensor, found: Evaluated, start: Evaluated,
    ready: Tensor, steps: Tensor, code: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The vectors, numbers and points of rows whose answers ``new`` were found elsewhere, after
    y."""
    d = z.shape[-1]
    state = z.new_empty(z.numel() // d, code.VECTORS, d)
    count = len(state)
    points = state.new_zeros(count, code.COUNT, d)
    for place, vector in (
        *((code.Y, y), (code.TRIAL, new), (code.TILT, pull), (code.WAY, new)),
        *((code.BEFORE, found[1]), (code.START, start[1])),
    ):
        state[:, place] = vector.reshape(-1, d)
    numbers = z.new_zeros(count, code.KEPT)
    numbers[:, code.STATUS] = torch.where(ready, code.READY, code.LOST).view(-1)
    numbers[:, code.STEP], numbers[:, code.BOUND] = steps.view(-1).to(z.dtype), torch.inf
    numbers[:, code.VALUE_BEFORE], numbers[:, code.VALUE_START] = found[0][:, 0], start[0][:, 0]
    return state, numbers, points


def certified(problem: Problem, y: Tensor, hessian: Tensor, steep: bool) -> Certificate | None:
    """The certificate of y, with ∇²Ω (rows, d, d) next to it; None where there is none in compiled
    code."""
    z, d, rows = problem.z, problem.z.shape[-1], _rows()
    if rows is None or not _short(problem):
        return None
    compiled_rows, code = rows
    count, ways = z.numel() // d, torch.eye(d, dtype=z.dtype, device=z.device)
    flat = z.reshape(-1, d).contiguous()
    mask = None if problem.mask is None else problem.mask.reshape(flat.shape).contiguous()
    try:
        middle = simplex.uniform(z, problem.mask)
        values, gradients, _ = evaluated_at(problem, torch.stack([y, middle]), ways, 0)
        matrix = hessian.reshape(count, d * d)
        before, start = (
            (values[:, k : k + 1], gradients[:, k * d : (k + 1) * d], matrix) for k in (0, 1)
        )
        ready = torch.ones_like(z[..., 0], dtype=torch.bool)
        state, numbers, points = _places(
            z, y, y, torch.zeros_like(y), before, start, ready, ready.long(), code
        )
        found = tuple(t.contiguous() for t in before)
        for what in (code.ASKED, code.CERTIFIED):
            compiled_rows.run(
                *(0, flat, mask, *found, state.view(count, -1), numbers, points.view(count, -1)),
                *(d, steep, what),
            )
            if what == code.ASKED:
                found = around(problem, ways, points, code)
    except Exception:  # of the user's code: the other solvers raise it again
        return None
    return _certified(problem, state, numbers, None, d, code).certificate


def _maximised(
    problem: Problem, y: Tensor, slope: Tensor, hessian: Tensor, groups: Any
) -> tuple[Tensor, Tensor]:
    """The maximiser over Δ of ⟨slope, x − y⟩ − ½ (x − y)ᵀH(x − y) − λR(x), and λu, u ∈ ∂R there;
    NaN where it was not found.

    x is the maximiser among the points with the groups and the support of y. A proximal step from x
    guesses others, until x is its own proximal step. From the ``CAREFUL``-th guess on, x is the
    better one of the two points, which converges.
    """
    omega, mask, d = problem.omega, problem.mask, y.shape[-1]
    assert isinstance(omega, Penalized)
    penalty, lam = omega.penalty, omega.lam
    h = hessian.view(-1, d, d) if hessian.shape[-1] == d * d else hessian[:, :d].diag_embed()
    h = ((h + h.mT) / 2).contiguous().view(*y.shape, d)
    t = 1 / h.abs().sum(-1).amax(-1, keepdim=True)
    answer = torch.full_like(y, torch.nan)
    settled = torch.zeros_like(y[..., :1], dtype=torch.bool)
    p, pull = y, lam * penalty.any_subgradient(y, mask)
    u = pull

    def bent(x: Tensor) -> Tensor:
        return (h * (x - y).unsqueeze(-2)).sum(-1)

    def model(x: Tensor) -> Tensor:
        smooth = simplex.row_dot(slope - bent(x) / 2, x - y)
        return smooth - lam * valued(penalty, x, mask).unsqueeze(-1)

    for k in range(GUESSES):
        x = torch.empty_like(p)
        arrays = (y, slope, h, p, u, group_ids(penalty, p, mask).int(), x)
        groups.run(0, *(v.reshape(-1, v.shape[-1] if v is not h else d * d) for v in arrays))
        if k >= CAREFUL:
            inside = problem.inside(x)
            x = torch.where(model(inside) > model(p), inside, p)
        p = problem.nearest(x + t * (slope - bent(x)), t)
        u = lam * penalty.any_subgradient(p, mask)
        now = ~settled & ((p - x).abs().amax(-1, keepdim=True) <= 1e-10)
        answer, pull = torch.where(now, p, answer), torch.where(now, u, pull)
        settled = settled | now
        if bool(settled.all()):
            break
    return answer, pull
