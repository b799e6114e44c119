"""The threshold τ of a row, or of sixteen rows, by Newton's steps and halves of an interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import simd
from .common import EPS
from .elementary import absolute
from .jit import njit
from .simd import LANES, highest, larger, one, select, smaller, spread

STEPS = 400
"""Every second one halves an interval of float64 numbers, of which there are 2^64."""


def root_of(sums: Any, slope: Any) -> Any:
    """(z, n, θ, r, k, bounds, low, high, t, the tolerance of Σ y/k, that of τ) → τ, near where
    Σ (y − l) = r, from t, between ``low`` and ``high``; the last step to it; a lower bound on τ, if
    two linear steps are one; and Σ (y − l) − r after the last step. All are numbers for a row, and
    vectors of θ's dtype for sixteen. ``sums``: as :func:`regmax.kernels.cpu.clipped.sums_of` makes
    them."""

    @njit(apart=True)
    def root(
        z: Any, n: int, theta: Any, room: Any, size: Any, bounds: Any, low: Any, high: Any, t: Any,
        near: float, close: float,
    ) -> tuple[Any, Any, Any, Any]:  # fmt: skip
        none, before = spread(t, 0.0), spread(t, np.inf)
        width, off, slopes, unit, moving = high - low, none, none, size, before > none
        for _ in range(STEPS):
            off, free, slopes, least = sums(z, n, t, theta, bounds, room)
            unit, step, some = smaller(least, size), none, slopes > 0.0
            rate = select(some, slopes, 1.0)
            aim = free - off
            step = select(some, off / rate, 0.0)
            curved = some & (aim > 0.0)
            if simd.count(curved) > 0:
                g, h = slope(spread(theta, select(curved, free, 1.0)), theta)
                a = slope(spread(theta, select(curved, aim, 1.0)), theta)[0]
                step = select(curved, one(g - a, t) / (one(h, t) * rate), step)
            low = select(moving & (off > 0.0), t, low)
            high = select(moving & simd.not_below(0.0 - off, 0.0), t, high)
            far, long = absolute(off), absolute(step)
            enough = far > unit * near
            if near <= 1e-10:
                enough = enough | (before > far)
            still = (long > absolute(t) * close) | (slopes <= 0.0)
            moving = moving & enough & still & (far > unit * (2.0 * EPS)) & (high > low)
            if simd.count(moving) == 0:
                break
            before, following, half = far, t + step, (high - low) * 0.5
            middle = low + half
            quick = some & (following > low) & (high > following) & (width >= long)
            width = select(quick, long * 0.5, half)
            moving = moving & (quick | ((middle > low) & (high > middle)))
            t = select(moving, select(quick, following, middle), t)
        some = slopes > 0.0
        step = select(some, off / select(some, slopes, 1.0), 0.0)
        # where p' is next to 0, as between two levels of scores, the step may go anywhere
        margin = (absolute(t) + 1.0) * 1e-6
        inside = (t + step >= low - margin) & (high + margin >= t + step)
        low = larger(select(some, t + (step - absolute(step)), low), low)
        last = some & inside & (unit * max(near, 1e-6) >= absolute(off))
        return t, select(last, step, 0.0), low, select(last, none, off)

    return root


@njit
def _nearest(row: Any, n: int, number: Any) -> Any:
    """The entry that is nearest to a number."""
    found = simd.wide(simd.load(row, 0))
    away = absolute(found - number)
    for i in range(LANES, n, LANES):
        v = simd.wide(simd.load(row, i))
        distance = absolute(v - number)
        nearer = away > distance
        found, away = select(nearer, v, found), select(nearer, distance, away)
    least = 0.0 - highest(0.0 - away, number)
    return highest(select(least >= away, found, -np.inf), number)


@njit
def same(like: Any, v: Any, theta: Any) -> Any:
    return v


def last_of(root: Any, given: Any = same, reach: float = np.inf) -> Any:
    """The last steps, on scores relative to a number t near τ, which have more digits; ``given``:
    of a vector of the dtype of the row, these and θ, what the root takes, from τ = −``reach`` to
    ``reach``."""

    @njit
    def last(
        kept: Any, n: int, top: Any, scale: Any, z: Any, theta: Any, room: Any, total: Any,
        bounds: Any, t: Any, bottom: Any, high: Any, near: float, slack: Any,
    ) -> tuple[Any, Any, Any, Any]:  # fmt: skip
        """z[:n] = (kept − top)·scale − t, or what is ``given`` of it; t, from which on τ is the
        root, τ, the last step to it, and Σ (y − l) − r after it."""
        gap = (absolute(t) + 1.0) * 1e-6
        bottom, high = bottom - t - gap, high - t + gap
        like, base, start = simd.load(kept, 0), top + t / scale, spread(t, 0.0)
        tau, step, off = start, start, start
        for _ in range(2):
            for i in range(0, n, LANES):
                v = (simd.wide(simd.load(kept, i)) - base) * scale
                simd.store(z, i, given(like, v, theta))
            ends = larger(bottom, -reach), smaller(high, reach)
            tau, step, _least, off = root(
                z, n, theta, room, total, bounds, *ends, start, near, 2.0 * EPS
            )
            missed = absolute(off) > slack
            if simd.count(missed) == 0:
                break
            # scores so large that τ, next to one of them, is no number: from that one on
            following = select(missed, _nearest(kept, n, base + tau / scale), base)
            moved = (following - base) * scale
            bottom, high = bottom - moved, high - moved
            base, t = following, select(missed, (following - top) * scale, t)
        return t, tau, step, off

    return last
