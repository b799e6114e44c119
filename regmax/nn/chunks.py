"""Attention by chunks of queries, in memory of chunk · S scores instead of L · S.

The rows of Π_Ω are independent, so chunks change no answer. The backward pass computes the weights
of a chunk again. On the CPU, where few weights are not 0, the forward pass keeps the columns of the
support, and backward computes its scores alone, and Π_Ω of them: Ω depends on the positive entries
alone, so these are the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..domains import Domain
from ..kernels.base import asked, compiled
from ..mapping.methods.closed_form import has_formula
from ..mapping.rows import computed_in, refuse_hidden_at
from ..regularizers import arguments
from ..regularizers.regularizer import Regularizer
from . import gradients, matmul, whole
from .gradients import leaves, through
from .omega import Omega, at_present
from .whole import Inputs, Options

SCORES = {"cpu": 1 << 22}
"""About how many scores a chunk has, by device."""
_ELSEWHERE = 1 << 26
_FEWEST = 16
SHARE = 8
"""One weight in so many may differ from 0: otherwise dense products take less time."""


def check(chunk: Any) -> None:
    """Raise ValueError unless ``chunk`` is a number of rows, or None."""
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"chunk must be an int >= 1 or None; got {chunk!r}")


def automatic(q: Tensor, k: Tensor, omega: Omega) -> int:
    """How many queries to take at a time: all, or as many as have the scores of a chunk."""
    queries = q.shape[-2]
    each = max(q.shape[:-2].numel(), k.shape[:-2].numel()) * k.shape[-2]
    scores = SCORES.get(q.device.type, _ELSEWHERE)
    if each * queries <= 2 * scores or _unclear(at_present(omega), queries):
        return queries
    return max(scores // each, _FEWEST)


def prepared(options: Options, omega: Omega, chunk: int, given: Inputs) -> Callable[[], Tensor]:
    """Attention by chunks. Mask, sink and γ may have one number, or one row, for each query."""
    present, queries = at_present(omega), given.q.shape[-2]
    if unclear := _unclear(present, queries):
        raise ValueError(
            f"chunk must be None for {present}: its tensor {unclear!r} has {queries} rows, one "
            "for each query or none, and is not among its hyperparameters"
        )
    shape = whole.shape_of_scores(given.q, given.k, options.enable_gqa)
    _check_rows(present, given, given.q.new_empty(()).expand(shape), chunk)
    inside = present.tensors() | present.per_row_tensors()
    chunks = Chunks(options, present, tuple(inside), chunk, queries, shape[-1])
    tensors = (*matmul.as_autocast(*given[:3]), *given[3:], *inside.values())
    return partial(_one_by_one, chunks, *tensors)


def _one_by_one(chunks: Chunks, *given: Any) -> Tensor:
    if chunks.options.dropout:
        seed = torch.randint(1 << 62, (1,), device="cpu")
        chunks = replace(chunks, options=replace(chunks.options, seed=seed))
    chunks.refuse_hidden(given)
    return gradients.apply(chunks, *given)


@dataclass(frozen=True)
class Chunks(gradients.Operation):
    """The chunks one after the other. ``given``: q, k, v, mask, sink, γ and the tensors ``inside``
    Ω, by name."""

    options: Options
    omega: Regularizer
    inside: tuple[str, ...]
    chunk: int
    queries: int
    keys: int

    def forward(self, grad: bool, *given: Any) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Of each chunk are kept the columns of its support and their numbers, or None."""
        vectors = _vectors(given[2]) if self._skips_zeros(*given[:3]) else None
        found: list[Tensor] = []
        kept: list[Tensor | None] = []
        for i, part in self._parts(given):
            weights, own = self._weights(i, part), None
            if vectors is not None:
                from ..kernels.cpu import sparse

                own = sparse.averages(weights.reshape(-1, weights.shape[-1]), vectors, SHARE)
            if own is None:
                found.append(whole.averages(weights, part[2], self.options.enable_gqa))
                kept += [None, None]
            else:
                found.append(own[0].view(*weights.shape[:-1], -1))
                kept += [own[1].index, own[1].counts]
        return torch.cat(found[::-1], -2), kept if grad else ()

    def backward(
        self, wants: Sequence[bool], g: Tensor, kept: Sequence[Any], *given: Any
    ) -> list[Tensor | None]:
        sums = [
            torch.zeros_like(t, dtype=computed_in(t.dtype)) if w else None
            for t, w in zip(given, wants, strict=True)
        ]
        vectors = None
        if any(t is not None for t in kept):
            keys, values = map(_vectors, given[1:3])
            vectors = keys, values, torch.zeros_like(keys), torch.zeros_like(values)
        supports = zip(kept[::2], kept[1::2], strict=True)
        parts = zip(self._parts(given), self._parts(sums), supports, strict=True)
        for (i, part), (_, totals), support in parts:
            of_chunk = g[..., i : i + part[0].shape[-2], :]
            if support[0] is None or vectors is None:
                found = self._gradients(i, part, wants, of_chunk)
            else:
                found = self._gradients_of_support(part, wants, of_chunk, support, *vectors)
            for total, t in zip(totals, found, strict=True):
                if total is not None and t is not None:
                    total += t
        for total, t in zip(sums[1:3], (vectors or (None,) * 4)[2:], strict=True):
            if total is not None and t is not None:
                total += t.view(total.shape)
        return sums

    def recorded(self, *given: Any) -> Tensor:
        gqa = self.options.enable_gqa
        parts = self._parts(given)
        found = [whole.averages(self._weights(i, part), part[2], gqa) for i, part in parts]
        return torch.cat(found[::-1], -2)

    def _parts(self, given: Sequence[Any]) -> Iterator[tuple[int, list[Any]]]:
        """The first query of each chunk, and what the chunk has of ``given``. The last chunk is the
        first one: no other one needs more memory."""
        diagonal = self.options.diagonal
        shorter = diagonal is not None and shortens(self.omega) and not self._bounds_keys()
        q, k, v, *rest = given
        for i in reversed(range(0, self.queries, self.chunk)):
            j = min(i + self.chunk, self.queries)
            seen = min(max(j + (diagonal or 0), 0), self.keys) if shorter else self.keys
            yield (
                i,
                [
                    None if q is None else q[..., i:j, :],
                    *(None if t is None else t[..., :seen, :] for t in (k, v)),
                    *(_rows(t, i, j, self.queries) for t in rest),
                ],
            )

    def _bounds_keys(self) -> bool:
        """Whether keys have bounds of their own."""
        domain = self.options.domain
        each = [] if domain is None else domain.tensors().values()
        return any(t.ndim and t.shape[-1] != 1 for t in each)

    def refuse_hidden(self, given: Sequence[Any]) -> None:
        """:func:`regmax.mapping.rows.refuse_hidden_at` the first chunk."""
        for _, (q, k, _v, _mask, _sink, _gamma, *inside) in islice(self._parts(given), 1):
            shape = whole.shape_of_scores(q, k, self.options.enable_gqa)
            refuse_hidden_at(self._omega(inside), q.new_empty(()).expand(shape), None)

    def _omega(self, tensors: Iterable[Any]) -> Regularizer:
        held = dict(zip(self.inside, tensors, strict=True))
        return self.omega.with_tensors(held) if held else self.omega

    def _weights(self, first: int, part: Sequence[Any]) -> Tensor:
        """The weights of a chunk, some of them dropped."""
        options, omega, given = self.options, self._omega(part[6:]), Inputs(*part[:6])
        s = whole.scores(given.q, given.k, options.scale, options.enable_gqa)
        weights = whole.weights_of_queries(options, omega, s, given, first)
        if options.seed is None:
            return weights
        generator = torch.Generator(weights.device).manual_seed(int(options.seed) + first)
        kept = 1 - options.dropout
        factors = torch.empty_like(weights).bernoulli_(kept, generator=generator)
        return weights * factors.div_(kept or 1)

    def _gradients(
        self, first: int, part: list[Any], wants: Sequence[bool], g: Tensor
    ) -> list[Tensor | None]:
        """The gradients of a chunk's tensors."""
        v = part[2]
        own = leaves(part, (*wants[:2], False, *wants[3:]))
        with torch.enable_grad():
            weights = self._weights(first, own)
        gqa = self.options.enable_gqa
        dweights, dv = whole.gradients_of_averages(weights.detach(), v, g, gqa)
        found = through(weights, own, dweights)
        return [*found[:2], dv, *found[3:]]

    def _skips_zeros(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether the support tells all, and there are kernels for it."""
        grouped = 3 if self.options.enable_gqa else 2
        if (
            not (q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64))
            or not (q.device.type == "cpu" and asked() and self.omega.ignores_zeros)
            or not shortens(self.omega)
            or self.options.dropout
            or self.options.certify
            or self.options.domain is not None
            or not q.shape[:-grouped] == k.shape[:-grouped] == v.shape[:-grouped]
            or k.shape[:-1] != v.shape[:-1]
            or not (q.numel() and k.numel() and v.numel())
            # what a weight of 0 makes of NaN or inf is left to dense products
            or not bool(torch.isfinite(k.sum() + v.sum()))
        ):
            return False
        return compiled("regmax.kernels.cpu.sparse") is not None

    def _gradients_of_support(
        self,
        part: list[Any],
        wants: Sequence[bool],
        g: Tensor,
        support: tuple[Tensor, Tensor],
        k: Tensor,
        v: Tensor,
        dk: Tensor,
        dv: Tensor,
    ) -> list[Tensor | None]:
        """The gradients of a chunk's tensors; those of k and v (H, S, E) are added to dk and dv."""
        from ..kernels.cpu.sparse import Columns

        q, _, _, mask, *rest = part
        columns, scale = Columns(*support), self.options.scale
        shape = (*q.shape[:-1], columns.index.shape[1])
        if not shape[-1]:
            return [None] * len(part)
        rows = (q.detach() * scale).reshape(-1, q.shape[-1]).contiguous()
        g = g.reshape(-1, g.shape[-1]).contiguous()
        with torch.enable_grad():
            s = columns.dots(rows, k, -torch.inf).view(shape).requires_grad_()
            own = [s, *leaves((mask, *rest), wants[3:])]
            _, mask, sink, gamma, *inside = own
            bias = None
            if isinstance(mask, Tensor) and mask.is_floating_point():
                bias = columns.of(mask.expand(*shape[:-1], k.shape[1]))
            weights = whole.weights_of(s, self._omega(inside), bias, gamma, sink=sink)
        dweights = columns.dots(g, v, 0.0).view(shape)
        ds, *found = through(weights, own, dweights)
        assert ds is not None
        y = weights.detach().reshape(len(rows), -1).contiguous()
        slopes = ds.reshape(len(rows), -1).contiguous()
        dq = columns.add_gradients(slopes, y, rows, g, k, dk, dv)
        return [(dq * scale).view(q.shape), None, None, *found]


def unfit(domain: Domain | None) -> bool:
    """Whether the domain of a chunk is not that of all queries, or learns."""
    each = [] if domain is None else domain.tensors().values()
    joined = domain is not None and (domain.across is not None or domain.projects)
    return joined or any(gradients.learns(t) or (t.ndim > 1 and t.shape[-2] != 1) for t in each)


def _vectors(t: Tensor) -> Tensor:
    """Keys or values as (H, S, E)."""
    return t.detach().reshape(-1, *t.shape[-2:]).contiguous()


def _rows(t: Any, i: int, j: int, queries: int) -> Any:
    """What t, which broadcasts to the scores, holds for queries i … j − 1."""
    if isinstance(t, Tensor) and t.ndim >= 2 and t.shape[-2] == queries > 1:
        return t[..., i:j, :]
    return t


def _check_rows(omega: Regularizer, given: Inputs, scores: Tensor, chunk: int) -> None:
    """Refuse what has one row for each query of a chunk, and would serve each chunk: as without
    chunks."""
    if given.mask is not None:
        whole.check_mask(given.mask, scores.shape)
    if given.sink is not None:
        whole.scores_of_sink(given.sink, scores)
    queries, keys = scores.shape[-2:]
    declared = omega.per_row_tensors()
    for name, t in {"gamma": given.gamma, **declared}.items():
        if isinstance(t, Tensor) and t.ndim >= 2 and t.shape[-2] not in (1, queries):
            arguments.aligned(name, t, scores, scores.ndim - 1)
    sizes = {min(chunk, queries), queries % chunk} - {0, 1}
    for name, t in omega.tensors(fixed=True).items():
        if name not in declared and t.ndim >= 2 and t.shape[-2] in sizes:
            y = t.new_full((max(sizes) + 1, keys), 1 / keys)
            try:
                omega.value(y)
            except RuntimeError as error:
                arguments.refuse_length(omega.leaves(), y, 1, error)


def _unclear(omega: Regularizer, queries: int) -> str | None:
    """The name of a tensor that may have one row for each query, or something else."""
    declared = omega.per_row_tensors()
    tensors = omega.tensors(fixed=True).items()
    return next(
        (
            name
            for name, t in tensors
            if name not in declared and t.ndim >= 2 and t.shape[-2] == queries > 1
        ),
        None,
    )


def shortens(omega: Regularizer) -> bool:
    """Whether Π_Ω of a row with masked entries is Π_Ω of the shorter row: the kit tests it of a
    closed form, and it holds for a sum over the entries."""
    if omega.entries is not None or any(
        t.ndim and t.shape[-1] != 1 for t in omega.tensors(fixed=True).values()
    ):
        return False
    return has_formula(omega) or bool(omega.separable)
