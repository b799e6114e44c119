"""The kernel of an Ω that is given by its value."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import simplex
from ..base import Hyper
from ..cpu.rows import CompiledRows
from ..sources import written
from . import between, source
from .compiled import Function
from .entry import Entrywise
from .inputs import Inputs, varies
from .loops import Program
from .parts import Parts, moved, parted
from .tape import Unknown
from .template import NEAR, Template, template_of
from .weighted import weighted

# a second thread pays where it saves more than it waits for a core that is busy
_SEPARABLE = CompiledRows("regmax.kernels.from_value.separable", grain=1 << 15)
_VALUES = CompiledRows("regmax.kernels.from_value.rows", names=("sums",))
_COUPLED = CompiledRows("regmax.kernels.from_value.coupled")


_MANY = 1 << 18
"""Entries of a call for which a template pays, whatever it takes to make it."""
_GAMMA, _MASK, _OUT, _POINTS = 1, 2, 5, 16
_BOUND, _SUMS = 5 + 2 * 6, (5 + 2 * 15, 6 + 2 * 15, 5 + 2 * 17)
"""Arrays of a forward job, as in :mod:`.rows`, which loads numba; and where in it the address of
the bounds, the address and the stride of the sums, and the distance of two points are."""


@functools.lru_cache(maxsize=128)  # the others live as long as their kernels
def _function(text: str) -> Function:
    return Function(text)


def _of_f(parts: Parts) -> tuple[Function, Inputs]:
    """The derivatives of f, and its inputs."""
    constants: list[float] = []
    vectors = [False] * len(parts.places)
    text = source.slopes(parts.entry, vectors, constants, lanes=True)
    return _function(text), Inputs(vectors, constants, torch.device("cpu"))


@dataclass(eq=False)
class LaidOut:
    """θ as compiled code takes it: the inputs of e that have one number per row and those that have
    one per entry; H, what the source of F takes besides its inputs, and these. ``shift``: w of
    :mod:`.parts`, by which scores move. ``template``: what computes rows of Ω = Σ e. ``jobs``: of
    the functions of a kernel, for rows of any number."""

    numbers: Tensor
    vectors: Tensor
    form: Tensor | None
    convex: bool
    shift: Tensor | None
    template: Template | None
    jobs: dict[int, Any] = field(default_factory=dict)

    def moved(self, x: Tensor, gamma: Tensor, exactly: bool = False) -> Tensor:
        """The scores of Σ e without its linear term, as :func:`.parts.moved`."""
        return moved(x, gamma, self.shift, exactly)

    def multiplies(self, hyper: bool) -> bool:
        """Whether the template multiplies with J. The code that also gives the ``hyper`` gradients
        of weights is for float64 alone."""
        return self.template is not None and (self.template.alike or not hyper)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes of rows that are computed as they are."""
        return (torch.float64,) if self.template is None else (torch.float32, torch.float64)


class NumbaKernel:
    """Π_Ω of prepared rows in float64, for Ω(y) = Σ_i e(y_i; p_i) + ½ yᵀHy + F(y; q); θ is the
    inputs p, and H with q, as (1, d² + …). A p is one number, (1,), one for each row, (R,), or for
    each entry, (1 or R, d)."""

    def __init__(self, entry: Entrywise, inputs: list[Tensor], d: int) -> None:
        self._rows, self._d = _COUPLED if entry.coupled else _SEPARABLE, d
        own = inputs[:-1] if entry.coupled else inputs
        vectors = [varies(t, d) for t in own]
        self.kinked = int(entry.kinked)
        self.alike = not (entry.coupled or any(vectors))
        parts = None if self.alike or entry.coupled else parted(entry, vectors)
        self._weights = parts if parts is not None and parts.weighted else None
        self._shifted = None if self._weights else parts  # Σ e without ⟨w, y⟩
        self._places = list(range(len(own))) if parts is None else parts.places
        first = [inputs[k] for k in self._places]
        if self._shifted is not None:
            entry, vectors = self._shifted.entry, [False] * len(first)
        one = not (entry.coupled or any(vectors))  # for all entries of a row
        if self.kinked or not (one or self._weights):
            self._rows.soon(torch.float64)
        constants: list[float] = []
        try:
            text, self.sums = source.slopes(entry, vectors, constants, True, lanes=True), True
        except Unknown:  # e has no translation, and its derivatives may have one
            constants.clear()
            text, self.sums = source.slopes(entry, vectors, constants, lanes=True), False
        self.sums = self.sums and entry.rest is None and parts is None
        self._constants = constants
        self._templates: dict[bool, CompiledRows | None] = {}
        self.slopes = _function(text)
        self._source = source.partials(entry, vectors, constants, lanes=True)
        self._inputs = Inputs(vectors, constants, torch.device("cpu"))
        none = torch.zeros(0, dtype=torch.float64, device="cpu")
        self._entry, self._more = entry, none
        self._base = (self.slopes, self._inputs) if one and not self.kinked else None
        if self._weights is not None and not self.kinked:
            self._base = _of_f(self._weights)
        self._program: tuple[Function, Function] | None = None
        self._room = 1
        if entry.rest is not None:
            y = simplex.generic(inputs[-1].new_empty(1, d))
            program = Program(entry.rest, y, entry.rest.parted(inputs[-1][d * d :]))
            self._program = _function(program.gradient), _function(program.column)
            self._more, self._room = program.given, program.room
        self._tested: tuple[Tensor, bool] = none, False
        # the first call, which compares answers, takes the template
        self._last: tuple[Tensor, bool, Template | None] = none, False, None
        if self._base is not None:
            known = self._base[1].rows(tuple(t.detach().double().reshape(-1) for t in first))[0]
            self._last = known, False, None

    @property
    def code(self) -> tuple[Path, ...]:
        """The source of all that is compiled."""
        return self.slopes.path, *(f.path for f in self._program or ())

    @property
    def path(self) -> Path:
        """The source of F's gradient, or else of e's derivatives."""
        return self.slopes.path if self._program is None else self._program[0].path

    def slopes_at(self, y: Tensor, theta: Hyper) -> tuple[Tensor, Tensor]:
        """∇Ω and ∇²Ω 1 of rows y > 0."""
        y, d = y.contiguous(), y.shape[1]
        theta, form, shift = self._parted(theta)
        numbers, vectors = (t.expand(len(y), -1).contiguous() for t in self._inputs.rows(theta))
        out = y.new_empty(len(y), 3, d)
        for r in range(len(y)):
            self.slopes(d, y[r], numbers[r], vectors[r], d, out[r])
        slope, bent = out[:, 0], out[:, 1]
        if shift is not None:
            slope = slope + shift
        if form is not None:
            matrix = form[0, : d * d].view(d, d)
            slope, bent = slope + y @ matrix, bent + matrix.sum(-1)
        if self._program is not None:
            assert form is not None
            own, work, at = form[0, d * d :], y.new_empty(self._room), y.new_empty(d)
            for r in range(len(y)):
                self._program[0](0, y[r], own, work, 1, at)
                slope[r] += at
                for i in range(d):
                    self._program[1](i, y[r], own, work, 1, at)
                    bent[r] += at
        return slope, bent

    @functools.cached_property
    def partials(self) -> Function:
        """∂e'/∂p; compiled when an input first wants its gradient."""
        return _function(self._source)

    def solve(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None, tol: float = NEAR,
        scores: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """y, and a bound on the distance of each row to the maximiser, ``tol`` if that is possible;
        +inf: not solved. ``scores``: x in the dtype that a template takes, up to a constant of each
        row; the rounding of y to it is not in the bound."""
        given = self.of_call(theta, x, True)
        if given.template is not None and given.template.bound <= tol:
            scores = given.moved(x if scores is None else scores, gamma)
            y, bound = given.template.forward(scores, gamma, mask)
            if bound <= tol:
                return y.double(), x.new_full((len(y),), bound)
        y, bounds = self._solved(given.moved(x, gamma), gamma, given, mask)
        return y, torch.frombuffer(bounds, dtype=torch.float64)

    def boxed(
        self, at: LaidOut, z: Tensor, low: Tensor, high: Tensor, on: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """clip(p(z), l, u) of u ≤ 1, and its :meth:`between_bound`."""
        y = between.boxed(self.slopes, at.numbers, z, low, high)
        return y, self.between_bound(at, z, y, low, high, None, on)

    def between_bound(self, at: LaidOut, *given: Any) -> Tensor:
        """:func:`.between.bound`."""
        return between.bound(self.slopes, at.numbers, *given)

    def of_call(self, theta: Hyper, x: Tensor, forward: bool) -> LaidOut:
        """:meth:`laid_out` for rows x of one call. To look for a template takes longer than few
        rows: it is done for many entries, or where these numbers come again, in ``forward``."""
        return self.laid_out(theta, x.shape[1], (x.numel() >= _MANY or None) if forward else False)

    def laid_out(self, theta: Hyper, d: int, look: bool | None = True) -> LaidOut:
        """θ for rows of d entries; ``look``: for a template, None: where these numbers come
        again."""
        own, form, shift = self._parted(theta)
        convex, template = form is None or self._convex(form, d), self._template(theta, look)
        return LaidOut(*self._inputs.rows(own), form, convex, shift, template)

    def _template(self, theta: Hyper, look: bool | None) -> Template | None:
        """What computes rows; None if it is not known, or there is none."""
        if self._base is None:
            return None
        slopes, inputs = self._base
        numbers = inputs.rows(tuple(theta[k] for k in self._places))[0]
        if len(numbers) > 1:
            return None
        before, looked, found = self._last
        again = torch.equal(numbers, before)
        if not (again and looked):
            looked = again if look is None else look
            found = template_of(slopes, numbers, self._implicit) if looked else None
            if look is not False:
                self._last = numbers, looked, found
        if self._weights is None:
            return found
        return weighted(found, self._weights, theta, slopes, numbers)

    def _implicit(self, dense: bool) -> CompiledRows | None:
        """The kernel of an e that is no power, None where an operation of it has no translation, or
        f has weights."""
        if self._weights is not None:
            return None
        if dense not in self._templates:
            constants, vectors = self._constants.copy(), [False] * len(self._inputs.vectors)
            try:
                text = source.module(self._entry, vectors, constants, dense)
            except Unknown:
                text = ""
            known = text and constants == self._constants  # no more numbers
            found = CompiledRows(str(written("threshold", text)[0])) if known else None
            self._templates[dense] = found
        return self._templates[dense]

    def solve_laid_out(
        self,
        x: Tensor,
        gamma: Tensor,
        given: LaidOut,
        points: Tensor | None = None,
        count: int = 0,
    ) -> tuple[Tensor, float, list[float]]:
        """y, and the largest bound of :meth:`solve`. ``points``, (``count`` or more, d), get some
        of the answers, evenly spaced, with ε² for zeros. The list has ``count`` pairs of numbers:
        Ω there, and the sum of the sizes of its terms, if the kernel has ``sums``."""
        x = given.moved(x, gamma)
        if given.template is None:
            y, found = self._solved(x, gamma, given, None, points, count)
            return y, max(found[: len(x)]), found[len(x) :]
        y, bound = given.template.forward(x, gamma, None)
        if points is None or not self.sums:
            return y, bound, []
        found, some = (ctypes.c_double * (2 * count))(), y[:: -(-len(x) // count)]
        if 2 not in given.jobs:
            code = self.slopes.address
            given.jobs[2] = _VALUES.job(some, given.numbers, points, None, code, None)
        pairs = (5 + 2 * 3, ctypes.addressof(found)), (6 + 2 * 3, 2)
        _VALUES.rerun(0, given.jobs[2], {0: some, 2: points}, pairs)
        return y, bound, list(found)

    def _solved(
        self,
        x: Tensor,
        gamma: Tensor,
        given: LaidOut,
        mask: Tensor | None,
        points: Tensor | None = None,
        count: int = 0,
    ) -> tuple[Tensor, Any]:
        """y, and an array of ctypes with the bounds, and the pairs of :meth:`solve_laid_out`."""
        rows, y = x.shape[0], torch.empty_like(x)
        found = (ctypes.c_double * (rows + 2 * count))()
        if not given.convex:
            found[:rows] = [math.inf] * rows
            return y, found
        if 0 not in given.jobs:
            ours = (gamma, None, given.numbers, given.vectors, y, None)
            traits = (self.slopes.address, self._inputs.count, self.kinked)
            gradient, column = self._addresses()
            rest = (gradient, 0, given.form, column, self._room, None, None)
            given.jobs[0] = self._rows.job(x, *ours, *traits, *rest)
        arrays = {0: x, _GAMMA: gamma, _OUT: y}
        if mask is not None:
            arrays[_MASK] = mask
        at = ctypes.addressof(found)
        numbers = [(_BOUND, at)]
        if points is not None:
            arrays[_POINTS] = points
            numbers += zip(_SUMS, (at + 8 * rows, 2, -(-rows // count)), strict=True)
        self._rows.rerun(0, given.jobs[0], arrays, numbers)
        return y, found

    def _addresses(self) -> tuple[int, int]:
        """Where the code of F is."""
        return (0, 0) if self._program is None else tuple(f.address for f in self._program)  # type: ignore[return-value]

    def _parted(self, theta: Hyper) -> tuple[Hyper, Tensor | None, Tensor | None]:
        """The inputs of e; H, what the source of F takes besides its inputs, and these; w."""
        if self._shifted is not None:
            own = tuple(theta[k] for k in self._shifted.places)
            return own, None, self._shifted.of(self._shifted.linear, theta)
        if self._rows is _SEPARABLE:
            return theta, None, None
        form = theta[-1].contiguous()
        if self._program is not None:
            matrix, q = form[:, : self._d**2], form[:, self._d**2 :]
            form = torch.cat([matrix, self._more.expand(len(form), -1), q], -1)
        return theta[:-1], form, None

    def _convex(self, form: Tensor, d: int) -> bool:
        """Whether H is positive semidefinite along Δ. Each row tests e."""
        form = form[:, : d * d]
        seen, known = self._tested
        if form.shape != seen.shape or not torch.equal(form, seen):
            matrix = form[0, : d * d].view(d, d)
            shift = 1 + 1e-12 * d * torch.eye(d, dtype=matrix.dtype, device=matrix.device)
            shifted = matrix + matrix.abs().amax().clamp_min(1e-300) * shift
            known = int(torch.linalg.cholesky_ex(shifted).info) == 0
            self._tested = form, known
        return known

    def backward(
        self, y: Tensor, v: Tensor, gamma: Tensor, theta: Hyper, hyper: bool,
        dtype: torch.dtype = torch.float64,
    ) -> tuple[Tensor, Hyper | None]:  # fmt: skip
        """The gradients in x and θ, as of :class:`~regmax.kernels.base.Kernel`; ``dtype`` as for
        :meth:`solve`."""
        at = self.of_call(theta, y, False)
        if at.multiplies(hyper):
            y, v = y.to(dtype), v.to(dtype)
        dx, own = self.backward_laid_out(y, v, gamma, at, hyper)
        dx = dx.double()
        if own is None or self._shifted is None:
            return dx, own
        return dx, self._shifted.gradients(theta, -dx * gamma.view(-1, 1), own)

    def backward_laid_out(
        self, y: Tensor, v: Tensor, gamma: Tensor, at: LaidOut, hyper: bool = False
    ) -> tuple[Tensor, Hyper | None]:
        """The same."""
        if at.multiplies(hyper):
            assert at.template is not None
            dx = at.template.backward(y, v, gamma)
            return dx, self.partials_along(y, dx, gamma, at) if hyper else None
        given, d, form, dx = self._inputs, y.shape[1], at.form, torch.empty_like(y)
        partials, dnumbers, dvectors = 0, None, None
        if hyper:
            partials = self.partials.address
            dnumbers, dvectors = given.empty(y.shape[0], d)
        job = None if hyper else at.jobs.get(1)
        if job is None:
            arrays = (gamma, v, at.numbers, at.vectors, dx, dnumbers, dvectors)
            numbers_of = (self.slopes.address, partials, given.count, given.plain)
            rest = (form, self._addresses()[1], self._room)
            job = self._rows.job(y, *arrays, *numbers_of, *rest)
            if not hyper:
                at.jobs[1] = job
        self._rows.rerun(1, job, {0: y, _GAMMA: gamma, 2: v, 5: dx})
        if dnumbers is None or dvectors is None:
            return dx, None
        each = given.gradients(dnumbers, dvectors, d)
        if form is not None:
            w = dx * gamma.view(-1, 1)
            outer = w.T @ y
            each.append((outer + outer.T).reshape(1, -1) / -2)
            if self._entry.rest is not None:
                q = form[0, d * d + len(self._more) :]
                each[-1] = torch.cat([each[-1], self._along(y, w, q).view(1, -1)], 1)
        return dx, tuple(each)

    def partials_along(self, y: Tensor, dx: Tensor, gamma: Tensor, at: LaidOut) -> Hyper:
        """−⟨w, ∂e'/∂p⟩ of each row, w = Jv, for the inputs p, which have one number."""
        n, count = y.numel(), self._inputs.plain
        each = torch.empty(count, *y.shape, dtype=torch.float64, device="cpu")
        points = y.double().clamp_min(1e-154)
        self.partials(n, points, at.numbers, at.vectors, n, each)
        w = dx.double() * gamma.view(-1, 1)
        return tuple(-(w * part).sum(-1) for part in each)

    def _along(self, y: Tensor, w: Tensor, q: Tensor) -> Tensor:
        """−Σ ⟨∂∇F(y; q)/∂q, w⟩ over the rows."""
        rest = self._entry.rest
        assert rest is not None
        with torch.enable_grad():
            y, q = y.detach().requires_grad_(), q.detach().requires_grad_()
            (g,) = torch.autograd.grad(rest.rows(y, q).sum(), y, create_graph=True)
            found = torch.zeros_like(q)
            if g.requires_grad and q.numel():
                (dq,) = torch.autograd.grad((g * w).sum(), q, allow_unused=True)
                found = found if dq is None else -dq
        return found
