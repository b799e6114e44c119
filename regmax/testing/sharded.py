"""The promise of ``sharded_form``: rows whose entries lie on several devices are whole rows.

Two threads stand for the devices.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from ..mapping import shards
from .promise import Broken, Case, searched, worst
from .subject import Subject


class _Threads:
    """What two threads exchange."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=60)
        self.given: list[Any] = [None, None]


class _Device(shards.Shards):
    """One of two threads, as a device that has some of the entries of each row."""

    def __init__(self, threads: _Threads, rank: int) -> None:
        self.size, self._threads, self._rank = 2, threads, rank

    def reduced(self, t: Tensor, how: str) -> Tensor:
        self._threads.given[self._rank] = t
        self._threads.barrier.wait()
        both = torch.stack(self._threads.given)
        self._threads.barrier.wait()
        return both.sum(0) if how == "sum" else both.amax(0)


def _in_parts(s: Subject, case: Case, v: Tensor) -> list[Tensor]:
    """y and Jv/γ, computed by two threads that have a half of each row."""
    d, threads = case.x.shape[-1], _Threads()
    halves = [slice(0, (d + 1) // 2), slice((d + 1) // 2, d)]
    found: list[Any] = [None, None]

    def run(rank: int) -> None:
        try:
            part = halves[rank]
            x = case.x[..., part].clone().requires_grad_()
            mask = None if case.mask is None else case.mask.expand(case.x.shape)[..., part]
            device = _Device(threads, rank)
            y = shards.mapping(s.omega, x, case.gamma, -1, mask, device)
            (gx,) = torch.autograd.grad(y, x, v[..., part])
            found[rank] = y.detach(), gx
        except Exception as error:  # a plugin's code may raise anything
            threads.barrier.abort()
            if not isinstance(error, threading.BrokenBarrierError) or found[rank] is None:
                found[rank] = error

    workers = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    errors = [e for e in found if isinstance(e, Exception)]
    if errors:
        raise next(
            (e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]
        )
    return [torch.cat(pair, -1) for pair in zip(*found, strict=True)]


@searched(lambda s: shards.computes(s.omega), costly=True)
def check_sharded_form(s: Subject, case: Case) -> None:
    """Π_Ω(x) and Jv of rows in two parts, which add their sums, are those of whole rows."""
    look, v = s.where("sharded_form"), case.direction()
    x = case.x.detach().clone().requires_grad_()
    expected = s.layer(case.gamma)(x, case.mask)
    (gx,) = torch.autograd.grad(expected, x, v)
    y, own = _in_parts(s, case, v)
    slack = s.slack(case.x, case.gamma, case.mask)
    if bool(((y - expected).abs() > slack + 1e-12).any()):
        raise Broken(f"whole rows: {expected.tolist()}", f"{y.tolist()} in two parts", look)
    if worst(own - gx) > 1e-9 * (1 + worst(gx)):
        raise Broken(f"Jv of whole rows: {gx.tolist()}", f"{own.tolist()} in two parts", look, y=y)
