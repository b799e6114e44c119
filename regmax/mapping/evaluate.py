"""Π_Ω(x) with its gradients, and max_Ω(x)."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain, Projected
from ..kernels import simplex, transforms
from ..kernels.wrappers import dense, is_dtensor
from ..optimality.certificates import Certificate, certify
from ..optimality.jacobian import tied_products
from ..optimality.problem import Problem
from ..optimality.projected import followed
from ..regularizers import arguments, serialize
from ..regularizers.arguments import first
from ..regularizers.errors import RegularizerError
from ..regularizers.identity import refuse_hidden
from ..regularizers.penalty import Penalized, Penalty, averaged, structured, who
from ..regularizers.regularizer import Regularizer
from ..solvers.kinks import Tied, multiplied
from . import function, jagged, kinks, sharded
from .function import newton_steps, relative
from .jagged import is_jagged
from .maximum import smooth_max
from .methods import choose
from .methods.base import Missed
from .methods.closed_form import Computed, closed_form, solves
from .methods.on_domain import computed
from .methods.solver import Forward, Settings, report
from .operator import not_recordable
from .rows import HALF, Rows, prepare

F64 = torch.float64


def mapping(
    omega: Regularizer,
    x: Any,
    gamma: float | Tensor,
    dim: int,
    mask: Any,
    settings: Settings,
    domain: Domain | None = None,
) -> Tensor:
    """Π_Ω(x), with gradients, from the user's arguments; ``domain``: None for the simplex."""
    if isinstance(x, Tensor) and x.dtype in HALF and transforms.widens_softmax(x.device.type):
        x = x.float()
    if settings.certify and not (is_dtensor(x) or is_jagged(x)):  # whose parts are certified
        return _certified(omega, x, gamma, dim, mask, settings, domain)
    if settings.solver == "auto":
        try:
            y = None
            if mask is None and dim == -1 and type(gamma) is float:
                y = _known(omega, x, gamma, settings, domain)
            if y is None:
                y = _of_scores(omega, x, gamma, dim, mask, domain)
        except RuntimeError:  # from a tensor without strides or memory, which is named
            dense("x", x)
            for name, t in {"mask": mask, "gamma": gamma, **omega.tensors(fixed=True)}.items():
                dense(name, t, x)
            raise
        if y is not None:
            return y
    part = functools.partial(mapping, settings=settings)
    if domain is not None and (is_dtensor(x) or is_jagged(x)):
        raise NotImplementedError(f"domain= takes plain tensors; got {type(x).__name__}")
    if is_dtensor(x):
        return sharded.mapping(part, omega, x, gamma, dim, mask, settings)
    if is_jagged(x):
        return jagged.mapping(part, omega, x, gamma, dim, mask)
    rows = prepare(omega, x, gamma, dim, mask, solves(omega, settings), domain)
    return rows.restore(argmax(rows, settings)[0])


def maximum(
    omega: Regularizer,
    x: Any,
    gamma: float | Tensor,
    dim: int,
    mask: Any,
    settings: Settings,
    domain: Domain | None = None,
) -> Tensor:
    """max_Ω(x), with gradients; the arguments of :func:`mapping`."""
    if domain is None and is_dtensor(x) and not transforms.transforming():
        local = functools.partial(maximum, settings=settings)
        return sharded.maximum(local, omega, x, gamma, dim, mask, settings)
    rows = prepare(omega, x, gamma, dim, mask, solves(omega, settings), domain)
    return smooth_max(rows.literal, *argmax(rows, settings)).to(x.dtype)


def _known(
    omega: Regularizer, x: Any, gamma: float, settings: Settings, domain: Domain | None
) -> Tensor | None:
    """Π_Ω(x) by the method that a call like this one found, or None where it must be looked for."""
    try:
        found = choose.known(omega, x, gamma, settings, domain)
        if found is None:
            return None
        method, theta = found
        direct: Any = method.direct
        if direct is None:
            y: Tensor | None = method.kernel.operator(x, *method.filled(theta))
            if y is not None:
                return y
        if method.kernel is not None or x.dtype in direct.dtypes:
            return function.argmax(method, x, None, theta)
        return function.argmax(method, x.to(direct.dtypes[0]), None, theta).to(x.dtype)
    except Missed:
        return None


def _of_scores(
    omega: Regularizer,
    x: Any,
    gamma: float | Tensor,
    dim: int,
    mask: Any,
    domain: Domain | None,
) -> Tensor | None:
    """Π_Ω(x) by a kernel that takes scores as the user gives them, or None."""
    found = choose.of_scores(omega, x, gamma, dim, mask, domain)
    if found is None:
        return None
    method, tensors, rows, on, transformed = found
    try:
        y = function.argmax(method, rows, on, tensors, transformed)
    except Missed:  # a row without a point of the domain, which is named
        return None
    y = y if dim in (-1, y.ndim - 1) else y.movedim(-1, dim)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _certified(
    omega: Regularizer,
    x: Any,
    gamma: float | Tensor,
    dim: int,
    mask: Any,
    settings: Settings,
    domain: Domain | None,
) -> Tensor:
    """Π_Ω(x) by :func:`mapping`; the answer and its product with J are certified, in float32 before
    they are rounded to half precision."""
    if isinstance(x, Tensor) and x.dtype in HALF:
        return _certified(omega, x.float(), gamma, dim, mask, settings, domain).to(x.dtype)
    y = mapping(omega, x, gamma, dim, mask, replace(settings, certify=False), domain)
    if transforms.compiling() or transforms.transforming() or not omega.exact:
        return y
    with torch.no_grad():
        wide = prepare(omega, x, gamma, dim, mask, True, domain)
        problem = wide.problem
        found = wide.read(y.detach())
        certificate, tied = _certificate(problem, found, settings.tolerance(y.dtype))
        bound = certificate.error_bound
        if y.dtype != found.dtype and not bool((bound <= settings.tolerance(y.dtype)).all()):
            # what float32 rounds off is much where Ω is steep: the distance to an answer in float64
            given = omega, x.double(), gamma, dim, mask, replace(settings, certify=False), domain
            near = wide.read(mapping(*given))
            away = (near - found).norm(dim=-1)
            bound = bound.minimum(certify(problem.at(near), tested=True).error_bound + away)
        if wide.unanswered is not None:
            bound = bound.masked_fill(wide.unanswered.squeeze(-1), 0)
        certificate = replace(certificate, error_bound=bound)
        path = f"the mapping of {who(wide.omega)}"
        check_exact(wide, found, Forward(found, path, ""))
        check_zeros(certificate, found, path)
        report(problem, found, certificate, settings.tolerance(y.dtype), settings, path)
    known = not isinstance(wide.bounds, Projected)  # regmax.testing.check_domain tests these
    if known and y.requires_grad and isinstance(x, Tensor) and x.requires_grad:
        _check_product(wide, problem, found, certificate, x, y, path, tied)
    return y


def _certificate(problem: Problem, y: Tensor, tol: float) -> tuple[Certificate, Tied | None]:
    """The certificate of y, on kinks of Ω by an answer there."""
    found = certify(problem.at(y), tested=True)
    tied = (
        None
        if isinstance(problem.bounds, Projected) or bool((found.error_bound <= tol).all())
        else multiplied(problem)
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
    tied: Tied | None,
) -> None:
    """Compare J v by backward with J v from Ω's value, where the certificate decides the
    support."""
    v = simplex.generic(found, 0.7) * found.shape[-1]
    back = wide.outer(v).to(y.dtype)
    (got,) = torch.autograd.grad(y, x, back, retain_graph=True)
    support = certificate.support
    with torch.no_grad():
        expected = problem.at(found).inverse(support, verified=True)(v) / wide.gamma
        if tied is not None:
            along = tied_products(*tied.bent, found, v)[0] / wide.gamma
            expected = torch.where(tied.bound.unsqueeze(-1), along, expected)
        off = (wide.read(got) - expected).abs().amax(-1)
        size, omega = 1 + expected.abs().amax(-1), problem.omega
        if structured(omega):  # both products have its averages: these are means over groups
            given = v, found, problem.mask
            away = averaged(omega.penalty, *given) - Penalty.average(omega.penalty, *given)
            away = torch.where(found > 0, away.abs(), 0).amax(-1)
            off = torch.where(away <= 1e-9 * size, off, torch.maximum(off, size))
        decided = (support == problem.support(found)).all(-1)
        if wide.unanswered is not None:
            decided = decided & ~wide.unanswered.squeeze(-1)
        wrong = decided & ~(off <= (1e-5 if y.dtype == F64 else 2e-2) * size)
    if bool(wrong.any()):
        at = first(wrong)
        raise RegularizerError(
            f"{path}: the vector–Jacobian product of backward is off by {off[at].item():.3g} at "
            f"row {at}; a wrong curvature, a wrong average, or a wrong kernel"
        )


def argmax(rows: Rows, settings: Settings) -> tuple[Tensor, Forward]:
    """Π_Ω(x) of prepared rows, with gradients, and the method taken."""
    try:
        with transforms.full_precision(rows.x.device.type):
            return _argmax(rows, settings)
    except (RuntimeError, RegularizerError) as error:
        omega = rows.omega
        parts: list[Any] = [*omega.leaves()]
        if isinstance(omega, Penalized):
            parts = [*omega.base.leaves(), omega.penalty]
        arguments.refuse_columns(parts, rows.x, error)
        if isinstance(error, RuntimeError):
            arguments.refuse_length(parts, rows.x, rows.dim, error)
        raise


def _argmax(rows: Rows, settings: Settings, value: bool = True) -> tuple[Tensor, Forward]:
    omega = rows.omega
    given = (rows.x, rows.gamma, *omega.tensors(fixed=True).values())
    if rows.bounds is not None:
        given = (*given, *rows.bounds.tensors.values())
        if not omega.exact:
            raise NotImplementedError(f"domain= needs an exact Ω; {omega} approximates")
        rows = replace(rows, x=rows.z, gamma=1.0)
    if isinstance(rows.bounds, Projected):
        return _by_projection(rows, settings, given)
    transformed = transforms.under_transform(given)
    transformed = transformed or (transforms.dual_level() and omega.exact)
    if not omega.exact:
        return _approximate(rows, transformed)
    if transformed:
        return _transformed(rows, settings, given)
    method, tensors = choose.of_rows(rows, settings, value)
    answer = method.answer if isinstance(method, Computed) else None
    try:
        y = function.argmax(method, rows.x, rows.mask, tensors)
    except Missed:
        return _argmax(rows, settings, value=False)
    if answer is None:
        answer = choose.result_of(method, y)
    else:
        y = kinks.without(y, omega, answer.unknown)
    refuse_hidden(omega, y, rows.mask)
    return y, answer


def _by_projection(
    rows: Rows, settings: Settings, given: tuple[Any, ...]
) -> tuple[Tensor, Forward]:
    """The same on a domain of the user's own, whose derivatives are those of its projection."""
    assert isinstance(rows.bounds, Projected)
    if transforms.under_transform(given) or transforms.dual_level():
        raise NotImplementedError(
            f"domain={rows.bounds.of} is not for torch.func, forward mode, torch.vmap and "
            "torch.export: it is solved with numbers, and differentiated by backward"
        )
    result = computed(replace(rows, x=rows.x.detach()), settings)
    y = result.y
    if torch.is_grad_enabled() and y.numel():
        y = followed(rows.problem, y)
    refuse_hidden(rows.omega, y, rows.mask)
    return y, result


def _approximate(rows: Rows, transformed: bool) -> tuple[Tensor, Forward]:
    omega = rows.omega
    if transformed:
        raise NotImplementedError(
            f"{omega} approximates, and is differentiated as it is written: by autograd in "
            "reverse mode only, without torch.func, forward mode, compile or export"
        )
    # it may depend on where the scores' 0 is
    y = closed_form(omega, rows.x + rows.shift, rows.gamma, rows.mask)
    if y is None:
        raise RegularizerError(f"{type(omega).__name__} is not exact and has no closed form")
    refuse_hidden(omega, y, rows.mask)
    return y, Forward(y, "closed form", "an approximation, differentiated as it is written")


def _transformed(rows: Rows, settings: Settings, given: tuple[Any, ...]) -> tuple[Tensor, Forward]:
    """The same under a transform or a tracer."""
    why = "under a transform or a tracer"
    try:
        method, tensors = choose.transformed(rows, settings)
        y = function.argmax(method, rows.x, rows.mask, tensors, True)
        return y, Forward(y, "kernel", why)
    except Missed:
        pass
    y = _found(rows, settings)
    result = Forward(y, "operator", why)
    assert not isinstance(rows.bounds, Projected)
    if _differentiated(given):
        # the gradient of a tensor γ multiplies what rounding leaves of ⟨Jv, 1⟩ by the scores
        z = relative(rows.x, y) / rows.gamma if isinstance(rows.gamma, Tensor) else rows.z
        y = newton_steps(y, z, rows.omega, rows.mask, rows.bounds)
    refuse_hidden(rows.omega, y, rows.mask)
    return y, result


PLANS = (
    "domain=Transport() is not for torch.vmap and torch.export: plans are two dimensions of a "
    "tensor of any shape"
)


def _found(rows: Rows, settings: Settings) -> Tensor:
    """Π_Ω(x) without gradients, under any transform or tracer."""
    x, tensors = rows.x.detach(), [t.detach() for t in choose.tensors_of(rows)]
    reason = None
    if rows.across is not None and transforms.tracing():
        raise NotImplementedError(PLANS)
    if transforms.tracing() or x.is_meta:
        reason = not_recordable(rows.omega, settings, rows.bounds is not None)
        if reason is not None and transforms.compiling():
            raise NotImplementedError(reason)
        if x.is_meta and not (reason is None and serialize.has_text(rows.omega)):
            return torch.empty_like(x)
    try:
        return function.argmax(choose.unsolved(rows, settings), x, rows.mask, tensors, True)
    except RuntimeError as error:
        if rows.across is not None:
            raise NotImplementedError(PLANS) from error
        if "escaped from inside a function being vmapped" in str(error):
            raise NotImplementedError(
                f"{rows.omega} depends on a tensor that vmap maps over and that is not one of "
                "its attributes (a closure, or a tensor in a container or an object). Store the "
                "tensor as an attribute of the Regularizer (self.w = w), an nn.Parameter or a "
                "buffer, or in a nested module"
            ) from error
        if reason is not None:
            raise NotImplementedError(reason) from error
        raise


def _differentiated(given: tuple[Any, ...]) -> bool:
    """Whether a result under a transform needs derivatives: in an exported program those of inputs
    that require them."""
    if not (transforms.compiling() and torch.compiler.is_exporting()):
        return True
    learns = any(isinstance(t, Tensor) and t.requires_grad for t in given)
    return learns and torch.is_grad_enabled()


def check_exact(rows: Rows, y: Tensor, result: Forward) -> None:
    """Refuse an answer that is off the simplex: below 0, or not 0 where masked."""
    wrong = rows.domain.off(y) > 0
    if bool(wrong.any()):
        at = first(wrong)
        bounds = ">= 0" if rows.bounds is None else "within its bounds"
        raise RegularizerError(
            f"{who(rows.omega)}, {result.path}: y must be {bounds}, and 0 where masked; "
            f"got {y[at].item():.3g} at {at}"
        )


def check_zeros(certificate: Certificate, y: Tensor, path: str) -> None:
    """Refuse an answer with small positive entries where y is 0: its gradients would be those of
    another support."""
    if bool(certificate.stray.any()):
        at = first(certificate.stray)
        raise RegularizerError(f"{path} gives {y[at].item():.3g} at {at}, where y is 0")
