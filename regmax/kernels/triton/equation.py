"""The equation of a threshold mapping in Triton, and what describes such a mapping.

With the distances δ_i = (max x − x_i)/γ ≥ 0 and a = θ − 1, k = 1/a,

    y_i = v_i / Σv,    v_i a function of δ_i and of the root (c, e) of one equation per row,

which for powers e' = y^a/a or (y^a − 1)/a is v_i = [1 − cδ_i + e]₊^k, and

    c = a e^(−aℓ),    ℓ + log Σv = 0, through a = 0, where v_i = e^(−δ_i);
    c = 1/s,          log s + (p−2)/p log Σv^p + log Σv = 0 for the p-norm, p = θ,

solved by Newton's method on ℓ or log s inside a bracket, up to rounding. e corrects c by less than
its last bit. The sums are over a tile in registers, or over the packed candidates of a row in
memory.

Sources: Peters, Niculae & Martins (2019) for entmax; Gonçalves, Treviso & Martins (2025,
AdaSplash) for a safeguarded Newton iteration per row on a GPU.
"""

# ruff: noqa: RET505 (what is decided at compilation needs its own if and else)
# mypy: disable-error-code="import-not-found, import-untyped"
# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..base import Number, Numbers
from .rows import distance, divide, quotient

NEVER = 1 << 30


def _always(theta: float) -> bool:
    return True


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Description:
    """A mapping, for those hyperparameters θ that it ``covers``.

    Functions of tiles or of numbers of rows, float32 or float64. n is (a, k), in the dtype of the
    others, and (c, e, Σv) what ``root`` found.
    """

    p: Any
    """(u, n) → p(u), p^(1−a), p^(1−2a) and p^a; 0 where u is −∞."""
    inverse: Any
    """(δ, c, e, n) → v, v^(1−a) and v^a; 0 where δ is infinite."""
    reach: Any
    """n → the largest δ in the support; a little more, for rounding."""
    slope: Any
    """(t, a) → c at t = ℓ or log s."""
    equation: Any
    """(t, n, (Σ v^(1−a), Σ v, Σ v^(1+a))) → f and f' of a row's equation, and ∂f/∂e."""
    root: Any
    """(held, n, count, active, own, N) → c, e and Σv, as :func:`newton`."""
    logarithm: Any
    """(δ, c, e, n, Σv) → log y at the distance δ, and the distance to the threshold where it is
    below; float64."""
    vertex: Any
    """(r, s, log y_k, near, a) → D(e_k, y)/γ from the sums r of y_i and s of y_i^(1+a) over i ≠ k.
    Where ``near``, log y_k is log(1 − r)."""
    terms: Any
    """(t, a) → what ``whole`` needs the sum of, over a distribution t."""
    whole: Any
    """(that sum, Σ y^(1+a), log of the largest y, a) → Ω(t) − Ω(y) + ⟨∇Ω(y), y⟩ − max ∇Ω(y)."""
    weight: Any
    """(y, log(y/y_r), a) → 1/e'' of y > 0, of ``relative`` ones over that of a reference y_r."""
    rate: Any
    """(log y, a) → ∂e'/∂θ, which may have a constant more."""
    sums: Any
    """(y, v, y_r, v_r, a, own) → the sums over a row that ``product`` needs."""
    product: Any
    """(y, v, y_r, v_r, a, sums, own, HYPER) → w = Jv, and ⟨w, ∂∇Ω(y)/∂θ⟩ if HYPER."""
    a: float | None = None
    """θ − 1 where it is fixed."""
    covers: Callable[[float], bool] = _always
    """θ, a number → whether it is one of these."""
    beyond: Any = None
    """The description of rows with a > 1, which another launch computes."""
    scales: bool = False
    """Whether v is a function of δ alone."""
    linear: bool = False
    """Whether v is linear where positive."""
    relative: bool = True
    """Whether weights may be large."""
    precise: bool = False
    """Whether all is computed in float64 for float32 too, row by row."""
    limit: int = 8192
    """The longest row that one program keeps on the chip; half of it in float64."""
    pack: int = NEVER
    """The shortest row of one program that packs its candidates: v then costs more than packing."""

    @functools.cached_property
    def cache_key(self) -> str:
        """What Triton compiles it for."""
        items = (getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "covers")
        text = "-".join(str(getattr(item, "cache_key", item)) for item in items)
        return hashlib.sha256(text.encode()).hexdigest()

    def __repr__(self) -> str:  # part of the names of compiled functions
        return f"own_{self.cache_key[:16]}"


def described(own: tuple[Description, ...], theta: Numbers) -> tuple[Description, Number | None]:
    """The description of θ: of a number, the first that covers it, or the last; and θ."""
    if not theta or isinstance(theta[0], Tensor):
        return own[-1], theta[0] if theta else None
    number = theta[0]
    return next((each for each in own if each.covers(number)), own[-1]), number


@triton.jit
def log1p(x, u):
    """log(1 + x) from u, the rounded 1 + x: log(u) x / (u − 1) corrects the rounding of u."""
    near = tl.abs(x) < 0.5
    off = u - 1
    ratio = x / tl.where(off == 0, 1.0, off)
    return tl.where(near, tl.where(off == 0, x, tl.log(u) * ratio), tl.log(u))


@triton.jit
def numbers(theta, dtype: tl.constexpr, OWN: tl.constexpr):
    """n of θ, float64, and the same with a and k in ``dtype``."""
    if OWN.a is None:
        a = theta - 1.0
    else:
        a = tl.zeros_like(theta) + OWN.a
    k = tl.where(a == 0, 0.0, 1.0 / tl.where(a == 0, 1.0, a))
    return (a, k), (a.to(dtype), k.to(dtype))


@triton.jit
def totals(u, v, w):
    """The sums of rows."""
    a = tl.sum(u, 1, keep_dims=True)
    b = tl.sum(v, 1, keep_dims=True)
    return a, b, tl.sum(w, 1, keep_dims=True)


@triton.jit
def stats(held, q, OF: tl.constexpr, OWN: tl.constexpr, N: tl.constexpr,
          LEAST: tl.constexpr = False):  # fmt: skip
    """Three sums of each row, minima if LEAST, by OF(δ, q, own). ``held``: the tile of δ, and if N:
    where the packed candidates of a row lie in memory, how many they are, max x and γ."""
    if N == 0:
        return OF(held[0], q, OWN)
    else:
        _, ptr, count, top, gamma = held
        start = float("inf") if LEAST else 0.0
        a = tl.zeros_like(top) + start
        b = tl.zeros_like(top) + start
        c = tl.zeros_like(top) + start
        for w in range(0, count, N):
            at = w + tl.arange(0, N)[None, :]
            x = tl.load(ptr + at, mask=at < count, other=-float("inf"))
            da, db, dc = OF(distance(x.to(top.dtype), top, gamma), q, OWN)
            if LEAST:
                a = tl.minimum(a, da)
                b = tl.minimum(b, db)
            else:
                a += da
                b += db
                c += dc
        return a, b, c


@triton.jit
def power_sums(delta, q, OWN: tl.constexpr):
    """Σ v^(1−a), Σ v and Σ v^(1+a)."""
    v, t, base = OWN.inverse(delta, q[0], q[1], q[2])
    return totals(t, v, v * base)


@triton.jit
def newton(held, n, count, active, OWN: tl.constexpr, N: tl.constexpr):
    """c, e and Σv of each row, ``count`` its participants. Only ``active`` rows are iterated."""
    a, k = n[0], n[1]
    zero = tl.zeros_like(k)
    eps = 2.220446049250313e-16 if k.dtype == tl.float64 else 1.1920928955078125e-07
    low = -tl.log(tl.maximum(count, 1).to(k.dtype))
    low = low - 8.0 * eps * (1.0 - low)
    high = zero
    t = zero
    width = high - low
    turns = 0
    # ends: turns < 200; each halves the width, so that the bracket is two neighbours before
    while (tl.max(active) > 0) & (turns < 200):
        q = (OWN.slope(t, a), zero, n)
        sums = stats(held, q, power_sums, OWN, N)
        f, slope, _ = OWN.equation(t, n, sums)
        low = tl.where((active > 0) & (f <= 0), t, low)
        high = tl.where((active > 0) & (f >= 0), t, high)
        step = -f / slope
        trial = t + step
        # inside the bracket, and at most half as long as the last step
        safe = (trial >= low) & (trial <= high) & (tl.abs(step) <= width / 2)
        following = tl.where(safe, trial, low + (high - low) / 2)
        width = tl.where(safe, tl.abs(step), (high - low) / 2)
        going = (active > 0) & (tl.abs(f) > 4 * eps)
        moves = going & (tl.abs(following - t) > eps * tl.abs(t))
        t = tl.where(going, following, t)
        active = moves.to(tl.int32)
        turns += 1
    c = OWN.slope(t, a)
    sums = stats(held, (c, zero, n), power_sums, OWN, N)
    f, _, by_e = OWN.equation(t, n, sums)
    # a last step of less than the last bit of c
    e = tl.where((by_e > 0) & (tl.abs(f) < 0.01), -f / tl.where(by_e > 0, by_e, 1.0), 0.0)
    e = tl.minimum(tl.maximum(e, -16 * eps), 16 * eps)
    _, total, _ = stats(held, (c, e, n), power_sums, OWN, N)
    return c, e, total


@triton.jit
def shares(v, total):
    """y from v and Σv."""
    total = tl.where(total > 0, total, 1.0)
    return quotient(v, total, divide(tl.zeros_like(total) + 1.0, total))
