"""The point y = clip(p(z − τ), l, u) with Σy = k, for Ω(y) = Σ e(y_i) and p = (e')⁻¹.

Σy falls with τ, and bends where an entry reaches a bound: at τ = z_i − e'(u_i) and z_i − e'(l_i).
Bisection over these 2d numbers finds the free entries F. Their equation Σ_F p(z_i − τ) = k − (what
the others add up to) is that of the simplex. It is solved by Newton's method on (Σ_F p)^b, where b
makes the last two points lie on a line: one step for p linear (b = 1) or p = exp (b = 0).

τ = t + δ is kept as two numbers, because y_i = p((z_i − t) − δ) then loses no digits where τ does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import simplex, transforms
from .roots import State, loop
from .simplex import inward

MOST = 100
"""Steps on one equation: each halves the bracket at least every second time."""


class Entries:
    """e', p and e'' of one entry; ``steep``: whether e'' is 0 at 0, where p is then vertical. By
    default those of ½y², whose Π is the Euclidean projection."""

    steep: bool | Tensor = False

    def slope(self, y: Tensor) -> Tensor:
        return y

    def inverse(self, u: Tensor) -> Tensor:
        return u

    def second(self, y: Tensor) -> Tensor:
        return torch.ones_like(y)

    def rows(self, z: Tensor, total: Tensor) -> Tensor:
        """argmax ⟨y, z⟩ − Σ e(y_i) over y ≥ 0 with Σy = ``total``, (*batch, 1)."""
        return total * simplex.project(z / total)

    def take(self, at: Tensor) -> Entries:
        """The same for some of the rows of the first dimension."""
        return self


def add(t: Tensor) -> Tensor:
    """The sum of each row, (*batch, 1)."""
    return t.sum(-1, keepdim=True)


def clip(t: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(t, low), high)


def clipped(
    e: Entries, z: Tensor, low: Tensor, high: Tensor, total: Tensor | None, at_most: bool
) -> Tensor:
    """y of rows in float64, of finite z; the bounds are hit exactly. ``total`` None: no sum;
    ``at_most``: Σy ≤ total, with τ = 0 where that holds."""
    if total is None:
        return clip(e.inverse(z), low, high)
    z, low, high = torch.broadcast_tensors(z, low, high)
    total = total.expand(*z.shape[:-1], 1)
    y = _with_total(e, z, low, high, total)
    if at_most:
        less = clip(e.inverse(z), low, high)
        y = torch.where(add(less) < total - _noise(total, z), less, y)
    return y


def _with_total(e: Entries, z: Tensor, low: Tensor, high: Tensor, total: Tensor) -> Tensor:
    y, tau = _near(e, z, low, high, total)
    noise = _noise(total, z)
    wrong = (add(y) - total).abs() > noise
    if not transforms.may_look(wrong) or bool(wrong.any()):
        # where scores are so large that the two breaks of an entry are one number, from τ on
        y = torch.where(wrong, _near(e, z - tau, low, high, total)[0], y)
        # an inverse that rounds: what is missing goes to the entry with the most room
        rest, inner = total - add(y), torch.minimum(y - low, high - y)
        most = inner.argmax(-1, keepdim=True)
        moved = y.scatter_add(-1, most, torch.where(rest.abs() <= 1e-8 * total, rest, 0))
        y = torch.where(rest.abs() > noise, clip(moved, low, high), y)
    # the others are at l, but for rounding of the sum: u follows from the sum
    whole = (high >= low + (total - add(low))) & (high - y < y - low)
    y = torch.where(whole & (high - y <= 4 * noise), high, y)
    # a vertex, where bounds make the sum and τ is any number of an interval: roundings go
    up, movable = high - y < y - low, high > low
    over = torch.where(movable & up, z - e.slope(high), torch.inf).amin(-1, keepdim=True)
    under = torch.where(movable & ~up, z - e.slope(low), -torch.inf).amax(-1, keepdim=True)
    corner = torch.where(up, high, low)
    alone = (over >= under) & ((add(corner) - total).abs() <= noise)
    return torch.where(alone, corner, y)


def _noise(total: Tensor, z: Tensor) -> Tensor:
    """Rounding of a sum."""
    ulps: float = torch.finfo(z.dtype).eps * z.shape[-1] ** 0.5
    return ulps * total


def _near(e: Entries, z: Tensor, low: Tensor, high: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """y and τ, but for rounding of z."""
    left, right, first, last = _bracket(e, z, low, high, total)
    middle = left + (right - left) / 2
    movable = high > low
    free = movable & (first < middle) & (middle < last)
    capped = movable & (first >= middle)
    aim = total - add(torch.where(free, 0, torch.where(capped, high, low)))
    steep = torch.as_tensor(e.steep, device=z.device)
    # where p is vertical, from the right end: there (z − t) − δ adds up positive numbers
    t = torch.where(steep, right, middle)
    delta = _root(e, z - t, free, aim, total, left - t, right - t)
    # again with t next to τ, where δ has more digits
    near = torch.where(steep, t, t + delta)
    delta = _root(e, z - near, free, aim, total, left - near, right - near, delta - (near - t))
    y = clip(e.inverse((z - near) - delta), low, high)
    # an entry whose bound is at τ is there but for rounding
    ulps = 4 * torch.finfo(y.dtype).eps
    capped = capped | (y >= high - ulps * high)
    y = torch.where(capped, high, torch.where(movable & (y > low + ulps * low), y, low))
    end = torch.where(add(y) > total, right, left)
    return y, torch.where(free.any(-1, keepdim=True), near + delta, end)


def _bracket(
    e: Entries, z: Tensor, low: Tensor, high: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two numbers between which τ lies and no break does, and the breaks of the entries at u and
    at l."""
    movable = high > low
    count = add(movable).clamp_min(1)
    room = total - add(low)
    # Σ is at least k if each y is at least ``some``, at most k if each is at most ``few``
    some = torch.maximum(low, high - ((add(high) - total) / count).clamp_min(0))
    few = torch.minimum(high, low + (room / count).clamp_min(0))
    first, last = z - e.slope(inward(high)), z - e.slope(inward(low))
    left = torch.where(movable, z - e.slope(inward(some)), torch.inf).amin(-1, keepdim=True)
    right = torch.where(movable, z - e.slope(inward(few)), -torch.inf).amax(-1, keepdim=True)
    whole = movable & (high >= low + room)  # such an entry alone makes Σ = k
    left = torch.maximum(left, torch.where(whole, first, -torch.inf).amax(-1, keepdim=True))
    left, right = (torch.where(torch.isfinite(end), end, 0) for end in (left, right))
    right = torch.maximum(left, right)
    breaks = torch.cat([left, clip(first, left, right), clip(last, left, right), right], -1)
    breaks = breaks.sort(-1).values
    d = breaks.shape[-1]

    def halved(below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        k = (below + above) // 2
        more = add(clip(e.inverse(z - breaks.gather(-1, k)), low, high)) >= total
        return torch.where(more, k, below), torch.where(more, above, k)

    ends = torch.zeros_like(left, dtype=torch.int64), torch.full_like(left, d - 1).long()
    rounds = (d - 1).bit_length() if isinstance(d, int) else 63
    below, above = loop(lambda below, above: above > below + 1, halved, ends, rounds, _looks(z))
    return breaks.gather(-1, below), breaks.gather(-1, above), first, last


def _root(
    e: Entries,
    z: Tensor,
    free: Tensor,
    aim: Tensor,
    total: Tensor,
    low: Tensor,
    high: Tensor,
    start: Tensor | None = None,
) -> Tensor:
    """δ between ``low`` and ``high`` with Σ_F p(z − δ) = ``aim``."""
    eps = torch.finfo(z.dtype).eps
    ulp = eps * torch.where(free, z, 0).abs().amax(-1, keepdim=True)
    # where p is vertical, the entry at t has the digits of δ
    ulp = torch.where(torch.as_tensor(e.steep, device=z.device), 0, ulp)

    def sums(delta: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_F p and −dΣ_F p/dδ."""
        y = torch.where(free, e.inverse(z - delta), 0)
        return add(y), add(torch.where(free, 1 / e.second(inward(y)), 0))

    def power(s: Tensor, w: Tensor, s0: Tensor, w0: Tensor, otherwise: Tensor) -> Tensor:
        b = 1 - (w / w0).log() / (s / s0).log()
        b = torch.where(torch.isfinite(b), b, otherwise).clamp(-4, 32)
        return torch.where(b.abs() > 1e-6, b, 1e-6)

    def step(
        delta: Tensor, low: Tensor, high: Tensor, width: Tensor, b: Tensor, s: Tensor, w: Tensor,
        done: Tensor,
    ) -> State:  # fmt: skip
        low, high = torch.where(s >= aim, delta, low), torch.where(s <= aim, delta, high)
        trial = delta - s / w * torch.expm1(b * (aim / s).log()) / b
        length = (trial - delta).abs()
        inside = (trial >= low) & (trial <= high)  # not NaN
        quick = inside & (length <= width)
        near = (length <= ulp + eps * delta.abs()) | ((s - aim).abs() <= eps * total)
        middle = low + (high - low) / 2
        following = torch.where(quick, trial, torch.where(near, delta, middle))
        width = torch.where(quick, length, high - low) / 2
        following = torch.where(done, delta, following)
        done = done | near | (high - low <= eps * following.abs())
        at, rate = sums(following)
        b = torch.where(following == delta, b, power(at, rate, s, w, b))
        return following, low, high, width, b, at, rate, done

    delta = (low + high) / 2 if start is None else torch.minimum(torch.maximum(start, low), high)
    s, w = sums(delta)
    b = power(s, w, *sums(low), power(s, w, *sums(high), torch.ones_like(s)))
    done = ~free.any(-1, keepdim=True)
    state = delta, low, high, high - low, b, s, w, done
    return loop(lambda *state: ~state[-1], step, state, MOST, _looks(z))[0]


def _looks(z: Tensor) -> bool:
    """Whether to test which rows move: not where that is a synchronisation."""
    return not transforms.waits(z)
