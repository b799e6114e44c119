"""The inputs p of e, laid out for compiled code."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base import Hyper
from .tape import Unknown

MISSED, TOLERANCE, ZERO, ONE, TABLE, BASE, WIDTH, COUNT, CURVE, NUMBERS = range(10)
"""The numbers of :mod:`.implicit`, before those that the code of e takes: how many rows were not
certified, an integer; the distance to certify, e'(0), e'(1), the address of the table, the three
that tell its places, and (1 − b)/2 of the power e' ~ y^b with which it is read."""
BIN = 19
"""Its table has the numbers of which only the bits from this one on are not 0: 16 an octave."""


def varies(t: Tensor, d: int) -> bool:
    """Whether an input has one number for each entry of a row of d."""
    if t.ndim == 0 or t.shape[-1] == 1:
        return False
    if t.shape[-1] != d:
        raise Unknown("a tensor that it uses does not broadcast to y")
    return True


class Inputs:
    """``vectors``: which inputs have one number per entry, ``count`` of them; ``plain`` have one
    per row. The ``constants`` of the source follow these."""

    def __init__(self, vectors: list[bool], constants: list[float], device: torch.device) -> None:
        self.vectors, self.count = vectors, sum(vectors)
        self.plain = len(vectors) - self.count
        self._constants = torch.tensor([[*constants, 0]], dtype=torch.float64, device=device)
        self._none = self._constants.new_zeros(1, 1)
        self._alone = self._constants, self._none

    def rows(self, theta: Hyper) -> tuple[Tensor, Tensor]:
        """The inputs that have one number per row, with the constants of the source, and those that
        have one number per entry, each as rows."""
        if not theta:
            return self._alone
        each = list(zip(theta, self.vectors, strict=True))
        plain = [t.view(-1, 1).to(self._none.device) for t, v in each if not v]
        varying = [t for t, v in each if v]
        return _joined([*plain, self._constants]), _joined(varying) if varying else self._none

    def empty(self, rows: int, d: int) -> tuple[Tensor, Tensor]:
        """Where compiled code writes the gradients of both, row by row."""
        wide = self._none.new_empty(rows, self.plain + 1)
        return wide, self._none.new_empty(rows, self.count * d + 1)

    def gradients(self, dnumbers: Tensor, dvectors: Tensor, d: int) -> list[Tensor]:
        """The gradient of each input from those of both."""
        each, k, i = [], 0, 0
        for varying in self.vectors:
            if varying:
                each.append(dvectors[:, k * d : (k + 1) * d])
                k += 1
            else:
                each.append(dnumbers[:, i])
                i += 1
        return each


def _joined(parts: list[Tensor]) -> Tensor:
    """The columns of all parts, each with one row or R."""
    rows = max(len(t) for t in parts)
    return torch.cat([t.expand(rows, t.shape[1]) for t in parts], 1)
