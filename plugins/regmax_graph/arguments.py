"""Arguments of the graph penalties: each message shows the value and says what is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regmax.kernels import transforms

Pairs = NDArray[np.int64]
Reals = NDArray[np.float64]
EDGES = "pairs (i, j) of entries, i != j >= 0: a sequence of pairs or an integer tensor (m, 2)"
WEIGHTS = "numbers >= 0, one for each edge: a sequence or a floating tensor (m,)"

PROX, SUBGRADIENT, GROUPS = 0, 1, 2
"""The operations on the rows of a graph."""


def checked_edges(edges: Any, nodes: Any) -> tuple[int, Pairs]:
    """The number of nodes, and the edges (m, 2)."""
    try:
        if isinstance(edges, Tensor):
            given = edges.detach().cpu().numpy()
        else:
            given = np.array([tuple(pair) for pair in edges])
            given = given if given.size else np.empty((0, 2), np.int64)
    except (TypeError, ValueError):
        raise TypeError(f"edges must be {EDGES}; got {edges!r}") from None
    if given.dtype.kind not in "iu":
        raise TypeError(f"edges must be {EDGES}; got {given.dtype}")
    if given.ndim != 2 or given.shape[1] != 2:
        raise ValueError(f"edges must be {EDGES}; got shape {given.shape}")
    edges = given.astype(np.int64)
    wrong = (edges < 0).any(1) | (edges[:, 0] == edges[:, 1])
    if wrong.any():
        k = int(wrong.argmax())
        raise ValueError(f"edges must be {EDGES}; got {tuple(edges[k].tolist())} at index {k}")
    least = int(edges.max()) + 1 if len(edges) else 0
    if nodes is None:
        if not len(edges):
            raise ValueError("nodes must be given where there are no edges: the entries of a row")
        return least, edges
    if isinstance(nodes, bool) or not isinstance(nodes, int):
        raise TypeError(f"nodes must be an int or None; got {nodes!r}")
    if nodes < max(least, 1):
        raise ValueError(
            f"nodes must be >= {max(least, 1)}, as edges name entries below {least}; got {nodes}"
        )
    return nodes, edges


def checked_weights(weights: Any, m: int) -> tuple[Tensor | None, Reals]:
    """(a floating tensor (m,) or None, numbers): the weights, in the form in which they came."""
    if not isinstance(weights, Tensor):
        try:
            numbers = np.array([1.0] * m if weights is None else [float(w) for w in weights])
        except (TypeError, ValueError):
            raise TypeError(f"weights must be {WEIGHTS}; got {weights!r}") from None
        _refuse_shape(numbers, m)
        _refuse_negative(numbers)
        return None, numbers
    if not weights.dtype.is_floating_point:
        raise TypeError(f"weights must be {WEIGHTS}; got {weights.dtype}")
    _refuse_shape(weights, m)
    refuse_negative(weights)
    return weights, np.empty(0)


def _refuse_shape(weights: Any, m: int) -> None:
    if tuple(weights.shape) != (m,):
        shape = tuple(weights.shape)
        raise ValueError(f"weights must be {WEIGHTS}; got shape {shape} for {m} edges")


def refuse_negative(weights: Tensor) -> None:
    """ValueError if weights left their range in training, where no synchronisation is needed."""
    if transforms.may_look(weights):
        _refuse_negative(weights.detach().double().numpy())


def _refuse_negative(w: Reals) -> None:
    wrong = ~((w >= 0) & np.isfinite(w))
    if wrong.any():
        k = int(wrong.argmax())
        raise ValueError(f"weights must be finite and >= 0; got {w[k]:g} at index {k}")


def as_tensor(array: Any, device: Any = "cpu") -> Tensor:
    """The array as a new tensor: a tracer cannot mix earlier tensors with its own."""
    if transforms.tracing():
        whole = array.dtype.kind == "i"
        dtype = torch.int64 if whole else torch.float64
        return torch.tensor(array.tolist(), dtype=dtype, device=device)
    return torch.from_numpy(array).to(device)


def checked_shape(shape: Any) -> tuple[int, int]:
    """(h, w), two positive ints."""
    accepted = "(h, w), two ints >= 1"
    if not isinstance(shape, tuple | list | torch.Size) or len(shape) != 2:
        raise TypeError(f"shape must be {accepted}; got {shape!r}")
    if any(isinstance(n, bool) or not isinstance(n, int) for n in shape):
        raise TypeError(f"shape must be {accepted}; got {shape!r}")
    if min(shape) < 1:
        raise ValueError(f"shape must be {accepted}; got {tuple(shape)}")
    return int(shape[0]), int(shape[1])


def grid(h: int, w: int) -> Pairs:
    """The edges between neighbours of a grid, (m, 2), entries numbered row by row."""
    at = np.arange(h * w).reshape(h, w)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], 1)
    return np.concatenate([across, down])
