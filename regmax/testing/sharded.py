"""The promise of ``sharded_form``: rows whose entries lie on several devices are whole rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..mapping import shards
from .promise import Case, agree, searched, worst
from .subject import Subject


class _Halves(shards.Shards):
    """Two devices: the first halves of n rows, and below them the second halves."""

    def __init__(self, n: int) -> None:
        self.size, self._n = 2, n

    def reduced(self, t: Tensor, how: str) -> Tensor:
        at = max(i for i, size in enumerate(t.shape) if size == 2 * self._n)
        both = t.unflatten(at, (2, self._n))
        whole = both.sum(at, keepdim=True) if how == "sum" else both.amax(at, keepdim=True)
        found: Tensor = whole.expand(both.shape).flatten(at, at + 1)
        return found


def _in_parts(s: Subject, case: Case, v: Tensor) -> list[Tensor]:
    """y and Jv/γ, computed from the halves of each row."""
    n, d = case.x.shape

    def halves(t: Tensor, value: float) -> Tensor:
        return torch.cat(pad(t, (0, d % 2), value=value).chunk(2, -1))

    x = halves(case.x, -torch.inf).requires_grad_()
    mask = None if case.mask is None else halves(case.mask, 0)
    y = shards.mapping(s.omega, x, case.gamma, -1, mask, _Halves(n))
    (gx,) = torch.autograd.grad(y, x, halves(v, 0))
    return [torch.cat(t.detach().chunk(2), -1)[:, :d] for t in (y, gx)]


@searched(lambda s: shards.computes(s.omega), costly=True)
def check_sharded_form(s: Subject, case: Case) -> None:
    """Π_Ω(x) and Jv of rows in two parts, which add their sums, are those of whole rows."""
    look, v = s.where("sharded_form"), case.direction()
    x = case.x.detach().clone().requires_grad_()
    expected = s.layer(case.gamma)(x, case.mask)
    (gx,) = torch.autograd.grad(expected, x, v)
    y, own = _in_parts(s, case, v)
    slack = s.slack(case.x, case.gamma, case.mask)
    agree(y, expected, slack + 1e-12, "Π(x) of whole rows", "Π(x) of two parts", look)
    near = 1e-9 * (1 + worst(gx))
    agree(own, gx, near, "Jv of whole rows", "Jv of two parts", look, y=y)
