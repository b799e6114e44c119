"""Rounds in which all candidates run by turns, and the spread of what was measured."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Run(Protocol):
    """One forward and one backward pass, and what clears their results away."""

    @property
    def name(self) -> str: ...
    def forward(self) -> None: ...
    def backward(self) -> None: ...
    def reset(self) -> None: ...


class Watch(Protocol):
    """A stopwatch: ``start`` a run, then ``read`` its (forward, backward) in seconds."""

    def start(self, run: Run) -> Any: ...
    def read(self, lap: Any) -> tuple[float, float]: ...


class CpuWatch:
    """Wall-clock time."""

    def start(self, run: Run) -> tuple[float, float]:
        begin = time.perf_counter()
        run.forward()
        middle = time.perf_counter()
        run.backward()
        end = time.perf_counter()
        run.reset()
        return middle - begin, end - middle

    def read(self, lap: tuple[float, float]) -> tuple[float, float]:
        return lap


class CudaWatch:
    """Time on the device, between events.

    Before each run a buffer larger than the L2 cache is written a few times: the run finds none of
    its data there, and the host has queued the whole run before the device comes to it, so that
    the host's time is not in the figure.
    """

    LEAD = 8

    def __init__(self) -> None:
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.buffer = torch.empty(max(4 * cache, 1 << 28), dtype=torch.uint8, device="cuda")

    def start(self, run: Run) -> list[torch.cuda.Event]:
        for _ in range(self.LEAD):
            self.buffer.zero_()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        run.forward()
        marks[1].record()
        run.backward()
        marks[2].record()
        run.reset()
        return marks

    def read(self, lap: list[torch.cuda.Event]) -> tuple[float, float]:
        begin, middle, end = lap
        end.synchronize()
        return begin.elapsed_time(middle) / 1e3, middle.elapsed_time(end) / 1e3


def watch(device: str) -> Watch:
    """The stopwatch of a device."""
    return CudaWatch() if device == "cuda" else CpuWatch()


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of n figures."""

    median: float
    low: float
    high: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """What is reported of repeated measurements."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values))


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate in one case."""

    forward: Spread
    backward: Spread
    both: Spread


def interleave(
    runs: Sequence[Run],
    watch: Watch,
    *,
    budget: float,
    rounds: int,
    at_least: int,
    seed: int = 0,
) -> dict[str, Timing]:
    """Time all runs by turns; each must have run once before (compiled, allocated, warm).

    A run gets as many turns as ``budget`` seconds pay for, at least ``at_least`` and at most
    ``rounds``, spread evenly over the rounds of the one with the most.
    """
    order = random.Random(seed)
    with _without_gc():
        turns = {}
        for run in runs:
            cost = sum(watch.read(watch.start(run)))
            turns[run.name] = max(at_least, min(rounds, int(budget / max(cost, 1e-9))))
        most = max(turns.values(), default=0)
        laps: dict[str, list[tuple[float, float]]] = {run.name: [] for run in runs}
        for i in range(most):
            due = [r for r in runs if (i + 1) * turns[r.name] // most > i * turns[r.name] // most]
            order.shuffle(due)
            started = [(run.name, watch.start(run)) for run in due]
            for name, lap in started:
                laps[name].append(watch.read(lap))
    return {name: timing(taken) for name, taken in laps.items()}


def timing(laps: Sequence[tuple[float, float]]) -> Timing:
    """From the (forward, backward) of each run."""
    return Timing(
        forward=spread([f for f, _ in laps]),
        backward=spread([b for _, b in laps]),
        both=spread([f + b for f, b in laps]),
    )


@contextmanager
def _without_gc() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
