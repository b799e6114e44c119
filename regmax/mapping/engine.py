"""Π_Ω(x) with its gradients, and max_Ω(x)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..kernels import simplex, transforms
from ..kernels.base import Hyper
from ..kernels.wrappers import dense, is_dtensor
from ..optimality.certificates import Certificate, certify
from ..optimality.jacobian import tied_products
from ..optimality.problem import Problem
from ..regularizers import arguments
from ..regularizers.arguments import first
from ..regularizers.errors import RegularizerError
from ..regularizers.penalty import Penalized, who
from ..regularizers.regularizer import Regularizer, like
from ..solvers.kinks import Tied, multiplied
from . import compiled, composition, computed, function, generated, jagged, kinks, own, sharded
from .autograd import attach_tied, envelope, newton_steps, objective
from .computed import Computed
from .forward import (
    Forward,
    Settings,
    check_composed,
    closed_form,
    compute,
    memory_of,
    report,
    solves,
)
from .hidden import refuse_hidden
from .jagged import is_jagged
from .method import Method
from .rows import HALF, Rows, prepare

F64 = torch.float64


def mapping(
    omega: Regularizer, x: Any, gamma: float | Tensor, dim: int, mask: Any, settings: Settings
) -> Tensor:
    """Π_Ω(x), with gradients, from the user's arguments."""
    if isinstance(x, Tensor) and x.dtype in HALF and transforms.widens_softmax(x.device.type):
        x = x.float()
    if settings.certify and not (is_dtensor(x) or is_jagged(x)):  # whose parts are certified
        return _certified(omega, x, gamma, dim, mask, settings)
    if settings.solver == "auto":
        try:
            y = None
            if mask is None and dim == -1 and type(gamma) is float:
                if own.by_value(type(omega)):  # type: ignore[arg-type]
                    y = own.argmax(omega, x, gamma, settings)
                else:
                    y = _by_method(compiled.method_of(omega, x, gamma), x)
            if y is None:
                y = compiled.argmax(omega, x, gamma, dim, mask)
        except RuntimeError:  # from a tensor without strides or memory, which is named
            dense("x", x)
            for name, t in {"mask": mask, "gamma": gamma, **omega.tensors(fixed=True)}.items():
                dense(name, t, x)
            raise
        if y is not None:
            return y
    part = functools.partial(mapping, settings=settings)
    if is_dtensor(x):
        return sharded.mapping(part, omega, x, gamma, dim, mask, settings)
    if is_jagged(x):
        return jagged.mapping(part, omega, x, gamma, dim, mask)
    rows = prepare(omega, x, gamma, dim, mask, wide=solves(omega, settings))
    return rows.restore(argmax(rows, settings)[0])


def by_name(
    cls: type[Regularizer],
    hyper: dict[str, Any],
    make: Callable[..., Regularizer],
    x: Any,
    gamma: float | Tensor,
    dim: int,
    mask: Any,
    settings: Settings,
) -> Tensor:
    """:func:`mapping` of the Ω that ``make(cls, hyper)`` gives, which is not made where a call
    like this one found the kernel."""
    if mask is None and dim == -1 and type(gamma) is float and isinstance(x, Tensor) and x.is_cpu:
        try:
            found = compiled.method_by_name(cls, hyper, x, gamma, lambda: make(cls, hyper))
            y = _by_method(found, x)
        except RuntimeError:  # which mapping explains
            y = None
        if y is not None:
            return y
    return mapping(make(cls, hyper), x, gamma, dim, mask, settings)


def _by_method(found: tuple[Method, Hyper] | None, x: Tensor) -> Tensor | None:
    """Π_Ω(x) by the method that a call like this one found, or None where it must be looked for."""
    if found is None:
        return None
    method, theta = found
    if method.direct is None:
        y: Tensor | None = method.kernel.operator(x, *method.filled(theta))
        if y is not None:
            return y
    return function.argmax(method, x, None, theta)


def _certified(
    omega: Regularizer, x: Any, gamma: float | Tensor, dim: int, mask: Any, settings: Settings
) -> Tensor:
    """Π_Ω(x) by :func:`mapping`; the answer and its product with J are certified."""
    y = mapping(omega, x, gamma, dim, mask, replace(settings, certify=False))
    if transforms.compiling() or transforms.transforming() or not omega.exact:
        return y
    with torch.no_grad():
        wide = prepare(omega, x, gamma, dim, mask, wide=True)
        problem = Problem(wide.omega, wide.z, wide.mask)
        found = wide.read(y.detach())
        certificate, tied = _certificate(problem, found, settings.tolerance(y.dtype))
        path = f"the mapping of {who(wide.omega)}"
        check_exact(wide, found, Forward(found, path, ""))
        check_zeros(certificate, found, path)
        report(problem, found, certificate, settings.tolerance(y.dtype), settings, path)
    if y.requires_grad and isinstance(x, Tensor) and x.requires_grad:
        _check_product(wide, problem, found, certificate, x, y, path, settings, tied)
    return y


def _certificate(problem: Problem, y: Tensor, tol: float) -> tuple[Certificate, Tied | None]:
    """The certificate of y, on kinks of Ω by an answer there."""
    found = certify(problem.at(y), tested=True)
    tied = (
        None
        if bool((found.error_bound <= tol).all())
        else multiplied(problem, tol, memory_of(problem.omega))
    )
    if tied is None:
        return found, None
    bound = tied.certificate.error_bound + (tied.y - y).norm(dim=-1)
    if not bool((bound <= torch.maximum(found.error_bound, bound.new_tensor(tol))).all()):
        return found, None
    return replace(tied.certificate, error_bound=bound), tied


def _check_product(
    wide: Rows,
    problem: Problem,
    found: Tensor,
    certificate: Certificate,
    x: Tensor,
    y: Tensor,
    path: str,
    settings: Settings,
    tied: Tied | None,
) -> None:
    """Compare J v by backward with J v from Ω's value, where the certificate decides the
    support."""
    v = simplex.generic(found, 0.7) * found.shape[-1]
    back = v.movedim(-1, wide.dim).to(y.dtype)
    (got,) = torch.autograd.grad(y, x, back, retain_graph=True)
    support = certificate.support
    with torch.no_grad():
        expected = problem.at(found).vector_product(support, v) / wide.gamma
        if tied is not None:
            along = tied_products(*tied.bent, found, v)[0] / wide.gamma
            expected = torch.where(tied.bound.unsqueeze(-1), along, expected)
        off = (wide.read(got) - expected).abs().amax(-1)
        size = 1 + expected.abs().amax(-1)
        decided = (support == (found > 0)).all(-1)
        for none in (wide.empty, wide.spoilt):  # rows without an answer have no gradient
            decided = decided if none is None else decided & ~none.squeeze(-1)
        wrong = decided & ~(off <= (1e-5 if y.dtype == F64 else 2e-2) * size)
    if bool(wrong.any()):
        at = first(wrong)
        raise RegularizerError(
            f"{path}: the vector–Jacobian product of backward is off by {off[at].item():.3g} at "
            f"row {at}; a wrong curvature, or a wrong kernel"
        )


def argmax(rows: Rows, settings: Settings) -> tuple[Tensor, Forward]:
    """Π_Ω(x) of prepared rows, with gradients, and the method taken."""
    try:
        made = generated.argmax(rows, settings) or composition.of_generated(rows, settings)
        if made is not None:
            return made
        y, result = _argmax(rows, settings)
        refuse_hidden(rows.omega, y, rows.mask)
        return y, result
    except RuntimeError as error:
        omega = rows.omega
        parts: list[Any] = [*omega.leaves()]
        if isinstance(omega, Penalized):
            parts = [*omega.base.leaves(), omega.penalty]
        arguments.refuse_length(parts, rows.x, rows.dim, error)
        raise


def _argmax(rows: Rows, settings: Settings) -> tuple[Tensor, Forward]:
    omega = rows.omega
    given = (rows.x, rows.gamma, *omega.tensors(fixed=True).values())
    transformed = transforms.under_transform(given)
    transformed = transformed or (transforms.dual_level() and omega.exact)
    with transforms.full_precision(rows.x.device.type):
        if not omega.exact:
            if transformed:
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
            return y, Forward(y, "closed form", "an approximation, differentiated as it is written")
        if transformed and settings.solver == "auto":
            known = compiled.under_transform(omega, rows.x, rows.gamma, rows.mask)
            if known is None:
                known = generated.under_transform(rows, settings)
            if known is not None:
                return known, Forward(known, "kernel", "under a transform or a tracer")
        if transformed:
            y = computed.found(rows, settings)
            result = Forward(y, "operator", "under a transform or a tracer")
            if not _differentiated(given):
                return y, result
            return newton_steps(y, rows.z_from(y), omega, rows.mask), result
        if settings.solver == "auto" and torch.is_grad_enabled():
            composed = composition.argmax(rows)
            if composed is not None:
                assert isinstance(omega, Penalized)
                check_composed(omega, rows.x, rows.gamma, rows.mask, composed.detach(), settings)
                return composed, Forward(composed, "prox, then closed form", "kernels of both")
        with torch.no_grad():
            result = compute(rows, settings, kinks=True)
        y, unknown = result.y, None
        if torch.is_grad_enabled() and any(
            isinstance(t, Tensor) and t.requires_grad for t in given
        ):
            own = Computed(rows, settings, result)
            y = function.argmax(own, rows.x, rows.mask, computed.tensors_of(rows))
        if y.requires_grad and result.solved is None:
            result = kinks.of_formula(rows, result, settings)
        elif y.requires_grad:
            result, unknown = kinks.of_penalty(rows, result, settings)
        if result.tied is not None:
            tied, where = result.tied
            z = rows.z_from(result.y).double()
            at_kinks = attach_tied(result.y.double(), z, tied.augmented, tied.bent)
            y = torch.where(where.unsqueeze(-1), at_kinks.to(y.dtype), y)
        return kinks.without(y, omega, unknown), result


def _differentiated(given: tuple[Any, ...]) -> bool:
    """Whether a result under a transform needs derivatives: in an exported program those of inputs
    that require them."""
    if not (transforms.compiling() and torch.compiler.is_exporting()):
        return True
    learns = any(isinstance(t, Tensor) and t.requires_grad for t in given)
    return learns and torch.is_grad_enabled()


def smooth_max(rows: Rows, y: Tensor, result: Forward, gap: float | Tensor | None = None) -> Tensor:
    """max_Ω(x) = ⟨y, x⟩ − γΩ(y) at y = Π_Ω(x), (*batch); its gradient in x is y.

    ``gap``: a bound on how far ⟨y, x⟩ − γΩ(y) is below the maximum; ``conjugate`` is checked
    against it.
    """
    omega, gamma = rows.omega, rows.gamma
    with transforms.full_precision(rows.x.device.type):
        value = objective(omega, rows.x, gamma, y, rows.mask)
        with torch.no_grad():
            best = None
            if omega.declares("conjugate"):
                best = omega.conjugate(rows.x, gamma, rows.mask)
            if best is not None:
                like(best, value, f"{who(omega)}.conjugate")
            if best is not None and gap is not None:
                _check_conjugate(omega, best, value, rows, gap)
            if best is None:  # at the exact zeros of y, where Ω is finite there
                best = objective(omega, rows.x, gamma, y, rows.mask, at=y)
            best = torch.where(torch.isfinite(best), best, value)
        if transforms.under_transform((rows.x, y)) or transforms.dual_level():
            value = value + (best - value).detach()
        else:
            # on a kink the derivatives of Ω are those of its Lagrangian
            own = omega if result.tied is None else result.tied[0].augmented.lagrangian()
            value = envelope(best, rows.x, rows.gamma, own, y, rows.mask)
    return rows.restore_rows(value + rows.shift.squeeze(-1))


def _check_conjugate(
    omega: Regularizer, best: Tensor, value: Tensor, rows: Rows, gap: float | Tensor
) -> None:
    """Refuse a max_Ω that is not ⟨y, x⟩ − γΩ(y)."""
    name = f"{who(omega)}.conjugate"
    if transforms.may_look(best):
        tol = 1e-6 if value.dtype == F64 else 1e-3
        size = 1 + value.abs() + rows.x.abs().amax(-1)
        wrong = torch.isfinite(value) & ~((best - value).abs() <= tol * size + gap)
        if bool(wrong.any()):
            at = first(wrong)
            raise RegularizerError(
                f"{name} is {best[at].item():.6g} at row {at}, where ⟨y, x⟩ − γΩ(y) is "
                f"{value[at].item():.6g}, both less the largest score"
            )


def check_exact(rows: Rows, y: Tensor, result: Forward) -> None:
    """Refuse an answer that is off the simplex: below 0, or not 0 where masked."""
    wrong = y < 0
    if rows.mask is not None:
        wrong = wrong | (~rows.mask & (y != 0))
    if bool(wrong.any()):
        at = first(wrong)
        raise RegularizerError(
            f"{who(rows.omega)}, {result.path}: y must be >= 0, and 0 where masked; got "
            f"{y[at].item():.3g} at {at}"
        )


def check_zeros(certificate: Certificate, y: Tensor, path: str) -> None:
    """Refuse an answer with small positive entries where y is 0: its gradients would be those of
    another support."""
    if bool(certificate.stray.any()):
        at = first(certificate.stray)
        raise RegularizerError(f"{path} gives {y[at].item():.3g} at {at}, where y is 0")
