"""The promises of a solver: correct answers, valid certificates, independent rows, max_iter."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..optimality.certificates import certify
from ..optimality.problem import Problem
from ..regularizers.regularizer import Definition, Regularizer
from .inputs import hard_inputs, hard_values, normal
from .known import Known, Trial
from .layout import broken_rows, off_simplex
from .promise import Broken, show, worst
from .solver_bench import MAX_ITER, TOL, Bench, once, tried_on

ROUNDING = 1e-13
"""The error of a known answer, relative to 1 + the largest score."""

LONGEST = 64
"""Entries of the hard inputs for each problem but the first, of which some take d³ operations."""


def usual(known: Known) -> Iterator[Trial]:
    """Rows of several sizes and scales, and masked rows."""
    for k, (d, scale) in enumerate(((2, 1.0), (3, 0.05), (5, 1.0), (6, 6.0))):
        yield Trial(scale * normal(3, d, seed=k), known=known)
    mask = normal(3, 6, seed=5) < 0.5
    mask[:, 2] = True
    yield Trial(normal(3, 6, seed=6), mask=mask, known=known)


def hard(known: Known) -> Iterator[Trial]:
    """Ties, equal scores, tiny and huge scales, one element, points with tiny entries or ulps
    apart."""
    rows = normal(3, 5, seed=7)
    names = ("points of the simplex, tiny for 0", "lattices", "ulps apart")
    yield Trial(torch.cat([hard_values(name, 5, 6) for name in names]), known=known)
    yield Trial((rows * 2).round() / 2, known=known)
    yield Trial(torch.full((1, 5), 0.7, dtype=torch.float64, device="cpu"), known=known)
    yield Trial(torch.cat([rows[:1] * 1e-6, rows[1:2] * 1e3, rows[2:] * 1e5]), known=known)
    yield Trial(rows[:, :1], known=known)


def few(known: Known) -> Iterator[Trial]:
    yield Trial(torch.cat([s * normal(2, 5, seed=8) for s in (0.05, 1.0, 20.0)]), known=known)


def one(known: Known) -> Iterator[Trial]:
    yield Trial(normal(2, 5, seed=9), known=known)


def errors(t: Trial, y: Tensor, bound: Tensor | float) -> tuple[Tensor, Tensor]:
    """‖y − y*‖ of each row, and ``bound`` plus the error of the known answer."""
    own = ROUNDING * (1 + torch.where(t.participants(), t.z, 0).abs().amax(-1))
    if not t.known.curved:
        own = own.sqrt()  # the inverse of a slope that vanishes at 0
    if y.dtype == torch.float32:
        own = own + 4e-7
    return (y.double() - t.y).norm(dim=-1), bound + own


# -- correct answers and certificates --------------------------------------------------------------


@tried_on(usual)
def check_optimum(b: Bench, t: Trial) -> None:
    """A layer with this solver gives the maximiser, with ``converged`` True."""
    found = b.solve(t.known, t.z, t.mask, max_iter=MAX_ITER if t.known.curved else 300)
    error, allowed = errors(t, found.y, 1e-6)
    if not bool((error <= allowed).all()):
        raise Broken(f"y = Π_Ω(x) = {t.y.tolist()}", f"{found.y.tolist()}, off by {worst(error)}")
    if t.known.curved and not bool(found.converged.all()):
        raise Broken(
            f"certified errors of at most {TOL:g} within {MAX_ITER} iterations",
            f"error_bound = {found.error_bound.tolist()}",
        )


@tried_on(usual)
def check_answer_of_its_own(b: Bench, t: Trial) -> None:
    """The y of ``run``, before regmax polishes it, is within ``tol`` by the problem's
    certificate."""
    if not t.known.curved:
        return
    problem = t.problem
    bound = certify(problem.at(b.run(problem)[0])).error_bound
    if not bool((bound <= TOL).all()):
        raise Broken(f"certify(problem.at(y)).error_bound ≤ tol = {TOL:g} for the y of run", bound)


@tried_on(lambda known: (*few(known), *hard(known)))
def check_certificate_honest(b: Bench, t: Trial) -> None:
    """‖y − y*‖ ≤ error_bound for every max_iter, and converged is error_bound ≤ tol."""
    for max_iter in (1, 4, 300):
        found = b.solve(t.known, t.z, t.mask, max_iter=max_iter)
        error, allowed = errors(t, found.y, found.error_bound)
        if bool((error > allowed).any()):
            raise Broken(
                f"‖y − y*‖ ≤ error_bound = {found.error_bound.tolist()}",
                f"‖y − y*‖ = {error.tolist()} with max_iter = {max_iter}",
            )
        if not torch.equal(found.converged, found.error_bound <= TOL):
            raise Broken(
                f"converged where error_bound ≤ {TOL:g}: {found.error_bound.tolist()}",
                f"converged = {found.converged.tolist()}",
            )


@tried_on(few)
def check_failure_is_flagged(b: Bench, t: Trial) -> None:
    """``converged`` is False for a row that did not reach ``tol``; its y is still a point of Δ."""
    found = b.solve(t.known, t.z, t.mask, max_iter=1, tol=1e-15)
    _expect_simplex(found.y, t)
    error, allowed = errors(t, found.y, 0.0)
    if bool((found.converged & (error > allowed)).any()):
        raise Broken(
            f"not converged, with tol = 1e-15, where ‖y − y*‖ = {error.tolist()}",
            f"converged = {found.converged.tolist()}",
        )


@tried_on(lambda known: (*usual(known), *hard(known)))
def check_simplex(b: Bench, t: Trial) -> None:
    """The y of ``run`` is a point of Δ and exactly 0 where masked, converged or not."""
    for max_iter in (1, 300):
        _expect_simplex(b.run(t.problem, max_iter=max_iter)[0], t, 1e-12)


def _expect_simplex(y: Tensor, t: Trial, allowed: float | None = None) -> None:
    wrong = off_simplex(y, allowed)
    if wrong is None and bool((y[~t.participants()] != 0).any()):
        wrong = "a masked entry that is not 0"
    if wrong is not None:
        raise Broken(
            "a point of the simplex: y ≥ 0, Σy = 1, exactly 0 where masked", f"{wrong}: {show(y)}"
        )


@tried_on(few)
def check_float32(b: Bench, t: Trial) -> None:
    """In float32 the error is within 2e-3, and the certificate is valid."""
    z = t.z.float()
    b.run(t.known.problem(z, t.mask), 1e-3)  # refused unless y is float32
    found = b.solve(t.known, z, t.mask)
    error, allowed = errors(t, found.y, found.error_bound)
    # z is rounded to float32
    allowed = allowed + (z.double() - t.z).norm(dim=-1)
    if found.y.dtype != torch.float32 or bool((error > 2e-3).any()):
        raise Broken(
            f"y in torch.float32 within 2e-3 of {t.y.tolist()}",
            f"{found.y.tolist()}, {found.y.dtype}",
        )
    if bool((error > allowed).any()):
        raise Broken(
            f"‖y − y*‖ ≤ error_bound = {found.error_bound.tolist()}",
            f"‖y − y*‖ = {error.tolist()}, in float32",
        )


@tried_on(one)
def check_backward(b: Bench, t: Trial) -> None:
    """A layer with this solver has the gradient of Π_Ω."""
    if not t.known.curved:
        return
    v, expected = t.tangent()
    x = t.z.clone().requires_grad_()
    (found,) = torch.autograd.grad(RegularizedMax(t.known.omega, solver=b.solver)(x), x, v)
    if worst(found - expected) > 1e-5 * (1 + worst(v)):
        raise Broken(f"Jv = {expected.tolist()}", f"{found.tolist()}, v = {v.tolist()}")


# -- independent rows ------------------------------------------------------------------------------


@tried_on(few)
def check_rows_independent(b: Bench, t: Trial) -> None:
    """A row's y and iterations do not depend on the other rows or on their order."""
    y, iterations = b.run(t.problem)
    reverse = list(range(len(y)))[::-1]
    for at, what in ((reverse, "in reversed order"), *(([i], "alone") for i in reverse)):
        there, steps = b.run(t.known.problem(t.z[at], None if t.mask is None else t.mask[at]))
        if worst(there - y[at]) > 4e-15 or not torch.equal(there > 0, y[at] > 0):
            raise Broken(
                f"rows {at} as among the others: {y[at].tolist()}", f"{what}: {there.tolist()}"
            )
        if not torch.equal(steps, iterations[at]):
            raise Broken(
                f"iterations of rows {at} as among the others: {iterations[at].tolist()}",
                f"{what}: {steps.tolist()}",
            )


@tried_on(one)
def check_deterministic(b: Bench, t: Trial) -> None:
    """The same rows give the same bits after another solve; torch's random state is unchanged."""
    problem = t.problem
    state = torch.random.get_rng_state()
    y, iterations = b.run(problem)
    b.run(t.known.problem(t.z + normal(*t.z.shape, seed=10), t.mask))
    again, steps = b.run(problem)
    if not torch.equal(again, y) or not torch.equal(steps, iterations):
        raise Broken(
            f"y as the first time: {show(y)}, after {iterations.tolist()} iterations",
            f"the second time: {show(again)}, after {steps.tolist()}",
            f"{b.where('run')}, and what {b.name} remembers or draws",
        )
    if not torch.equal(torch.random.get_rng_state(), state):
        raise Broken(
            "torch's random state as before", "another", f"{b.where('run')}: use a generator"
        )


@tried_on(one)
def check_leaves_its_inputs(b: Bench, t: Trial) -> None:
    """Scores and mask are unchanged, y has its own memory, and no gradient is recorded."""
    mask = t.participants().clone()
    mask[:, -1] = mask[:, -1] & (mask.sum(-1) == 1)
    z, before = t.z.clone(), mask.clone()
    y, _ = b.run(t.known.problem(z, mask))
    if not torch.equal(z, t.z):
        raise Broken("the scores as before", f"{show(z)}")
    if not torch.equal(mask, before):
        raise Broken("the mask as before", f"{show(mask)}")
    if y.requires_grad:
        raise Broken("a y without a graph", "y.requires_grad is True")
    if y.untyped_storage().data_ptr() == z.untyped_storage().data_ptr():
        raise Broken("a y in memory of its own", "y shares that of the scores")


# -- max_iter --------------------------------------------------------------------------------------


class Overrun(Exception):
    """A solver evaluated Ω more often than allowed."""


class Counted(Definition):
    """Ω that raises :class:`Overrun` after ``limit`` evaluations."""

    def __init__(self, omega: Regularizer, limit: int) -> None:
        super().__init__(omega)
        self.left = [limit]

    def value(self, y: Tensor) -> Tensor:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise Overrun
        return super().value(y)


@tried_on(few)
def check_budget(b: Bench, t: Trial) -> None:
    """``run`` ends after max_iter iterations, even if it cannot reach ``tol``, here 0. An
    iteration evaluates Ω at most 500 times, so that a search along a line has room."""
    for max_iter in (1, 3):
        limit = 500 * max_iter
        counted = Counted(t.known.base, limit)
        problem = Problem(t.known.around(counted), t.z, t.mask)
        try:
            _, iterations = b.run(problem, 0.0, max_iter)
        except Overrun:
            raise Broken(
                f"an end after max_iter = {max_iter} iterations",
                f"Ω evaluated more than {limit} times",
            ) from None
        if bool((iterations > max_iter).any()):
            raise Broken(
                f"at most max_iter = {max_iter} iterations", f"iterations = {iterations.tolist()}"
            )


@tried_on(few)
def check_iterations(b: Bench, t: Trial) -> None:
    """``iterations`` is one int64 number per row, and that many iterations are enough."""
    problem = t.problem
    y, iterations = b.run(problem)
    if iterations.dtype != torch.int64 or bool((iterations < 0).any()):
        raise Broken("int64 numbers, 0 or more", f"{iterations.tolist()}, {iterations.dtype}")
    done = certify(problem.at(y)).error_bound <= TOL
    for i in done.nonzero().flatten().tolist():
        alone = t.known.problem(t.z[[i]], None if t.mask is None else t.mask[[i]])
        enough = max(int(iterations[i]), 1)
        there, steps = b.run(alone, max_iter=enough)
        bound = certify(alone.at(there)).error_bound
        if not bool((bound <= TOL).all()) or int(steps) > enough:
            raise Broken(
                f"row {i} done after its {enough} iterations, as it was with more allowed",
                f"with max_iter = {enough}: error_bound = {bound.tolist()}",
                f"{b.where('run')}, where it counts iterations",
            )


# -- unsuitable problems, hard inputs, the name ----------------------------------------------------


@once
def check_unsuitable(b: Bench) -> None:
    """``unsuitable`` returns None or a nonempty string, the same each time. A layer refuses a
    problem with a reason, and says the reason."""
    for known in b.table:
        reason = b.unsuitable(known)
        if reason is None:
            continue
        if not isinstance(reason, str) or not reason.strip():
            raise Broken(
                "None, or why not, in words", f"{reason!r} for {known}", b.where("unsuitable")
            )
        if b.unsuitable(known) != reason:
            raise Broken("the same reason each time", "another", b.where("unsuitable"))
        try:
            RegularizedMax(known.omega, solver=b.solver)(normal(2, 3, seed=1))
        except ValueError as error:
            if reason in str(error):
                continue
            found = str(error)
        else:
            found = "an answer"
        raise Broken(
            f"ValueError with {reason!r} for {known}", found, f"{b.where('unsuitable')}, and name"
        )


@once
def check_hard_inputs(b: Bench) -> None:
    """Each row of HARD_INPUTS gives a point of Δ, NaN if spoilt, 0 if empty. The inputs include
    batches without rows, of one or three dimensions, and finfo.min. The first problem gets each
    input, the others all rows of a length in one batch."""
    for k, known in enumerate(b.suited):
        for name, x, mask in _rows_of_a_length() if k else _each_input():
            found = b.solve(known, x, mask, max_iter=100)
            wrong = broken_rows(x, mask, found.y)
            if wrong is not None:
                raise Broken(
                    f"an answer to hard input {name!r}, omega = {known}",
                    f"{wrong}: y = {show(found.y)}",
                    x=x,
                )


def _each_input() -> Iterator[tuple[str, Tensor, Tensor | None]]:
    for case in hard_inputs():
        yield case.name, *case.make()


def _rows_of_a_length() -> Iterator[tuple[str, Tensor, Tensor | None]]:
    rows: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for _, x, mask in _each_input():
        d = x.shape[-1]
        on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
        if d <= LONGEST:
            rows.setdefault(d, []).append((x.reshape(-1, d), on.reshape(-1, d)))
    for d, parts in rows.items():
        x, on = (torch.cat(part) for part in zip(*parts, strict=True))
        yield f"all of {d} entries", x, on


@once
def check_name(b: Bench) -> None:
    """``name`` is what users type: RegularizedMax(omega, solver="name")."""
    name = b.solver.name
    if not isinstance(name, str) or not name.strip() or name == "auto":
        raise Broken('a name, not empty and not "auto"', f"{name!r}", f"{b.name}.name")
