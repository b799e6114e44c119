"""Loops over rows, and scalar roots, one per row, for closed forms that need one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from . import transforms

STEPS = 200
"""The most steps of :func:`increasing_root`."""
State = tuple[Tensor, ...]


def loop(
    moving: Callable[..., Tensor],
    step: Callable[..., State],
    state: State,
    most: int,
    look: bool = True,
) -> State:
    """The state after ``step(*state)`` as often as ``moving(*state)`` holds for some row, at most
    ``most`` times; always so often unless ``look``. A step keeps the shapes and dtypes, and the
    rows that do not move.

    A graph holds the step once, as ``while_loop``; a step is then a function of plain tensors, and
    may use others from around it.
    """
    if transforms.tracing():
        return _in_graph(moving, step, state, most)
    for _ in range(most):
        if look and not bool(moving(*state).any()):
            break
        state = step(*state)
    return state


def _in_graph(
    moving: Callable[..., Tensor], step: Callable[..., State], state: State, most: int
) -> State:
    """As an operation of a graph. The tensors that a step uses from around it are arguments, as
    ``while_loop`` requires."""
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    state = tuple(t.contiguous() for t in torch.broadcast_tensors(*state))
    with disable_proxy_modes_tracing():
        own = [t.clone() for t in state]  # a tensor may be there twice
        with _Around(own) as around:
            step(*own)
    outer, count = tuple(around.found), len(state)

    def goes_on(turn: Tensor, *rest: Tensor) -> Tensor:
        return (turn < most) & moving(*rest[:count]).any()

    def body(turn: Tensor, *rest: Tensor) -> State:
        with _Around(rest, dict(zip(map(id, outer), rest[count:], strict=True))):
            return (turn + 1, *step(*rest[:count]))

    first = torch.zeros((), dtype=torch.int64, device=state[0].device)
    call: Any = while_loop_op
    end: State = call(goes_on, body, (first, *state), outer)
    return end[1:]


class _Around(TorchDispatchMode):
    """Collects the tensors that operations take, and that are neither ``known`` nor results, or
    puts those ``instead`` in their place, by their identity."""

    def __init__(self, known: Sequence[Tensor], instead: dict[int, Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []
        self._instead = instead or {}
        self._kept = {id(t): t for t in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(Tensor, self._given, (args, kwargs or {}))
        return tree_map_only(Tensor, self._keep, func(*args, **kwargs))

    def _given(self, t: Tensor) -> Tensor:
        if id(t) not in self._kept:
            self.found.append(self._keep(t))
        return self._instead.get(id(t), t)

    def _keep(self, t: Tensor) -> Tensor:
        self._kept[id(t)] = t
        return t


def increasing_root(
    residual: Callable[[Tensor], tuple[Tensor, Tensor]],
    low: Tensor,
    high: Tensor,
    start: Tensor | None = None,
    noise: float = 4,
) -> Tensor:
    """t with f(t) = 0 for an increasing f, f(low) ≤ 0 ≤ f(high): Newton kept inside a bracket.

    ``residual(t)`` returns f(t) and f'(t), all of shape (*batch, 1). Each row stops when
    |f| ≤ ``noise``·ε, after one more step, or when a step no longer changes t. A step ends at the
    bracket. Bisection replaces a step, not the first, that is longer than half of the one before.
    ``start``: high unless given; it lies in the bracket.
    """
    eps = torch.finfo(low.dtype).eps
    # often the root itself, if Π_Ω(x) is a vertex
    t = high.clone() if start is None else start

    def step(t: Tensor, low: Tensor, high: Tensor, width: Tensor, done: Tensor) -> State:
        f, slope = residual(t)
        low, high = torch.where(f <= 0, t, low), torch.where(f >= 0, t, high)
        trial = torch.minimum(torch.maximum(t - f / slope, low), high)
        length, half, off = (trial - t).abs(), (high - low) / 2, f.abs()
        # at most half as long as the last step, and not NaN
        safe = length <= width / 2
        settled = (off <= noise * eps) | ~(off < torch.inf)
        following = torch.where(safe, trial, torch.where(settled, t, low + half))
        settled = done | settled | ((following - t).abs() <= eps * following.abs())
        return (
            torch.where(done, t, following), low, high, torch.where(safe, length, half), settled,
        )  # fmt: skip

    done = torch.zeros_like(low, dtype=torch.bool)
    state: Any = t, low, high, 2 * (high - low), done
    return loop(lambda *state: ~state[-1], step, state, STEPS)[0]
