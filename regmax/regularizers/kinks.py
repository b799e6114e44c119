"""Ω whose value has kinks: Ω(y) = G(y, a), a_k = max_{m ∈ M_k} ⟨m, u_k(y)⟩, with G and u smooth.

|u|, max(u, 0) and the sum of the k largest entries of u are such maxima, over [−1, 1], [0, 1] and
{m : 0 ≤ m ≤ 1, Σm = k}. If G does not fall with a, Ω(y) = max_m L(y, m) with the Lagrangian
L(y, m) = G(y, ⟨m, u(y)⟩), and ∇_y L(y, m) is a subgradient of Ω where each m attains its maximum.
The augmented Lagrangian (Rockafellar 1976, section 4) replaces a_k by the differentiable

    max_{m ∈ M_k} ⟨m, u_k(y)⟩ − ‖m − m̄_k‖² / (2ρ_k),      attained at P_M(m̄_k + ρ_k u_k(y)).

R. T. Rockafellar, Augmented Lagrangians and applications of the proximal point algorithm in convex
programming, Mathematics of Operations Research 1(2), 1976.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .regularizer import Regularizer

MOST = 512
"""Multipliers of the largest entries in order, up to this number."""


_FAR = 1e15
"""From where a projection onto M attains the maximum."""


@dataclass(frozen=True)
class Multipliers:
    """M = {low ≤ m ≤ high} of each entry; and Σm = k over the last dimension, where k is given."""

    low: float
    high: float
    k: Tensor | None = None

    def middle(self, u: Tensor) -> Tensor:
        if self.k is None:
            return torch.full_like(u, (self.low + self.high) / 2)
        return (self.k / u.shape[-1]).expand(u.shape)

    def project(self, v: Tensor) -> Tensor:
        """P_M(v)."""
        return v.clamp(self.low, self.high) if self.k is None else _capped(v, self.k)

    def free(self, m: Tensor) -> Tensor:
        """The entries of m that P_M does not hold."""
        return (m > self.low) & (m < self.high)

    def tangent(self, free: Tensor, c: Tensor) -> Tensor:
        """P'c, with P' = the derivative of P_M, for normals c, (…, d)."""
        free = free.unsqueeze(-1)
        own = torch.where(free, c, 0)
        if self.k is None:
            return own
        mean = own.sum(-2, keepdim=True) / free.sum(-2, keepdim=True).clamp_min(1)
        return torch.where(free, c - mean, 0)

    def over(self, u: Tensor) -> Tensor:
        """u over the number at which ⟨m, u⟩ does not depend on m."""
        if self.k is None:
            return u
        k = self.k.long().expand(*u.shape[:-1], 1)
        return u - u.sort(-1, descending=True).values.gather(-1, k - 1)

    def least(self, rho: Tensor) -> Tensor:
        """The least of each M."""
        return rho if self.k is None else rho.amin(-1, keepdim=True).expand(rho.shape)


class TooMany(Exception):
    """More multipliers than ``MOST``: of the k largest of n entries in order, with k and n."""


class Kinks(TorchFunctionMode):
    """Replaces the maxima in what it evaluates.

    ``centres``: m̄, one tensor for each maximum in the order of evaluation, or None for the middle
    of M; ``rho``: ρ of each, a number (+inf) for u that do not depend on y, which stay as they are;
    None for m = m̄. ``function`` is what is replaced now. Afterwards: ``u``, ``sets`` M,
    ``multipliers`` m, and ``maxima``, what replaced a.
    """

    def __init__(self, centres: list[Tensor] | None, rho: list[Tensor] | None) -> None:
        super().__init__()
        self._centres, self._rho = centres, rho
        self.function: Any = None
        self.u: list[Tensor] = []
        self.sets: list[Multipliers] = []
        self.multipliers: list[Tensor] = []
        self.maxima: list[Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        replaced = _REPLACED.get(getattr(function, "__name__", ""))
        given = {name: item for name, item in kwargs.items() if name != "inplace"}
        try:
            self.function = function
            if replaced is None or kwargs.get("inplace"):
                found = None
            else:
                found = replaced(self, *args, **given)
        except (IndexError, TypeError, ValueError):  # arguments that the function itself may take
            found = None
        return function(*args, **kwargs) if found is None else found

    def maximum(self, u: Tensor, allowed: Multipliers) -> Tensor:
        """⟨m, u⟩ − (m − m̄)²/(2ρ), entry by entry; ``allowed``: M."""
        k = len(self.u)
        centre = allowed.middle(u) if self._centres is None else self._centres[k]
        m, found = centre, centre * u
        if self._rho is not None and self._rho[k].ndim == 0:
            size = u.detach().abs().max().clamp_min(torch.finfo(u.dtype).tiny)
            m = allowed.project(_FAR * u.detach() / size)
            found = m * u
        elif self._rho is not None:
            m = allowed.project(centre + self._rho[k] * u)
            found = m * u - (m - centre).square() / (2 * self._rho[k])
        self.u.append(u)
        self.sets.append(allowed)
        self.multipliers.append(m.detach())
        self.maxima.append(found)
        return found

    def size(self, u: Tensor) -> Tensor:
        """|u|."""
        return self.maximum(u, Multipliers(-1, 1))

    def positive(self, u: Tensor) -> Tensor:
        """max(u, 0)."""
        return self.maximum(u, Multipliers(0, 1))

    def largest(self, u: Tensor, counts: range) -> Tensor:
        """The sums of the k largest entries for each k of ``counts``, (…, len(counts))."""
        k = torch.tensor(counts, dtype=u.dtype, device=u.device).unsqueeze(-1)
        each = u.unsqueeze(-2).expand(*u.shape[:-1], len(counts), u.shape[-1])
        return self.maximum(each, Multipliers(0, 1, k)).sum(-1)

    def ordered(self, u: Tensor, k: int) -> Tensor:
        """The k largest entries in order, (…, k): the differences of the sums of the largest."""
        if k * u.shape[-1] > MOST:
            raise TooMany(k, u.shape[-1])
        sums, total = self.largest(u, range(1, min(k + 1, u.shape[-1]))), u.sum(-1, keepdim=True)
        sums = torch.cat([sums, total], -1) if k == u.shape[-1] else sums
        return torch.cat([sums[..., :1], sums.diff(dim=-1)], -1)


def _capped(v: Tensor, k: Tensor) -> Tensor:
    """The projection onto {m : 0 ≤ m ≤ 1, Σm = k}: clip(v − τ, 0, 1). Σ clip(v − τ, 0, 1) falls
    with τ and is linear between the points v_i and v_i − 1."""
    known = v.detach()
    points, order = torch.cat([known, known - 1], -1).sort(-1, descending=True)
    begins = torch.where(order < v.shape[-1], 1.0, -1.0).to(v.dtype)
    sums = (begins * points).cumsum(-1) - points * begins.cumsum(-1)
    low = torch.where(sums >= k, points, -torch.inf).amax(-1, keepdim=True)
    high = torch.where(sums <= k, points, torch.inf).amin(-1, keepdim=True)
    above = known - (low + high) / 2
    ones, free = above >= 1, (above > 0) & (above < 1)
    count = free.sum(-1, keepdim=True).clamp_min(1)
    tau = (torch.where(free, v, 0).sum(-1, keepdim=True) + ones.sum(-1, keepdim=True) - k) / count
    return torch.where(free, v - tau, ones.to(v.dtype))


def _maximum(kinks: Kinks, u: Tensor, v: Tensor) -> Tensor:
    return v + kinks.positive(u - v)


def _minimum(kinks: Kinks, u: Tensor, v: Tensor) -> Tensor:
    return u - kinks.positive(u - v)


def _clamp(kinks: Kinks, u: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if max is not None:  # first: on Δ it may hold nowhere
        u = u - kinks.positive(u - max)
    return u if min is None else min + kinks.positive(u - min)


def _leaky_relu(kinks: Kinks, u: Tensor, negative_slope: float = 0.01) -> Tensor:
    return negative_slope * u + (1 - negative_slope) * kinks.positive(u)


def _threshold(kinks: Kinks, u: Tensor, threshold: float, value: float) -> Tensor | None:
    return None if value != threshold else _clamp(kinks, u, threshold)


def _l1_loss(
    kinks: Kinks, u: Tensor, v: Tensor, *args: Any, reduction: str = "mean", **kwargs: Any
) -> Tensor | None:
    weighted = args or any(t is not None for t in kwargs.values())
    return None if weighted or reduction != "none" else kinks.size(u - v)


def _amax(kinks: Kinks, u: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor | None:
    dims = [dim] if isinstance(dim, int) else [*dim]
    if not dims or math.prod(u.shape[k] for k in dims) == 1:
        return None
    last = list(range(-len(dims), 0))
    found: Tensor = kinks.largest(u.movedim(dims, last).flatten(-len(dims)), range(1, 2))
    found = found.unflatten(-1, [1] * len(dims)).movedim(last, dims)
    return found if keepdim else found.squeeze(dims)


def _amin(kinks: Kinks, u: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor | None:
    found = _amax(kinks, -u, dim, keepdim)
    return None if found is None else -found


def _aminmax(kinks: Kinks, u: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None or u.shape[dim] == 1:
        return None
    return _named(kinks, _amin(kinks, u, dim, keepdim), _amax(kinks, u, dim, keepdim))


def _of_two_or_along(of_two: Any, along: Any) -> Any:
    """``torch.max`` and ``torch.min``: of two tensors, or along a dimension, with the indices."""

    def found(kinks: Kinks, u: Tensor, *args: Any, **kwargs: Any) -> Any:
        if "other" in kwargs or (args and isinstance(args[0], Tensor)):
            return of_two(kinks, u, *args, **kwargs)
        if not args and "dim" not in kwargs:
            return None
        indices = kinks.function(u, *args, **kwargs).indices
        return _named(kinks, along(kinks, u, *args, **kwargs), indices)

    return found


def _sort(
    kinks: Kinks, u: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> Any:
    indices = kinks.function(u, dim=dim, descending=descending).indices
    found = kinks.ordered(u.movedim(dim, -1), u.shape[dim])
    found = (found if descending else found.flip(-1)).movedim(-1, dim)
    return _named(kinks, found, indices)


def _topk(
    kinks: Kinks, u: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    indices = kinks.function(u, k, dim, largest).indices
    sign = 1 if largest else -1
    found = sign * kinks.ordered(sign * u.movedim(dim, -1), k).movedim(-1, dim)
    return _named(kinks, found, indices)


def _named(kinks: Kinks, *fields: Tensor | None) -> Any:
    """The result of a function with several, None where one of them is None."""
    if any(field is None for field in fields):
        return None
    return getattr(torch.return_types, kinks.function.__name__)(fields)


def _norm(
    kinks: Kinks, u: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Tensor | None:
    dims = [dim] if isinstance(dim, int) else [*(dim or ())]
    p = kwargs.pop("ord", p)
    if not dims or p not in (1, torch.inf) or any(t is not None for t in kwargs.values()):
        return None
    if p == 1 or math.prod(u.shape[k] for k in dims) == 1:
        return kinks.size(u).sum(dims, keepdim=keepdim)
    return _amax(kinks, kinks.size(u), dims, keepdim)


def _linalg_norm(
    kinks: Kinks, u: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Tensor | None:
    """Of two dimensions it is the norm of a matrix, another one."""
    if dim is None or (not isinstance(dim, int) and len(dim) != 1):
        return None
    return _norm(kinks, u, ord, dim, keepdim, **kwargs)


def _distance(
    kinks: Kinks, u: Tensor, v: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor | None:
    return _norm(kinks, u - v + eps, p, -1, keepdim)


_REPLACED: dict[str, Any] = {
    "abs": Kinks.size,
    "__abs__": Kinks.size,
    "absolute": Kinks.size,
    "l1_loss": _l1_loss,
    "relu": Kinks.positive,
    "leaky_relu": _leaky_relu,
    "hardtanh": lambda kinks, u, min_val=-1.0, max_val=1.0: _clamp(kinks, u, min_val, max_val),
    "relu6": lambda kinks, u: _clamp(kinks, u, 0.0, 6.0),
    "threshold": _threshold,
    "_threshold": _threshold,
    "maximum": _maximum,
    "fmax": _maximum,
    "minimum": _minimum,
    "fmin": _minimum,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda kinks, u, max: _clamp(kinks, u, None, max),
    "amax": _amax,
    "amin": _amin,
    "aminmax": _aminmax,
    "max": _of_two_or_along(_maximum, _amax),
    "min": _of_two_or_along(_minimum, _amin),
    "sort": _sort,
    "msort": lambda kinks, u: kinks.ordered(u.movedim(0, -1), len(u)).flip(-1).movedim(-1, 0),
    "topk": _topk,
    "norm": _norm,
    "linalg_norm": _linalg_norm,
    "pairwise_distance": _distance,
    "linalg_vector_norm": _norm,
}
"""The functions of PyTorch that are maxima or minima, by their names."""


class Augmented(Regularizer):
    """The augmented Lagrangian of an Ω with kinks, at centres m̄ with weights ρ; with ρ None the
    Lagrangian L(·, m̄)."""

    def __init__(self, omega: Regularizer, centres: list[Tensor], rho: list[Tensor] | None) -> None:
        self.omega, self.count, self.hard = omega, len(centres), rho is not None
        for name, tensors in (("m", centres), ("rho", rho or ())):
            for k, t in enumerate(tensors):
                setattr(self, f"{name}{k}", t)

    @property
    def centres(self) -> list[Tensor]:
        return [getattr(self, f"m{k}") for k in range(self.count)]

    @property
    def rho(self) -> list[Tensor] | None:
        return [getattr(self, f"rho{k}") for k in range(self.count)] if self.hard else None

    def value(self, y: Tensor) -> Tensor:
        with Kinks(self.centres, self.rho):
            total: Tensor = self.omega.value(y)
        return total

    def lagrangian(self) -> Augmented:
        """L(·, m̄) of Ω."""
        return Augmented(self.omega, self.centres, None)

    def min_positive(self, tiny: float) -> float | Tensor:
        return self.omega.min_positive(tiny)
