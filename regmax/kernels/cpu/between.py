"""Kernels of a threshold mapping on other domains: between bounds, l ≤ y ≤ u, Σ y = k, and
transport plans."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from ..base import Hyper
from ..sources import written
from .rows import CompiledRows, DirectRows, result

_SOURCE = """# {version}
from regmax.kernels.cpu import clipped_rows, compiling

base = compiling.imported({base!r}).{name}
forward, backward = clipped_rows.between(base, {each})
"""
_WEIGHTED = """# {version}
from regmax.kernels.cpu import compiling, weighted_rows

base = compiling.imported({base!r}).{name}
forward, backward = weighted_rows.weighted(base)
"""
_PLANS = """# {version}
from regmax.kernels.cpu import compiling, transport

base = compiling.imported({base!r}).{name}
forward = transport.of(base)
"""


@functools.cache
def between(base: CompiledRows, each: bool) -> Between:
    """The kernel of a base, of functions by :func:`regmax.kernels.cpu.mapping.functions`, between
    bounds of rows, or of ``each`` entry."""
    return Between(base, each)


class Between(CompiledRows):
    """Π_Ω on {l ≤ y ≤ u, Σ y = k}, by :func:`regmax.kernels.cpu.clipped_rows.functions`.

    ``low``, ``high``: float64, (1,) or (R,), or (1, d) or (R, d); ``total``: (1,) or (R,).
    """

    def __init__(self, base: CompiledRows, each: bool) -> None:
        from .compiling import version

        given = {"base": base.module, "name": base.names[0], "each": each}
        text = _SOURCE.format(
            version=version("regmax.kernels.cpu.clipped_rows", base.module), **given
        )
        super().__init__(str(written("between", text)[0]), base.grain)
        self.base, self.each = base, each

    def rows(self, theta: Hyper) -> CompiledRows:
        found = self.base.rows(theta)
        return self if found is self.base else between(found, self.each)

    def within(self, direct: DirectRows, bounds: tuple[Tensor, ...]) -> DirectBetween:
        """``direct`` of the base with numbers l, u, k."""
        return DirectBetween(self, direct.width, direct.gamma, direct.theta, bounds)

    def solve(
        self,
        x: Tensor,
        gamma: Tensor,
        theta: Hyper,
        bounds: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor | None:
        """y; None if the kernel does not answer for all rows: a number is out of its range, or a
        row has no point."""
        y, missed = result(x), gamma.new_zeros(1)
        self.rows(theta).run(0, x, gamma, *theta, *bounds, mask, y, missed)
        return None if missed.item() else y

    def product(
        self,
        y: Tensor,
        v: Tensor,
        gamma: Tensor,
        theta: Hyper,
        bounds: tuple[Tensor, Tensor],
        hyper: bool,
    ) -> tuple[Tensor, Hyper | None]:
        """Jv/γ, and the products with the hyperparameters."""
        out = result(y)
        each = tuple(gamma.new_empty(len(y)) for _ in theta) if hyper else ()
        slopes = each or (None for _ in theta)
        self.rows(theta).run(1, y, v, gamma, *theta, *bounds, out, *slopes)
        return out, each if hyper else None


class DirectBetween(DirectRows):
    """:class:`Between` for fixed l, u, k. y is None where a row has no answer."""

    def forward(self, x: Tensor, theta: Hyper) -> tuple[Any, Tensor | None]:
        y, missed = result(x), self.gamma.new_zeros(1)
        self.run(0, {0: x, self.at: y, self.at + 1: missed}, theta)
        return None if missed.item() else y, None


@functools.cache
def weighted(base: CompiledRows) -> Weighted:
    """The kernel of a base with weights."""
    return Weighted(base)


class Weighted(CompiledRows):
    """Π of Σ m_i c_i e(y_i/m_i), by :func:`regmax.kernels.cpu.weighted_rows.functions`; ``sizes``
    m and ``rates`` 1/c: float64, (1, d) or (R, d)."""

    def __init__(self, base: CompiledRows) -> None:
        from .compiling import version

        given = {"base": base.module, "name": base.names[0]}
        digest = version("regmax.kernels.cpu.weighted_rows", base.module)
        path = written("weighted", _WEIGHTED.format(version=digest, **given))[0]
        super().__init__(str(path), base.grain)
        self.base = base

    def rows(self, theta: Hyper) -> CompiledRows:
        found = self.base.rows(theta)
        return self if found is self.base else weighted(found)

    def solve(
        self,
        x: Tensor,
        gamma: Tensor,
        theta: Hyper,
        weights: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor | None:
        """y; None if not all rows are solved."""
        y, missed = result(x), gamma.new_zeros(1)
        self.rows(theta).run(0, x, gamma, *theta, *weights, mask, y, missed)
        return None if missed.item() else y

    def product(
        self, y: Tensor, v: Tensor, gamma: Tensor, theta: Hyper, weights: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Jv/γ."""
        out = result(y)
        self.rows(theta).run(1, y, v, gamma, *theta, *weights, out)
        return out


GRAIN = 256
"""That of :mod:`regmax.kernels.cpu.threads` for plans, whose entries take longer than those of
rows."""
_POTENTIALS = CompiledRows("regmax.kernels.cpu.laplacian", GRAIN, ("potentials",))


def potentials(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`regmax.domains.semidual.potentials` of float64 (B, n, m), without derivatives."""
    count, n, m = s.shape
    alpha, v = s.new_empty(count, n), s.new_empty(count, m)
    flat = [u.detach().reshape(count, n * m).contiguous() for u in (s, t)]
    _POTENTIALS.run(0, *flat, n, alpha, v)
    return alpha, v


@functools.cache
def plans(base: CompiledRows) -> Plans:
    """The kernel of the transport plans of a base."""
    return Plans(base)


class Plans(CompiledRows):
    """Transport plans in float64, by :func:`regmax.kernels.cpu.transport.functions`."""

    def __init__(self, base: CompiledRows) -> None:
        from .compiling import version

        given = {"base": base.module, "name": base.names[0]}
        text = _PLANS.format(version=version("regmax.kernels.cpu.transport", base.module), **given)
        super().__init__(str(written("plans", text)[0]), GRAIN, ("forward",))
        self.base = base

    def rows(self, theta: Hyper) -> CompiledRows:
        found = self.base.rows(theta)
        return self if found is self.base else plans(found)

    def solve(
        self, z: Tensor, theta: Hyper, a: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Y of scores (B, n, m), v, the error of the columns relative to the largest b, and the
        number of steps; ``theta``: (1,) or (B,), ``a``: (B, n), ``b``: (B, m)."""
        count, n, m = z.shape
        flat, y, v = z.reshape(count, n * m), z.new_empty(count, n * m), z.new_empty(count, m)
        error, steps = z.new_empty(count), z.new_empty(count)
        self.rows(theta).run(0, flat, *theta, a, b, n, y, v, error, steps)
        return y.view(z.shape), v, error, steps
