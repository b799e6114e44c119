"""What a kernel is made of, from the value of Ω, and what it must agree with: the answers of the
solver, the derivatives of the value by autograd, and the value itself at later calls."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels import simplex, transforms
from ...kernels.base import Direct, Hyper
from ...optimality.premises import contradicted
from ...optimality.problem import Problem
from ...regularizers import curvature
from ...regularizers.regularizer import Regularizer
from ..rows import Rows, constant
from .base import Missed
from .solver import LOOKED_AT, Forward, few_rows

COMPILERS = {"cpu": "numba", "cuda": "triton"}
"""What compiles the kernels of a device."""
F64 = torch.float64
POINTS = 4
"""Answers at which Ω is compared with the traced value at a call."""


class Traced(Regularizer):
    """Ω(y) = Σ_i e(y_i; p_i) + ½ yᵀHy + F(y; q), with p, and H with q, as hyperparameters, or
    ``fixed``."""

    def __init__(self, entry: Any, inputs: list[Tensor], fixed: bool = False) -> None:
        self.entry = entry
        self.separable = not entry.coupled  # type: ignore[misc]
        self.fixed = inputs if fixed else []
        names = () if fixed else tuple(f"p{k}" for k in range(len(inputs)))
        self.hyperparameters = names  # type: ignore[misc]
        for name, t in zip(names, inputs, strict=False):
            setattr(self, name, t.detach())

    def value(self, y: Tensor) -> Tensor:
        total: Tensor = self.terms(y).sum(-1)
        return total

    def terms(self, y: Tensor) -> Tensor:
        """Numbers of each entry that add up to Ω(y)."""
        inputs = [getattr(self, name) for name in self.hyperparameters or ()]
        return terms(self.entry, y, inputs or self.fixed)


def terms(entry: Any, y: Tensor, inputs: list[Tensor]) -> Tensor:
    """Numbers of each entry that add up to Ω(y)."""
    if not entry.coupled:
        found: Tensor = entry(y, *inputs)
        return found
    *own, form = inputs
    total: Tensor = entry(y, *own) + entry.coupling(y, form)
    return total


@dataclass(frozen=True, eq=False)
class TracedValue:
    """A kernel and what it is made of; ``kept`` keeps alive what the key knows by its identity.
    ``determined``: the value is the traced one wherever the key is the same. Otherwise it is
    compared; at ``point``, with the tensors ``others``, under a transform too. ``last``: what is at
    the last numbers, and of the method at these, γ, the tolerance, and it."""

    kernel: Any
    traced: Traced
    kept: list[Any]
    point: Tensor
    others: dict[str, Tensor]
    determined: bool
    last: list[Any]

    def inputs(self, tensors: list[Tensor]) -> list[Tensor]:
        """The inputs p of e, and H, differentiable in the tensors of Ω. Where nothing learns they
        are computed once for each state of the tensors."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            found: list[Tensor] = self.traced.entry.inputs(tensors)
            return found
        return list(self.fixed(tensors).inputs)

    def fixed(self, tensors: list[Tensor]) -> Fixed:
        """What follows from the numbers of the tensors of Ω."""
        given = [*tensors, *self.traced.entry.outside]
        if self.last:  # by numbers: versions do not count writes to .data
            last: Fixed = self.last[0]
            if all(map(torch.equal, given, last.tensors)):
                return last
        with torch.inference_mode(False), torch.no_grad():
            owned = [t.detach().clone() for t in given]
            inputs = self.traced.entry.inputs(owned[: len(tensors)])
            found = Fixed(self.kernel, self.traced, owned, inputs, self.point)
        self.last[:] = [found]
        return found


class Fixed:
    """A kernel at given numbers of the tensors of Ω."""

    def __init__(
        self, kernel: Any, traced: Traced, owned: list[Tensor], inputs: list[Tensor], point: Tensor
    ) -> None:
        self.kernel, self.entry, self._class = kernel, traced.entry, type(traced)
        self.tensors, self.inputs, self.point = owned, inputs, point
        self._points = point
        self.vertices: Tensor | None = None

    @functools.cached_property
    def omega(self) -> Traced:
        """The traced Ω."""
        return self._class(self.entry, self.inputs, fixed=True)

    @functools.cached_property
    def laid_out(self) -> Any:
        """The inputs as compiled code takes them."""
        return self.kernel.laid_out(tuple(map(hyper, self.inputs)), self.point.shape[-1])

    def points(self, count: int) -> Tensor:
        """Room for points of Δ, and after them one in general position."""
        points = self._points
        if len(points) != count + 1:
            self._points = points = self.point.expand(count + 1, -1).contiguous()
        return points.clone()

    @functools.cached_property
    def continuous(self) -> bool:
        """Whether e(0), where it is finite, is e(ε²) up to rounding."""
        zero = torch.zeros_like(self.point)
        at, near = (terms(self.entry, y, self.inputs) for y in (zero, simplex.inward(zero)))
        return bool((~torch.isfinite(at) | ((at - near).abs() <= 1e-15)).all())

    @functools.cached_property
    def expected(self) -> list[float]:
        """Ω at the point in general position, and the sum of the sizes of its terms."""
        each = terms(self.entry, self.point, self.inputs)
        return [each.sum().item(), each.abs().sum().item()]


class FixedKernel(Direct):
    """A kernel at fixed numbers of γ and the tensors of Ω, for plain rows: all that
    :class:`.from_value.FromValue` checks is checked here too, where possible in compiled code."""

    def __init__(self, fixed: Fixed, gamma: float, tol: float, value: Any = None) -> None:
        self.fixed, self.gamma = fixed, constant(gamma, fixed.point.device)
        self.value, self.tol = value, tol
        self.dtypes = fixed.laid_out.dtypes

    def solved(self, x: Tensor, count: int) -> tuple[Tensor, list[float]]:
        """y, certified; and the pairs (Ω, the size of its terms) at ``count`` answers or fewer,
        evenly spaced. There the value of Ω is compared with the traced one, if it is given."""
        fixed, value, rows = self.fixed, self.value, x.shape[0]
        kernel, self.value = fixed.kernel, None  # y keeps the kernel: it must not keep Ω
        if not count:
            y, worst, sums = kernel.solve_laid_out(x, self.gamma, fixed.laid_out)
            if not worst <= self.tol:
                raise Missed
            return y, sums
        step = -(-rows // count)
        count = -(-rows // step)
        points = fixed.points(count)
        y, worst, sums = kernel.solve_laid_out(x, self.gamma, fixed.laid_out, points, count)
        if not worst <= self.tol:
            raise Missed
        if not kernel.sums:
            points[:-1] = simplex.inward(y[::step].double())
            each = terms(fixed.entry, points[:-1], fixed.inputs)
            sums = torch.stack([each.sum(-1), each.abs().sum(-1)], 1).flatten().tolist()
        if value is None:
            return y, sums
        if count > POINTS:
            step = -(-count // POINTS)
            points = torch.cat((points[:-1:step], points[-1:]))
            some = [number for k in range(0, count, step) for number in sums[2 * k : 2 * k + 2]]
        self._compare(value, points, (sums if count <= POINTS else some) + fixed.expected)
        return y, sums

    def _compare(self, value: Any, at: Tensor, sums: list[float]) -> None:
        """Compare the value of Ω with the traced one near some answers and in general position: at
        a vertex nothing is seen of the other entries."""
        with transforms.unhooked():
            own = value(at)
        if not isinstance(own, Tensor) or own.dtype != F64 or own.shape != at.shape[:1]:
            raise Missed
        if own.requires_grad:
            raise Missed  # by a tensor that is not an attribute
        for got, total, size in zip(own.tolist(), sums[::2], sums[1::2], strict=True):
            if not abs(got - total) <= 1e-12 * (abs(got) + size):
                raise Missed

    def forward(self, x: Tensor, theta: Hyper) -> tuple[Tensor, Tensor | None]:
        return self.solved(x, 0 if self.value is None else min(x.shape[0], POINTS))[0], None

    def backward(
        self, y: Tensor, v: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper]:
        kernel, laid_out = self.fixed.kernel, self.fixed.laid_out
        return kernel.backward_laid_out(y, v, self.gamma, laid_out)[0], ()


def compared(
    made: TracedValue, inputs: list[Tensor], dtype: torch.dtype, problem: Problem, solved: Forward
) -> TracedValue | str | None:
    """What was made, if its kernel agrees with the solver and with the derivatives of the value.
    ``dtype``: what a template computes in."""
    everywhere = torch.ones_like(solved.y[..., 0], dtype=torch.bool)
    if contradicted(problem, solved.y, everywhere) is not None:
        return None

    def some(t: Tensor) -> Tensor:
        return few_rows(t, solved.y.shape[:-1], LOOKED_AT)

    own = [some(t) if t.ndim > 1 else t for t in inputs]  # H is flat
    theta = tuple(map(hyper, own))
    if _falls(made.traced.entry, own[:-1] if made.traced.entry.coupled else own, problem.z):
        return "the slope of an entry's part of its value falls: Ω may not be convex"
    one = problem.z.new_ones(1)
    mask = None if problem.mask is None else some(problem.mask)
    y, bound = made.kernel.solve(
        some(problem.z), one, theta, mask, scores=some(problem.z).to(dtype)
    )
    assert solved.solved is not None
    known = some(solved.solved.certificate.error_bound.unsqueeze(-1)).squeeze(-1)
    both = (bound <= 1e-6) & (known <= 1e-6)
    rounding = 0.0 if dtype == torch.float64 else torch.finfo(dtype).eps
    if bool((both & ~((y - some(solved.y)).norm(dim=-1) <= bound + known + rounding)).any()):
        return "a kernel of its value gives other answers than the solver"
    y = solved.y
    if not bool(both.any()):
        return None
    middle = simplex.generic(y)
    for point in (simplex.inward(y), middle, (y + middle) / 2, 1e-6 * middle):
        gradient, hessian = problem.by_value.look(point)
        slope, bent = made.kernel.slopes_at(some(point), theta)
        row_sums = hessian.matvec(torch.ones_like(point))
        if not (made.traced.entry.coupled or isinstance(hessian, curvature.Diagonal)):
            return "its Hessian is not diagonal"
        for got, expected in ((slope, gradient), (bent, row_sums)):
            if not same(got, some(expected)):
                return "a kernel of its value has other derivatives than autograd"
    return made


def _falls(entry: Any, inputs: list[Tensor], like: Tensor) -> bool:
    """Whether e' falls somewhere in (0, 1]: a certificate of a row sees e where it looks only."""
    wide = torch.broadcast_tensors(like.new_empty(1, 1), *inputs)[0].shape
    count = min(max((1 << 20) // wide.numel(), 64), 1024)
    small = torch.logspace(-30, -3, count // 4, dtype=like.dtype, device=like.device)
    points = torch.cat([small, torch.linspace(0.001, 1, count, device=like.device).to(small)[1:]])
    at = points.view(-1, 1, 1).expand(-1, *wide).clone().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(entry(at, *(t.detach() for t in inputs)).sum(), at)
    change, size = slope.diff(dim=0), slope.abs()
    return bool((change < -1e-10 * (size[1:] + size[:-1])).any())


def hyper(t: Tensor) -> Tensor:
    """An input as a kernel takes it."""
    t = t.detach().double()
    if t.ndim == 0 or t.shape[-1] == 1:
        return t.reshape(-1)
    return t.reshape(-1, t.shape[-1])


def other(t: Tensor) -> Tensor:
    """Numbers near those of t, none of them the same."""
    if not t.dtype.is_floating_point:
        return t.detach().clone()
    steps = torch.arange(1, t.numel() + 1, dtype=t.dtype, device=t.device).view(t.shape)
    return t.detach() + 0.01 * (t.detach().abs() + 0.1) * (1.5 + steps.sin())


def changed(entry: Any, omega: Regularizer, at: Tensor, tensors: dict[str, Tensor]) -> bool:
    """Whether the value of Ω with these tensors is not the traced one."""
    from ...kernels.from_value import Tape, Unknown

    tape = Tape([at, *tensors.values()])
    with torch._C._DisableFuncTorch(), torch.no_grad():
        try:
            with tape:
                own = omega.with_tensors(tensors).value(at)
        except Unknown:
            return True
        if len(tape.outside) > len(entry.outside):
            return True
        wrong = off(entry, own, at, entry.inputs(list(tensors.values())))
        return bool((wrong & torch.isfinite(own)).any())


def same(got: Tensor, expected: Tensor) -> bool:
    """Whether derivatives agree, where the expected ones are finite."""
    near = (got - expected).abs() <= 1e-7 * (1e-6 + expected.abs())
    return bool((near | ~torch.isfinite(expected)).all())


def off(entry: Any, own: Tensor, at: Tensor, inputs: list[Tensor]) -> Tensor:
    """The rows in which the value, ``own``, is not the traced one, up to rounding."""
    each = terms(entry, at, inputs)
    size = own.abs() + each.abs().sum(-1)
    return ~((own - each.sum(-1)).abs() <= 1e-12 * size)


def by_place(rows: Rows) -> bool:
    """Whether Ω at a row depends on the place of the row in its batch: equal rows tell. A tensor
    of (R, d) in it may have the numbers of each row, or be a matrix."""
    y = simplex.generic(rows.x)
    try:
        with torch.no_grad(), transforms.unhooked():
            one, each = rows.omega.value(y.view(-1, y.shape[-1])[:1]), rows.omega.value(y)
            same_for_all = torch.allclose(each, one, 1e-6, 1e-6, equal_nan=True)
    except Exception:  # of the user's code, which may take this batch
        return True
    return one.shape != (1,) or not same_for_all


def unlearnt(t: Tensor, recording: bool) -> bool:
    """Whether a tensor of Ω is plain, and has no gradient."""
    if type(t) not in transforms.PLAIN or not t.is_cpu or (recording and t.requires_grad):
        return False
    return t.dtype == torch.float64 or not t.is_floating_point()


def kernel_class(device: torch.device) -> Any:
    """What makes a kernel for a device."""
    if COMPILERS[device.type] == "numba":
        from ...kernels.from_value.kernel import NumbaKernel

        return NumbaKernel
    from ...kernels.from_value.triton_kernel import TritonKernel

    return functools.partial(TritonKernel, device=device)
