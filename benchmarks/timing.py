"""Rounds in which all candidates run by turns."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Step:
    """A forward pass on ``leaves``, and a backward pass if they require gradients."""

    name: str
    function: Callable[..., Tensor]
    leaves: tuple[Tensor, ...]
    v: Tensor | None = None
    """The gradient with respect to the output; None for a scalar."""
    per: float = 1
    """Times are divided by this number of rows or scores, or by this share of the rows."""
    error: Callable[[Step], float] | None = None
    """The error of the result, called after both passes."""
    y: Tensor | None = field(default=None, init=False)

    def forward(self) -> None:
        self.y = self.function(*self.leaves)

    def backward(self) -> None:
        if self.y is not None and self.y.requires_grad:
            self.y.backward(self.v)

    def reset(self) -> None:
        self.y = None
        for leaf in self.leaves:
            leaf.grad = None


@dataclass(frozen=True)
class Figure:
    """Median seconds of a step."""

    forward: float
    both: float
    spread: float
    """Of both passes: the distance of the quartiles over the median."""


class CpuWatch:
    """Wall-clock time: ``start`` a step, then ``read`` its forward and backward seconds."""

    def start(self, step: Step) -> Any:
        begin = time.perf_counter()
        step.forward()
        middle = time.perf_counter()
        step.backward()
        end = time.perf_counter()
        step.reset()
        return middle - begin, end - middle

    def read(self, lap: Any) -> tuple[float, float]:
        forward, backward = lap
        return forward, backward


class CudaWatch(CpuWatch):
    """Time on the device, between events.

    Writing a large buffer first clears the L2 cache, and takes long enough that the host has queued
    the whole step before the device starts it.
    """

    def __init__(self) -> None:
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.buffer = torch.empty(max(4 * cache, 1 << 28), dtype=torch.uint8, device="cuda")

    def start(self, step: Step) -> Any:
        for _ in range(8):
            self.buffer.zero_()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        step.forward()
        marks[1].record()
        step.backward()
        marks[2].record()
        step.reset()
        return marks

    def read(self, lap: Any) -> tuple[float, float]:
        begin, middle, end = lap
        end.synchronize()
        return begin.elapsed_time(middle) / 1e3, middle.elapsed_time(end) / 1e3


def interleave(
    steps: Sequence[Step], watch: CpuWatch, budget: float, rounds: int, least: int
) -> dict[str, Figure]:
    """Time all steps by turns; each must have run once before.

    A step gets as many turns as ``budget`` seconds pay for, from ``least`` to ``rounds``, spread
    evenly over the rounds. Each second round has the order of the one before reversed, so that no
    step profits from what runs before it.
    """
    order, sequence = random.Random(0), list(steps)
    laps: dict[str, list[tuple[float, float]]] = {step.name: [] for step in steps}
    turns = {}
    gc.collect()
    gc.freeze()  # the next collection is quick
    gc.disable()
    try:
        for step in steps:
            cost = sum(watch.read(watch.start(step)))
            turns[step.name] = max(least, min(rounds, int(budget / max(cost, 1e-9))))
        most = max(turns.values(), default=0)
        for i in range(most):
            if i % 2:
                sequence.reverse()
            else:
                order.shuffle(sequence)
            share = [(s, turns[s.name]) for s in sequence]
            due = [s for s, of in share if (i + 1) * of // most > i * of // most]
            started = [(step.name, watch.start(step)) for step in due]
            for name, lap in started:
                laps[name].append(watch.read(lap))
    finally:
        gc.enable()
    return {step.name: _figure(laps[step.name], step.per) for step in steps}


def _figure(laps: Sequence[tuple[float, float]], per: float) -> Figure:
    """``laps``: at least two."""
    low, both, high = statistics.quantiles([f + b for f, b in laps], n=4, method="inclusive")
    forward = statistics.median(f for f, _ in laps)
    return Figure(forward / per, both / per, (high - low) / both)


@contextlib.contextmanager
def busy(d: int) -> Iterator[subprocess.Popen[bytes]]:
    """Beside a process that multiplies d × d matrices on all cores."""
    program = (
        "import os, torch\n"
        "torch.set_num_threads(os.cpu_count())\n"
        f"a = torch.rand({d}, {d})\n"
        "print(a @ a, flush=True)\n"
        f"while os.getppid() == {os.getpid()}:\n"
        "    a @ a\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            if not (process.stdout and process.stdout.readline()):
                raise RuntimeError("the busy process did not start")
            yield process
        finally:
            process.kill()
