"""The kernel of base + λR from the kernel of the base and the prox of R."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from .base import Hyper, Kernel, ProxKernel


class Composed(Kernel):
    """Π_{base+λR} = Π_base ∘ γ prox_{λR}(·/γ) (:mod:`regmax.regularizers.penalty`), θ = (λ, θ of
    the base).

    y has the groups of the prox. J = P J_base, with P the averages over these.

    ``reach``: ρ for θ of the base, such that Π_base is 0 where a score is γρ or more below the
    largest; entries that this decides take no part in the prox.
    """

    dtypes: ClassVar[tuple[torch.dtype, ...]]

    def __init__(self, prox: ProxKernel, base: Kernel, reach: Callable[[Hyper], Tensor]) -> None:
        self.first, self.base, self.reach = prox, base, reach
        self.name, self.dtypes = base.name, base.dtypes  # type: ignore[misc]

    def compile(self, dtype: torch.dtype) -> None:
        self.first.compile(dtype)
        self.base.compile(dtype)

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        lam, *own = theta
        scores, part = self.first.prox(x, gamma, lam, self.reach(tuple(own)), mask)
        return self.base.forward(scores, gamma, tuple(own), None)[0], part

    def backward(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: Hyper,
        mask: Tensor | None,
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        # averages first: J of the base may magnify what they cancel (α > 2, next to a zero)
        v, _ = self.first.averages(y, v, mask, False)
        w, inside = self.base.backward(y, v, gamma, theta[1:], None, hyper)
        if inside is None:
            return w, None
        _, dlam = self.first.averages(y, w, mask, True)
        assert dlam is not None
        return w, (dlam * gamma, *inside)
