"""What code for a GPU does, on tensors of the CPU: Triton's interpreter runs the kernels, nothing
reads a result back, and the bytes that each operation reads and writes are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from regmax.kernels import Lazy, transforms
from regmax.losses import loss, sharded, targets
from regmax.mapping.methods import base

INDEXED = ("gather", "index_select", "scatter")
MADE = ("new_", "full", "ones", "zeros")
FREE = ("empty", "new_empty", "empty_like", "_unsafe_view", "detach")


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Kernels are Triton's, and no number of a tensor may be looked at."""
    get = Lazy.get
    with (
        mock.patch.object(Lazy, "get", lambda lazy, device: get(lazy, "cuda")),
        mock.patch.dict(base.METHODS, clear=True),
        mock.patch.object(transforms, "may_look", return_value=False),
        mock.patch.object(loss, "may_look", return_value=False),
        mock.patch.object(targets, "may_look", return_value=False),
        mock.patch.object(sharded, "may_look", return_value=False),
    ):
        yield


class Traffic(TorchDispatchMode):
    """Adds up the bytes that operations read and write. An address counts once in an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[str, int]] = []
        self.looks: list[str] = []

    @property
    def total(self) -> int:
        return sum(count for _, count in self.moved)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero"):
            self.looks.append(name)
        if func.is_view or name in FREE:
            return out
        inputs = (args, {key: t for key, t in (kwargs or {}).items() if key != "out"})
        read = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        if name.startswith(MADE) or name.endswith("_like"):
            read = []
        written = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if any(name.startswith(start) for start in INDEXED):  # the entries that have an index
            few = min(_bytes(t) for t in (*read, *written))
            at = sum(_bytes(t) for t in read if t.dtype == torch.int64)
            self.moved.append((name, 2 * few + at))
        else:
            self.moved.append((name, sum(map(_bytes, (*read, *written)))))
        return out

    def launched(self, function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        """A launch of a Triton kernel."""
        from triton.runtime.interpreter import InterpreterBuilder as Builder

        seen: dict[str, list[tuple[Any, int]]] = {"read": [], "written": []}
        load, store = Builder.create_masked_load, Builder.create_masked_store

        def loads(builder: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
            out = load(builder, ptrs, mask, *rest)
            at, on = np.broadcast_arrays(ptrs.data, mask.data)
            seen["read"].append((at[on != 0], out.data.itemsize))
            return out

        def stores(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            at, on = np.broadcast_arrays(ptrs.data, mask.data)
            seen["written"].append((at[on != 0], value.data.itemsize))
            return store(builder, ptrs, value, mask, *rest)

        with (
            mock.patch.object(Builder, "create_masked_load", loads),
            mock.patch.object(Builder, "create_masked_store", stores),
            _disable_current_modes(),
        ):
            function(*args, **kwargs)
        for kind, accesses in seen.items():
            count = 0
            for size in {size for _, size in accesses}:
                every = [at.ravel() for at, n in accesses if n == size]
                count += size * len(np.unique(np.concatenate(every)))
            self.moved.append((f"{name}, {kind}", count))


def _bytes(t: Tensor) -> int:
    """Those of its memory, once where it is expanded."""
    shape = [n for n, step in zip(t.shape, t.stride(), strict=True) if step]
    return int(np.prod(shape)) * t.element_size()


def traffic(run: Callable[[], Any]) -> Traffic:
    """What ``run`` moves, as on a GPU."""
    from triton.runtime.interpreter import GridExecutor

    found, call = Traffic(), GridExecutor.__call__

    def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
        bound = lambda *a, **k: call(executor, *a, **k)  # noqa: E731
        return found.launched(bound, executor.fn.__name__, *args, **kwargs)

    with as_on_a_gpu(), mock.patch.object(GridExecutor, "__call__", launch), found:
        run()
    return found
