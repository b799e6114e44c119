"""The cross-check: independent methods compute Π_Ω(x), and their certified errors judge them.

Ω's value, differentiated by autograd, certifies every answer; a method under test never does. If
another answer c has a better certificate, the bound is ‖y − c‖ + bound(c). Two methods agree if
their difference is at most the sum of their bounds, and if each bound is as small as its method is
known to reach. So an error in a closed form, a gradient or a convex program shows, and the report
names the method.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain, Plans, Projected, given
from ..kernels import simplex
from ..mapping.rows import Rows, prepare
from ..optimality.certificates import certify
from ..optimality.jacobian import averaging, jacobian_product
from ..optimality.problem import Problem
from ..optimality.projected import product as projected_product
from ..regularizers import arguments
from ..regularizers.penalty import smooth_part
from ..regularizers.registry import registry
from ..regularizers.regularizer import Regularizer, checked, per_row
from ..solvers import polish
from .backends.base import Answer, Backend, Task
from .backends.generic import definition, own_answer
from .inputs import normal
from .promise import worst
from .report import Declared, Pair, Report


def crosscheck(
    omega: Regularizer,
    x: Tensor,
    against: Sequence[str] = ("generic", "cvxpylayers"),
    gamma: float | Tensor = 1.0,
    mask: Tensor | None = None,
    seed: int = 0,
    *,
    domain: Domain | None = None,
) -> Report:
    """Compare the layer's own answer at ``x`` with every method of the backends ``against``.

    It compares values and vector–Jacobian products with random vectors (from ``seed``), along the
    last dimension. It also compares the declared properties of Ω (overridden ``grad``,
    ``curvature``, ``conjugate``, ``strong_convexity``) with Ω's value.

    ``domain``: as for :class:`regmax.RegularizedMax`, for the backends that take one.

    x: (*batch, d), float32 or float64, −inf for a masked entry. Returns a :class:`regmax.Report`.
    ``report.skipped`` lists the backends that cannot take Ω, and those whose packages are not
    installed; for the latter there is a warning.
    """
    checked(omega)
    if isinstance(against, str):
        against = (against,)
    if not isinstance(against, Sequence) or not all(isinstance(name, str) for name in against):
        raise TypeError(f"against must be a sequence of names of backends; got {against!r}")
    backends, skipped = _ready(against)
    gamma = arguments.hyperparameter("gamma", gamma, *arguments.POSITIVE)
    x, _ = arguments.scores(x, -1)
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"x must be float32 or float64 to be cross-checked; got {x.dtype}")
    rows = prepare(omega, x.detach(), gamma, -1, mask, domain=given(domain))
    each = rows.omega.per_row_tensors(entries=True).values()
    if isinstance(rows.bounds, Plans) and any(t.numel() > 1 for t in each):
        raise NotImplementedError(
            "crosscheck takes domain=Transport() where the hyperparameters of Ω are one number each"
        )
    rows = _flat(rows)
    if rows.x.shape[0] == 0:
        raise ValueError(f"x must have at least one row; got shape {tuple(x.shape)}")
    _refuse_unanswerable(rows)

    v = normal(*rows.x.shape, seed=seed).to(rows.x)
    if rows.mask is not None:
        v = torch.where(rows.mask, v, 0)
    task = Task(rows.omega, rows.z.detach(), v, rows.mask, rows.bounds)
    answers = [own_answer(rows, v)]
    for backend in backends:
        reason = backend.unsuitable(rows.omega)
        if rows.bounds is not None and not backend.domains:
            reason = "it takes the simplex alone; cvxpy takes domains"
        if reason is None:
            try:
                answers += backend.answers(task)
            except NotImplementedError as error:  # of a domain with a penalty
                reason = str(error)
        if reason is not None:
            skipped.append(f"{backend.name}: {reason}")
    return _judge(omega, rows, task, answers, skipped)


def _ready(against: Sequence[str]) -> tuple[list[Backend], list[str]]:
    """The backends that can run, and why the others cannot."""
    ready: list[Backend] = []
    skipped: list[str] = []
    for name in against:
        backend: Backend = registry().get("backend", name)()
        missing = backend.missing()
        if missing is None:
            ready.append(backend)
        else:
            skipped.append(f"{name}: {missing}")
            warnings.warn(f"not cross-checked against {name}: {missing}", stacklevel=3)
    return ready, skipped


def _refuse_unanswerable(rows: Rows) -> None:
    found = {"a NaN or +inf": rows.spoilt, "no participant": rows.empty}
    for what, where in found.items():
        if where is not None and bool(where.any()):
            raise ValueError(
                "x must have no NaN, no +inf, and a participant in every row; got "
                f"{what} in row {int(where.flatten().nonzero()[0])}"
            )


def _flat(rows: Rows) -> Rows:
    """The same rows with one batch dimension, and per-row hyperparameters expanded to it."""
    batch, d = rows.x.shape[:-1], rows.x.shape[-1]

    def flat(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        return t.detach().expand(*batch, t.shape[-1]).reshape(-1, t.shape[-1])

    values = {
        name: flat(item) if item.ndim else item.detach()
        for name, item in rows.omega.per_row_tensors(entries=True).items()
    }
    mask = None if rows.mask is None else rows.mask.reshape(-1, d)
    bounds = rows.bounds
    if bounds is not None and not isinstance(bounds, Projected):
        bounds = bounds.with_tensors({name: flat(t) for name, t in bounds.tensors.items()})
    if isinstance(bounds, Plans | Projected):
        bounds = replace(bounds, on=mask)
    return Rows(
        x=rows.x.reshape(-1, d),
        gamma=flat(rows.gamma),
        mask=mask,
        omega=rows.omega.with_tensors(values),
        shift=flat(rows.shift),
        empty=flat(rows.empty),
        spoilt=flat(rows.spoilt),
        dim=1,
        dtype=rows.dtype,
        bounds=bounds,
    )


def _judge(
    omega: Regularizer, rows: Rows, task: Task, answers: list[Answer], skipped: list[str]
) -> Report:
    # compare in float64, also answers in float32
    wide = Problem(task.omega, task.z, task.mask, bounds=task.bounds).widened()
    task = replace(task, omega=wide.omega, z=wide.z, v=task.v.double(), bounds=wide.bounds)
    answers = [
        replace(a, y=a.y.double(), vjp=None if a.vjp is None else a.vjp.double()) for a in answers
    ]
    problem = replace(wide, omega=definition(wide.omega))
    own = [_certified(problem, answer.y) for answer in answers]
    y, near, vjp, slack = _center(problem, task, answers, own)
    reaches = [(y, near), *((a.y, bound) for a, bound in zip(answers, own, strict=True))]
    judged: list[Judged] = []
    for answer, bound in zip(answers, own, strict=True):
        for other, reach in reaches:
            through = (answer.y - other).norm(dim=-1) + reach
            bound = torch.minimum(bound, _or_inf(through))
        off = None if answer.vjp is None else worst((answer.vjp - vjp).norm(dim=-1) + slack)
        judged.append((answer, worst(bound), off))
    pairs = [_pair(a, b) for a, b in itertools.combinations(judged, 2)]
    return Report(
        name=str(omega),
        rows=[pair.to_dict() for pair in pairs],
        pairs=pairs,
        declared=_declared(rows, task, problem, y),
        skipped=skipped,
        problems=task.z.shape[0],
        d=task.z.shape[1],
    )


def _certified(problem: Problem, y: Tensor) -> Tensor:
    """A bound on ‖y − y*‖: the bound of a point of D near y, plus its distance to y."""
    near = (problem.bounds or problem.domain).inside(y)
    bound = certify(problem.at(near), tested=True).error_bound
    return _or_inf(bound + (near - y).norm(dim=-1))


def _or_inf(t: Tensor) -> Tensor:
    return torch.where(torch.isfinite(t), t, torch.inf)


def _center(
    problem: Problem, task: Task, answers: list[Answer], bounds: list[Tensor]
) -> tuple[Tensor, ...]:
    """The best certified point of each row and its bound; J v there from Ω's value, and its own."""
    points, reach = [], []
    for answer, bound in zip(answers, bounds, strict=True):
        if answer.exact_zeros:
            points.append(torch.nan_to_num(answer.y))
            reach.append(bound)
        if isinstance(task.bounds, Projected):
            continue
        # Newton steps on the support and ties of the rounded answer
        rough = torch.nan_to_num(answer.y).round(decimals=6).clamp_min(0)
        some = rough.sum(-1, keepdim=True) > 0
        rough = problem.inside(torch.where(some, rough, problem.domain.middle(task.z)))
        with torch.no_grad():
            polished, certificate = polish(problem, rough)
        points.append(polished)
        reach.append(certificate.error_bound)
    best = torch.stack(reach).argmin(0)
    at = torch.arange(len(best), device=best.device)
    y, bound = torch.stack(points)[best, at], torch.stack(reach)[best, at]
    support = problem.support(y)
    v, domain = task.v, task.bounds

    average = averaging(problem.omega, y, task.mask)

    def product(at: Tensor) -> Tensor:
        smooth = smooth_part(problem.omega)
        if isinstance(domain, Projected):
            return projected_product(problem.at(at), v)
        if domain is None:
            return jacobian_product(smooth, average, at, v, support)
        face = domain.movable(y)
        w = domain.jacobian(smooth.curvature(smooth.lifted(at)), v, face)
        return w if average is None else average(w)

    with torch.no_grad():
        vjp = product(y)
        # the change of J v when y changes by its bound
        slack = 1e3 * torch.finfo(v.dtype).eps * (1 + v.norm(dim=-1))
        for sign in (-1, 1):
            near = (y + sign * bound.unsqueeze(-1)).clamp_min(0)
            if not isinstance(domain, Projected):
                # outside of D, Ω may have no curvature, or one of the wrong sign
                high = torch.ones_like(y) if domain is None else domain.high
                near = torch.minimum(near, high * (1 - torch.finfo(v.dtype).eps / 2))
                near = torch.where(support, near, problem.domain.settled(y, support))
            slack = slack + _or_inf((product(near) - vjp).norm(dim=-1))
    return y, bound, vjp, slack


Judged = tuple[Answer, float, float | None]
"""An answer, with bounds on the errors of y and of J v."""


def _pair(first: Judged, second: Judged) -> Pair:
    (a, bound_a, vjp_bound_a), (b, bound_b, vjp_bound_b) = first, second
    wrong = [answer.method for answer, bound, _ in (first, second) if not bound <= answer.tol]
    apart = not worst((a.y - b.y).norm(dim=-1)) <= bound_a + bound_b
    dvjp = None
    if a.vjp is not None and b.vjp is not None:
        dvjp = worst(a.vjp - b.vjp)
        for answer, _, bound in (first, second):
            if bound is not None and not bound <= answer.vjp_tol and answer.method not in wrong:
                wrong.append(answer.method)
    return Pair(
        a=a.method,
        b=b.method,
        max_dy=worst(a.y - b.y),
        max_dvjp=dvjp,
        bound_a=bound_a,
        bound_b=bound_b,
        vjp_bound_a=vjp_bound_a,
        vjp_bound_b=vjp_bound_b,
        seconds_a=a.seconds,
        seconds_b=b.seconds,
        wrong=tuple(wrong),
        ok=not wrong and not apart,
    )


def _declared(rows: Rows, task: Task, problem: Problem, y: Tensor) -> list[Declared]:
    """Each overridden method compared with Ω's value, at the best certified point."""
    smooth, plain = smooth_part(task.omega), smooth_part(problem.omega)
    support = problem.support(y)
    point = simplex.inward(y)
    eps = torch.finfo(y.dtype).eps
    found: list[Declared] = []

    def compare(method: str, got: Tensor, expected: Tensor, slack: float) -> None:
        found.append(Declared(method, worst((got - expected) / (1 + expected.abs())), slack))

    with torch.no_grad():
        if smooth.declares("grad"):
            got = torch.where(support, smooth.grad(point), 0)
            compare("grad", got, torch.where(support, plain.grad(point), 0), eps**0.5)
        if smooth.declares("curvature"):
            v = torch.where(support, task.v, 0)
            got = torch.where(support, smooth.curvature(point).matvec(v), 0)
            expected = torch.where(support, plain.curvature(point).matvec(v), 0)
            compare("curvature", got, expected, eps**0.5)
        beta = replace(problem, omega=task.omega).beta
        if smooth.declares("strong_convexity") and beta is not None:
            declared = beta.squeeze(-1)
            on = problem.participants()
            points = [(point, support)]
            for k in (1, 4, 16):  # flat, peaked, and next to the vertices
                spread = torch.where(on, task.v.abs() ** k + 1e-4, 0)
                points.append((simplex.inward(simplex.normalize(spread)), on))
            excess = torch.zeros_like(y[..., 0])
            for at, along in points:
                matrix = plain.curvature(at)
                noise = 64 * eps * matrix.matvec(along.to(y.dtype)).abs().amax(-1)
                excess = torch.maximum(excess, declared - matrix.min_eigenvalue(along) - noise)
            compare("strong_convexity", excess, torch.zeros_like(excess), eps**0.5)
        if task.bounds is None and task.omega.declares("conjugate"):
            got = task.omega.conjugate(rows.x, rows.gamma, rows.mask)
            if got is not None:
                expected = per_row(rows.gamma) * problem.objective(y)
                compare("conjugate", got, expected, torch.finfo(rows.x.dtype).eps ** 0.5)
    return found
