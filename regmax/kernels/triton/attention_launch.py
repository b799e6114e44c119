"""The launches of attention by the online threshold (:mod:`.attention`)."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..base import Arrangement, AttentionKernel, CannotLaunch, Hyper, Number, Numbers, Offsets
from .attention import attention_factors, attention_forward
from .attention_backward import attention_keys, attention_queries
from .equation import Description, described
from .rows import check_device, guard, parameter, power_of_2

BLOCKS = {
    True: {64: (64, 32, 8), 128: (32, 32, 8), 256: (16, 32, 8)},
    False: {64: (16, 32, 4), 128: (16, 16, 8)},
}
"""Queries and keys of a block, and warps, by whether the dtype has 16 bits and by the largest size
of a head, whose numbers are all in registers. The sums over queries have 8 warps."""
DROPPED = {64: (16, 16, 8)}
"""The same with dropout, not of 16 bits: larger blocks would need more registers than there are."""
STEPS = 40
"""Of Halley's method, at most; some four are usual."""
TOLERANCE = 2e-6
"""Of log S: some roundings of a sum in float32."""
LIMIT = 1e-3
"""A row with a larger bound of its duality gap is NaN."""


class ThresholdAttention(AttentionKernel):
    """Attention with softmax, sparsemax or α-entmax, as the descriptions say.

    ``blocks``, ``steps`` and ``limit``, for tests and tuning: queries and keys of a block, the
    largest number of Halley's steps, and the accepted bound of the gap.
    """

    dtypes = (torch.float16, torch.bfloat16, torch.float32)

    def __init__(
        self,
        *own: Description,
        blocks: tuple[int, int] | None = None,
        steps: int = STEPS,
        limit: float = LIMIT,
    ) -> None:
        self.own, self.blocks, self.steps, self.limit = own, blocks, steps, limit
        self.bounds = ((1.0, 2.0),) if own[-1].a is None else ()

    def takes(
        self, how: Arrangement, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        sink: Number | None,
    ) -> bool:  # fmt: skip
        # offsets inside a head are 32-bit numbers
        far = (t.shape[-2] * max(t.stride(-2), 128) for t in (q, k, v))
        widest = max(_blocks_of(q, how.dropout > 0))
        return max(q.shape[-1], v.shape[-1]) <= widest and max(far) < 1 << 31

    def forward(
        self, how: Arrangement, grad: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        sink: Number | None, gamma: Number, *theta: Number,
    ) -> tuple[Tensor, Hyper]:  # fmt: skip
        found = self.solve(how, grad, q, k, v, mask, sink, gamma, *theta)
        out, top, t, total, _, mean, active = found
        return out, (top, t, total, mean, active) if grad else ()

    def solve(
        self, how: Arrangement, grad: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        sink: Number | None, gamma: Number, *theta: Number,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The result, and of each row its largest score, τ less that score, S, the bound of its
        duality gap and the mean that backward needs; and which blocks have a positive weight."""
        check_device(q)
        q, k, v = (_dense(t) for t in (q, k, v))
        (batch, heads, queries), depth = q.shape[:3], v.shape[-1]
        flags = self._flags(how, q, v, mask, sink, theta)
        bands, _, stacks, table, _ = _blocks(how, q, k, flags)
        out = q.new_empty((batch, heads, queries, depth))
        mean = out
        if grad and not flags["OWN"].scales:
            mean = torch.empty_like(out, dtype=torch.float32)
        rows = torch.empty((4, batch, heads, queries), dtype=torch.float32, device=q.device)
        active = torch.zeros((batch, heads, bands, stacks), dtype=torch.int8, device=q.device)
        with guard(q):
            _launch(
                attention_forward, bands * batch * heads, q, k, v, q if mask is None else mask,
                table, bands, stacks,
                *self._numbers(how, sink, gamma, theta), out, mean, *rows, active, TOLERANCE,
                self.limit, *_sizes(q, k, v, how.diagonal), self.steps, *_strides(q, k, v, mask),
                **flags, GRAD=grad,
            )  # fmt: skip
        return (out, *rows, mean, active)

    def backward(
        self, how: Arrangement, wants: tuple[bool, ...], g: Tensor, kept: Hyper, q: Tensor,
        k: Tensor, v: Tensor, mask: Tensor | None, sink: Number | None, gamma: Number,
        *theta: Number,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        top, t, total, mean, active = kept
        g, q, k, v = g.contiguous(), _dense(q), _dense(k), _dense(v)
        (batch, heads, queries), keys = q.shape[:3], k.shape[2]
        flags = self._flags(how, q, v, mask, sink, theta)
        bands, tiles, stacks, by_band, by_tile = _blocks(how, q, k, flags)
        first = (q, k, v, q if mask is None else mask)
        numbers = (bands, stacks, *self._numbers(how, sink, gamma, theta), g)
        delta = (g.float() * mean.float()).sum(-1)
        rest = (*_sizes(q, k, v, how.diagonal), *_strides(q, k, v, mask))
        found: list[Tensor | None] = [None] * len(wants)
        by_mask, by_sink, by_gamma, by_theta = *wants[3:6], any(wants[6:])
        with guard(q):
            if wants[0] or by_mask or by_sink or by_gamma or by_theta:
                dq = torch.empty_like(q, memory_format=torch.contiguous_format)
                dmask = delta
                if by_mask:
                    shape = (batch, heads, queries, keys)
                    dmask = torch.zeros(shape, dtype=torch.float32, device=q.device)
                dsink, dtheta, dgamma = (torch.empty_like(delta) for _ in range(3))
                _launch(
                    attention_queries, bands * batch * heads, *first, by_band, *numbers, top, t,
                    total, delta, active, dq, dmask, dsink, dtheta, dgamma, *rest, **flags,
                    BY_MASK=by_mask, BY_SINK=by_sink, BY_THETA=by_theta, BY_GAMMA=by_gamma,
                )  # fmt: skip
                sums = (dsink.sum(-1), dgamma.sum(-1), dtheta.sum(-1))
                all_found = (dq, None, None, dmask, *sums)
                found = [t if w else None for t, w in zip(all_found, wants, strict=False)]
            if wants[1] or wants[2]:
                dk = torch.empty_like(k, memory_format=torch.contiguous_format)
                dv = torch.empty_like(v, memory_format=torch.contiguous_format)
                _launch(
                    attention_keys, tiles * batch * k.shape[1], *first, by_tile, *numbers, top, t,
                    total, delta, active, dk, dv, tiles, *rest, **{**flags, "num_warps": 8},
                )  # fmt: skip
                found[1:3] = dk if wants[1] else None, dv if wants[2] else None
        return tuple(found)

    def factors(self, how: Arrangement, q: Tensor, k: Tensor) -> Tensor:
        shape = (*q.shape[:3], k.shape[2])
        found = torch.empty(shape, dtype=torch.float32, device=q.device)
        blocks = shape[0] * shape[1] * -(-shape[2] // 16) * -(-shape[3] // 64)
        with guard(q):
            _launch(
                attention_factors, blocks, how.seed, how.dropout, found, *shape[2:], BM=16, BN=64
            )
        return found

    def _flags(
        self, how: Arrangement, q: Tensor, v: Tensor, mask: Tensor | None, sink: Number | None,
        theta: Numbers,
    ) -> dict[str, Any]:  # fmt: skip
        """What a kernel is compiled for."""
        width, depth = (max(power_of_2(t.shape[-1]), 16) for t in (q, v))
        sizes = _blocks_of(q, how.seed is not None)
        queries, keys, warps = sizes[max(64, width, depth)]
        queries, keys = self.blocks or (queries, keys)
        return {
            "OWN": described(self.own, theta)[0],
            "CAUSAL": how.diagonal is not None,
            "MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2,
            "PACKED": how.offsets is not None,
            "SINK": sink is not None,
            "DROP": how.seed is not None,
            "BM": queries,
            "BN": keys,
            "BE": width,
            "BV": depth,
            "num_warps": warps,
            "num_stages": 1,
            # all registers: ptxas would rather spill a few, for more programs at once
            **({} if torch.version.hip else {"maxnreg": 255}),
        }

    def _numbers(
        self, how: Arrangement, sink: Number | None, gamma: Number, theta: Numbers
    ) -> tuple[Tensor | float | int | None, ...]:
        alpha = theta[0] if theta else None
        numbers = (*parameter(alpha), *parameter(gamma), *parameter(sink))
        return (*numbers, how.seed, how.dropout, how.scale)


def _blocks_of(q: Tensor, dropout: bool) -> dict[int, tuple[int, int, int]]:
    narrow = q.element_size() == 2
    return DROPPED if dropout and not narrow else BLOCKS[narrow]


def _launch(kernel: object, programs: int, *args: object, **flags: int) -> None:
    try:
        kernel[(programs,)](*args, **flags)  # type: ignore[index]
    except triton.runtime.errors.OutOfResources as error:
        raise CannotLaunch(str(error)) from error


class Blocks(NamedTuple):
    """How many blocks of queries and of keys a head has, how many of keys one sequence has at most,
    and what a kernel reads of each block of packed sequences."""

    bands: int
    tiles: int
    stacks: int
    by_band: Tensor | None = None
    by_tile: Tensor | None = None


def _blocks(how: Arrangement, q: Tensor, k: Tensor, flags: dict[str, int]) -> Blocks:
    if how.offsets is not None:
        return _packed(how.offsets, flags["BM"], flags["BN"], q.device)
    bands, stacks = -(-q.shape[2] // flags["BM"]), -(-k.shape[2] // flags["BN"])
    return Blocks(bands, stacks, stacks)


@functools.lru_cache(maxsize=8)  # the layers of a model have the same sequences
def _packed(offsets: Offsets, rows: int, keys: int, device: torch.device) -> Blocks:
    by_band: list[tuple[int, ...]] = []
    by_tile: list[tuple[int, ...]] = []
    for (i, j), (first, last) in zip(*map(itertools.pairwise, offsets), strict=True):
        starts = range(first, last, keys)
        by_tile += [(n, first, last, i, j, len(by_band)) for n in range(len(starts))]
        by_band += [(start, j, first, last, first - i) for start in range(i, j, rows)]
    most = max(row[0] for row in by_tile) + 1
    tables = (torch.tensor(t, dtype=torch.int32, device=device) for t in (by_band, by_tile))
    return Blocks(len(by_band), len(by_tile), most, *tables)


def _dense(t: Tensor) -> Tensor:
    """t with adjacent numbers along its last dimension."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _sizes(q: Tensor, k: Tensor, v: Tensor, diagonal: int | None) -> tuple[int, ...]:
    heads, keys = q.shape[1], k.shape[2]
    sizes = (q.shape[2], keys, q.shape[-1], v.shape[-1], diagonal or 0)
    return (heads, heads // k.shape[1], *sizes)


def _strides(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    of_mask = (0, 0, 0, 0) if mask is None else mask.stride()
    return (*(n for t in (q, k, v) for n in t.stride()[:3]), *of_mask)
