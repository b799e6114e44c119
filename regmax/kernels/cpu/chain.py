"""The kernel of a prox, and that of a threshold mapping after it, in one function of a job."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..base import Hyper, Kernel, ProxKernel
from ..sources import written
from .rows import CompiledRows, DirectRows, result

_SOURCE = """# {version}
from regmax.kernels.cpu import compiling, mapping
from {step} import PROX

base = compiling.imported({base!r}).{name}
forward, backward = mapping.after(PROX, base)
"""


@functools.cache
def chain(base: CompiledRows, step: str) -> Chain:
    """The kernel of a base, of functions by :func:`regmax.kernels.cpu.mapping.functions`, after the
    ``PROX`` of the module ``step``."""
    return Chain(base, step)


class Chain(CompiledRows):
    """Π_{base+λR}, θ = (λ, θ of the base).

    The arrays of forward(job, like) are x, γ, θ …, the mask, y, and whether some scores are −∞;
    those of backward(job, like) y, v, γ, θ …, the gradient of x, those of θ, who takes part.
    """

    def __init__(self, base: CompiledRows, step: str) -> None:
        from .compiling import version

        given = {"base": base.module, "name": base.names[0], "step": step}
        text = _SOURCE.format(version=version(step, base.module), **given)
        super().__init__(str(written("chain", text)[0]), base.grain)
        self.base, self.step = base, step

    def direct(
        self, dtype: torch.dtype, d: int, gamma: Tensor, theta: tuple[Tensor | None, ...]
    ) -> DirectRows:
        return _DirectChain(self, d, gamma, theta)

    def rows(self, theta: Hyper) -> CompiledRows:
        found = self.base.rows(theta[1:])
        return self if found is self.base else chain(found, self.step)

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y, gaps = result(x), gamma.new_zeros(1)
        self.rows(theta).run(0, x, gamma, *theta, mask, y, gaps)
        return y, taking_part(x, gaps, mask)


class _DirectChain(DirectRows):
    """Its jobs have whether scores are −∞ after y, and backward all products and who takes part."""

    def forward(self, x: Tensor, theta: Hyper) -> tuple[Tensor, Tensor | None]:
        y, gaps = result(x), self.gamma.new_zeros(1)
        self.run(0, {0: x, self.at: y, 1 + self.at: gaps}, theta)
        return y, taking_part(x, gaps, None)

    def backward(
        self, y: Tensor, v: Tensor, theta: Hyper, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Hyper]:
        arrays = {0: y, 1: v, self.at: (out := result(y))}
        each = [self.gamma.new_empty(len(y)) for _ in self.theta] if hyper else []
        arrays.update({1 + self.at + k: t for k, t in enumerate(each)})
        if mask is not None:
            arrays[1 + self.at + len(self.theta)] = mask
        self.run(1, arrays, theta)
        return out, tuple([each[k] for k in self.open if hyper])


class Step(CompiledRows, ProxKernel):
    """The prox of a penalty, of functions by :func:`regmax.kernels.cpu.prox.functions` in a module
    that has its ``PROX``.

    The arrays of forward(job, like) are x, γ, λ, the mask, z, whether some scores are −∞, and ρ;
    those of backward(job, like) y, v, who takes part, the averages, the product with u.
    """

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.step: str = module

    def before(self, base: Kernel | None) -> Kernel | None:
        return chain(base, self.step) if isinstance(base, CompiledRows) else None

    def prox(
        self, x: Tensor, gamma: Tensor, lam: Tensor, reach: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        z, gaps = result(x), gamma.new_zeros(1)
        self.run(0, x, gamma, lam, mask, z, gaps, reach)
        return z, taking_part(x, gaps, mask)

    def averages(
        self, y: Tensor, v: Tensor, mask: Tensor | None, hyper: bool
    ) -> tuple[Tensor, Tensor | None]:
        out = result(y)
        dlam = y.new_empty(len(y), dtype=torch.float64) if hyper else None
        self.run(1, y, v, mask, out, dlam)
        return out, dlam


def taking_part(x: Tensor, gaps: Tensor, mask: Tensor | None) -> Tensor | None:
    """Who takes part, None if all do."""
    if not gaps.item():
        return None
    part = x != -torch.inf
    return part if mask is None else part & mask
