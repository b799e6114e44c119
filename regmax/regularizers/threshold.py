"""Threshold mappings in PyTorch operations: Π_Ω of Ω(y) = Σ e(y_i) from e', e'' and p = (e')⁻¹.

For z = x/γ there is a τ with y_i = p(z_i − τ), 0 where z_i − τ ≤ e'(0), and Σ y = 1 (Blondel,
Martins & Niculae 2019, Prop. 5). τ is given by the entry t of one score z_r, as e'(t) = z_r − τ:

    y_i(t) = p(z_i − z_r + e'(t)),    dy_i/dt = e''(t)/e''(y_i),    Σ y(t) = 1.

Where e differs from entry to entry, :mod:`regmax.kernels.clipped` finds τ.

This loses no digits where τ does. r is the largest score, with t in [1/m, 1] for m participants. If
e'' is 0 at 0, y is infinitely steep at its threshold, and r is the smallest score of the support:
the k-th largest score is in the support iff Σ p(z_i − z_k + e'(0)) < 1.

For e' = y^a/a, a > 0, every y_i is convex in t, so Newton's method from t = 1 decreases to the root
and passes it never; at a = 0 the sum is linear in t. Other e are kept in a bracket.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.clipped import Entries, clipped
from ..kernels.roots import increasing_root, loop
from ..kernels.simplex import normalize, row_sums

Sums = Callable[..., tuple[Tensor, ...]]
LEAST = 1e-27
"""Below the largest entry of any row that lies on several devices."""


class Separable(Entries):
    """One entry of a separable Ω with ``inverse``."""

    def __init__(self, omega: Any) -> None:
        self._omega, self.steep = omega, omega.steep

    def slope(self, y: Tensor) -> Tensor:
        slope: Tensor = self._omega.grad(y)
        wrong = slope.isnan() & (y > 0)
        if transforms.may_look(wrong) and bool(wrong.any()):
            # by autograd that at the largest y may be 0/0
            inside = y * (1 - torch.finfo(y.dtype).eps)
            slope = torch.where(wrong, self._omega.grad(inside), slope)
        return slope

    def inverse(self, u: Tensor) -> Tensor:
        y: Tensor = self._omega.inverse(u)
        return y

    def second(self, y: Tensor) -> Tensor:
        h: Tensor = self._omega.curvature(y).matvec(torch.ones_like(y))
        return h


def closed_form(omega: Any, x: Tensor, gamma: Any, mask: Tensor | None) -> Tensor:
    """Π_Ω(x) in float64, because float32 sums of differences of nearby numbers are inaccurate; NaN
    where a hyperparameter is. The arguments are those of ``Regularizer.closed_form``."""
    steep, omega = omega.steep, wide(omega, x)
    z = x.double() / transforms.number(gamma, x)
    z = z if mask is None else z.masked_fill(~mask, -torch.inf)
    return entries(omega, z, torch.ones_like(z[..., :1]), steep).to(x.dtype)


def entries(omega: Any, z: Tensor, total: Tensor, steep: bool | Tensor) -> Tensor:
    """argmax ⟨y, z⟩ − Ω(y) over y ≥ 0 with Σy = ``total``, (*batch, 1), in float64; the largest
    score of a row is 0. ``steep``: where e'' is 0 at 0."""
    on = z > -torch.inf
    if omega.grad(torch.ones_like(total)).shape[-1] > 1 or omega.highest < math.inf:
        z, high = torch.where(on, z, 0), (total * on).clamp_max(omega.highest)
        return total * normalize(
            clipped(Separable(omega), z, 0 * total, high, total, False) / total
        )
    count = on.sum(-1, keepdim=True)
    given = z, total / count, total
    if isinstance(steep, Tensor) and transforms.may_look(steep):
        steep = steep if bool(steep.any()) and not bool(steep.all()) else bool(steep.any())
    if steep is True:
        given = _from_the_smallest(omega, z, count, total, count > 0)
    elif steep is not False:
        both = zip(_from_the_smallest(omega, z, count, total, steep), given, strict=True)
        offset, low, high = (torch.where(steep, one, other) for one, other in both)
        given = offset, low, high
    offset, low, high = given
    t = _root(omega, offset, row_sums, low, high, total=total)[0]
    return total * normalize(_entries(omega, offset, t))


def sharded_form(omega: Any, x: Tensor, gamma: Any, mask: Tensor) -> Tensor:
    """Π_Ω(x) of rows in parts, as ``Regularizer.sharded_form``, where Ω is not steep."""
    omega = wide(omega, x)
    z = (x / gamma).masked_fill(~mask, -torch.inf)
    low = torch.full_like(z[..., :1], LEAST)
    start = upper_bound(
        omega,
        z,
        lambda part: _root(omega, part, row_sums, low, torch.ones_like(low))[0],
        lambda t, top: omega.inverse(omega.grad(t) - top),
    )
    start = start.clamp_min(LEAST)
    return _root(omega, z, omega.row_sums, low, torch.ones_like(low), start)[1]


def upper_bound(
    omega: Any,
    z: Tensor,
    root: Callable[[Tensor], Tensor],
    moved: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """An upper bound, at most 1, of the root of whole rows from the ``root`` of each part alone, as
    more entries make the sum larger. ``root`` takes a part less its largest score, and
    ``moved(root, that score)`` is the root for the part as it is."""
    top = z.amax(-1, keepdim=True)
    some = top > -torch.inf
    top = torch.where(some, top, 0)
    own = root(torch.where(some, z - top, 0))
    bound = torch.where(some, moved(own, top), 1).nan_to_num(nan=1.0).clamp_max(1)
    least: Tensor = -omega.row_max(-bound)
    return least


def wide(omega: Any, x: Tensor) -> Any:
    """Ω with its tensors in float64; in a graph the numbers that are hyperparameters too, as the
    exporter for ONNX rounds them."""
    given: dict[str, Any] = omega.tensors(fixed=True)
    if transforms.tracing():
        given |= {name: getattr(omega, name) for name in omega.hyperparameters or ()}
    numbers = {
        name: transforms.number(item, x)
        for name, item in given.items()
        if not isinstance(item, Tensor) or item.is_floating_point()
    }
    return omega.with_tensors({name: item.detach() for name, item in numbers.items()})


def _entries(omega: Any, offset: Tensor, t: Tensor) -> Tensor:
    """y(t) of the distances z − z_r; where they are 0, t itself."""
    y = omega.inverse(offset + omega.grad(t))
    return torch.where(offset == 0, t, torch.where(offset > -torch.inf, y, 0))


def _root(
    omega: Any,
    offset: Tensor,
    sums: Sums,
    low: Tensor,
    high: Tensor,
    start: Tensor | None = None,
    total: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor]:
    """t with Σ y(t) = ``total``, and y/Σy of the last t that was looked at, which takes no other
    sum."""
    last, second = offset, Separable(omega).second

    def residual(t: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal last
        y = _entries(omega, offset, t)
        inside = y > 0
        rate = torch.where(inside, second(t) / second(torch.where(inside, y, 1)), 0)
        found, slope = sums(y, rate)
        last = y / found
        return found / total - 1, slope / total

    return increasing_root(residual, low, high, start, noise=32), last


def _from_the_smallest(
    omega: Any, z: Tensor, count: Tensor, total: Tensor, steep: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The distances z − z_r for the smallest score z_r of the support, −∞ below it, and a bracket
    of t: [(T − Σ p(z_i − z_r + e'(0)))/k, T/k] for k scores in the support and T = ``total``. Rows
    that are not ``steep`` take part with k = 1."""
    ordered, bottom = z.sort(-1, descending=True).values, omega.grad(torch.zeros_like(z[..., :1]))

    def above_smallest(k: Tensor) -> Tensor:
        """Σ y if the k-th largest score had the entry 0."""
        above = z - ordered.gather(-1, k - 1)
        found: Tensor = torch.where(above > 0, omega.inverse(above + bottom), 0)
        return found.sum(-1, keepdim=True)

    def halved(size: Tensor, beyond: Tensor) -> tuple[Tensor, ...]:
        middle = (size + beyond) // 2
        fits = above_smallest(middle) < total
        return torch.where(fits, middle, size), torch.where(fits, beyond, middle)

    ends = torch.ones_like(count), torch.where(steep, count + 1, 2)
    size = loop(lambda size, beyond: beyond > size + 1, halved, ends, 63)[0]
    smallest = ordered.gather(-1, size - 1)
    inside = z >= smallest
    k = inside.sum(-1, keepdim=True).double()
    low = (total - above_smallest(size)) / k
    return torch.where(inside, z - smallest, -torch.inf), low, total / k
