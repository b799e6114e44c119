"""Π_Ω by a kernel that is made of the value of Ω (:mod:`regmax.kernels.from_value`).

A kernel belongs to all Ω of the same :func:`~regmax.regularizers.identity.state`. When it is made,
the solver computes some rows with all of its checks of Ω, and the kernel must agree with it and
with the derivatives of the value. At every call the kernel certifies each row, and the solver
computes what was not certified. The value of Ω is compared with the traced one in some rows, unless
it is :func:`~regmax.regularizers.identity.determined`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...kernels import Kernel, asked, reference, simplex, transforms
from ...kernels.base import Hyper
from ...optimality.problem import Problem
from ...regularizers import curvature
from ...regularizers.arguments import DTYPES
from ...regularizers.errors import RegularizerError
from ...regularizers.identity import determined, state
from ...regularizers.penalty import Penalized
from ...regularizers.recorded import Recorded
from ...regularizers.regularizer import Regularizer
from ..rows import Rows, aligned, prepare
from .base import METHODS, Method, Missed, method, remember
from .solver import Forward, Settings, by_solver, few_rows, sampled
from .traced import (
    COMPILERS,
    POINTS,
    FixedKernel,
    Traced,
    TracedValue,
    by_place,
    changed,
    compared,
    hyper,
    kernel_class,
    off,
    other,
    unlearnt,
)

F64 = torch.float64
QUIET = Settings(on_failure="ignore")
_TRIALS = 3
"""How often a kernel is made again where the solver could not tell."""
_PLACES = "its value has other numbers for each row"
"""Known of an Ω whose value at a row depends on the place of the row: a kernel is of one batch."""
_OTHER = "its value is not a function of y and the attributes of Ω alone"


def method_of(
    omega: Regularizer, x: Any, gamma: float, settings: Settings, make: bool = False
) -> Method | None:
    """What an earlier call made for plain rows like x (``make``: or is made now). It raises
    :class:`Missed` where a row is not certified."""
    dense = type(x) in transforms.PLAIN and x.is_cpu and x.layout == torch.strided
    if not (dense and omega.exact and asked() and transforms.plain()):
        return None
    if settings.solver != "auto" or settings.trace is not None or settings.start is not None:
        return None
    if omega._modules or torch.is_autocast_enabled("cpu") or x.ndim == 0 or not x.numel():
        return None
    if omega.entries not in (None, x.shape[-1]) or x.dtype not in DTYPES or not gamma > 0:
        return None
    tensors: list[Tensor] = []
    own = state(omega, [], tensors)
    if omega.hyperparameters or any(t.dtype == torch.float32 for t in tensors):
        omega = aligned(omega, x.new_empty(1, dtype=F64).expand(x.shape), x.ndim - 1)
        tensors.clear()
        own = state(omega, [], tensors)
    key = own, None, x.shape[-1], x.device
    recording = torch.is_grad_enabled()
    if not all(unlearnt(t, recording) for t in tensors):
        return None
    found = METHODS.get(key)
    if make and found is None:
        with torch.no_grad():
            of_rows(prepare(omega, x, gamma, -1, None, wide=True), settings)
        found = METHODS.get(key)
    if not isinstance(found, TracedValue):
        return None
    if not all(unlearnt(t, recording) for t in found.traced.entry.outside):
        return None
    fixed, tol = found.fixed(tensors), settings.tolerance(F64)
    last = found.last[1:]
    if last[:2] == [gamma, tol] and last[2].direct.fixed is fixed:  # no other thread's
        return last[2]  # type: ignore[no-any-return]
    value = None if found.determined else omega.value
    made = Method(None, fixed.omega, (gamma,), direct=FixedKernel(fixed, gamma, tol, value))
    if found.determined:
        found.last[1:] = gamma, tol, made
    return made


def of_rows(
    rows: Rows, settings: Settings, alike: bool = False
) -> tuple[FromValue, Regularizer, list[Any]] | None:
    """The kernel for rows, made now if it must be, the Ω that it computes, and γ and θ. ``alike``:
    only one that treats all entries alike."""
    key, kept, tensors = _key(rows, settings)
    if key is None:
        return None
    if key not in METHODS and by_place(rows):
        remember(key, _PLACES)
        key, kept, tensors = _key(rows, settings)
        assert key is not None
    found = METHODS.get(key)
    if found is None or (isinstance(found, int) and found < _TRIALS):
        with transforms.unhooked():
            found = _made(rows, kept, key[1] is not None) or (found or 0) + 1
        remember(key, found)
    if not isinstance(found, TracedValue) or (alike and not found.kernel.alike):
        return None
    entry = found.traced.entry
    if torch.is_grad_enabled() and any(t.requires_grad for t in entry.outside):
        return None  # a tensor from outside is refused
    inputs, batched = found.inputs(tensors), key[1] is not None
    kernel = FromValue(found, settings, rows, key, inputs)
    if batched or any(t.requires_grad for t in inputs):
        return kernel, found.traced, [rows.gamma, *inputs]
    kernel.theta = tuple(map(hyper, inputs))
    return kernel, found.fixed(tensors).omega, [rows.gamma]


def again(omega: Regularizer, x: Tensor, gamma: Any) -> tuple[Method, Hyper] | None:
    """The method that an earlier call made of this Ω, for rows x in float64 of a graph."""
    if not isinstance(omega, Recorded):
        return None
    found = METHODS.get((state(omega, []), None, x.shape[-1], x.device))
    if not isinstance(found, TracedValue):
        return None
    tensors = omega.tensors(fixed=True).values()
    return method(FromValue(found, Settings()), found.traced, [gamma, *tensors])


def transformed(rows: Rows, settings: Settings) -> tuple[Method, Hyper] | None:
    """The method for rows under a transform of torch.func, where a kernel was made before, in plain
    PyTorch. It raises :class:`Missed` where a row is not certified."""
    if not transforms.transforming() or transforms.tracing():
        return None
    key, _, tensors = _key(rows, settings, plain=False)
    found = METHODS.get(key) if key is not None else None
    if not isinstance(found, TracedValue):
        return None
    entry = found.traced.entry
    if not found.determined:
        if found.kept or entry.outside:
            return None  # here the value cannot be compared with the traced one
        if changed(entry, rows.omega, found.point, found.others):
            return None
    return method(FromValue(found, settings), found.traced, [rows.gamma, *entry.inputs(tensors)])


def why_none(rows: Rows, settings: Settings) -> str | None:
    """Why no kernel is made of the value of Ω, where that was tried."""
    key = _key(rows, settings)[0]
    found = METHODS.get(key) if key is not None else None
    if isinstance(found, int):
        return "no kernel is made of its value: no answer of the solver on the simplex confirms one"
    return found if isinstance(found, str) else None


def _key(
    rows: Rows, settings: Settings, plain: bool = True
) -> tuple[tuple[Any, ...] | None, list[Any], list[Tensor]]:
    """What a kernel belongs to, None where none is made; the objects in it; the tensors of Ω."""
    omega, x = rows.omega, rows.x
    tensors = list(omega.tensors(fixed=True).values())
    kept: list[Any] = []
    given = settings.solver != "auto" or settings.trace is not None or settings.start is not None
    if given or isinstance(omega, Penalized) or omega.declares("closed_form"):
        return None, kept, tensors
    if x.device.type not in COMPILERS or x.dtype != F64 or not (asked() and x.numel()):
        return None, kept, tensors
    if plain and (transforms.dual_level() or transforms.under_transform((x, *tensors))):
        return None, kept, tensors
    key: tuple[Any, ...] = state(omega, kept), None, x.shape[-1], x.device
    if METHODS.get(key) is _PLACES:
        key = key[0], x.shape[:-1], *key[2:]
    return key, kept, tensors


def _made(rows: Rows, kept: list[Any], batched: bool) -> TracedValue | str | None:
    """The kernel, or why there is none; None where the solver has no answers to compare it with.
    ``batched``: it is of the rows of this batch."""
    try:
        from ...kernels.from_value import Unknown, entrywise

        made_by = kernel_class(rows.x.device)
    except ModuleNotFoundError as error:
        return f"{error.name} is missing (pip install 'regmax[fast]')"
    except RuntimeError as error:
        return f"no kernel is made of its value: {error}"
    omega, x = rows.omega, rows.x
    known = omega.entry if isinstance(omega, Recorded) else None
    names = tuple(omega.tensors(fixed=True))
    tensors = list(omega.tensors(fixed=True).values())

    def value(y: Tensor, *inside: Tensor) -> Tensor:
        return omega.with_tensors(dict(zip(names, inside, strict=True))).value(y)

    y = simplex.generic(x if batched else x.new_empty(1, x.shape[-1]))
    if batched:
        held = {name: t.detach() for name, t in zip(names, tensors, strict=True)}
        problem = Problem(omega.with_tensors(held), rows.z.detach(), rows.mask)
    else:
        problem, _ = sampled(omega, x, rows.gamma, rows.mask, x)
    try:
        with torch.no_grad():
            entry = known or entrywise(value, y, tensors)
            if entry.coupled and COMPILERS[x.device.type] == "triton":
                return "no kernel is made of its value on a GPU: it couples entries of y"
            if entry.coupled and x.shape[-1] > (most := curvature.DENSE_LIMIT):
                return f"it couples entries of y, in rows of more than {most} entries"
            others = dict(zip(names, map(other, tensors), strict=True))
            if changed(entry, omega, y, others):
                return "no kernel is made of its value: it reads the numbers of a tensor"
            inputs = entry.inputs(tensors)
            kernel = made_by(entry, inputs, x.shape[-1])
            traced: Traced = type(type(omega).__name__, (Traced,), {})(entry, inputs)
            sure = not (batched or entry.outside or omega._modules)
            sure = sure and determined(state(omega, []), kept)
            made = TracedValue(kernel, traced, kept, y, others, sure, [])
            return compared(made, inputs, rows.narrow, problem, by_reference(problem))
    except Unknown as error:
        return f"no kernel is made of its value: {error}"
    except RegularizerError:  # the solver says it of all rows
        return None
    except Exception as error:  # of the user's code, which the solver raises too
        return f"no kernel is made of its value: {type(error).__name__}: {error}"


def by_reference(problem: Problem) -> Forward:
    """The answers of the solver in PyTorch."""
    with reference():
        return by_solver(problem.omega, problem.z, problem.mask, QUIET, kinks=True)


class FromValue(Kernel):
    """The kernel of a traced value, for these rows; the solver computes what it does not certify,
    and ``result`` says how. Without ``rows``, that is :class:`Missed`."""

    name = "from the value"
    dtypes = (torch.float64,)
    raw = False
    theta: Hyper | None = None  # the inputs, where nothing learns

    def __init__(
        self,
        made: TracedValue,
        settings: Settings,
        rows: Rows | None = None,
        key: Any = None,
        inputs: list[Tensor] | None = None,
    ) -> None:
        self.made, self.settings, self.rows, self.key = made, settings, rows, key
        self.inputs, self.recording = inputs or [], torch.is_grad_enabled()
        self.dtype = F64 if rows is None else rows.narrow
        self.result: Forward | None = None

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        theta = theta if self.theta is None else self.theta
        if self.made.traced.entry.coupled and len(theta[-1]) > 1:
            raise Missed  # an H for each row
        tol, rows = self.settings.tolerance(F64), self.rows
        self.rows = None  # y keeps the kernel: it must not keep the rows
        scores = x if rows is None else rows.given(x)
        y, bound = self.made.kernel.solve(x, gamma, theta, mask, tol, scores)
        missed = ~(bound <= tol)
        if rows is None:
            if bool(missed.any()):
                raise Missed
            return y, None
        if x.data_ptr() != rows.x.data_ptr():  # scores after a prox
            rows = replace(rows, x=x.view(rows.x.shape))
        self.compare(rows, y)
        path, iterations = "kernel from the value", None
        if bool(missed.any()):
            if self.made.traced.entry.kinked:
                raise Missed  # these rows may be on kinks
            found = by_solver(rows.omega, rows.z, rows.mask, self.settings)
            assert found.solved is not None
            y = torch.where(missed.unsqueeze(-1), found.y.reshape(y.shape), y)
            path = f"{path}, then {found.path}"
            iterations = torch.where(missed.view(rows.x.shape[:-1]), found.solved.iterations, 0)
        why = f"its source is {self.made.kernel.path}"
        self.result = Forward(y.view(rows.x.shape), path, why, iterations=iterations)
        return y, None

    def backward(
        self, y: Tensor, v: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper | None]:
        theta = theta if self.theta is None else self.theta
        given: Any = y, v, gamma, theta, hyper, self.dtype
        return self.made.kernel.backward(*given)  # type: ignore[no-any-return]

    def forward_after(
        self, step: str, x: Tensor, gamma: Tensor, lam: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        theta = theta if self.theta is None else self.theta
        if self.rows is None or not self.made.kernel.alike:
            return None
        tol, rows = self.settings.tolerance(F64), self.rows
        template = self.made.kernel.of_call(theta, x, True).template
        if template is None or template.bound > tol:
            return None
        y, part, bound = template.forward_after(step, rows.given(x), gamma, lam, mask)
        if bound > tol:
            return None
        y, self.rows = y.double(), None
        self.compare(rows, y)
        why = f"its source is {self.made.kernel.path}"
        self.result = Forward(y.view(rows.x.shape), "kernel from the value", why)
        return y, part

    def backward_after(
        self, step: str, y: Tensor, v: Tensor, gamma: Tensor, lam: Tensor, theta: Hyper,
        part: Tensor | None, hyper: bool,
    ) -> tuple[Tensor, Hyper | None] | None:  # fmt: skip
        theta = theta if self.theta is None else self.theta
        kernel = self.made.kernel
        at = kernel.of_call(theta, y, False) if kernel.alike else None
        if at is None or at.template is None:
            return None
        y, v = y.to(self.dtype), v.to(self.dtype)
        dx, dlam = at.template.backward_after(step, y, v, gamma, lam, part, hyper)
        each = None if dlam is None else (dlam, *kernel.partials_along(y, dx, gamma, at))
        return dx.double(), each

    def compare(self, rows: Rows, y: Tensor) -> None:
        """Compare the value of Ω with the traced one, and remember it where they differ."""
        if self.made.determined:
            return
        try:
            with transforms.unhooked():
                self._look(rows, y)
        except Missed:
            remember(self.key, _OTHER)
            raise

    def _look(self, rows: Rows, y: Tensor) -> None:
        """Compare the value of Ω with the traced one, near the answers and in general position: at
        a vertex nothing is seen of the other entries."""
        batched, omega = self.key[1] is not None, rows.omega
        if self.recording and (learnt := omega.tensors()):
            omega = omega.with_tensors({name: t.detach() for name, t in learnt.items()})
        points: tuple[Tensor, ...]
        if not batched:
            near = simplex.inward(few_rows(y, y.shape[:-1], POINTS))
            points = (torch.cat([near, self.made.point]),)
        else:
            points = simplex.inward(y.view(rows.x.shape)), self.made.point
        if not self._agrees(omega, points, self.inputs):
            raise Missed

    def _agrees(self, omega: Regularizer, points: tuple[Tensor, ...], inputs: list[Tensor]) -> bool:
        """Whether the value is the traced one at all points."""
        for at in points:
            with torch.set_grad_enabled(self.recording):
                own = omega.value(at)
            if own.requires_grad:
                raise Missed  # by a tensor that is not an attribute
            with torch.no_grad():
                if bool(off(self.made.traced.entry, own, at, inputs).any()):
                    return False
        return True
