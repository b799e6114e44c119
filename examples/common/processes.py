"""One process, or several under torchrun: the rank, the share of the work, sums over all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """This process among ``world``; rank 0 alone writes and prints."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's share of the items: every ``world``-th."""
        return list(items[self.rank :: self.world])

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value summed over all processes, in float64."""
        total = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        if self.world > 1:
            dist.all_reduce(total)
        return dict(zip(values, total.tolist(), strict=True))

    def gather(self, shared: Sequence[T]) -> list[T]:
        """The results for all items, in order, from the results for each :meth:`share`."""
        if self.world == 1:
            return list(shared)
        parts: list[list[T]] = [[] for _ in range(self.world)]
        dist.all_gather_object(parts, list(shared))
        return [parts[k % self.world][k // self.world] for k in range(sum(map(len, parts)))]

    def wait(self) -> None:
        """Wait until all processes call this."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def process(device: str | None = None) -> Iterator[Process]:
    """This process, alone or one of several as torchrun's environment variables say.

    ``device``: by default CUDA if available, else the CPU. Processes communicate by NCCL on CUDA
    and by gloo elsewhere. Each uses the CUDA device of its local rank.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if "LOCAL_RANK" not in os.environ:
        yield Process(torch.device(kind))
        return
    if kind == "cuda":
        kind = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(kind)
    dist.init_process_group("nccl" if kind.startswith("cuda") else "gloo")
    try:
        yield Process(torch.device(kind), dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
