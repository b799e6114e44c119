"""Hard inputs: a table of scores and masks on which every mapping must keep its promises.

A row is *spoilt* if a participant is NaN or +inf; its answer is NaN. A row is *empty* if it has no
participant; its answer is zeros. Every other row must give a point of the simplex.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.simplex import project

Made = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class HardInput:
    """Scores, rows along the last dimension, that broke some mapping in the past.

    big: too large for a test that runs on every commit.
    """

    name: str
    maker: Callable[[torch.dtype], Made]
    big: bool = False

    @functools.cached_property
    def finite(self) -> bool:
        """Whether every score is finite."""
        return bool(torch.isfinite(self.make()[0]).all())

    @functools.cached_property
    def masked(self) -> bool:
        """Whether there is a mask, or a score of −inf."""
        x, mask = self.make()
        return mask is not None or bool((x == -torch.inf).any())

    @functools.cached_property
    def spoilt(self) -> bool:
        """Whether some row is spoilt."""
        return bool(spoilt_rows(*self.make())[0].any())

    def make(self, dtype: torch.dtype = torch.float64) -> Made:
        """(x, mask): fresh tensors, x of ``dtype``, mask bool and broadcastable to x, or None."""
        return self.maker(dtype)

    def __str__(self) -> str:
        return self.name


def spoilt_rows(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which rows have a participant that is NaN or +inf, and who takes part in the others."""
    on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
    on = on & (x != -torch.inf)
    return (on & ~(x < torch.inf)).any(-1), on


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal float64 scores, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _scores(
    x: Tensor, mask: Tensor | None = None, view: Callable[[Tensor], Tensor] = lambda x: x
) -> Callable[[torch.dtype], Made]:
    return lambda dtype: (view(x.to(dtype, copy=True)), None if mask is None else mask.clone())


def _row(*bits: int) -> Tensor:
    return torch.tensor(bits, device="cpu").bool()


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


# -- rows whose values are hard: on the borders of what a mapping distinguishes --------------------

TINY = (0.0, 1e-8, 1e-17, 2.0**-104, 1e-300)
"""What stands for a zero in a point of the simplex."""


def _in_turn(numbers: Iterable[float], x: Tensor) -> Tensor:
    """One of the numbers for each row, (rows, 1)."""
    each = torch.tensor([*numbers], dtype=torch.float64, device="cpu")
    return each.repeat(-(-len(x) // len(each)))[: len(x)].unsqueeze(-1)


def _scales(x: Tensor, low: float) -> Tensor:
    """10^low, …, 10^30, one for each row."""
    powers = torch.linspace(low, 30, len(x), dtype=torch.float64, device="cpu")
    return (10**powers).unsqueeze(-1)


def _simplex(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Points of Δ with about half of their entries 0, normalised in ``dtype``."""
    y = x.clamp_min(0)
    y[:, 0] += y.sum(-1) == 0
    y = y.to(dtype)
    return y / y.sum(-1, keepdim=True)


def _tiny(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Points of Δ with tiny numbers for zeros, each row of its own."""
    y = _simplex(x, dtype)
    return torch.where(y == 0, _in_turn(TINY, x).to(dtype), y)


def _projected(x: Tensor, dtype: torch.dtype) -> Tensor:
    return project(2 * x.to(dtype))


def _lattice(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiples of 1/k, k from 1 to 10."""
    k = _in_turn(range(1, 11), x)
    return ((x * k).round() / k).to(dtype)


def _groups(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Three levels, of which each entry has one."""
    levels = torch.where(x < -0.5, 0, torch.where(x < 0.5, 1, 2))
    return x.gather(-1, levels.clamp_max(x.shape[-1] - 1)).to(dtype)


def _ulps(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Entries of a row at most three floating-point numbers apart."""
    first = x[:, :1].to(dtype).expand(x.shape)
    for step in (-0.7, 0.0, 0.7):
        first = torch.where(x > step, first.nextafter(first + 1), first)
    return first


def _borders(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Half of the entries exactly 1, ½ or 2 below the largest, or one number off."""
    top = x.amax(-1, keepdim=True).to(dtype)
    low = top - _in_turn((1.0, 0.5, 2.0), x).to(dtype)
    low = torch.where(x.frac().abs() < 0.3, low.nextafter(top), low.expand(x.shape))
    return torch.where(x < 0, low, x.to(dtype))


def _magnitudes(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Entries of every magnitude below 1, of either sign."""
    return (x.sign() * 10 ** (-150 * x.frac().abs())).to(dtype)


VALUES: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "points of the simplex": _simplex,
    "points of the simplex, tiny for 0": _tiny,
    "projections": _projected,
    "lattices": _lattice,
    "groups of ties": _groups,
    "ulps apart": _ulps,
    "borders": _borders,
    "magnitudes": _magnitudes,
    "points of the simplex + 1e6": lambda x, dtype: _tiny(x, dtype) + 1e6,
    "scales": lambda x, dtype: (x * _scales(x, -40)).to(dtype),
    "lattices of scales": lambda x, dtype: _lattice(x, dtype) * _scales(x, -38).to(dtype),
}
"""Rows on the borders of what a mapping distinguishes, by the way they are made of standard normal
numbers (count, d) and a dtype."""


def hard_values(
    name: str, count: int, d: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Tensor:
    """``count`` rows of d scores of a kind of ``VALUES``."""
    return VALUES[name](normal(count, d, seed=seed), dtype)


def _valued(name: str, d: int) -> Callable[[torch.dtype], Made]:
    return lambda dtype: (hard_values(name, 15, d, dtype), None)


def _table() -> list[HardInput]:
    inf, nan = math.inf, math.nan
    rows = normal(3, 5, seed=1)
    ragged = torch.arange(5, device="cpu") < torch.tensor([[5], [2], [1]], device="cpu")
    found = [HardInput(f"scale {s:g}", _scores(rows * s)) for s in (1e-3, 1.0, 1e3, 1e6, 1e9)]
    found += [HardInput(f"shift {s:g}", _scores(rows + s)) for s in (1e3, -1e3, 1e6, -1e6)]
    return [
        *found,
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
        HardInput("non-contiguous", _scores(normal(5, 3, seed=7), view=lambda x: x.t())),
        HardInput("every other", _scores(normal(3, 10, seed=8), view=lambda x: x[:, ::2])),
        HardInput("flipped", _scores(rows, view=lambda x: x.flip(-1))),
        HardInput("expanded", _scores(normal(1, 5, seed=9), view=lambda x: x.expand(4, 5))),
        HardInput("zero stride", _scores(normal(3, 1, seed=10), view=lambda x: x.expand(3, 5))),
        HardInput("mask", _scores(rows, _row(1, 0, 1, 1, 0).expand(3, 5))),
        HardInput("broadcast mask", _scores(rows, _row(0, 1, 1, 0, 1))),
        HardInput("ragged mask", _scores(rows, ragged)),
        HardInput("one survivor", _scores(rows, torch.eye(5, device="cpu")[:3].bool())),
        HardInput("none survives", _scores(rows, ragged & _row(1, 0, 1).unsqueeze(-1))),
        HardInput("-inf", _scores(_with(rows, (0, 0, -inf), (1, 2, -inf), (1, 3, -inf)))),
        HardInput("-inf everywhere", _scores(_with(rows, *((1, j, -inf) for j in range(5))))),
        HardInput("NaN", _scores(_with(rows, (1, 2, nan)))),
        HardInput("+inf", _scores(_with(rows, (2, 0, inf)))),
        HardInput(
            "NaN, +inf and -inf", _scores(_with(rows, (0, 1, nan), (0, 2, inf), (1, 4, -inf)))
        ),
        HardInput(
            "NaN under a mask", _scores(_with(rows, (0, 4, nan), (1, 4, inf)), _row(1, 1, 1, 1, 0))
        ),
        *(HardInput(f"{name}, {d} entries", _valued(name, d)) for name in VALUES for d in (3, 6)),
        HardInput("1e5 entries", _scores(normal(1, 10**5, seed=11)), big=True),
        HardInput("1e6 entries", _scores(normal(1, 10**6, seed=12)), big=True),
        HardInput("1e6 equal entries", _scores(torch.ones(1, 10**6, device="cpu")), big=True),
        HardInput("1e4 rows", _scores(normal(10**4, 32, seed=13)), big=True),
    ]


HARD_INPUTS: tuple[HardInput, ...] = tuple(_table())


def hard_inputs(
    *,
    finite: bool | None = None,
    masked: bool | None = None,
    spoilt: bool | None = None,
    big: bool | None = False,
) -> list[HardInput]:
    """The hard inputs with these flags; None accepts both values. Big inputs only with ``big``."""
    wanted = {"big": big, "finite": finite, "masked": masked, "spoilt": spoilt}
    return [
        case
        for case in HARD_INPUTS
        if all(flag is None or getattr(case, name) == flag for name, flag in wanted.items())
    ]
