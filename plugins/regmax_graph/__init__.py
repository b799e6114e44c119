"""Total variation over graphs: any list of weighted edges, and the grid of an image (TVmax)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import regmax

try:
    import numpy as np

    from .arguments import (
        Pairs,
        as_tensor,
        checked_edges,
        checked_shape,
        checked_weights,
        grid,
        refuse_negative,
    )
    from .graph import Graph, compiled, graph_of
except ModuleNotFoundError as error:  # PyTorch and the rest of regmax do not need NumPy
    if error.name != "numpy":
        raise
    _WITHOUT_NUMPY = True
else:
    _WITHOUT_NUMPY = False

__all__ = ["GraphTV", "GridTV", "compiled"]


class GraphTV(regmax.Penalty):
    """R(y) = Σ_{(i,j) ∈ E} w_ij |y_i − y_j| over the edges of a graph.

    The nodes are the entries of a row. R(y) = max ⟨Dᵀt, y⟩ over |t_e| ≤ w_e, with (Dy)_e = y_i −
    y_j. So ∂R(y) = {Dᵀt} with t_e = w_e·sign(y_i − y_j) if y_i ≠ y_j, and t_e in [−w_e, w_e]
    otherwise. Groups are the connected components of equal entries.

    edges: pairs (i, j) of entries, i ≠ j, a sequence or an integer tensor (m, 2). The weights
        of repeated edges are added.
    weights: m numbers ≥ 0, or a floating tensor (m,): a hyperparameter, which gets its gradient if
        it requires one. Default: 1. An edge of weight 0 is ignored.
    nodes: d, the number of entries of a row. Default: one more than the largest entry in an edge.

    An edge with a masked end is ignored. The prox is exact, by minimum cuts (Hochbaum 2001;
    Chambolle & Darbon 2009, §3), in float64 on the CPU for every dtype; tensors on other devices
    are copied there and back. Raises TypeError or ValueError for invalid edges, weights or rows.
    """

    lovasz = True
    name = "graph_tv"
    formula = r"\sum_{(i,j) \in E} w_{ij} \lvert y_i - y_j \rvert"

    def __init__(
        self,
        edges: Tensor | Pairs | Sequence[tuple[int, int]],
        weights: Tensor | Sequence[float] | None = None,
        nodes: int | None = None,
    ) -> None:
        _need_numpy()
        d, pairs = checked_edges(edges, nodes)
        self.graph, self.entries = Graph(d, len(pairs), lambda: pairs), d
        learnt, self._numbers = checked_weights(weights, self.graph.m)
        # the constructor's arguments; weights given as numbers stay numbers, not a tensor
        self.edges, self.nodes = tuple(map(tuple, pairs.tolist())), d
        self.weights = tuple(self._numbers.tolist()) if learnt is None else learnt

    def __getstate__(self) -> dict[str, Any]:
        """The saved state: only the arguments, as plain numbers and tensors."""
        return {k: item for k, item in vars(self).items() if k not in ("graph", "_numbers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        d, pairs = checked_edges(self.edges, self.nodes)
        self.graph = Graph(d, len(pairs), lambda: pairs)
        _, self._numbers = checked_weights(self.weights, self.graph.m)

    def _w(self) -> Tensor:
        if isinstance(self.weights, Tensor):
            return self.weights
        return as_tensor(self._numbers)

    def _jumps(self, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """tails, heads, w_e and y_i − y_j (0 if an end is masked)."""
        self.graph.check(y)
        tails, heads = self.graph.on(y.device)
        jumps = y[..., tails] - y[..., heads]
        if mask is not None:
            jumps = torch.where(mask[..., tails] & mask[..., heads], jumps, 0)
        return tails, heads, self._w().to(y), jumps

    def value(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        *_, weights, jumps = self._jumps(y, mask)
        return (weights * jumps.abs()).sum(-1)

    def any_subgradient(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Dᵀt, t = w·sign(Dy): differentiable in the weights."""
        tails, heads, weights, jumps = self._jumps(y, mask)
        t = weights * jumps.sign()
        zero = torch.zeros_like(y)
        return zero.index_add(-1, tails, t) - zero.index_add(-1, heads, t)

    def prox(self, v: Tensor, step: float | Tensor, mask: Tensor | None = None) -> Tensor:
        refuse_negative(self._w())
        return self.with_gradient(self.graph.prox(v, step, self._w(), mask), v, step, mask)

    def groups(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        self.graph.check(z)
        ids: Tensor = _groups(z, mask, *self.graph.on(z.device), self._w().detach())
        return ids

    def subgradient(
        self, y: Tensor, near: Tensor, step: float | Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """The subgradient nearest to ``near``: a sum over edges, each within its bounds."""
        return self.graph.subgradient(y, near, step, self._w(), mask)

    def margin(self, step: float | Tensor, d: int) -> float | Tensor:
        """step times the largest degree Σ_j w_ij. {prox > t} depends on v_i < t only through
        min(t − v_i, step·Σ_j w_ij), and the maximum of the prox is at most that much below v's."""
        w = self._w().detach()
        tails, heads = self.graph.on(w.device)
        degree = w.new_zeros(d).index_add(0, tails, w).index_add(0, heads, w)
        most: float | Tensor = step * degree.max()
        return most

    def as_cvxpy(self, y: Any) -> Any:
        import cvxpy

        if not self.graph.m:
            return cvxpy.Constant(0.0)
        tails, heads = self.graph.ends
        weights = self._w().detach().double().cpu().numpy()
        return cvxpy.sum(cvxpy.multiply(weights, cvxpy.abs(y[tails] - y[heads])))


class GridTV(GraphTV):
    """R(y) = Σ |y_i − y_j| over neighbours in a grid of h × w.

    ``shape``: (h, w), for rows of d = h·w entries, row-major. Each entry has up to four neighbours.
    With the Gini entropy Π_Ω is TVmax (Martins et al. 2020, "Sparse and structured visual
    attention"). Otherwise as ``graph_tv``.
    """

    name = "grid_tv"
    formula = r"\sum_{(i,j) \text{ neighbours}} \lvert y_i - y_j \rvert"

    def __init__(self, shape: tuple[int, int]) -> None:
        _need_numpy()
        self.shape = checked_shape(shape)
        self._make()

    def _make(self) -> None:
        h, w = self.shape
        self.entries = h * w
        self.graph = Graph(h * w, h * (w - 1) + w * (h - 1), functools.partial(grid, h, w))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super(GraphTV, self).__setstate__(state)  # type: ignore[no-untyped-call]
        self._make()

    def _w(self) -> Tensor:
        return as_tensor(np.ones(self.graph.m))


def _need_numpy() -> None:
    if _WITHOUT_NUMPY:
        raise ImportError(
            "penalties over graphs compute with NumPy, which is not installed: "
            "pip install 'regmax[fast]' brings it, and numba, which compiles them"
        )


@torch.library.custom_op("regmax_graph::groups", mutates_args=())
def _groups(
    z: Tensor, mask: Tensor | None, tails: Tensor, heads: Tensor, weights: Tensor
) -> Tensor:
    """``Graph.groups`` as one operation, for transforms and tracers."""
    return graph_of(z.shape[-1], tails, heads).groups(z, weights, mask)


@_groups.register_fake
def _(z: Tensor, mask: Tensor | None, tails: Tensor, heads: Tensor, weights: Tensor) -> Tensor:
    return z.new_empty(z.shape, dtype=torch.int64)


@_groups.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], z: Tensor, mask: Tensor | None, *graph: Tensor
) -> tuple[Tensor, int]:
    def front(t: Tensor, dim: int | None) -> Tensor:
        t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
        return t.expand(info.batch_size, *t.shape[1:])

    z = front(z, in_dims[0])
    mask = None if mask is None else front(mask, in_dims[1]).expand(z.shape)
    dims = in_dims[2:]
    if all(dim is None for dim in dims):
        return _groups(z, mask, *graph), 0
    each = [
        _groups(
            z[i],
            None if mask is None else mask[i],
            *(t if dim is None else t.select(dim, i) for t, dim in zip(graph, dims, strict=True)),
        )
        for i in range(info.batch_size)
    ]
    return torch.stack(each), 0


@regmax.hookimpl
def regmax_penalties() -> list[type[regmax.Penalty]]:
    return [GraphTV, GridTV]
