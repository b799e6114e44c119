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
from ...kernels.simplex import row_dot
from ...regularizers.penalty import Penalty, averaged, shifted_prox


class ProxThenBase(Kernel):
    """The kernel of base + λR from the prox of R and the kernel of the base; θ = (λ, θ of the
    base).

    ``reach``: ρ for θ of the base, such that Π_base is 0 where a score is γρ or more below the
    largest; entries that this decides take no part in the prox. ``check``: what is called with the
    first answer.
    """

    dtypes: ClassVar[tuple[torch.dtype, ...]]

    def __init__(
        self,
        prox: ProxKernel,
        base: Kernel,
        reach: Callable[[Hyper], Tensor],
        check: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.first, self.base, self.reach, self.check = prox, base, reach, check
        self.name, self.dtypes = base.name, base.dtypes  # type: ignore[misc]
        self.raw = base.raw and not isinstance(prox, PyTorchProx)  # type: ignore[misc]

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
                self._check(found[0])
                return found
        reach = self.reach(tuple(own))
        scores, part = self.first.prox(x, gamma, lam, reach, mask)
        if not self.raw:  # a score as low as the base maps to 0 may be lower, and is finite
            scores = scores.clamp(min=-2 * (gamma * reach).view(-1, 1).to(scores))
            scores, part = scores if mask is None else torch.where(mask, scores, 0), mask
        y, _ = self.base.forward(scores, gamma, tuple(own), None if self.raw else mask)
        self._check(y)
        return y, part

    def _check(self, y: Tensor) -> None:
        check, self.check = self.check, None  # y keeps the kernel: it must not keep x
        if check is not None:
            check(y)

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


class PyTorchProx(ProxKernel):
    """The prox of a penalty as its class computes it, at finite rows."""

    def __init__(self, penalty: Penalty) -> None:
        self.penalty = penalty

    def prox(
        self, x: Tensor, gamma: Tensor, lam: Tensor, reach: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        gamma, lam, reach = (t.view(-1, 1) for t in (gamma, lam, reach))
        return shifted_prox(self.penalty, x, gamma, lam, reach, mask), mask

    def averages(
        self, y: Tensor, v: Tensor, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Tensor | None]:
        w = averaged(self.penalty, v, y, mask)
        w = w if mask is None else torch.where(mask, w, 0)
        if not hyper:
            return w, None
        u = self.penalty.any_subgradient(y, mask)
        # 0 where the row's maximum is: w adds up to 0 but for rounding
        u = u - u.gather(-1, y.argmax(-1, keepdim=True))
        return w, -row_dot(w.double(), u.double()).squeeze(-1)
