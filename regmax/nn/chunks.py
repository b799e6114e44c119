"""Attention by chunks of queries, in memory of chunk · S scores instead of L · S.

The rows of Π_Ω are independent, so chunks change no answer. The backward pass computes the weights
of a chunk again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels import transforms
from ..mapping.methods.closed_form import has_formula
from ..mapping.rows import HALF
from ..regularizers import arguments
from ..regularizers.regularizer import Regularizer
from . import support
from .learnable import Learnable
from .omega import Omega, resolved
from .support import learning, leaves, spread

SCORES = {"cpu": 1 << 22}
"""About how many scores a chunk has, by device."""
_ELSEWHERE = 1 << 26
_FEWEST = 16


def check(chunk: Any) -> None:
    """Raise ValueError unless ``chunk`` is a number of rows, or None."""
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"chunk must be an int >= 1 or None; got {chunk!r}")


def automatic(q: Tensor, k: Tensor, omega: Omega) -> int:
    """How many queries to take at a time: all, or as many as have the scores of a chunk."""
    queries = q.shape[-2]
    each = max(q.shape[:-2].numel(), k.shape[:-2].numel()) * k.shape[-2]
    scores = SCORES.get(q.device.type, _ELSEWHERE)
    if each * queries <= 2 * scores or _unclear(_present(omega), queries):
        return queries
    return max(scores // each, _FEWEST)


@dataclass(frozen=True)
class Plan:
    """How attention computes some queries.

    ``scores(q, k)`` are the scores, ``weigh(first, scores, omega, mask, gamma, sink)`` their
    weights, ``averages(weights, v)`` the results, and ``pulled(weights, v, g)`` the gradients of
    weights and v. ``first``: the number of the first query, or None if no mask is to be made of it.
    With a ``diagonal``, query i sees keys 0, …, i + diagonal. ``dropout``: the share of weights
    that is dropped.
    """

    scores: Callable[[Tensor, Tensor], Tensor]
    weigh: Callable[..., Tensor]
    averages: Callable[[Tensor, Tensor], Tensor]
    pulled: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    scale: float
    enable_gqa: bool
    diagonal: int | None
    dropout: float
    certify: bool


def attended(
    plan: Plan, chunk: int, q: Tensor, k: Tensor, v: Tensor, omega: Omega, own: tuple[Any, ...]
) -> Tensor:
    """The attention of all queries. ``own``: mask, γ and sink, which may have one number, or one
    row, for each query."""
    present, queries = _present(omega), q.shape[-2]
    if unclear := _unclear(present, queries):
        raise ValueError(
            f"chunk must be None for {present!r}: its tensor {unclear!r} has {queries} rows, one "
            "for each query or none, and is not among its hyperparameters"
        )
    _check_rows(present, all_scores(q, k, plan.enable_gqa), own[1], chunk)
    inside = present.tensors() | present.per_row_tensors()
    parts = Parts(plan, present, tuple(inside), chunk, queries, k.shape[-2])
    found: Tensor = _Chunks.apply(parts, q, k, v, *own, *inside.values())  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True)
class Parts:
    """The chunks of a call. Their tensors are q, k, v, mask, γ, sink and those ``inside`` Ω."""

    plan: Plan
    omega: Regularizer
    inside: tuple[str, ...]
    chunk: int
    queries: int
    keys: int

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """The first query of each chunk, the one after its last, and how many keys these see. The
        last chunk is the first one: no other one needs more memory."""
        diagonal = self.plan.diagonal
        shorter = diagonal is not None and shortens(self.omega)
        for i in reversed(range(0, self.queries, self.chunk)):
            j = min(i + self.chunk, self.queries)
            yield i, j, min(max(j + (diagonal or 0), 0), self.keys) if shorter else self.keys

    def of(self, given: Sequence[Any], i: int, j: int, seen: int) -> list[Any]:
        """What queries i … j − 1 have of the tensors, or of their gradients."""
        q, k, v, *rest = given
        return [
            None if q is None else q[..., i:j, :],
            *(None if t is None else t[..., :seen, :] for t in (k, v)),
            *(_rows(t, i, j, self.queries) for t in rest),
        ]

    def weights(self, first: int | None, scores: Tensor, rest: Sequence[Any]) -> Tensor:
        """The weights of scores; ``rest``: mask, γ, sink, and the tensors inside Ω."""
        held = dict(zip(self.inside, rest[3:], strict=True))
        at = self.omega.with_tensors(held) if held else self.omega
        return self.plan.weigh(first, scores, at, *rest[:3])

    def dropped(self, first: int, given: Sequence[Any]) -> Tensor:
        """The weights of a chunk, some of them dropped."""
        q, k, _, *rest = given
        weights = self.weights(first, self.plan.scores(q, k), rest)
        return F.dropout(weights, self.plan.dropout)

    def gradients(self, first: int, given: Sequence[Any], wants: Any, g: Tensor) -> list[Any]:
        """The gradients of a chunk's tensors."""
        q, k, v, *rest = given
        own = leaves((q, k, *rest), (*wants[:2], *wants[3:]))
        with torch.enable_grad():
            weights = self.dropped(first, [*own[:2], v, *own[2:]])
        dweights, dv = self.plan.pulled(weights.detach(), v.detach(), g)
        found: Sequence[Any] = ()
        learnt = learning(own)
        if learnt:
            found = torch.autograd.grad(weights, learnt, dweights, allow_unused=True)
        dq, dk, *more = spread(own, found)
        return [dq, dk, dv, *more]


class _Chunks(torch.autograd.Function):
    """The chunks one after the other. Backward computes the weights again, or their support's."""

    @staticmethod
    def forward(ctx: Any, parts: Parts, *given: Any) -> Tensor:
        device = given[0].device
        ctx.parts, ctx.given = parts, [None if isinstance(t, Tensor) else (t,) for t in given]
        ctx.save_for_backward(*(t for t in given if isinstance(t, Tensor)))
        ctx.autocast = transforms.autocasting(device.type) and torch.get_autocast_dtype(device.type)
        ctx.random = _random_state(device) if parts.plan.dropout else None
        sparse = support.of(parts, *given[:3]) if shortens(parts.omega) else None
        ctx.kept, found = [], []
        for i, j, seen in parts:
            part = parts.of(given, i, j, seen)
            weights = parts.dropped(i, part)
            few = None if sparse is None else sparse.averages(weights)
            ctx.kept.append(None if few is None else few[1])
            found.append(parts.plan.averages(weights, part[2]) if few is None else few[0])
        ctx.sparse = sparse
        return torch.cat(found[::-1], -2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        saved, parts, wants = iter(ctx.saved_tensors), ctx.parts, ctx.needs_input_grad[1:]
        given = [next(saved) if t is None else t[0] for t in ctx.given]
        device = g.device
        with (
            torch.autocast(device.type, ctx.autocast or None, bool(ctx.autocast)),
            torch.random.fork_rng(
                [device] if device.type == "cuda" else [], ctx.random is not None
            ),
        ):
            if ctx.random is not None:
                _set_random_state(device, ctx.random)
            if torch.is_grad_enabled():
                return None, *_Chunks._differentiable(parts, given, wants, g)
            return None, *_Chunks._gradients(ctx, parts, given, wants, g)

    @staticmethod
    def _differentiable(parts: Parts, given: list[Any], wants: Any, g: Tensor) -> list[Any]:
        """Gradients that can be differentiated again."""
        found = []
        for i, j, seen in parts:
            part = parts.of(given, i, j, seen)
            found.append(parts.plan.averages(parts.dropped(i, part), part[2]))
        learnt = [t for t, w in zip(given, wants, strict=True) if w]
        grads = torch.autograd.grad(
            torch.cat(found[::-1], -2), learnt, g, create_graph=True, allow_unused=True
        )
        each = iter(grads)
        return [next(each) if w else None for w in wants]

    @staticmethod
    def _gradients(
        ctx: Any, parts: Parts, given: list[Any], wants: Any, g: Tensor
    ) -> list[Tensor | None]:
        totals = [
            torch.zeros_like(t, dtype=torch.float32 if t.dtype in HALF else t.dtype) if w else None
            for t, w in zip(given, wants, strict=True)
        ]
        dk = dv = None
        for (i, j, seen), few in zip(parts, ctx.kept, strict=True):
            part, sums = (parts.of(ts, i, j, seen) for ts in (given, totals))
            if few is None:
                found = parts.gradients(i, part, wants, g[..., i:j, :])
            else:
                if dk is None:
                    dk, dv = torch.zeros_like(ctx.sparse.k), torch.zeros_like(ctx.sparse.v)
                found = ctx.sparse.gradients(part, wants, g[..., i:j, :], few, dk, dv)
            for total, t in zip(sums, found, strict=True):
                if total is not None and t is not None:
                    total += t
        for total, t in zip(totals[1:3], (dk, dv), strict=True):
            if total is not None and t is not None:
                total += t.view(total.shape)
        return [
            None if t is None else t.to(own.dtype) for t, own in zip(totals, given, strict=True)
        ]


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def whole(*tensors: Tensor, random: bool) -> bool:
    """Whether all queries must be computed at once: in a graph, under a transform, for DTensors,
    and where ``random`` numbers of a device would have to be drawn again."""
    if random and tensors[0].device.type not in ("cpu", "cuda"):
        return True
    return transforms.under_transform(tensors) or any(transforms.wraps(t) for t in tensors)


def _present(omega: Omega) -> Regularizer:
    omega = resolved(omega)
    return omega() if isinstance(omega, Learnable) else omega


def _rows(t: Any, i: int, j: int, queries: int) -> Any:
    """What t, which broadcasts to the scores, holds for queries i … j − 1."""
    if isinstance(t, Tensor) and t.ndim >= 2 and t.shape[-2] == queries > 1:
        return t[..., i:j, :]
    return t


def misses(t: Any, queries: int) -> bool:
    """Whether t has rows that are neither one for all queries nor one for each."""
    return isinstance(t, Tensor) and t.ndim >= 2 and t.shape[-2] not in (1, queries)


def all_scores(q: Tensor, k: Tensor, enable_gqa: bool) -> Tensor:
    """A tensor of the shape of all scores, in no memory."""
    own, others = (t.shape[: -3 if enable_gqa else -2] for t in (q, k))
    batch = (*torch.broadcast_shapes(own, others), *q.shape[len(own) : -2])
    return q.new_empty(()).expand(*batch, q.shape[-2], k.shape[-2])


def _check_rows(omega: Regularizer, scores: Tensor, gamma: Any, chunk: int) -> None:
    """Refuse what has one row for each query of a chunk, and would serve each chunk: as without
    chunks."""
    queries, keys = scores.shape[-2:]
    declared = omega.per_row_tensors()
    for name, t in {"gamma": gamma, **declared}.items():
        if misses(t, queries):
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
