"""Hard inputs: a table of scores and masks on which every mapping must keep its promises.

A row is *spoilt* if a participant is NaN or +inf; its answer is NaN. A row is *empty* if it has no
participant; its answer is zeros. Every other row must give a point of the simplex.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Made = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class HardInput:
    """Scores, rows along the last dimension, that broke some mapping in the past.

    finite: every score is finite. masked: there is a mask, or a score of −inf. spoilt: some row is
    spoilt. big: too large for a test that runs on every commit.
    """

    name: str
    maker: Callable[[torch.dtype], Made]
    finite: bool = True
    masked: bool = False
    spoilt: bool = False
    big: bool = False

    def make(self, dtype: torch.dtype = torch.float64) -> Made:
        """(x, mask): fresh tensors, x of ``dtype``, mask bool and broadcastable to x, or None."""
        return self.maker(dtype)

    def __str__(self) -> str:
        return self.name


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal float64 scores, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _scores(x: Tensor) -> Callable[[torch.dtype], Made]:
    return lambda dtype: (x.to(dtype, copy=True), None)


def _laid_out(view: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[torch.dtype], Made]:
    return lambda dtype: (view(x.to(dtype, copy=True)), None)


def _masked(x: Tensor, mask: Tensor) -> Callable[[torch.dtype], Made]:
    return lambda dtype: (x.to(dtype, copy=True), mask.clone())


def _row(*bits: int) -> Tensor:
    return torch.tensor(bits, device="cpu").bool()


def _column(*bits: int) -> Tensor:
    return _row(*bits).unsqueeze(-1)


def _with(x: Tensor, *entries: tuple[int, int, float]) -> Tensor:
    x = x.clone()
    for i, j, value in entries:
        x[i, j] = value
    return x


def _lowest(dtype: torch.dtype) -> Made:
    x = normal(3, 5, seed=21).to(dtype)
    x[0, 1] = x[1, 1:] = torch.finfo(dtype).min
    return x, None


def _denormal(dtype: torch.dtype) -> Made:
    tiny = torch.finfo(dtype).smallest_normal / 8
    return torch.tensor([[0, 1, -1, 3], [2, 2, 0, -2]], dtype=dtype, device="cpu") * tiny, None


def _table() -> list[HardInput]:
    inf, nan = math.inf, math.nan
    rows = normal(3, 5, seed=1)
    ragged = torch.arange(5, device="cpu") < torch.tensor([[5], [2], [1]], device="cpu")
    found = [HardInput(f"scale {s:g}", _scores(rows * s)) for s in (1e-3, 1.0, 1e3, 1e6, 1e9)]
    found += [HardInput(f"shift {s:g}", _scores(rows + s)) for s in (1e3, -1e3, 1e6, -1e6)]
    found += [
        HardInput("ties", _scores((rows * 2).round() / 2)),
        HardInput("all equal", _scores(torch.full((2, 5), 0.7, dtype=torch.float64, device="cpu"))),
        HardInput(
            "two levels",
            _scores(torch.tensor([[1.0, 1, 0, 0, 1], [0, 0, 0, 0.3, 0.3]], device="cpu")),
        ),
        HardInput(
            "one ulp apart",
            _scores(1 + 2e-16 * torch.arange(5, device="cpu").double().expand(2, 5)),
        ),
        HardInput("one element", _scores(normal(3, 1, seed=2))),
        HardInput("one dimension", _scores(normal(5, seed=3))),
        HardInput("no rows", _scores(torch.zeros(0, 5, dtype=torch.float64, device="cpu"))),
        HardInput("three dimensions", _scores(normal(2, 3, 4, seed=4))),
        HardInput("1000 entries", _scores(normal(2, 1000, seed=5))),
        HardInput("1000 entries, scale 1000", _scores(normal(2, 1000, seed=6) * 1e3)),
        HardInput("denormal", _denormal),
        HardInput("finfo.min", _lowest),
        HardInput("non-contiguous", _laid_out(lambda x: x.t(), normal(5, 3, seed=7))),
        HardInput("every other", _laid_out(lambda x: x[:, ::2], normal(3, 10, seed=8))),
        HardInput("flipped", _laid_out(lambda x: x.flip(-1), rows)),
        HardInput("expanded", _laid_out(lambda x: x.expand(4, 5), normal(1, 5, seed=9))),
        HardInput("zero stride", _laid_out(lambda x: x.expand(3, 5), normal(3, 1, seed=10))),
        HardInput("mask", _masked(rows, _row(1, 0, 1, 1, 0).expand(3, 5)), masked=True),
        HardInput("broadcast mask", _masked(rows, _row(0, 1, 1, 0, 1)), masked=True),
        HardInput("ragged mask", _masked(rows, ragged), masked=True),
        HardInput(
            "one survivor", _masked(rows, torch.eye(5, device="cpu")[:3].bool()), masked=True
        ),
        HardInput("none survives", _masked(rows, ragged & _column(1, 0, 1)), masked=True),
        HardInput(
            "-inf",
            _scores(_with(rows, (0, 0, -inf), (1, 2, -inf), (1, 3, -inf))),
            finite=False,
            masked=True,
        ),
        HardInput(
            "-inf everywhere",
            _scores(_with(rows, *((1, j, -inf) for j in range(5)))),
            finite=False,
            masked=True,
        ),
        HardInput("NaN", _scores(_with(rows, (1, 2, nan))), finite=False, spoilt=True),
        HardInput("+inf", _scores(_with(rows, (2, 0, inf))), finite=False, spoilt=True),
        HardInput(
            "NaN, +inf and -inf",
            _scores(_with(rows, (0, 1, nan), (0, 2, inf), (1, 4, -inf))),
            finite=False,
            masked=True,
            spoilt=True,
        ),
        HardInput(
            "NaN under a mask",
            _masked(_with(rows, (0, 4, nan), (1, 4, inf)), _row(1, 1, 1, 1, 0)),
            finite=False,
            masked=True,
        ),
        HardInput("1e5 entries", _scores(normal(1, 10**5, seed=11)), big=True),
        HardInput("1e6 entries", _scores(normal(1, 10**6, seed=12)), big=True),
        HardInput("1e6 equal entries", _scores(torch.ones(1, 10**6, device="cpu")), big=True),
        HardInput("1e4 rows", _scores(normal(10**4, 32, seed=13)), big=True),
    ]
    return found


HARD_INPUTS: tuple[HardInput, ...] = tuple(_table())


def hard_inputs(
    *,
    finite: bool | None = None,
    masked: bool | None = None,
    spoilt: bool | None = None,
    big: bool | None = False,
) -> list[HardInput]:
    """The hard inputs with these flags; None accepts both values. Big inputs only with ``big``."""
    wanted = {"finite": finite, "masked": masked, "spoilt": spoilt, "big": big}
    return [
        case
        for case in HARD_INPUTS
        if all(flag is None or getattr(case, name) == flag for name, flag in wanted.items())
    ]
