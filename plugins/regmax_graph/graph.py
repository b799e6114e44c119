"""A graph with weighted edges, and operations on rows with one entry per node.

Everything is computed in float64 on the CPU, compiled with numba. Without numba (``pip install
'regmax[fast]'``) the same functions run in Python, about a hundred times slower. Tensors on other
devices are copied to the CPU and back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regmax.kernels import transforms
from regmax.kernels.cpu import fitting

from .arguments import GROUPS, PROX, SUBGRADIENT, as_tensor

__all__ = ["Graph", "compiled", "graph_of"]


WORK = 32
"""The cost of a node or edge, in entries of an ordinary row."""


@cache
def compiled() -> bool:
    """Whether the functions are compiled."""
    try:
        fitting.require()
    except ImportError:
        return False
    return True


@cache
def _task() -> tuple[Any, int] | None:
    """``_compiled.task``, or None where it cannot be compiled."""
    if not compiled():
        return None
    from regmax.kernels.cpu.compiling import address_of

    try:
        address = address_of(f"{__package__}._compiled", "task", None)
    except ImportError:
        return None
    return ctypes.CFUNCTYPE(None, ctypes.c_size_t)(address), address


def _run(
    task: tuple[Any, int], asked: int, masked: bool, shape: tuple[int, int, int], arrays: Any
) -> None:
    """``do_rows`` for all rows, compiled. ``shape``: their number, d and m. ``arrays``: the NumPy
    arrays of the task, in its order."""
    from regmax.kernels.cpu.threads import over_rows

    count, d, m = shape
    numbers = [0, count, 0, WORK * (d + m), asked, d, m, int(masked)]
    numbers += [array.ctypes.data for array in arrays]
    over_rows(*task, (ctypes.c_int64 * len(numbers))(*numbers))


class Graph:
    """d nodes and m edges (tail, head), from a function that gives an array (m, 2). Arrays are made
    on first use: until then, a graph of any size takes no memory."""

    def __init__(self, d: int, m: int, pairs: Callable[[], NDArray[np.int64]]) -> None:
        self.d, self.m, self._pairs = d, m, pairs
        self._on: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @cached_property
    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        pairs = self._pairs()
        return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])

    @cached_property
    def arcs(self) -> tuple[Any, Any, Any, Any]:
        """The arcs by the node that they leave, first all from tails, then all from heads: where
        those of a node begin, their other ends, their edges, and 1 from tails, −1 from heads."""
        tails, heads = self.ends
        leaves = np.concatenate([tails, heads])
        order = np.argsort(leaves, kind="stable")
        counts = np.cumsum(np.bincount(leaves, minlength=self.d))
        start = np.concatenate([[0], counts]).astype(np.int64)
        to = np.concatenate([heads, tails])[order]
        edges = np.ascontiguousarray(order % max(self.m, 1))
        return start, to, edges, np.where(order < self.m, 1.0, -1.0)

    def __repr__(self) -> str:
        return f"Graph({self.d} nodes, {self.m} edges)"

    def check(self, y: Tensor) -> None:
        """ValueError unless rows have d entries."""
        if y.shape[-1] != self.d:
            raise ValueError(
                f"the graph has {self.d} nodes, one for each entry of a row; rows have "
                f"{y.shape[-1]} entries"
            )

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tails and heads as tensors on a device."""
        found = None if transforms.tracing() else self._on.get(device)
        if found is None:
            with torch.inference_mode(False):
                tails, heads = (as_tensor(ends, device) for ends in self.ends)
            found = (tails, heads)
        if not transforms.tracing():
            self._on[device] = found
        return found

    def prox(self, v: Tensor, step: float | Tensor, weights: Tensor, mask: Tensor | None) -> Tensor:
        """argmin_z ½‖z − v‖² + step·Σ_e w_e |z_i − z_j| over the participants, 0 elsewhere.

        v (*batch, d) of any floating dtype, step ≥ 0 a number or broadcastable to (*batch, 1),
        weights (m,), mask bool of v's shape. Members of a group are equal bit for bit. A row with
        a NaN or infinite participant, or a step that is NaN or negative, is NaN there.
        """
        return self._on_rows(PROX, v, None, step, weights, mask)

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, weights: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The element of step·∂R(y) nearest to ``near``, R = Σ_e w_e |y_i − y_j|; as ``prox``."""
        return self._on_rows(SUBGRADIENT, y, near, step, weights, mask)

    def groups(self, z: Tensor, weights: Tensor, mask: Tensor | None) -> Tensor:
        """For each node, the lowest node joined to it by positive edges between equal entries."""
        return self._on_rows(GROUPS, z, None, 0.0, weights, mask)

    def _on_rows(
        self,
        asked: int,
        v: Tensor,
        near: Tensor | None,
        step: float | Tensor,
        weights: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        self.check(v)
        batch, d = v.shape[:-1], v.shape[-1]
        count = batch.numel()
        steps = torch.as_tensor(step, dtype=torch.float64, device="cpu").detach()
        x = _rows(v, count, d)
        on = np.empty((0, 0), np.uint8) if mask is None else _rows(mask, count, d, torch.uint8)
        wanted = asked == GROUPS
        out = np.empty((0 if wanted else count, d))
        ids = np.empty((count if wanted else 0, d), np.int64)
        arrays = (
            x,
            np.empty((0, d)) if near is None else _rows(near.expand_as(v), count, d),
            np.ascontiguousarray(steps.expand(*batch, 1).reshape(count).numpy()),
            on,
            np.ascontiguousarray(weights.detach().to("cpu", torch.float64).numpy()),
            *self.ends,
            *self.arcs,
            out,
            ids,
        )
        task = _task()
        run = _uncompiled if task is None else partial(_run, task)
        run(asked, mask is not None, (count, d, self.m), arrays)
        found = torch.from_numpy(ids if wanted else out).reshape(v.shape)
        return found.to(v.device) if wanted else found.to(v)


def graph_of(d: int, tails: Tensor, heads: Tensor) -> Graph:
    """The graph with these edges."""
    ends = (np.ascontiguousarray(t.cpu().numpy()) for t in (tails, heads))
    return _graph(d, *(t.tobytes() for t in ends))


@lru_cache(maxsize=64)
def _graph(d: int, tails: bytes, heads: bytes) -> Graph:
    pairs = np.stack([np.frombuffer(t, np.int64) for t in (tails, heads)], 1)
    return Graph(d, len(pairs), lambda: pairs)


def _rows(t: Tensor, count: int, d: int, dtype: torch.dtype = torch.float64) -> Any:
    return np.ascontiguousarray(t.detach().to("cpu", dtype).reshape(count, d).numpy())


def _uncompiled(
    asked: int, masked: bool, shape: tuple[int, int, int], arrays: tuple[Any, ...]
) -> None:
    count, d, m = shape
    v, near, step, on, weights, tails, heads, *arcs, out, ids = arrays
    from ._rows import do_rows, scratch  # loads numba

    given = v, near, step, on, weights, (tails, heads), tuple(arcs), out, ids
    with np.errstate(all="ignore"):
        do_rows(asked, 0, count, masked, given, scratch(d, m))
