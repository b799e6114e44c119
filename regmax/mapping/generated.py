"""Π_Ω by a kernel that is made of the value of Ω (:mod:`regmax.kernels.generated`).

A kernel belongs to all Ω of the same class, plain attributes and shapes of tensors. When it is
made, the solver computes some rows with all of its checks of Ω, and the kernel must agree with it
and with the derivatives of the value. At every call the kernel certifies each row, the value of Ω
is compared with the traced one in some rows, and the solver computes what was not certified.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..kernels import Kernel, asked, reference, simplex, transforms
from ..kernels.base import Hyper
from ..optimality.problem import Problem
from ..regularizers import curvature
from ..regularizers.errors import RegularizerError
from ..regularizers.identity import state
from ..regularizers.penalty import Penalized
from . import levels
from .compiled import with_gradients
from .forward import Forward, Settings, by_solver, has_formula, sampled
from .function import Mapping
from .method import method
from .rows import Rows
from .traced import Plan, Traced, changed, compared, derived, few, hyper, off, other, same, terms

QUIET = Settings(on_failure="ignore")
_SPOT = 4
"""Rows in which the value of Ω is compared with the traced one at every call."""


PLANS: dict[tuple[Any, ...], Plan | str | int] = {}
"""By state of Ω: its kernel, why there is none, or how often the solver could not tell."""
_PLANS = 256
"""Plans at most: each keeps its compiled code, of some 0.1 MB."""
_TRIALS = 3
_OTHER = (
    "its value is not a function of y and the attributes of Ω alone",
    "its value reads numbers of a tensor, and is another function at other y",
)
COMPILERS = {"cpu": "numba", "cuda": "triton"}
"""What compiles the kernels of a device."""


def argmax(rows: Rows, settings: Settings, alike: bool = False) -> tuple[Tensor, Forward] | None:
    """Π_Ω(x) with gradients, or None where no kernel is made of the value of Ω. ``alike``: nor
    where the kernel does not treat all entries alike."""
    key, kept, tensors = _key(rows, settings)
    if key is None:
        return None
    found = PLANS.get(key)
    if found is None or (isinstance(found, int) and found < _TRIALS):
        trial = found or 0
        with transforms.unhooked():
            found = _made(rows, kept, trial) or trial + 1
        for oldest in list(PLANS)[: max(len(PLANS) - _PLANS + 1, 0)]:
            PLANS.pop(oldest, None)
        PLANS[key] = found
    if not isinstance(found, Plan) or (alike and not found.kernel.alike):
        return None
    entry = found.traced.entry
    learnt = [*entry.outside, *(tensors if entry.reads else ())]
    if torch.is_grad_enabled() and any(t.requires_grad for t in learnt):
        return None  # a tensor from outside is refused
    with transforms.full_precision(rows.x.device.type):
        inputs, traced, numbers = found.inputs(tensors), found.traced, [rows.gamma]
        batched = key[1] is not None
        kernel = _Checked(found, inputs, rows, settings, batched)
        if batched or any(t.requires_grad for t in inputs):
            numbers += inputs
        else:
            traced, kernel.theta = found.fixed(tensors).omega, tuple(map(hyper, inputs))
        try:
            y = with_gradients(kernel, traced, rows.x, rows.mask, numbers)
        except _Kinked:
            return None
        except _Changed:
            again = entry.reads and found.trial + 1 < _TRIALS
            PLANS[key] = found.trial + 1 if again else _OTHER[entry.reads]
            return None
        finally:
            del kernel.rows
    result, kernel.result = kernel.result, None  # y keeps the kernel: it must not keep y
    return y, result


def under_transform(rows: Rows, settings: Settings) -> Tensor | None:
    """Π_Ω(x) under a transform of torch.func, or None where no kernel was made before, in plain
    PyTorch."""
    if not transforms.transforming() or transforms.tracing():
        return None
    key, _, tensors = _key(rows, settings, plain=False)
    found = PLANS.get(key) if key is not None else None
    if not isinstance(found, Plan):
        return None
    entry = found.traced.entry
    if found.kept or entry.outside or entry.reads:
        return None  # here the value cannot be compared with the traced one
    if changed(entry, rows.omega, found.point, found.others):
        return None
    kernel = _Planned(found, settings)
    try:
        own, given = method(kernel, found.traced, [rows.gamma, *entry.inputs(tensors)])
        y: Tensor = levels.apply(Mapping, rows.x, rows.mask, own, None, *given)
    except _Changed:
        return None
    return y


def may_be(rows: Rows) -> bool:
    """Whether a kernel was made of the value of Ω, or may be."""
    key = _key(rows, QUIET)[0]
    found = PLANS.get(key) if key is not None else None
    tried = found if isinstance(found, int) else 0
    return key is not None and not isinstance(found, str) and tried < _TRIALS


def undecided(rows: Rows) -> bool:
    """Whether it is not known yet if a kernel is made of the value of Ω."""
    key = _key(rows, QUIET)[0]
    return key is not None and not isinstance(PLANS.get(key), str | Plan)


def why_none(rows: Rows, settings: Settings) -> str | None:
    """Why no kernel is made of the value of Ω, where that was tried."""
    key = _key(rows, settings)[0]
    found = PLANS.get(key) if key is not None else None
    return found if isinstance(found, str) else None


def _key(
    rows: Rows, settings: Settings, plain: bool = True
) -> tuple[tuple[Any, ...] | None, list[Any], list[Tensor]]:
    """What a kernel belongs to, None where none is made; the objects in it; the tensors of Ω."""
    omega, x = rows.omega, rows.x
    tensors = list(omega.tensors(fixed=True).values())
    kept: list[Any] = []
    if settings.solver != "auto" or settings.trace is not None or settings.start is not None:
        return None, kept, tensors
    if isinstance(omega, Penalized) or has_formula(omega) or not asked() or x.numel() == 0:
        return None, kept, tensors
    if x.device.type not in COMPILERS or x.dtype != torch.float64:
        return None, kept, tensors
    if plain and (transforms.dual_level() or transforms.under_transform((x, *tensors))):
        return None, kept, tensors
    batch = x.shape[:-1] if any(per_row(t, x) for t in tensors) else None
    return (state(omega, kept), batch, x.shape[-1], x.device), kept, tensors


def per_row(t: Tensor, x: Tensor) -> bool:
    """Whether a tensor of Ω has one number for each row of x."""
    if t.ndim < 2 or t.shape[-1] != 1 or t.numel() == 1 or t.ndim > x.ndim:
        return False
    pairs = zip(t.shape[-2::-1], x.shape[-2::-1], strict=False)
    return all(n in (1, rows) for n, rows in pairs)


def _made(rows: Rows, kept: list[Any], trial: int) -> Plan | str | None:
    """The kernel, or why there is none; None where the solver has no answers to compare it with."""
    try:
        from ..kernels.generated import Unknown, entrywise

        made_by = _kernel_class(rows.x.device)
    except ModuleNotFoundError as error:
        return f"{error.name} is missing (pip install 'regmax[fast]')"
    except RuntimeError as error:
        return f"no kernel is made of its value: {error}"
    omega, x = rows.omega, rows.x
    names = tuple(omega.tensors(fixed=True))
    tensors = list(omega.tensors(fixed=True).values())

    def value(y: Tensor, *inside: Tensor) -> Tensor:
        return omega.with_tensors(dict(zip(names, inside, strict=True))).value(y)

    batched = any(per_row(t, x) for t in tensors)
    y = simplex.generic(x if batched else x.new_empty(1, x.shape[-1]))
    problem, _ = sampled(omega, x, rows.gamma, rows.mask, x)
    try:
        with torch.no_grad():
            entry = entrywise(value, y, tensors)
            solved: Forward | None = None
            if entry.reads:
                if batched:
                    return "no kernel is made of its value: it reads the numbers of a tensor"
                solved = by_reference(problem)  # and so it is as at an answer
                entry = entrywise(value, simplex.inward(solved.y[:1]), tensors)
            if entry.coupled and COMPILERS[x.device.type] == "triton":
                return "no kernel is made of its value on a GPU: it couples entries of y"
            if entry.coupled and x.shape[-1] > curvature.DENSE_LIMIT:
                most = curvature.DENSE_LIMIT
                return f"it couples entries of y, in rows of more than {most} entries"
            others = dict(zip(names, map(other, tensors), strict=True))
            if not entry.reads and changed(entry, omega, y, others):
                return "no kernel is made of its value: it reads the numbers of a tensor"
            inputs = entry.inputs(tensors)
            kernel = made_by(entry, inputs, x.shape[-1])
            traced: Traced = type(type(omega).__name__, (Traced,), {})(entry, inputs)
            plan = Plan(kernel, traced, kept, y, others, [], trial)
            return compared(plan, inputs, rows, problem, solved or by_reference(problem))
    except Unknown as error:
        return f"no kernel is made of its value: {error}"
    except RegularizerError:  # the solver says it of all rows
        return None
    except Exception as error:  # of the user's code, which the solver raises too
        return f"no kernel is made of its value: {type(error).__name__}: {error}"


def by_reference(problem: Problem) -> Forward:
    """The answers of the solver in PyTorch."""
    with reference():
        return by_solver(problem.omega, problem.z, problem.mask, QUIET)


def _kernel_class(device: torch.device) -> Any:
    """What makes a kernel for a device."""
    if COMPILERS[device.type] == "numba":
        from ..kernels.generated.kernel import GeneratedKernel

        return GeneratedKernel
    from ..kernels.generated.triton_kernel import TritonKernel

    return functools.partial(TritonKernel, device=device)


class _Changed(Exception):
    """The value of Ω is not what was traced."""


class _Kinked(Exception):
    """Rows that are not certified may be on kinks."""


class _Planned(Kernel):
    """The kernel of a plan; :class:`_Changed` where it cannot certify a row."""

    name = "from the value"
    dtypes = (torch.float64,)
    theta: Hyper | None = None
    """The inputs, where nothing learns."""

    def __init__(self, made: Plan, settings: Settings) -> None:
        self.made, self.settings = made, settings

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y, missed = self.solved(x, gamma, theta, mask)
        if bool(missed.any()):
            raise _Changed
        return y, None

    def solved(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """y, and the rows that are not certified."""
        theta = theta if self.theta is None else self.theta
        if self.made.traced.entry.coupled and len(theta[-1]) > 1:
            raise _Changed  # an H for each row
        y, bound = self.made.kernel.solve(x, gamma, theta, mask)
        return y, ~(bound <= self.settings.tolerance(torch.float64))

    def backward(
        self, y: Tensor, v: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper | None]:
        theta = theta if self.theta is None else self.theta
        found: tuple[Tensor, Hyper | None] = self.made.kernel.backward(y, v, gamma, theta, hyper)
        return found


class _Checked(_Planned):
    """The kernel for these rows, with the rows that the solver computed; ``result`` says how."""

    def __init__(
        self, made: Plan, inputs: list[Tensor], rows: Rows, settings: Settings, batched: bool
    ) -> None:
        super().__init__(made, settings)
        self.inputs, self.rows, self.batched = inputs, rows, batched
        self.recording = torch.is_grad_enabled()
        self.result: Any = None

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y, missed = self.solved(x, gamma, theta, mask)
        rows, settings = self.rows, self.settings
        with transforms.unhooked():
            self._look(y)
        path, why = "kernel from the value", f"its source is {self.made.kernel.path}"
        iterations = None
        if bool(missed.any()):
            if self.made.traced.entry.kinked:
                raise _Kinked
            found = by_solver(rows.omega, rows.z, rows.mask, settings)
            assert found.solved is not None
            flat = found.y.reshape(y.shape)
            y = torch.where(missed.unsqueeze(-1), flat, y)
            path = f"{path}, then {found.path}"
            iterations = torch.where(missed.view(rows.x.shape[:-1]), found.solved.iterations, 0)
        self.result = Forward(y.view(rows.x.shape), path, why, iterations=iterations)
        return y, None

    def _look(self, y: Tensor) -> None:
        """Compare the value of Ω with the traced one, near the answers and in general position: at
        a vertex nothing is seen of the other entries. Where the value reads numbers, its first two
        derivatives decide, at every answer."""
        rows, entry = self.rows, self.made.traced.entry
        some = y.view(rows.x.shape) if self.batched else few(y, y.shape[:-1], _SPOT)
        omega = rows.omega
        if self.recording and (learnt := omega.tensors()):
            omega = omega.with_tensors({name: t.detach() for name, t in learnt.items()})
        near, point = simplex.inward(some), self.made.point
        if entry.reads:
            self._look_closely(omega, simplex.inward(y))
            point = near[:0]
        for at in (near, point) if self.batched else (torch.cat([near, point]),):
            with torch.set_grad_enabled(self.recording):
                own = omega.value(at)
            if own.requires_grad:
                raise _Changed  # by a tensor that is not an attribute
            with torch.no_grad():
                if bool(off(entry, own, at, self.inputs).any()):
                    raise _Changed

    def _look_closely(self, omega: Any, at: Tensor) -> None:
        """Compare the derivatives of Ω at all answers with the traced ones: Ω is convex, so an
        answer that has its gradient is the maximiser."""
        entry = self.made.traced.entry
        own = derived(omega.value, at)
        traced = derived(lambda y: terms(entry, y, self.inputs).sum(-1), at)
        if not all(map(same, traced, own)):
            raise _Changed
