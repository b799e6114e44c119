"""The kernels that an Ω offers, alone or after the prox of a penalty, and their arguments.

The theorem Π_{base+λR} = Π_base ∘ γ prox_{λR}(·/γ) is in :mod:`regmax.regularizers.penalty`. y has
the groups of the prox, and the chain rule needs only these: J = P J_base, with P the averages over
the groups, and ∂/∂λ = −⟨Jv, u⟩ with u ∈ ∂R(y) (Niculae & Blondel 2017, Prop. 3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor

from ...kernels import Kernel, ProxKernel, asked
from ...kernels.base import Hyper
from ...regularizers import arguments
from ...regularizers.expressions import Scaled
from ...regularizers.identity import (
    attribute,
    names_of,
    plain,
    trusted,
    unscaled,
    unweighted,
)
from ...regularizers.penalty import Penalized, Penalty
from ...regularizers.regularizer import Regularizer
from ..rows import constant, numbered


class ProxThenBase(Kernel):
    """The kernel of base + λR from the prox of R and the kernel of the base; θ = (λ, θ of the
    base).

    ``reach``: ρ for θ of the base, such that Π_base is 0 where a score is γρ or more below the
    largest; entries that this decides take no part in the prox.
    """

    dtypes: ClassVar[tuple[torch.dtype, ...]]

    def __init__(self, prox: ProxKernel, base: Kernel, reach: Callable[[Hyper], Tensor]) -> None:
        self.first, self.base, self.reach = prox, base, reach
        self.name, self.dtypes, self.raw = base.name, base.dtypes, base.raw  # type: ignore[misc]

    def compile(self, dtype: torch.dtype) -> None:
        self.first.compile(dtype)
        self.base.compile(dtype)

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        lam, *own = theta
        if (step := self.first.step) is not None:
            found = self.base.forward_after(step, x, gamma, lam, tuple(own), mask)
            if found is not None:
                return found
        reach = self.reach(tuple(own))
        scores, part = self.first.prox(x, gamma, lam, reach, mask)
        if not self.raw:  # a score as low as the base maps to 0 may be lower, and is finite
            scores = scores.clamp(min=-2 * (gamma * reach).view(-1, 1).to(scores))
            scores, part = scores if mask is None else torch.where(mask, scores, 0), mask
        y, _ = self.base.forward(scores, gamma, tuple(own), None if self.raw else mask)
        return y, part

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        if (step := self.first.step) is not None:
            found = self.base.backward_after(step, y, v, gamma, theta[0], theta[1:], mask, hyper)
            if found is not None:
                return found
        # averages first: J of the base may magnify what they cancel (α > 2, next to a zero)
        v, _ = self.first.averages(y, v, mask, False)
        w, inside = self.base.backward(y, v, gamma, theta[1:], None, hyper)
        if inside is None:
            return w, None
        _, dlam = self.first.averages(y, w, mask, True)
        assert dlam is not None
        return w, (dlam * gamma, *inside)


def kernel_of(omega: Regularizer, x: Tensor) -> Kernel | None:
    """The kernel that Ω offers for tensors like x, unless its class redefines what it computes; or
    that of base + λR, from the kernel of the base and the compiled prox of R."""
    if not (asked() and omega.exact and trusted(type(omega), "kernel")):  # type: ignore[arg-type]
        return None
    found = omega.kernel(x)
    if found is not None and found.longest is not None and x.shape[-1] > found.longest:
        found = None
    if found is not None or not composes(omega):
        return found
    if type(omega).kernel is not Penalized.kernel:
        return None
    kernel = kernel_of(omega.base, x)
    return None if kernel is None else after_prox(omega, kernel, x)


def after_prox(
    omega: Penalized, kernel: Kernel, x: Tensor, offered: bool = True
) -> ProxThenBase | None:
    """The kernel of Ω = base + λR from that of the base, if the prox of R has one; ``offered``:
    whether the base offers it, so that its θ is that of the base."""
    prox = prox_of(omega.penalty, x)
    if prox is None:
        return None
    if offered:
        return ProxThenBase(prox, kernel, functools.partial(reach_of, omega.base, x.device))
    reach = numbered(omega.base.support_radius(), x)
    return ProxThenBase(prox, kernel, lambda _: reach)


def composes(omega: Regularizer) -> TypeGuard[Penalized]:
    """Whether Ω is base + λR, and Π_Ω that of the base after the prox of R."""
    return isinstance(omega, Penalized) and omega.composes and plain(type(omega))  # type: ignore[arg-type]


def reach_of(base: Regularizer, device: torch.device, theta: tuple[Tensor, ...] = ()) -> Tensor:
    """ρ such that Π_base is 0 where a score is γρ or more below the largest; (1,) or (R,)."""
    names = names_of(base)
    if any(isinstance(attribute(base, name), Tensor) for name in names):
        base = base.with_tensors(dict(zip(names, theta, strict=True)))
    found = base.support_radius()
    return found if isinstance(found, Tensor) else constant(found, device)


def prox_of(penalty: Penalty, x: Tensor) -> ProxKernel | None:
    """The compiled prox of a penalty, unless its class redefines what that computes."""
    known = asked() and trusted(type(penalty), "prox_kernel")
    return penalty.prox_kernel(x) if known else None


def bare(omega: Regularizer, gamma: Any) -> tuple[Regularizer, Any]:
    """Ω without factors, and its γ: γ(c·base + λ·wR) = γc(base + (λw/c)R)."""
    omega, gamma = unscaled(omega, gamma)
    if not composes(omega):
        return omega, gamma
    penalty, lam = unweighted(omega.penalty, omega.lam)
    base, c = unscaled(omega.base, 1.0)
    if penalty is omega.penalty and base is omega.base:
        return omega, gamma
    return Penalized(base, penalty, lam / c), gamma * c


# -- γ and θ ---------------------------------------------------------------------------------------


def declared(omega: Regularizer) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The names of γ and the hyperparameters, and their accepted ranges."""
    ranges = _ranges(type(omega))  # type: ignore[arg-type]
    if isinstance(omega, Penalized):
        ranges += _ranges(type(omega.base))  # type: ignore[arg-type]
    return ("gamma", *names_of(omega)), (arguments.POSITIVE, *ranges)


@functools.lru_cache(maxsize=1024)
def _ranges(cls: type[Regularizer]) -> tuple[Any, ...]:
    return tuple(cls.ranges.get(name) for name in cls.hyperparameters or ())


def numbers_of(omega: Regularizer, gamma: Any) -> list[Any]:
    """γ and θ."""
    return [gamma, *(attribute(omega, name) for name in names_of(omega))]


def checked(omega: Regularizer, gamma: Any, x: Tensor, dim: int) -> tuple[Regularizer, list[Any]]:
    """Ω without factors, and its γ and θ, range-checked and laid out for the rows of x along
    ``dim``."""
    factors: list[Any] = []
    while isinstance(omega, Scaled):
        factors.append(arguments.per_row("c", omega.c, Scaled.ranges["c"], x, dim))
        omega = omega.base
    items = zip(*declared(omega), numbers_of(omega, gamma), strict=True)
    numbers = [arguments.per_row(name, t, accepted, x, dim) for name, accepted, t in items]
    for c in factors:
        numbers[0] = numbers[0] * c
    return omega, numbers
