"""The kernel of an Ω that is given by its value."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import torch
from torch import Tensor

from ..base import Hyper, Kernel
from ..cpu.common import CompiledRows
from . import coupled, separable, source
from .compiled import Function
from .entry import Entrywise
from .tape import Unknown

# a second thread pays where it saves more than it waits for a core that is busy
_SEPARABLE = CompiledRows(separable.forward, separable.backward, grain=1 << 17)
_COUPLED = CompiledRows(coupled.forward, coupled.backward)


@functools.lru_cache(maxsize=1024)
def _function(text: str) -> Function:
    return Function(text)


class GeneratedKernel(Kernel):
    """Π_Ω of prepared rows in float64, for Ω(y) = Σ_i e(y_i; p_i) + ½ yᵀHy; θ is the inputs p, and
    H as (1, d²). A p is one number, (1,), one for each row, (R,), or for each entry, (1 or R, d).
    """

    name = "numba, from the value"
    dtypes = (torch.float64,)

    def __init__(self, entry: Entrywise, inputs: list[Tensor], d: int) -> None:
        self._rows = _COUPLED if entry.coupled else _SEPARABLE
        own = inputs[:-1] if entry.coupled else inputs
        self.vectors = vectors = [_varies(t, d) for t in own]
        self.kinked = int(entry.kinked)
        self.alike = not (entry.coupled or any(vectors))
        constants: list[float] = []
        self.slopes = _function(source.slopes(entry, vectors, constants))
        self._source = source.partials(entry, vectors, constants)
        self._constants = torch.tensor([[*constants, 0]], dtype=torch.float64, device="cpu")
        self._none = self._constants.new_zeros(1, 1)
        self._alone = self._constants, self._none
        self._tested: tuple[Tensor, bool] = self._none, False

    @property
    def path(self) -> Path:
        """The source of e's derivatives."""
        return self.slopes.path

    def slopes_at(self, y: Tensor, theta: Hyper) -> tuple[Tensor, Tensor]:
        """e' and e'' of each entry of rows y > 0."""
        y, d = y.contiguous(), y.shape[1]
        theta, _ = self._parted(theta)
        numbers, vectors = (t.expand(len(y), -1).contiguous() for t in self._inputs(theta, d))
        out = y.new_empty(len(y), 3, d)
        for r in range(len(y)):
            self.slopes(y[r], numbers[r], vectors[r], out[r])
        return out[:, 0], out[:, 1]

    @functools.cached_property
    def partials(self) -> Function:
        """∂e'/∂p; compiled when an input first wants its gradient."""
        return _function(self._source)

    def _inputs(self, theta: Hyper, d: int) -> tuple[Tensor, Tensor]:
        """The inputs that have one number per row, with the constants of the source, and those that
        have one number per entry, each as rows."""
        if not theta:
            return self._alone
        plain = [t.view(-1, 1) for t, v in zip(theta, self.vectors, strict=True) if not v]
        varying = [t for t, v in zip(theta, self.vectors, strict=True) if v]
        return _joined([*plain, self._constants]), _joined(varying) if varying else self._none

    def solve(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """y, and a bound on the distance of each row to the maximiser; +inf: not solved."""
        theta, form = self._parted(theta)
        numbers, vectors = self._inputs(theta, x.shape[1])
        y, bound = torch.empty_like(x), x.new_empty(len(x))
        arrays = (gamma, mask, numbers, vectors, y, bound)
        traits = (self.slopes.address, sum(self.vectors), self.kinked)
        if form is not None and not self._convex(form):
            return y, bound.fill_(torch.inf)
        self._rows.run(0, x, *arrays, *traits, form)
        return y, bound

    def _parted(self, theta: Hyper) -> tuple[Hyper, Tensor | None]:
        """The inputs of e, and H."""
        if self._rows is _SEPARABLE:
            return theta, None
        return theta[:-1], theta[-1].contiguous()

    def _convex(self, form: Tensor) -> bool:
        """Whether H is positive semidefinite along Δ. Each row tests e."""
        seen, known = self._tested
        if form.shape != seen.shape or not torch.equal(form, seen):
            d = math.isqrt(form.numel())
            matrix = form.view(d, d)
            shift = 1 + 1e-12 * d * torch.eye(d, dtype=matrix.dtype, device=matrix.device)
            shifted = matrix + matrix.abs().amax() * shift
            known = int(torch.linalg.cholesky_ex(shifted).info) == 0
            self._tested = form, known
        return known

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.solve(x, gamma, theta, mask)[0], None

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        theta, form = self._parted(theta)
        d, count = y.shape[1], sum(self.vectors)
        plain = len(self.vectors) - count
        numbers, vectors = self._inputs(theta, d)
        dx, dnumbers, dvectors, partials = torch.empty_like(y), None, None, 0
        if hyper:
            partials = self.partials.address
            dnumbers, dvectors = y.new_empty(len(y), plain + 1), y.new_empty(len(y), count * d + 1)
        arrays = (gamma, v, numbers, vectors, dx, dnumbers, dvectors)
        self._rows.run(1, y, *arrays, self.slopes.address, partials, count, plain, form)
        if dnumbers is None or dvectors is None:
            return dx, None
        each, k, i = [], 0, 0
        for varying in self.vectors:
            if varying:
                each.append(dvectors[:, k * d : (k + 1) * d])
                k += 1
            else:
                each.append(dnumbers[:, i])
                i += 1
        if form is not None:
            outer = (dx * gamma.view(-1, 1)).T @ y
            each.append((outer + outer.T).reshape(1, -1) / -2)
        return dx, tuple(each)


def _joined(parts: list[Tensor]) -> Tensor:
    """The columns of all parts, each with one row or R."""
    rows = max(len(t) for t in parts)
    return torch.cat([t.expand(rows, t.shape[1]) for t in parts], 1)


def _varies(t: Tensor, d: int) -> bool:
    """Whether an input has one number for each entry of a row of d."""
    if t.ndim == 0 or t.shape[-1] == 1:
        return False
    if t.shape[-1] != d:
        raise Unknown("a tensor that it uses does not broadcast to y")
    return True
