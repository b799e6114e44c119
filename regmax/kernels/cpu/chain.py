"""The kernel of a threshold mapping after a prox, in one function of a job."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..base import Hyper
from ..sources import written
from .rows import CompiledRows, result

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

    def rows(self, theta: Hyper) -> CompiledRows:
        found = self.base.rows(theta[1:])
        return self if found is self.base else chain(found, self.step)

    def forward(
        self, x: Tensor, gamma: Tensor, theta: Hyper, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y, gaps = result(x), gamma.new_zeros(1)
        self.rows(theta).run(0, x, gamma, *theta, mask, y, gaps)
        return y, taking_part(x, gaps, mask)


def taking_part(x: Tensor, gaps: Tensor, mask: Tensor | None) -> Tensor | None:
    """Who takes part, None if all do."""
    if not gaps.item():
        return None
    part = x != -torch.inf
    return part if mask is None else part & mask
