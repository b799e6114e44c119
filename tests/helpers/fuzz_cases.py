"""Arguments of the public API, from the plain to the perverse, as hypothesis draws them.

What is drawn is small and printable: numbers that make a tensor, not the tensor.
"""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
HALF = ("float16", "bfloat16")
SPECIAL = (
    0.0,
    1.0,
    -1.0,
    1e-30,
    1e30,
    -1e30,
    5e-324,
    1e-40,
    1e-310,
    1 + 2.0**-52,
    1 + 2.0**-23,
    "lowest",
    "largest",
    -math.inf,
)
SPOILT = (math.nan, math.inf)
DRAWN = ("float32", "float64", "float32", "float64", "float16", "float32", "float64", "bfloat16")
LAYOUTS = ("contiguous", "transposed", "every other", "expanded", "offset")
SHAPES = ("normal", "rounded", "constant", "sorted", "near ties", "walk")


@dataclass(frozen=True)
class Scores:
    """A tensor of scores: ``kind`` of numbers by ``seed``, times ``scale``, plus ``shift``, with
    ``spots`` (position, value) written over them."""

    batch: tuple[int, ...]
    d: int
    dim: int
    dtype: str = "float32"
    kind: str = "normal"
    seed: int = 0
    scale: float = 1.0
    shift: float = 0.0
    spots: tuple[tuple[int, float | str], ...] = ()
    layout: str = "contiguous"

    def rows(self):
        """(*batch, d), contiguous."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (*self.batch, self.d)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.kind == "rounded":
            x = (x * 2).round() / 2
        elif self.kind == "constant":
            x = x[..., :1].expand(shape).clone()
        elif self.kind == "sorted":
            x = x.sort(-1, descending=self.seed % 2 == 0).values
        elif self.kind == "walk":
            x = x.cumsum(-1) / 4
        x = (x * self.scale + self.shift).to(DTYPES[self.dtype])
        if self.kind == "near ties":
            x = x[..., :1].expand(shape).clone()
            up = torch.full_like(x, math.inf)
            x = torch.where(torch.rand(shape, generator=generator) < 0.5, _next(x, up), x)
        info = torch.finfo(x.dtype)
        for at, value in self.spots:
            if x.numel():
                value = {"lowest": info.min, "largest": info.max}.get(value, value)
                x.view(-1)[at % x.numel()] = value
        return x

    def make(self):
        """The tensor in its layout, the entries of a row along ``dim``."""
        x = self.rows().movedim(-1, self.dim)
        if self.layout == "transposed" and x.ndim > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        if self.layout == "every other" and x.numel():
            return torch.stack([x, torch.full_like(x, math.nan)], -1).flatten(-2)[..., ::2]
        if self.layout == "expanded" and x.ndim > 1 and self.dim % x.ndim != 0 and x.shape[0]:
            return x[:1].expand(x.shape)
        if self.layout == "offset":
            return torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape)
        return x.contiguous()


def _next(x, up):
    if x.dtype in (torch.float16, torch.bfloat16):
        return (x.view(torch.int16) + (x != 0)).view(x.dtype)
    return torch.nextafter(x, up)


@dataclass(frozen=True)
class Mask:
    """Who takes part: each with probability ``share``; ``none``: this row nobody; ``whole``: which
    dimensions of the mask it has, the others broadcast."""

    share: float = 1.0
    seed: int = 0
    none: int | None = None
    whole: tuple[bool, ...] = ()
    turned: bool = False

    def make(self, x, dim):
        keep = [*self.whole, True, True, True, True][: x.ndim]
        shape = [n if k else 1 for n, k in zip(x.shape, keep, strict=True)]
        generator = torch.Generator().manual_seed(self.seed)
        mask = torch.rand(shape, generator=generator) < self.share
        rows = mask.movedim(dim, -1)
        if self.none is not None and rows.numel():
            flat = rows.reshape(-1, rows.shape[-1]).clone()
            flat[self.none % len(flat)] = False
            mask = flat.view(rows.shape).movedim(-1, dim)
        while mask.ndim and mask.shape[0] == 1 and self.turned:
            mask = mask[0]
        return mask


@dataclass(frozen=True)
class Number:
    """A hyperparameter: a float, or a tensor, of one number or one per row, ``value`` times
    1 + ``spread``·k."""

    value: float
    form: str = "float"
    spread: float = 0.0
    dtype: str = "same"

    def make(self, x, dim, learns=False):
        if self.form == "float":
            return self.value
        dtype = x.dtype if self.dtype == "same" else DTYPES[self.dtype]
        if not 0.01 < abs(self.value) < 200 and dtype in (torch.float16, torch.bfloat16):
            dtype = torch.float32
        shape = [1 if i == dim % x.ndim else n for i, n in enumerate(x.shape)]
        if self.form == "tensor":
            shape = []
        elif self.form == "some rows":
            shape = [n if i == 0 else 1 for i, n in enumerate(shape)]
        k = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
        return (self.value * (1 + self.spread * k)).to(dtype).requires_grad_(learns)

    @property
    def is_tensor(self):
        return self.form != "float"


ONE = Number(1.0)

# -- strategies ------------------------------------------------------------------------------------

NUMBERS = {
    "gamma": (1.0, 0.5, 3.0, 0.01, 100.0, 1e-8, 1e8, 1e-3),
    "alpha": (
        1.5,
        1.0,
        2.0,
        1.3,
        3.0,
        0.5,
        1 + 1e-9,
        1 - 1e-9,
        1 + 1e-6,
        1.0001,
        1.001,
        0.999,
        2 - 1e-9,
        2 + 1e-9,
        1.999999,
        2.000001,
        2.5,
        4.0,
        0.05,
        12.0,
        50.0,
    ),
    "p": (1.5, 2.0, 1.2, 1.9, 1.05, 1.01, 1.001, 1 + 1e-5, 2 - 1e-9, 1.999),
    "lam": (0.1, 0.0, 1e-12, 1e-3, 0.01, 0.5, 3.0, 1e2, 1e8, 1e30),
    "c": (2.0, 0.5, 1e-3, 1e3, 1.0),
}


@st.composite
def _mostly(draw, plain, other, share):
    """``plain`` in ``share`` of share + 1 draws."""
    return draw(other if draw(st.integers(0, share)) == share else plain)


@st.composite
def scores(draw, dtypes=DRAWN, long=300, most=3):
    batch = tuple(
        draw(_mostly(st.integers(1, 3), st.just(0), 30))
        for _ in range(draw(_mostly(st.integers(0, 2), st.just(most), 4)))
    )
    spots = st.tuples(
        st.integers(0, 80), _mostly(st.sampled_from(SPECIAL), st.sampled_from(SPOILT), 4)
    )
    usual = st.sampled_from([1.0, 0.3, 0.1, 4.0])
    return Scores(
        batch=batch,
        d=draw(_mostly(st.integers(1, 9), st.sampled_from([16, 33, 64, 100, long]), 5)),
        dim=draw(st.integers(-len(batch) - 1, len(batch))),
        dtype=draw(st.sampled_from(dtypes)),
        kind=draw(st.sampled_from(SHAPES)),
        seed=draw(st.integers(0, 999)),
        scale=draw(_mostly(usual, st.integers(-30, 30).map(_power), 3)),
        shift=draw(_mostly(st.just(0.0), st.sampled_from([5.0, -5.0, 1e3, -1e6]), 3)),
        spots=tuple(draw(_mostly(st.just([]), st.lists(spots, min_size=1, max_size=4), 2))),
        layout=draw(st.sampled_from(LAYOUTS)),
    )


def _power(k):
    return 10.0**k


def masks():
    some = st.builds(
        Mask,
        share=st.sampled_from([0.5, 0.8, 0.2, 1.0, 0.0]),
        seed=st.integers(0, 99),
        none=st.none() | st.integers(0, 9),
        whole=st.tuples(*[st.booleans()] * 4),
        turned=st.booleans(),
    )
    return _mostly(st.none(), some, 2)


@st.composite
def numbers(draw, name):
    first, *others = NUMBERS[name]
    value = draw(_mostly(st.sampled_from([first, *others[:3]]), st.sampled_from(others), 1))
    form = draw(st.sampled_from(["float", "tensor", "rows", "some rows"]))
    spread = {"p": 0.0, "alpha": draw(st.sampled_from([0.0, 0.01, 0.25]))}.get(name, 0.1)
    return Number(value, form, spread, draw(st.sampled_from(["same", "float64", "float32"])))
