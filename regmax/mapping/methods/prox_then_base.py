"""Π_{base+λR} = Π_base ∘ γ prox_{λR}(·/γ), for any base that has a kernel.

The theorem is in :mod:`regmax.regularizers.penalty`. y has the groups of the prox, and the chain
rule needs only these: J = P J_base, with P the averages over the groups, and ∂/∂λ = −⟨Jv, u⟩ with
u ∈ ∂R(y) (Niculae & Blondel 2017, Prop. 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ...kernels import Kernel, ProxKernel
from ...kernels.base import Hyper


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
