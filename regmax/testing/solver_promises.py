"""The promises of a solver: correct answers, valid certificates, independent rows, max_iter."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..optimality.certificates import certify
from ..optimality.problem import Problem
from .inputs import hard_inputs, normal
from .known import Known
from .layout import off_simplex
from .promise import Broken, show, worst
from .solver_bench import (
    MAX_ITER,
    TOL,
    Bench,
    Counted,
    Overrun,
    Trial,
    few,
    hard,
    once,
    one,
    tried_on,
    usual,
)

ROUNDING = 1e-13
"""The error of the table's own answers, relative to 1 + the largest score."""


def errors(t: Trial, y: Tensor) -> tuple[Tensor, Tensor]:
    """‖y − y*‖ of each row, and the possible error of the table's answer."""
    own = ROUNDING * (1 + t.z.double().abs().amax(-1))
    if not t.known.curved:
        own = own.sqrt()  # the inverse of a slope that vanishes at 0
    return (y.double() - t.answer).norm(dim=-1), own


# -- correct answers and certificates --------------------------------------------------------------


@tried_on(usual)
def check_optimum(b: Bench, t: Trial) -> None:
    """A layer with this solver gives the maximiser, with ``converged`` True."""
    found = b.solve(t, max_iter=MAX_ITER if t.known.curved else 300)
    error, own = errors(t, found.y)
    if bool((error > 1e-6 + own).any()):
        raise Broken(
            f"y = Π_Ω(x) = {t.answer.tolist()}", f"{found.y.tolist()}, off by {worst(error):.3g}"
        )
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
    problem = t.known.problem(t.z, t.mask)
    bound = certify(problem.at(b.run(problem)[0])).error_bound
    if not bool((bound <= TOL).all()):
        raise Broken(f"certify(problem.at(y)).error_bound ≤ tol = {TOL:g} for the y of run", bound)


@tried_on(lambda known: (*few(known), *hard(known)))
def check_certificate_honest(b: Bench, t: Trial) -> None:
    """‖y − y*‖ ≤ error_bound for every max_iter, and converged is error_bound ≤ tol."""
    for max_iter in (1, 4, 300):
        found = b.solve(t, max_iter=max_iter)
        error, own = errors(t, found.y)
        if bool((error > found.error_bound + own).any()):
            raise Broken(
                f"‖y − y*‖ ≤ error_bound = {found.error_bound.tolist()}",
                f"‖y − y*‖ = {error.tolist()} with max_iter = {max_iter}",
            )
        if not torch.equal(found.converged, found.error_bound <= TOL):
            raise Broken(
                f"converged where error_bound ≤ {TOL:g}: {found.error_bound.tolist()}",
                f"converged = {found.converged.tolist()}",
            )


@tried_on(lambda known: (*usual(known), *hard(known)))
def check_simplex(b: Bench, t: Trial) -> None:
    """The y of ``run`` is a point of Δ and exactly 0 where masked, converged or not."""
    for max_iter in (1, MAX_ITER):
        y, _ = b.run(t.known.problem(t.z, t.mask), max_iter=max_iter)
        total = y.sum(-1)
        wrong = None
        if not bool(torch.isfinite(y).all()):
            wrong = "an entry that is not finite"
        elif bool((y < 0).any()):
            wrong = f"a negative entry, {float(y.min())!r}"
        elif worst(total - 1) > 1e-12:
            wrong = f"rows that sum to {total.tolist()}"
        elif bool((y[~t.on] != 0).any()):
            wrong = "a masked entry that is not 0"
        if wrong is not None:
            raise Broken(
                "a point of the simplex: y ≥ 0, Σy = 1, exactly 0 where masked",
                f"{wrong}, with max_iter = {max_iter}: {show(y)}",
            )


@tried_on(lambda known: (Trial(known, torch.cat([0.3 * normal(1, 5, seed=1), normal(2, 5)])),))
def check_float32(b: Bench, t: Trial) -> None:
    """In float32 the error is within 2e-3, and the certificate is valid."""
    single = Trial(t.known, t.z.float(), t.mask)
    b.run(t.known.problem(single.z, t.mask), 1e-3)  # refused unless y is float32
    found = b.solve(single, torch.float32)
    error, own = errors(single, found.y)
    if found.y.dtype != torch.float32 or bool((error > 2e-3).any()):
        raise Broken(
            f"y in torch.float32 within 2e-3 of {t.answer.tolist()}",
            f"{found.y.tolist()}, {found.y.dtype}",
        )
    if bool((error > found.error_bound + own + 4e-7).any()):
        raise Broken(
            f"‖y − y*‖ ≤ error_bound = {found.error_bound.tolist()}",
            f"‖y − y*‖ = {error.tolist()}, in float32",
        )


# -- independent rows ------------------------------------------------------------------------------


@tried_on(few)
def check_rows_independent(b: Bench, t: Trial) -> None:
    """A row's y and iterations do not depend on the other rows or on their order."""
    y, iterations = b.run(t.known.problem(t.z, t.mask))
    turned = Trial(t.known, t.z.flip(0), None if t.mask is None else t.mask.flip(0))
    batches = [(turned, list(range(len(y)))[::-1], "in reversed order")]
    batches += [(t.rows([i]), [i], "alone") for i in range(len(y))]
    for other, at, what in batches:
        there, steps = b.run(t.known.problem(other.z, other.mask))
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
    problem = t.known.problem(t.z, t.mask)
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
    mask = torch.ones_like(t.z, dtype=torch.bool) if t.mask is None else t.mask.clone()
    mask[:, -1] = mask[:, -1] & (mask.sum(-1) == 1)
    z = t.z.clone()
    y, _ = b.run(t.known.problem(z, mask))
    if not torch.equal(z, t.z):
        raise Broken("the scores as before", f"{show(z)}")
    if y.requires_grad:
        raise Broken("a y without a graph", "y.requires_grad is True")
    if y.untyped_storage().data_ptr() == z.untyped_storage().data_ptr():
        raise Broken("a y in memory of its own", "y shares that of the scores")
    before = copy.deepcopy(mask)
    b.run(t.known.problem(z, mask))
    if not torch.equal(mask, before):
        raise Broken("the mask as before", f"{show(mask)}")


# -- max_iter --------------------------------------------------------------------------------------


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
    problem = t.known.problem(t.z, t.mask)
    y, iterations = b.run(problem)
    if iterations.dtype != torch.int64 or bool((iterations < 0).any()):
        raise Broken(
            "int64 numbers, 0 or more", f"{iterations.tolist()}, {iterations.dtype}", b.where("run")
        )
    done = certify(problem.at(y)).error_bound <= TOL
    for i in range(len(y)):
        if not bool(done[i]):
            continue
        alone = t.rows([i])
        inner = t.known.problem(alone.z, alone.mask)
        enough = max(int(iterations[i]), 1)
        there, steps = b.run(inner, max_iter=enough)
        bound = certify(inner.at(there)).error_bound
        if not bool((bound <= TOL).all()) or int(steps) > enough:
            raise Broken(
                f"row {i} done after its {enough} iterations, as it was with more allowed",
                f"with max_iter = {enough}: error_bound = {bound.tolist()}",
                f"{b.where('run')}, where it counts iterations",
            )


@tried_on(lambda known: (Trial(known, torch.cat([normal(3, 8, seed=11), 0.02 * normal(2, 8)])),))
def check_failure_is_flagged(b: Bench, t: Trial) -> None:
    """``converged`` is False for a row that did not reach ``tol``; its y is still a point of Δ."""
    found = b.solve(t, max_iter=1, tol=1e-15)
    wrong = off_simplex(found.y)
    if wrong is not None:
        raise Broken("a point of the simplex", f"{wrong}: {show(found.y)}")
    error, own = errors(t, found.y)
    if bool((found.converged & (error > own)).any()):
        raise Broken(
            f"not converged, with tol = 1e-15, where ‖y − y*‖ = {error.tolist()}",
            f"converged = {found.converged.tolist()}",
        )


# -- unsuitable problems, hard inputs, gradients, the name -----------------------------------------


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
    """Each row of HARD_INPUTS gives a point of Δ and a valid bound, NaN if spoilt, 0 if empty. The
    inputs include batches without rows, of one or three dimensions, and finfo.min. The first
    problem gets each input by itself, the others all rows of a length in one batch."""
    for k, known in enumerate(b.suited):
        for name, x, mask in _rows_of_a_length() if k else _each_input():
            if x.shape[-1] > known.largest:
                continue
            layer = RegularizedMax(known.omega, solver=b.solver, on_failure="ignore", max_iter=100)
            with torch.no_grad():
                found = layer.solve(x, mask)
            wrong = _wrong_row(known, x, mask, found.y, found.error_bound)
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
        rows.setdefault(d, []).append((x.reshape(-1, d), on.reshape(-1, d)))
    for d, parts in rows.items():
        x, on = (torch.cat(part) for part in zip(*parts, strict=True))
        yield f"all of {d} entries", x, on


def _wrong_row(
    known: Known, x: Tensor, mask: Tensor | None, y: Tensor, bound: Tensor
) -> str | None:
    d = x.shape[-1]
    if y.shape != x.shape:
        return f"the shape {tuple(y.shape)}"
    on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
    x, y, on = x.reshape(-1, d), y.reshape(-1, d), on.reshape(-1, d)
    spoilt = (on & ~(x < torch.inf)).any(-1)
    on = on & (x > -torch.inf)
    empty = ~on.any(-1) & ~spoilt
    if not bool(y[spoilt].isnan().all()) or bool((y[empty] != 0).any()):
        return "a row that should be NaN, or zeros"
    good = ~spoilt & ~empty
    if bool((y[good][~on[good]] != 0).any()):
        return "a masked entry that is not 0"
    off = off_simplex(y[good])
    if off is not None or known.answer is None or d > known.largest or not bool(good.any()):
        return off
    x, y, on = x[good], y[good], on[good]
    low = -(torch.finfo(x.dtype).max ** 0.5)
    z = torch.where(on, x - torch.where(on, x, -torch.inf).amax(-1, keepdim=True), 0)
    trial = Trial(known, z.clamp_min(max(low, -1e12)), on)
    error, own = errors(trial, y)
    over = error > bound.reshape(-1)[good] + own
    if bool(over.any()):
        return f"errors {error[over].tolist()} above error_bound {bound.reshape(-1)[good][over]}"
    return None


@once
def check_backward(b: Bench) -> None:
    """A layer with this solver has the gradient of Π_Ω."""
    for known in b.suited:
        if known.answer is None or not known.curved:
            continue
        x, v = normal(2, 4, seed=12), normal(2, 4, seed=13)
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(RegularizedMax(known.omega, solver=b.solver)(leaf), leaf, v)
        on, h = torch.ones_like(x, dtype=torch.bool), 1e-4
        columns = []
        for move in torch.eye(4, dtype=x.dtype, device="cpu") * h:
            up, down = known.answer(x + move, on), known.answer(x - move, on)
            if not torch.equal(up > 0, down > 0):
                break
            columns.append((v * (up - down)).sum(-1) / (2 * h))
        if len(columns) < 4:
            continue
        expected = torch.stack(columns, -1)
        if worst(found - expected) > 1e-4 * (1 + worst(expected)):
            raise Broken(
                f"the gradient of ⟨v, Π_Ω(x)⟩ by differences: {expected.tolist()}",
                f"{found.tolist()}, omega = {known}",
                x=x,
                v=v,
            )


@once
def check_name(b: Bench) -> None:
    """``name`` is what users type: RegularizedMax(omega, solver="name")."""
    name = b.solver.name
    if not isinstance(name, str) or not name.strip() or name == "auto":
        raise Broken('a name, not empty and not "auto"', f"{name!r}", f"{b.name}.name")
