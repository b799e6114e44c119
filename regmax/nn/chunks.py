"""Attention by chunks of queries, in memory of chunk · S scores instead of L · S.

The rows of Π_Ω are independent, so chunks change no answer. The backward pass computes the weights
of a chunk again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..mapping.forward import has_formula
from ..regularizers.regularizer import Regularizer
from .learnable import Learnable
from .omega import Omega, resolved

SCORES = {"cpu": 1 << 21}
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


def attended(
    attend: Callable[..., Tensor],
    chunk: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    omega: Omega,
    diagonal: int | None,
    own: tuple[Any, ...],
    random: bool,
) -> Tensor:
    """``attend(first, q, k, v, omega, *own)`` of each chunk, joined. ``own``: what may have one
    number, or one row, for each query. With a ``diagonal``, query i sees keys 0, …, i + diagonal.
    ``random``: ``attend`` drops weights at random."""
    present, (queries, keys) = _present(omega), (q.shape[-2], k.shape[-2])
    if unclear := _unclear(present, queries):
        raise ValueError(
            f"chunk must be None for {present!r}: its tensor {unclear!r} has {queries} rows, one "
            "for each query or none, and is not among its hyperparameters"
        )
    shorter = diagonal is not None and _shortens(present)
    inside = present.tensors() | present.per_row_tensors()

    def part(first: int, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> Tensor:
        held = dict(zip(inside, given[len(own) :], strict=True))
        at = present.with_tensors(held) if held else present
        return attend(first, q, k, v, at, *given[: len(own)])

    found = []
    for i in range(0, queries, chunk):
        j = min(i + chunk, queries)
        seen = min(max(j + (diagonal or 0), 0), keys) if shorter else keys
        rest = [_rows(t, i, j, queries) for t in (*own, *inside.values())]
        given = (q[..., i:j, :], k[..., :seen, :], v[..., :seen, :], *rest)
        result: Tensor = _Recomputed.apply(part, random, i, *given)  # type: ignore[no-untyped-call]
        found.append(result)
    return torch.cat(found, -2)


class _Recomputed(torch.autograd.Function):
    """``part(first, *given)``, which backward computes again. torch.utils.checkpoint would count
    the tensors that the solvers' own graphs save, and these differ from call to call."""

    @staticmethod
    def forward(ctx: Any, part: Callable[..., Tensor], random: bool, *given: Any) -> Tensor:
        tensors = [t for t in given if isinstance(t, Tensor)]
        device = tensors[0].device
        ctx.part, ctx.given = part, [None if isinstance(t, Tensor) else (t,) for t in given]
        ctx.save_for_backward(*tensors)
        ctx.autocast = transforms.autocasting(device.type) and torch.get_autocast_dtype(device.type)
        ctx.random = _random_state(device) if random else None
        return part(*given)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        saved, again = iter(ctx.saved_tensors), torch.is_grad_enabled()
        given = [next(saved) if t is None else t[0] for t in ctx.given]
        wants = ctx.needs_input_grad[2:]
        if not again:
            pairs = zip(given, wants, strict=True)
            given = [t.detach().requires_grad_(w) if isinstance(t, Tensor) else t for t, w in pairs]
        learnt = [t for t, w in zip(given, wants, strict=True) if w]
        device = v.device
        with (
            torch.enable_grad(),
            torch.autocast(device.type, ctx.autocast or None, bool(ctx.autocast)),
            torch.random.fork_rng(
                [device] if device.type == "cuda" else [], ctx.random is not None
            ),
        ):
            if ctx.random is not None:
                _set_random_state(device, ctx.random)
            out = ctx.part(*given)
            found = iter(torch.autograd.grad(out, learnt, v, create_graph=again, allow_unused=True))
        return None, None, *(next(found) if w else None for w in wants)


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


def _shortens(omega: Regularizer) -> bool:
    """Whether Π_Ω of a row with masked entries is Π_Ω of the shorter row: the kit tests it of a
    closed form, and it holds for a sum over the entries."""
    if omega.entries is not None or any(
        t.ndim and t.shape[-1] != 1 for t in omega.tensors(fixed=True).values()
    ):
        return False
    return has_formula(omega) or bool(omega.separable)
