"""The time of a training step of each configuration, interleaved as the load may vary."""

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

    All configurations have the same seed and the same batches, those of the first configuration.
    ``seconds``: the median over steps. ``ratio``: the median over steps of the time relative to the
    first configuration on the same batch. ``total``: the time of all steps relative to the first
    configuration, which is the ratio of epoch times. The first steps do not count.
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
