"""Π_Ω of a DTensor: each device maps the entries that it holds.

Rows are independent. Where the scores are not sharded along ``dim``, each device maps its rows with
its part of γ, of the tensors of Ω and of the mask. Where they are, devices exchange sums of each
row (:mod:`regmax.mapping.shards`), or gather their rows where Ω has no ``sharded_form``. Plain
tensors beside a DTensor count as replicated, as in PyTorch's ``implicit_replication``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.wrappers import dense
from ..regularizers import arguments
from ..regularizers.penalty import who
from ..regularizers.regularizer import Regularizer
from . import shards
from .methods.solver import Settings


class Placed:
    """A DTensor of scores as the parts of the devices, and what goes with it.

    ``part``: the entries of this device. ``along``: the devices that share a row, None if each row
    lies on one.
    """

    def __init__(self, mesh: Any, shape: Any, dim: int, placements: Any, whole: bool) -> None:
        """``whole``: gather the rows along ``dim``."""
        from torch.distributed.tensor import Replicate, Shard

        self.mesh, self.shape, self.dim = mesh, torch.Size(shape), dim
        kept = [p if type(p) in (Replicate, Shard) else Replicate() for p in placements]
        self.given = tuple(kept)
        along = [i for i, p in enumerate(kept) if p.is_shard(dim)]
        if whole:
            kept, along = [Replicate() if i in along else p for i, p in enumerate(kept)], []
        self.kept: tuple[Any, ...] = tuple(kept)
        self.along = shards.Shards(mesh, along) if along else None
        self.first, self.size = _extent(mesh, along, self.shape[dim])
        self.part: Tensor

    @classmethod
    def scores(cls, name: str, x: Any, dim: Any, whole: bool = False) -> Placed:
        """Of the DTensor ``x``."""
        _, dim = arguments.scores(x, dim, name)
        found = cls(x.device_mesh, x.shape, dim, x.placements, whole)
        moved = x.redistribute(placements=found.kept)
        found.part = moved.to_local(grad_placements=found.kept)
        return found

    def of(self, name: str, t: Any, per_row: bool = True, exact: Iterable[int] = ()) -> Any:
        """The part of t that goes with the entries of this device: of a tensor that broadcasts to
        the scores if ``per_row``, else all of it. It does not broadcast along ``exact``."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        if not isinstance(t, Tensor):
            return t
        own: Any = t
        if not isinstance(t, DTensor):
            own = DTensor.from_local(dense(name, t, self.part), self.mesh, run_check=False)
        if own.device_mesh != self.mesh:
            raise TypeError(
                f"{name} must lie on the mesh of x, {self.mesh}; got a DTensor on {own.device_mesh}"
            )
        wanted, gradient = [], []
        for p in self.kept:
            i = p.dim - (len(self.shape) - t.ndim) if p.is_shard() and per_row else -1
            if i >= 0 and t.shape[i] not in (1, self.shape[p.dim]):
                raise ValueError(
                    f"{name} must broadcast to x: {name} has shape {tuple(t.shape)}, x "
                    f"{tuple(self.shape)}"
                )
            wanted.append(
                Shard(i) if i >= 0 and (t.shape[i] > 1 or p.dim in exact) else Replicate()
            )
            gradient.append(Partial() if p.is_shard() and wanted[-1].is_replicate() else wanted[-1])
        return own.redistribute(placements=wanted).to_local(grad_placements=gradient)

    def regularizer(self, omega: Regularizer) -> Regularizer:
        """Ω with the parts of its tensors."""
        declared = omega.per_row_tensors()
        tensors = omega.tensors(fixed=True).items()
        return omega.with_tensors({name: self.of(name, t, name in declared) for name, t in tensors})

    def like_scores(self, y: Tensor) -> Any:
        """Parts of a result of the shape of the scores, placed as these were."""
        return self._whole(y, self.shape, self.kept).redistribute(placements=self.given)

    def rows(self, t: Tensor) -> Any:
        """Parts of numbers of rows, of the shape of the scores without ``dim``."""
        shape = self.shape[: self.dim] + self.shape[self.dim + 1 :]
        return self._whole(t, shape, self._of_rows())

    def summed(self, t: Tensor) -> Tensor:
        """Parts of numbers of rows, (*batch, n), added over the devices that share a row."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        assert self.along is not None
        mesh, n = self.mesh, len(self.kept)
        placements = [Partial() if i in self.along.dims else Replicate() for i in range(n)]
        whole = DTensor.from_local(t, mesh, placements, run_check=False)
        found: Tensor = whole.redistribute(placements=[Replicate()] * n).to_local()
        return found

    def total(self, t: Tensor) -> Any:
        """Sums over the rows of each device, added over all rows."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        placements = [Partial() if p.is_shard() else p for p in self._of_rows()]
        whole = DTensor.from_local(t, self.mesh, placements, run_check=False)
        return whole.redistribute(placements=[Replicate()] * len(placements))

    def _of_rows(self) -> list[Any]:
        from torch.distributed.tensor import Replicate, Shard

        found: list[Any] = []
        for p in self.kept:
            if p.is_shard():
                p = Replicate() if p.dim == self.dim else Shard(p.dim - (p.dim > self.dim))
            found.append(p)
        return found

    def _whole(self, t: Tensor, shape: Any, placements: Any) -> Any:
        from torch.distributed.tensor import DTensor

        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            t.contiguous(), self.mesh, placements, run_check=False, shape=shape, stride=stride
        )


def _extent(mesh: Any, dims: list[int], size: int) -> tuple[int, int]:
    """The first of ``size`` entries that lies on this device, and how many do."""
    first = 0
    for i in dims:
        each = -(-size // mesh.size(i))
        begin = min(mesh.get_local_rank(i) * each, size)
        first, size = first + begin, min(each, size - begin)
    return first, size


def placed(
    name: str,
    x: Any,
    dim: Any,
    omega: Regularizer,
    settings: Settings,
    computes: Callable[[Regularizer], bool] = shards.computes,
) -> tuple[Placed, Regularizer]:
    """The parts of x and of Ω. Rows are gathered where they lie on several devices and Ω cannot
    be computed there."""
    found = Placed.scores(name, x, dim)
    inside = found.regularizer(omega)
    if found.along is None or in_parts(inside, settings, computes):
        return found, inside
    warnings.warn(gathers(name, omega, found.dim), stacklevel=6)
    found = Placed.scores(name, x, dim, whole=True)
    return found, found.regularizer(omega)


def in_parts(
    omega: Regularizer,
    settings: Settings,
    computes: Callable[[Regularizer], bool] = shards.computes,
) -> bool:
    """Whether Π_Ω is computed where a row lies on several devices."""
    plain = settings.solver == "auto" and not settings.certify and not transforms.tracing()
    return plain and computes(omega)


def gathers(name: str, omega: Regularizer, dim: int) -> str:
    """What happens to scores that are sharded along ``dim``, for a warning."""
    return (
        f"{name} is sharded along dim={dim}, along which {who(omega)} cannot be computed in parts: "
        "each device gathers whole rows; shard another dimension, or choose softmax, sparsemax, "
        "pnormmax or entmax with alpha <= 2"
    )


def mapping(
    local: Callable[..., Tensor],
    omega: Regularizer,
    x: Any,
    gamma: Any,
    dim: int,
    mask: Any,
    settings: Settings,
) -> Tensor:
    """``local(omega, x, gamma, dim, mask)`` of what each device holds, put together again."""
    at, inside = placed("x", x, dim, omega, settings)
    if at.along is not None:
        local = functools.partial(shards.mapping, shards=at.along)
    given = (at.of("gamma", gamma), at.dim - x.ndim, at.of("mask", mask))
    whole: Tensor = at.like_scores(local(inside, at.part, *given))
    return whole


def maximum(
    local: Callable[..., Tensor],
    omega: Regularizer,
    x: Any,
    gamma: Any,
    dim: int,
    mask: Any,
    settings: Settings,
) -> Tensor:
    """max_Ω(x), as :func:`mapping`."""
    at, inside = placed("x", x, dim, omega, settings)
    given = (at.of("gamma", gamma), at.dim - x.ndim, at.of("mask", mask))
    if at.along is None:
        value = local(inside, at.part, *given)
    else:
        rows = shards.prepare(inside, at.part, *given, at.along)
        part = shards.maximum(rows, shards.argmax(rows, at.along), at.along)
        value = at.summed(part.unsqueeze(-1)) + rows.shift
        value = rows.fill(value).squeeze(-1).to(x.dtype)
    whole: Tensor = at.rows(value)
    return whole


def explained(omega: Regularizer, x: Any, dim: int, settings: Settings) -> list[str]:
    """How the devices compute Π_Ω of a DTensor, in lines."""
    at = Placed.scores("x", x, dim)
    size, where = x.shape[at.dim], f"{tuple(x.placements)} on {at.mesh}"
    lines = [f"rows: {x.numel() // size} of {size} scores along dim {dim}, {where}"]
    if at.along is not None and not in_parts(at.regularizer(omega), settings):
        return [*lines, f"note: {gathers('x', omega, at.dim)}"]
    if at.along is None:
        return [*lines, "forward: each device maps its own rows"]
    shared = f"over {at.along.size} devices that share rows"
    return [*lines, f"forward: by all-reduced sums of each row, {shared}"]
