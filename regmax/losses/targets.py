"""The targets t of a Fenchel–Young loss: ⟨t, x⟩, Ω(t) and y − t. A target is a vertex or a
distribution, with or without label smoothing."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import simplex, transforms
from ..kernels.transforms import may_look
from ..regularizers.penalty import value_of
from ..regularizers.regularizer import Regularizer

F64 = torch.float64
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Target(NamedTuple):
    """t = a·t₀ + (1 − a)·s for rows (*batch, d): t₀ is a vertex e_k or a distribution. s comes from
    label smoothing: a distribution over vertices, whose losses are averaged."""

    vertex: Tensor | None = None
    """k, (*batch, 1), if t₀ is a vertex."""
    given: Tensor | None = None
    """t₀, (*batch, d), if it is a distribution; of any sum m, where there is no s: then L is m
    times the loss of t₀/m, and 0 for m = 0."""
    spread: Tensor | None = None
    """s; broadcasts to (*batch, d)."""
    share: Tensor | None = None
    """a; broadcasts to (*batch, 1)."""
    epsilon: Any = None
    """The number 1 − a if s is uniform over the participants and not yet in ``spread``."""
    skip: Tensor | None = None
    """The rows that do not count, (*batch)."""

    def spread_out(self, x: Tensor, mask: Tensor | None) -> Target:
        """With s and a for rows x, in place of ``epsilon``."""
        if self.epsilon is None:
            return self
        x = x.detach()
        spread = taking_part(x, mask, x.dtype)
        spread = spread / spread.sum(-1, keepdim=True).clamp_min(1)
        share = x.new_full((1,) * x.ndim, 1 - self.epsilon)
        return self._replace(spread=spread, share=share, epsilon=None)

    def plain(self) -> Tensor | None:
        """What a kernel takes: k, −1 in the rows of ``skip``, or t₀. None where there is an s."""
        if self.spread is not None or self.vertex is None:
            return self.given if self.spread is None else None
        skip = self.skip
        return self.vertex if skip is None else self.vertex.masked_fill(skip.unsqueeze(-1), -1)

    def without_skipped(self, value: Tensor) -> Tensor:
        """The losses of rows, 0 in those that do not count."""
        return value if self.skip is None else torch.where(self.skip, 0, value)

    def normalised(self, x: Tensor) -> tuple[Target, Tensor | None]:
        """With t₀/m in the dtype of x, and m, (*batch); None for 1."""
        if self.given is None or self.spread is not None:
            return self, None
        given, mass = divided(self.given.to(x.dtype))
        return self._replace(given=given), mass

    def dot(self, x: Tensor) -> Tensor:
        """⟨t, x⟩ for finite x, (*batch)."""
        if self.vertex is not None:
            first = x.gather(-1, self.vertex).squeeze(-1).to(F64)
        else:
            assert self.given is not None
            first = (self.given * x).sum(-1, dtype=F64)
        if self.spread is None or self.share is None:
            return first
        a, s = self.share.squeeze(-1), self.spread
        mean = x @ s.flatten() if s.numel() == s.shape[-1] else (s * x).sum(-1)
        return a * first + (1 - a) * mean.to(F64)

    def taken_from(self, y: Tensor) -> Tensor:
        """y ← y − t, in place."""
        a = self.share
        if self.vertex is not None:
            one = -torch.ones_like(y[..., :1])
            y.scatter_add_(-1, self.vertex, one if a is None else one * a)
        else:
            assert self.given is not None
            y.sub_(self.given if a is None else a * self.given)
        if a is None or self.spread is None:
            return y
        return y.sub_((1 - a) * self.spread)

    def inside(self, on: Tensor) -> Tensor:
        """Whether the support of t₀ lies in the entries ``on``, (*batch); that of s always does."""
        if self.vertex is not None:
            return on.gather(-1, self.vertex).squeeze(-1)
        assert self.given is not None
        return ~((self.given > 0) & ~on).any(-1)

    def value(self, omega: Regularizer, like: Tensor, on: Tensor | None) -> Tensor:
        """a·Ω(t₀) + (1 − a)·Σ_c s_c Ω(e_c), (*batch), for rows ``like``."""
        if self.vertex is not None:
            first = _at_vertex(omega, like, on, self.vertex)
        else:
            assert self.given is not None
            first = omega_at(omega, self.given, on)
        if self.spread is None or self.share is None:
            return first
        a = self.share.squeeze(-1)
        return a * first + (1 - a) * _mean_of_vertices(omega, like, on, self.spread)


def taking_part(x: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """1 for each participant and 0 for others, (*batch, d), or (1, …, d) where all take part."""
    if mask is None and may_look(x) and x.numel() and bool(x.amin() > -torch.inf):
        return x.new_ones((1,) * (x.ndim - 1) + (x.shape[-1],), dtype=dtype)
    return (x != -torch.inf if mask is None else mask & (x != -torch.inf)).to(dtype)


def omega_at(omega: Regularizer, y: Tensor, on: Tensor | None) -> Tensor:
    """Ω(y), evaluated next to the zeros of y if it is not finite at them. The derivatives are
    always those next to the zeros: at a zero, the derivative of y^p in p is NaN by autograd."""
    with torch.no_grad():
        value = value_of(omega, y, on)
        finite = torch.isfinite(value)
    if not torch.is_grad_enabled() and transforms.may_look(value) and bool(finite.all()):
        return value
    near = value_of(omega, y + (simplex.inward(y) - y).detach(), on)
    return near + torch.where(finite, value - near, 0).detach()


def _at_vertex(omega: Regularizer, like: Tensor, on: Tensor | None, k: Tensor) -> Tensor:
    """Ω(e_k), (*batch)."""
    if omega.ignores_zeros:  # all vertices have the same value
        return omega.value(torch.ones_like(like[..., :1]))
    return omega_at(omega, torch.zeros_like(like).scatter(-1, k, 1), on)


def _mean_of_vertices(
    omega: Regularizer, like: Tensor, on: Tensor | None, spread: Tensor
) -> Tensor:
    """Σ_c s_c Ω(e_c), (*batch). Ω is evaluated d times, or once if ``omega.ignores_zeros``."""
    if on is None:  # the same for all rows
        like = like[tuple(slice(1) for _ in like.shape[:-1])]
    if omega.ignores_zeros:
        return _at_vertex(omega, like, on, torch.zeros_like(like[..., :1], dtype=torch.int64))
    total = torch.zeros_like(spread[..., 0])
    for c in range(like.shape[-1]):
        k = torch.full_like(like[..., :1], c, dtype=torch.int64)
        total = total + spread[..., c] * _at_vertex(omega, like, on, k)
    return total


def checked(t: Tensor) -> Tensor:
    """Distributions, finite and nonnegative."""
    if may_look(t) and t.numel():
        low, high = (end.item() for end in t.detach().aminmax())
        if not 0 <= low <= high < math.inf:
            wrong = high if low >= 0 else low
            raise ValueError(f"target distributions must be finite and >= 0; got {wrong:g}")
    return t


def divided(t: Tensor) -> tuple[Tensor, Tensor]:
    """t divided by its sum, and that sum, (*batch)."""
    mass = t.sum(-1)
    return t / torch.where(mass > 0, mass, 1).unsqueeze(-1), mass


def times(mass: Tensor | None, value: Tensor) -> Tensor:
    """m times the losses, 0 where m = 0."""
    return value if mass is None else torch.where(mass == 0, 0, value * mass)


def improper(t: Tensor) -> Tensor:
    """The entries that no distribution has."""
    return ~((t >= 0) & (t < torch.inf))


def is_index(target: Any, input: Tensor, dim: int, domain: bool = False) -> bool:
    """Whether the target holds indices, and not distributions or points of a domain. Refuses a
    wrong type or shape."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a torch.Tensor; got {type(target).__name__}")
    if domain and target.shape == input.shape:
        return False
    indices = target.dtype in _INTEGERS
    if not indices and not target.is_floating_point():
        raise TypeError(
            f"target must hold indices (integers) or distributions (floating); got {target.dtype}"
        )
    rows = input.shape[:dim] + input.shape[dim + 1 :]
    expected = rows if indices else input.shape
    if target.shape != expected:
        kind = "indices" if indices else "distributions"
        raise ValueError(
            f"target of {kind} ({target.dtype}) must have shape {tuple(expected)} for input of "
            f"shape {tuple(input.shape)} with its classes along dim={dim}; got "
            f"{tuple(target.shape)}"
        )
    return indices
