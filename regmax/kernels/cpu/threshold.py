"""The equation of a threshold mapping, and what describes such a mapping.

    y_i = p(x_i/γ − max x/γ − τ),  Σ y = 1,  p = (e')⁻¹ where u > e'(0), else 0

maximises ⟨y, x⟩ − γ Σ e(y_i) on the simplex: τ is the multiplier of Σ y = 1 (Blondel, Martins &
Niculae 2020, §4.2). Newton's method runs on e'(Σp) = e'(1), which is a norm of the p_i for powers
and log-sum-exp for the entropy. It is exact for one entry, and from the left it does not overshoot.
It starts in float32. The last steps, on Σp = 1, have the rounding of the result alone: the last one
is taken by every y at once, along p'.

With ``norm``, Ω = ½(Σ y^θ)^(2/θ), for e' = y^a/a, a = θ − 1: y = p/Σp where
Σp (Σp^θ)^(1 − 2/θ) = 1. p^θ is p au, or p (1 + au) for e' = (y^a − 1)/a, which a ``precise``
description has.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import common, elementary, memory, simd
from .elementary import absolute
from .jit import njit
from .simd import LANES

STEPS, FEW = 100, 3
"""The most steps to an answer, and those in float32 where few entries are left."""
NEAR = 5e-3
"""The largest last step in float32, over τ; the error after it is about its square."""
EPS = float(np.finfo(np.float64).eps)
SOME = 64 * LANES
"""Entries whose sum is added to the others as one: rounding does not grow with their number."""


@njit
def _always(theta: float) -> bool:
    return True


@njit
def _unity(theta: Any) -> Any:
    return simd.spread(theta, 1.0)


@njit
def _nought(theta: float) -> float:
    return 0.0


@njit
def _same(theta: float) -> float:
    return 1.0


@dataclass(frozen=True)
class Description:
    """A mapping, for those hyperparameters θ that it ``covers``.

    Functions of vectors (:mod:`regmax.kernels.cpu.simd`) of float32 or float64; θ is one of them.
    """

    inverse: Any
    """(u, θ) → p and p', both 0 where u ≤ e'(0) or u is NaN."""
    slope: Any
    """(y, θ) → e' and e'', for sums of y too."""
    weight: Any
    """(y, θ) → 1/e'' of y > 0."""
    rate: Any = None
    """(y, θ) → 1/e'' and its product with ∂e'/∂θ, which may have a constant more; with ``norm``,
    1/e'' and y log y. None: θ has no derivative."""
    one: Any = _unity
    """θ → e'(1)."""
    zero: Any = _nought
    """θ, a number → e'(0), or a number below which y is 0."""
    covers: Any = _always
    """θ, a number → whether it is one of these."""
    bend: Any = 1.0
    """b, with e'(y) − e'(0) ~ y^b near 0: a number, or θ → b of float64."""
    rough: Any = None
    """``inverse`` and ``slope`` to a few digits, for first steps."""
    norm: bool = False
    cheap: bool = False
    """Whether p and ``weight`` take no more time than to load a number."""
    corrected: bool = False
    """Whether p magnifies the rounding of u, so that it is put right in float32."""
    precise: bool = False
    """Whether p is computed in float64 for float32 too."""
    factor: Any = _same
    """θ, a number → what the scores are multiplied by."""
    solve: Any = None
    """Where p'(0+) = ∞, or with ``rest``, (z, n, θ, y, scratch) → y[:n] of the scores z, float64,
    instead of the equation."""
    rest: Any = None
    """(u, θ) → 1 − p, where e is finite up to y = 1 alone. ``slope`` takes no sums then."""
    root: Any = None
    """``bound`` and ``solve`` of :func:`equation`, instead of those of ``inverse``. θ is of float64
    everywhere."""
    scales: bool = False
    """Whether p(u + c) = p(u) p(c), so that y = p/Σp."""
    widest: int = 8192
    """Longer rows are computed one by one."""


@njit
def whole_sum(v: Any, whole: bool) -> Any:
    """The sums of lanes as sums of rows: ``whole`` if all lanes are of one row."""
    return simd.spread(v, simd.total(v)) if whole else v


def tolerance(bend: Any) -> Any:
    """(θ, bytes of an entry) → the largest last step in τ. Entries that it leaves or meets at the
    threshold are off by p of the step."""

    @njit
    def for_all(theta: Any, octets: int) -> Any:
        return simd.spread(theta, (1.2e-7 if octets == 4 else 2e-15) ** float(bend))

    @njit
    def for_each(theta: Any, octets: int) -> Any:
        return elementary.exp(bend(theta) * (-15.93 if octets == 4 else -33.85))

    return for_all if isinstance(bend, float) else for_each


def stepper(own: Description, slope: Any, power: Any) -> Any:
    """(Σp, Σp', Σpu, θ, whether lanes are of one row) → Newton's step in τ."""
    one = own.one

    @njit
    def of_sums(s: Any, ds: Any, products: Any, theta: Any, whole: bool) -> Any:
        s, ds = whole_sum(s, whole), whole_sum(ds, whole)
        g, h = slope(s, theta)
        return (g - one(theta)) / (h * ds)

    logarithmic = own.precise

    @njit
    def of_norm(s: Any, ds: Any, products: Any, theta: Any, whole: bool) -> Any:
        # linear in τ where all entries are equal
        s, ds, b = whole_sum(s, whole), whole_sum(ds, whole), whole_sum(products, whole)
        b, c = b * (theta - 1.0), (2.0 - theta) / theta
        if logarithmic:
            b = b + s
        return (1.0 - power(b, c) / s) / (ds / s - s / b * (c * theta))

    return of_norm if own.norm else of_sums


def equation(own: Description) -> tuple[Any, Any, Any]:
    """``relative``, ``bound`` and ``solve`` of a description."""
    if own.bend == 1.0:  # ½‖y‖² is separable
        own = dataclasses.replace(own, norm=False)
    one, norm, precise = own.one, own.norm, own.precise
    quick, quick_slope = own.rough or (own.inverse, own.slope)
    few = 1 if own.rough and not norm else 2  # a bound of some entries: more steps do not help
    quick_power = elementary.rough_power if own.rough else elementary.power
    step_of = stepper(own, own.slope, elementary.power)
    rough_step = stepper(own, quick_slope, quick_power)

    @njit
    def relative(x: Any, n: int, top: Any, scale: Any, exact: Any, z: Any) -> None:
        """(x − top)·scale, in float64 and rounded to float32."""
        for i in range(0, n, LANES):
            t = (simd.wide(simd.load(x, i)) - top) * scale
            simd.store(exact, i, t)
            simd.store(z, i, simd.narrow(t))

    if own.root is not None:
        return relative, *own.root

    @njit
    def unmoved(
        z: Any, n: int, theta: Any, tau: Any, high: Any, steps: int, whole: bool
    ) -> tuple[Any, Any]:
        return tau, tau

    @njit
    def rough(
        z: Any, n: int, theta: Any, tau: Any, high: Any, steps: int, whole: bool
    ) -> tuple[Any, Any]:
        """τ of the entries z in float32 from a lower bound, and a lower bound."""
        none, low = simd.spread(tau, 0.0), tau
        moving = none < none + 1.0
        for _ in range(steps):
            sums, slopes, products = none, none, none
            for i in range(0, n, LANES):
                u = simd.load(z, i) - tau
                v, dv = quick(u, theta)
                sums, slopes = sums + v, slopes + dv
                if norm:
                    products = products + v * simd.larger(u, 0.0)
            step = rough_step(sums, slopes, products, theta, whole)
            below = step > 0.0
            low, high = (
                simd.select(moving & below, tau, low),
                simd.select(moving & below, high, simd.select(moving, tau, high)),
            )
            small = absolute(tau) * NEAR > absolute(step)
            trial = tau + step
            usable = small | (trial > low) & (trial < high)
            trial = simd.select(usable, trial, (low + high) * 0.5)
            tau = simd.select(moving, trial, tau)
            moving = moving & simd.not_below(absolute(step), absolute(tau) * NEAR)
            if simd.count(moving) == 0:
                break
        return tau, low

    if precise or own.solve is not None:
        rough = unmoved

    @njit
    def bound(z: Any, n: int, theta: Any, high: Any, whole: bool) -> Any:
        """A lower bound on τ, float32, from some of the entries."""
        least = 0.0 - simd.narrow(one(theta))
        found, low = rough(z, n, simd.narrow(theta), least, simd.narrow(high), few, whole)
        if norm:
            found = low
        return simd.larger(found - (absolute(found) + 1e-3) * 1e-5, least)

    if own.solve is not None:
        return relative, bound, _given(own)
    if own.bend == 1.0:
        return relative, bound, _kinked(own, rough)
    return relative, bound, _smooth(own, rough, step_of)


def _smooth(own: Description, rough: Any, step_of: Any) -> Any:
    """y of packed entries."""
    p, one, norm, precise, corrected = (
        own.inverse, own.one, own.norm, own.precise, own.corrected,
    )  # fmt: skip
    close = tolerance(own.bend)

    @njit
    def entries32(u: Any, y: Any, theta: Any) -> tuple[Any, Any]:
        r = simd.narrow(u)
        v, dv = p(r, simd.narrow(theta))
        if corrected:
            v = simd.select(dv > 0.0, v + dv * simd.narrow(u - simd.wide(r)), 0.0)
        return v, dv

    @njit
    def entries64(u: Any, y: Any, theta: Any) -> tuple[Any, Any]:
        v, dv = p(u, theta)
        return simd.like(y, v), simd.like(y, dv)

    entries = entries64 if precise else elementary.Either(entries32, entries64, 1)

    @njit
    def solve(
        z: Any, rounded: Any, n: int, theta: Any, tau: Any, high: Any, whole: bool, y: Any, dy: Any
    ) -> None:
        """y[:n], whole vectors of it, of the scores z, the largest of which is 0: as ``relative``
        makes them. From a lower bound ``tau``, float32, and an upper one; ``dy`` is scratch."""
        none, like = simd.spread(theta, 0.0), simd.load(y, 0)
        if not precise and (corrected or norm or not whole or n > 4 * LANES):
            few = simd.narrow(theta), tau, simd.narrow(high)
            tau = rough(rounded, n, few[0], few[1], few[2], STEPS, whole)[0]
        t, octets = simd.wide(tau), memory.size(y)
        low, near = 0.0 - one(theta) * 1.000001 - 1e-6, close(theta, octets)
        tol, noise = 1e-4 if octets == 4 else 1e-8, 1e-6 if octets == 4 else 1e-11
        step, total, slope, before = none, none, none, none + np.inf
        moving = before > none
        for _ in range(STEPS):
            total, slope, products = none, none, none
            for start in range(0, n, SOME):
                sums, some, slopes = none, none, simd.spread(like, 0.0)
                for i in range(start, min(start + SOME, n), LANES):
                    u = simd.load(z, i) - t
                    v, dv = entries(u, like, theta)
                    simd.store(y, i, v)
                    simd.store(dy, i, dv)
                    sums, slopes = sums + simd.wide(v), slopes + dv
                    if norm:
                        some = some + simd.wide(v) * simd.select(u > -1e300, u, 0.0)
                total, slope = total + sums, slope + simd.wide(slopes)
                products = products + some
            total, slope = whole_sum(total, whole), whole_sum(slope, whole)
            if norm or precise:
                step = step_of(total, slope, whole_sum(products, whole), theta, False)
                off = step * slope / total
            else:
                off = total - 1.0
                step = simd.select(slope > 0.0, off / slope, 0.0)
            size, below = absolute(off), off > 0.0
            low, high = simd.select(below, t, low), simd.select(below, high, t)
            far = (size > tol) | (absolute(step) > near)
            moving = moving & far & ((before > size) | (size > noise))
            if simd.count(moving) == 0:
                break
            trial, before = t + step, size
            usable = (trial > low) & (trial < high)
            t = simd.select(moving, simd.select(usable, trial, (low + high) * 0.5), t)
        if precise and not norm:
            step = simd.select(slope > 0.0, (total - 1.0) / slope, 0.0)
        shrink = none + 1.0
        if norm:
            shrink = shrink / (total - slope * step)
        for i in range(0, n, LANES):
            v = simd.load(y, i)
            v = simd.larger(v - simd.load(dy, i) * simd.like(v, step), 0.0)
            if norm:
                v = v * simd.like(v, shrink)
            simd.store(y, i, v)
        if norm and octets == 8:  # the rounding of the factor is that of a sum of powers
            hi, lost = none, none
            for i in range(0, n, LANES):
                hi, lost = common.added(hi, lost, simd.wide(simd.load(y, i)))
            shrink = 1.0 / whole_sum(hi - lost, whole)
            for i in range(0, n, LANES):
                v = simd.load(y, i)
                simd.store(y, i, v * simd.like(v, shrink))

    return solve


def _given(own: Description) -> Any:
    """``solve`` by a function of the description."""
    given = own.solve

    @njit
    def solve(
        z: Any, rounded: Any, n: int, theta: Any, tau: Any, high: Any, whole: bool, y: Any, dy: Any
    ) -> None:
        given(z, n, simd.largest(theta), y, memory.doubles(memory.address_of(rounded)))

    return solve


@njit
def _sum_of(hi: Any, lost: Any, whole: bool, spare: Any) -> tuple[Any, Any]:
    """The sums of lanes hi − lost as sums of rows, each a number and the rounding of it."""
    if not whole:
        total = hi - lost
        return total, (hi - total) - lost
    simd.store(spare, 0, hi)
    simd.store(spare, LANES, 0.0 - lost)
    total, rest = 0.0, 0.0
    for i in range(2 * LANES):
        t = total + spare[i]
        part = t - total
        rest += (total - (t - part)) + (spare[i] - part)
        total = t
    t = total + rest
    return simd.spread(hi, t), simd.spread(hi, rest - (t - total))


def _kinked(own: Description, rough: Any) -> Any:
    """``solve`` where p'(0+) > 0: zeros change the derivative, so the support has to be that of
    exact arithmetic, and all is in float64. Where p is linear, these are Michelot's steps (1986),
    which end if the support does not change. For float64 the sums are compensated, so that y does
    not depend on their order."""
    p, one = own.inverse, own.one

    @njit
    def solve(
        z: Any, rounded: Any, n: int, theta: Any, tau: Any, high: Any, whole: bool, y: Any, dy: Any
    ) -> None:
        none, like, double = simd.spread(theta, 0.0), simd.load(y, 0), memory.size(y) == 8
        spare = memory.doubles(memory.address_of(rounded))
        if not whole or n > 4 * LANES:
            few = simd.narrow(theta), tau, simd.narrow(high)
            tau = rough(rounded, n, few[0], few[1], few[2], FEW, whole)[0]
        t, low = simd.wide(tau), 0.0 - one(theta) * 1.000001 - 1e-6
        off, slope, before = none, none, none + np.inf
        moving = before > none
        for _ in range(STEPS):
            total, slope, level, lost, missed = none, none, none, none, none
            for i in range(0, n, LANES):
                x = simd.load(z, i)
                u = x - t
                v, dv = p(u, theta)
                w = simd.select(v > 0.0, dv * x + (v - dv * u), 0.0)
                slope = slope + dv
                if double:
                    total, lost = common.added(total, lost, v)
                    level, missed = common.added(level, missed, w)
                else:
                    total, level = total + v, level + w
            slope = whole_sum(slope, whole)
            if double:
                total, rest = _sum_of(total, lost, whole, spare)
                off = (total - 1.0) + rest
                level, rest = _sum_of(level, missed, whole, spare)
                trial = ((level - 1.0) + rest) / slope
            else:
                off = whole_sum(total, whole) - 1.0
                trial = (whole_sum(level, whole) - 1.0) / slope
            size, below = absolute(off), off > 0.0
            low, high = simd.select(below, t, low), simd.select(below, high, t)
            far = (trial > t) | (trial < t)
            moving = moving & far & ((before > size) | (size > 1e-11))
            if simd.count(moving) == 0:
                break
            usable, before = (trial > low) & (trial < high), size
            t = simd.select(moving, simd.select(usable, trial, (low + high) * 0.5), t)
        # the rounding of τ is that of a sum of z, where it is below that of y
        apart = (off * off > slope * (3.0 * EPS * EPS)) | (t * slope < -4.0)
        step = simd.select(apart, off / slope, 0.0)
        for i in range(0, n, LANES):
            v, dv = p(simd.load(z, i) - t, theta)
            simd.store(y, i, simd.like(like, simd.larger(v - dv * step, 0.0)))

    return solve
