"""Π_Ω of Ω = Σ e(y_i) by the template of threshold mappings, for scores as the user gives them:
where e is a power by the kernel of powers, else by :mod:`.implicit`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Hyper
from ..cpu import tsallis
from ..cpu.between import Between, between
from ..cpu.chain import chain
from ..cpu.rows import CompiledRows, DirectRows
from .between import inverse, slopes_of
from .compiled import Function
from .inputs import BIN, MISSED

POINTS = torch.logspace(-12, 0, 64, dtype=torch.float64, device="cpu")
LARGEST = 50.0
"""The largest α of a power."""
NEAR = 1e-8
"""The distance to the maximiser that :mod:`.implicit` certifies."""
FIRST, OCTAVES, DENSE = 1e-40, 60, 4096
"""The least y of a table; how often its numbers halve; and its most numbers where e'(0) = −∞."""
_MANY = 8
"""Jobs that are kept."""


class Template:
    """``forward`` and ``backward`` of rows; θ and the factor of γ are those of ``rows``. ``bound``:
    on the distance of a row to the maximiser. ``alike``: whether all entries have the same e."""

    rows: CompiledRows
    theta: Hyper
    scale, bound, alike = 1.0, NEAR, True

    def __init__(self) -> None:
        self.jobs: dict[Any, DirectRows] = {}

    @property
    def missed(self) -> int:
        """How many rows were not certified so far, in all calls."""
        return 0

    def forward(self, x: Tensor, gamma: Tensor, mask: Tensor | None) -> tuple[Tensor, float]:
        """y, and a bound on the distance of each row to the maximiser; +inf: not all are solved."""
        missed = self.missed
        if mask is None and gamma.numel() == 1:
            y, _ = self._direct(x, gamma).forward(x, self.theta)
        else:
            y, _ = self.rows.forward(x, gamma * self.scale, self.theta, mask)
        return y, self.bound if self.missed == missed else math.inf

    def backward(self, y: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
        """Jv/γ."""
        if gamma.numel() == 1:
            return self._direct(y, gamma).backward(y, v, self.theta, None, False)[0]
        return self.rows.backward(y, v, gamma * self.scale, self.theta, None, False)[0]

    def forward_after(
        self, step: str, x: Tensor, gamma: Tensor, lam: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None, float]:
        """:meth:`forward` of Ω + λR, and who takes part, None if all do; ``step`` as in
        :func:`regmax.kernels.cpu.chain.chain`."""
        missed, hyper = self.missed, (lam / self.scale, *self.theta)
        y, part = chain(self.rows, step).forward(x, gamma * self.scale, hyper, mask)
        return y, part, self.bound if self.missed == missed else math.inf

    def backward_after(
        self, step: str, y: Tensor, v: Tensor, gamma: Tensor, lam: Tensor,
        part: Tensor | None, hyper: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Jv/γ of Ω + λR, and if ``hyper``, the derivative in λ."""
        given = lam / self.scale, *self.theta
        rows = chain(self.rows, step)
        dx, each = rows.backward(y, v, gamma * self.scale, given, part, hyper)
        return dx, None if each is None else each[0] / self.scale

    def between(self, each: bool) -> Between:
        """As of a :class:`~regmax.kernels.base.Kernel`, for y ≤ 1."""
        return between(self.rows, each)

    def _direct(self, x: Tensor, gamma: Tensor) -> DirectRows:
        """The kernel for rows like x, where γ is one number."""
        key = x.shape[1], gamma.item()
        if key not in self.jobs:
            if len(self.jobs) >= _MANY:
                self.jobs.clear()
            self.jobs[key] = DirectRows(self.rows, x.shape[1], gamma * self.scale, (None,))
        return self.jobs[key]


class Power(Template):
    """e = c y^α/(α(α − 1)), or c y log y, up to a linear term."""

    rows, bound = tsallis.KERNEL, 1e-12

    def __init__(self, c: float, alpha: float) -> None:
        super().__init__()
        self.scale, self.alpha = c, alpha
        self.theta = (torch.full((1,), alpha, dtype=torch.float64, device="cpu"),)


class Implicit(Template):
    """Any other e, by ``rows`` with these numbers."""

    def __init__(self, rows: CompiledRows, numbers: list[float], table: Tensor) -> None:
        super().__init__()
        self.rows, self._table = rows, table  # of which the numbers have the address
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        at = self._numbers.data_ptr()
        self.theta = (torch.tensor((float(at),), dtype=torch.float64, device="cpu"),)
        self._missed = ctypes.c_int64.from_address(at + 8 * MISSED)

    @property
    def missed(self) -> int:
        return self._missed.value


def template_of(
    slopes: Function, numbers: Tensor, rows: Callable[[bool], CompiledRows | None]
) -> Template | None:
    """What computes rows for an e with these derivatives, at numbers that all rows share; ``rows``
    makes the kernel of one that is no power, given whether e'(0) = −∞."""
    points = torch.cat((POINTS, POINTS.new_tensor((1e-100,))))
    found = slopes_of(slopes, numbers, points)
    power = (1 + points * found[2] / found[1]).tolist()
    bent = found[1].tolist()
    if not all(0 < h < 1e300 for h in bent[:-1]):
        return None
    *powers, least = power
    c, b = bent[-2], powers[-1]
    if max(powers) - min(powers) <= 1e-11 and -1 - 1e-12 < b <= LARGEST - 1:  # everywhere the same
        alpha = round(4 * (1 + b)) / 4  # but for rounding
        alpha = alpha if abs(alpha - 1 - b) < 1e-12 else 1 + b
        return Power(c, alpha)
    dense = least < 1e-9
    kernel = rows(dense) if math.isfinite(least) else None
    if kernel is None:
        return None
    one, slope = found[0, -2].item(), found[0, -1].item()
    zero = -math.inf if dense else slope - 1e-100 * bent[-1] / least
    if not (math.isfinite(one) and zero < one):
        return None
    made = _exponential(slopes, numbers, one) if dense else _power(slopes, numbers, zero, one)
    if made is None:
        return None
    table, *where = made
    curve = 0.0 if not dense and powers[-8] > 1 else 0.5 * (1 - powers[-8])
    own = [0.0, NEAR, zero, one, float(table.data_ptr()), *where, curve, *numbers[0].tolist()]
    return Implicit(kernel, own, table)


Table = tuple[Tensor, float, float, float]
"""Numbers of float32, (n, 2), and the three of :mod:`.implicit` that tell their places."""


def _power(slopes: Function, numbers: Tensor, zero: float, one: float) -> Table | None:
    """y and d log y/du at u = e'(0) + t, for t with few bits; the least and the largest t, and the
    bits of the least."""
    top = torch.tensor(one - zero, dtype=torch.float32, device="cpu")
    last = (int(top.view(torch.int32).item()) >> BIN) + 2
    first = max(last - (OCTAVES << (23 - BIN)), 1 << (23 - BIN))
    if not first < last < (254 << (23 - BIN)):
        return None
    bits = torch.arange(first, last, dtype=torch.int32, device="cpu") << BIN
    t = bits.view(torch.float32)
    found = _inverted(slopes, numbers, t.double() + zero)
    return found, t[0].item(), t[-1].item(), float(first)


def _exponential(slopes: Function, numbers: Tensor, one: float) -> Table | None:
    """The same where e'(0) = −∞, for u at equal distances, and their first, distance and number."""
    points = torch.logspace(math.log10(FIRST), 0, 128, dtype=torch.float64, device="cpu")
    g, h, _ = slopes_of(slopes, numbers, points)
    width, base = (points * h).min().item() / 16, g[0].item()
    if not (width > 0 and one - base < width * DENSE):
        return None
    count = math.ceil((one - base) / width) + 1
    u = base + width * torch.arange(count, dtype=torch.float64, device="cpu")
    return _inverted(slopes, numbers, u), base, width, float(count)


def _inverted(slopes: Function, numbers: Tensor, u: Tensor) -> Tensor:
    """y with e'(y) = u and d log y/du, side by side."""
    y = inverse(slopes, numbers, u, FIRST)
    h = slopes_of(slopes, numbers, y.clamp_min(FIRST))[1]
    found = torch.stack((y, 1 / (y * h)), 1)
    return found.nan_to_num(0, 0, 0).clamp(-1e30, 1e30).float()
