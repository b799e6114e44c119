"""Quadratic parts of a value: products of linear maps y ↦ yA + b, which sum to ½yᵀHy + ⟨c, y⟩."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .tape import Ref

aten = torch.ops.aten
Emit = Callable[..., Ref]
_PLAIN = {"dtype": torch.float64, "device": torch.device("cpu")}


@dataclass(frozen=True)
class Map:
    """yA + b, of ``width`` numbers; b None: 0."""

    matrix: Ref
    width: int
    shift: Ref | None = None


@dataclass(frozen=True)
class Products:
    """A function of each entry plus products of maps, number by number."""

    entry: Ref | None
    pairs: tuple[tuple[Map, Map], ...]


class Maps:
    """The algebra of maps; ``outer`` records operations that do not depend on y."""

    def __init__(self, outer: Emit, d: int) -> None:
        self._outer, self._d = outer, d

    def identity(self) -> Map:
        """y itself."""
        return Map(self._outer(aten.eye.default, self._d, **_PLAIN), self._d)

    def scaled(self, a: Map, op: Any, by: Any) -> Map:
        """The map times, or divided by, what does not depend on y."""
        shift = None if a.shift is None else self._outer(op, a.shift, by)
        return Map(self._outer(op, a.matrix, by), a.width, shift)

    def moved(self, a: Map, by: Any, sign: int) -> Map:
        """The map plus or minus what does not depend on y."""
        if not isinstance(by, Ref):
            by = self._outer(aten.full.default, [], float(by), **_PLAIN)
        by = by if sign > 0 else self._outer(aten.neg.default, by)
        shift = by if a.shift is None else self._outer(aten.add.Tensor, a.shift, by)
        return Map(a.matrix, a.width, shift)

    def added(self, a: Map, b: Map, sign: int) -> Map:
        """a + b or a − b."""
        op = aten.add.Tensor if sign > 0 else aten.sub.Tensor
        found = Map(self._outer(op, a.matrix, b.matrix), a.width, a.shift)
        return found if b.shift is None else self.moved(found, b.shift, sign)

    def total(self, a: Map) -> tuple[None, list[Ref], list[Ref]]:
        """The same parts of the sum of one map."""
        linear = [self._outer(aten.sum.dim_IntList, a.matrix, [-1])]
        if a.shift is None:
            return None, linear, []
        each = self._outer(aten.expand.default, a.shift, [a.width])
        return None, linear, [self._outer(aten.sum.default, each)]

    def form(self, pairs: tuple[tuple[Map, Map], ...]) -> tuple[Ref | None, list[Ref], list[Ref]]:
        """H, the vectors that add up to c, and the constants of the sum of all products."""
        total, linear, constants = None, [], []
        for a, b in pairs:
            product = self._outer(aten.mm.default, a.matrix, self._outer(aten.t.default, b.matrix))
            both = self._outer(aten.add.Tensor, product, self._outer(aten.t.default, product))
            total = both if total is None else self._outer(aten.add.Tensor, total, both)
            for one, other in ((a, b), (b, a)):
                if other.shift is not None:
                    weighted = self._outer(aten.mul.Tensor, one.matrix, other.shift)
                    linear.append(self._outer(aten.sum.dim_IntList, weighted, [-1]))
            if a.shift is not None and b.shift is not None:
                both = self._outer(aten.mul.Tensor, a.shift, b.shift)
                each = self._outer(aten.expand.default, both, [a.width])
                constants.append(self._outer(aten.sum.default, each))
        return total, linear, constants
