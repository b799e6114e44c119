"""What a step of each configuration costs, measured fairly where the machine's load varies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .processes import Process
from .runs import Trainee, progress, seed_all, step

WARM_UP = 3


def interleaved(
    makes: Mapping[str, Callable[[], Trainee]], steps: int, process: Process
) -> dict[str, dict[str, Any]]:
    """Seconds of training steps: step 1 of every configuration, step 2 of every one, …

    All configurations start from the same seed and see the same batches, those of the first one's
    first epochs. ``seconds``: the median over steps. ``ratio``: the median over steps of the time
    over the first configuration's on the same batch. ``total``: all steps' time over the first's,
    which is the ratio of their epochs. The first steps do not count.
    """
    trainees = {}
    for name, make in makes.items():
        seed_all(0)
        trainees[name] = make()
        trainees[name].model.train()
    batches = _batches(next(iter(trainees.values())), WARM_UP + steps)
    seconds: dict[str, list[float]] = {name: [] for name in makes}
    for batch in progress(batches, "timing", process):
        for name, trainee in trainees.items():
            begin = time.perf_counter()
            step(trainee, trainee.model, batch, process)
            if process.device.type == "cuda":
                torch.cuda.synchronize(process.device)
            seconds[name].append(time.perf_counter() - begin)
    counted = {name: times[WARM_UP:] for name, times in seconds.items()}
    base = next(iter(counted.values()))
    return {
        name: {
            "seconds": statistics.median(times),
            "ratio": statistics.median(t / b for t, b in zip(times, base, strict=True)),
            "total": sum(times) / sum(base),
            "steps": steps,
        }
        for name, times in counted.items()
    }


def _batches(trainee: Trainee, count: int) -> list[list[int]]:
    batches: list[list[int]] = []
    epoch = 0
    while len(batches) < count:
        batches += trainee.batches(epoch)
        epoch += 1
    return batches[:count]
