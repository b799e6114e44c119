"""One process, or several under torchrun: who am I, what is my share, what do all have together."""

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
        """Whether this one writes and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """The items that are this process's to work on: every ``world``-th."""
        return list(items[self.rank :: self.world])

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value summed over all processes, in float64."""
        total = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        if self.world > 1:
            dist.all_reduce(total)
        return dict(zip(values, total.tolist(), strict=True))

    def gather(self, shared: Sequence[T]) -> list[T]:
        """What all made of their :meth:`share`, one for one, in the order of all items."""
        if self.world == 1:
            return list(shared)
        parts: list[list[T]] = [[] for _ in range(self.world)]
        dist.all_gather_object(parts, list(shared))
        return [parts[k % self.world][k // self.world] for k in range(sum(map(len, parts)))]

    def wait(self) -> None:
        """Until all processes have come here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def process(device: str | None = None) -> Iterator[Process]:
    """This process: one of several where torchrun's environment variables say so.

    ``device``: by default CUDA where there is one, else the CPU. Processes talk over NCCL on CUDA,
    over gloo elsewhere, and each takes the CUDA device of its local rank.
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
