"""Runs: one configuration and seed per folder. A run resumes, and a finished run is not repeated.

A program gives :func:`train` a name, a seed and a function that makes a :class:`Trainee`. The
folder ``OUT/NAME-SEED/`` then holds ``last.pt`` (a checkpoint after every epoch), ``best.pt`` (the
weights of the best epoch) and, in the end, ``result.json``. Training resumes from ``last.pt`` with
bit for bit the same numbers: data order and dropout depend only on (seed, epoch, rank), and not on
a generator's state from earlier epochs. Different processes may write different runs to one ``OUT``
at the same time; :func:`results` reads the finished ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from .processes import Process

T = TypeVar("T")
PLACES = ("data", "out", "device", "seeds", "report_only", "timing")
"""Options that do not change the result of a run."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every experiment; a program adds its own."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--data", type=Path, help="path of the real data")
    add("--out", type=Path, required=True, help="folder of runs, tables and figures")
    add("--smoke", action="store_true", help="a small model on generated data, in seconds")
    add("--seeds", type=_seeds, default=[0], metavar="0,1,2", help="one run for each (0)")
    add("--epochs", type=int, default=20, help="passes over the training data (%(default)s)")
    add("--batch", type=int, default=64, help="examples in a batch (%(default)s)")
    add("--device", help="cpu or cuda (default: cuda if available)")
    add("--report-only", action="store_true", help="do not train; tables and figures of --out")
    add("--timing", type=int, default=0, metavar="N", help="time N interleaved steps of each")
    return made


def parse(
    made: argparse.ArgumentParser, argv: Sequence[str] | None, smoke: Mapping[str, Any]
) -> argparse.Namespace:
    """The options in ``argv``; with ``--smoke`` the defaults are those in ``smoke``."""
    if made.parse_known_args(argv)[0].smoke:
        made.set_defaults(**smoke)
    args = made.parse_args(argv)
    if args.data is None and not args.smoke and not args.report_only:
        made.error("--data is required without --smoke")
    return args


def _seeds(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def settings(args: argparse.Namespace, without: Iterable[str] = ()) -> dict[str, Any]:
    """The options that identify a run. A run resumes only with equal options.

    ``without``: options that the run's name contains, such as a list of configurations.
    """
    kept = {k: v for k, v in vars(args).items() if k not in {*PLACES, *without}}
    return dict(json.loads(json.dumps(kept, default=str)))


class Trainee(ABC):
    """What a run trains: a model with its optimizer, data and metrics.

    ``model`` must be on the process's device before ``optimizer`` is made. The constructor runs
    after the seed is set, so equal seeds start from equal weights.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    clip: float | None = None
    """The greatest gradient norm; larger gradients are scaled down. None: no limit."""

    @abstractmethod
    def batches(self, epoch: int) -> list[list[int]]:
        """The epoch's batches in order, each a list of indices of training examples.

        The same on every process, which takes every ``world``-th example of each batch.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: list[int]) -> tuple[Tensor, int]:
        """The loss summed over the batch's targets, and the number of targets.

        ``model`` is ``self.model``, wrapped where there are several processes: call it once.
        """

    @abstractmethod
    def validate(self, epoch: int) -> dict[str, float]:
        """Metrics after an epoch. The epoch with the highest "score" is kept.

        Every process calls it, in evaluation mode without gradients. It must return the same on all
        (see :meth:`Process.sum`). It may change the learning rate for the next epoch.
        """

    @abstractmethod
    def evaluate(self) -> dict[str, Any]:
        """The result of the run, with the weights of the best epoch, in JSON types only.

        Every process calls it once, in evaluation mode without gradients.
        """

    def state(self) -> dict[str, Any]:
        """More state for a checkpoint than the model and the optimizer, such as a schedule's."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore the result of :meth:`state`. By default there is none."""


def train(
    make: Callable[[], Trainee],
    name: str,
    seed: int,
    epochs: int,
    out: Path,
    process: Process,
    described: Mapping[str, Any],
) -> dict[str, Any]:
    """Train the result of ``make``, or resume the run, and return the content of ``result.json``.

    ``described``: the run's :func:`settings`, which must equal those in the folder. The result has
    ``name``, ``seed``, ``settings``, ``history`` (for each epoch: ``loss``, ``seconds`` of training
    alone, and the validation metrics), ``best`` (the best epoch, from 0), and ``result`` (from
    :meth:`Trainee.evaluate`).
    """
    folder = folder_of(out, name, seed)
    done = _read(folder / "result.json")
    if done is not None:
        _compare(folder, done["settings"], described)
        return done
    folder.mkdir(parents=True, exist_ok=True)
    seed_all(seed)
    trainee = make()
    model = _distributed(trainee.model, process)
    history = _resume(trainee, folder, described, process)
    for epoch in range(len(history), epochs):
        seed_all(seed, epoch, process.rank)
        begin = time.perf_counter()
        loss = _epoch(trainee, model, trainee.batches(epoch), process, f"{name} epoch {epoch}")
        seconds = time.perf_counter() - begin
        trainee.model.eval()
        with torch.no_grad():
            measures = trainee.validate(epoch)
        history.append({"loss": loss, "seconds": seconds, **measures})
        if process.main:
            _checkpoint(trainee, folder, history, described)
            shown = "  ".join(f"{key} {value:.4g}" for key, value in history[-1].items())
            say(f"{name} seed {seed} epoch {epoch}: {shown}", process)
    return _finish(trainee, folder, name, seed, history, described, process)


def folder_of(out: Path, name: str, seed: int) -> Path:
    """The folder of a run; characters unsafe in file names become dashes."""
    return out / f"{''.join(c if c.isalnum() or c in '._=+-' else '-' for c in name)}-{seed}"


def results(out: Path) -> list[dict[str, Any]]:
    """The finished runs in ``out``, by name and seed."""
    found = [json.loads(path.read_text()) for path in out.glob("*/result.json")]
    return sorted(found, key=lambda run: (run["name"], run["seed"]))


def load_best(model: nn.Module, folder: Path, device: torch.device) -> None:
    """Give ``model`` the weights of a run's best epoch."""
    model.load_state_dict(torch.load(folder / "best.pt", map_location=device, weights_only=True))


def step(
    trainee: Trainee, model: nn.Module, batch: list[int], process: Process
) -> tuple[float, float]:
    """One optimizer step on a batch of all processes; this process's loss and number of targets."""
    trainee.optimizer.zero_grad()
    total, count = trainee.loss(model, process.share(batch))
    everyone = process.sum({"count": count})["count"] if process.world > 1 else count
    # wrapped models average gradients over processes: the mean is over the targets of all
    (total * (process.world / max(everyone, 1))).backward()
    if trainee.clip is not None:
        nn.utils.clip_grad_norm_(trainee.model.parameters(), trainee.clip)
    trainee.optimizer.step()
    return float(total.detach()), count


def _epoch(
    trainee: Trainee, model: nn.Module, batches: list[list[int]], process: Process, what: str
) -> float:
    """One pass over the data; the mean loss per target. Batches with fewer examples than processes
    are left out."""
    model.train()
    total = {"loss": 0.0, "count": 0.0}
    for batch in progress([b for b in batches if len(b) >= process.world], what, process):
        loss, count = step(trainee, model, batch, process)
        total["loss"] += loss
        total["count"] += count
    total = process.sum(total)
    return total["loss"] / max(total["count"], 1.0)


def _distributed(model: nn.Module, process: Process) -> nn.Module:
    return DistributedDataParallel(model) if process.world > 1 else model


def _best(history: Sequence[Mapping[str, float]]) -> int:
    """The first epoch with the highest score."""
    return max(range(len(history)), key=lambda epoch: (history[epoch]["score"], -epoch))


def _checkpoint(
    trainee: Trainee,
    folder: Path,
    history: list[dict[str, float]],
    described: Mapping[str, Any],
) -> None:
    if _best(history) == len(history) - 1:
        _save(folder / "best.pt", trainee.model.state_dict())
    checkpoint = {
        "model": trainee.model.state_dict(),
        "optimizer": trainee.optimizer.state_dict(),
        "state": trainee.state(),
        "history": history,
        "settings": dict(described),
    }
    _save(folder / "last.pt", checkpoint)


def _resume(
    trainee: Trainee, folder: Path, described: Mapping[str, Any], process: Process
) -> list[dict[str, float]]:
    """Load the last checkpoint, if there is one, and return its history."""
    if not (folder / "last.pt").exists():
        return []
    saved = torch.load(folder / "last.pt", map_location=process.device, weights_only=True)
    _compare(folder, saved["settings"], described)
    trainee.model.load_state_dict(saved["model"])
    trainee.optimizer.load_state_dict(saved["optimizer"])
    trainee.load_state(saved["state"])
    history: list[dict[str, float]] = saved["history"]
    return history


def _finish(
    trainee: Trainee,
    folder: Path,
    name: str,
    seed: int,
    history: list[dict[str, float]],
    described: Mapping[str, Any],
    process: Process,
) -> dict[str, Any]:
    process.wait()  # until the main process has written the best epoch
    load_best(trainee.model, folder, process.device)
    trainee.model.eval()
    with torch.no_grad():
        result = trainee.evaluate()
    done = {
        "name": name,
        "seed": seed,
        "settings": dict(described),
        "history": history,
        "best": _best(history),
        "result": result,
    }
    if process.main:
        write_json(folder / "result.json", done)
        (folder / "last.pt").unlink()
    process.wait()  # until the result is written
    return done


def _compare(folder: Path, held: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    different = [k for k in {**held, **described} if held.get(k) != described.get(k)]
    if different:
        differences = ", ".join(f"{k} {held.get(k)!r}, not {described.get(k)!r}" for k in different)
        raise ValueError(f"out: {folder} holds a run with {differences}; give another --out")


def seed_all(*key: int) -> None:
    """Seed Python's generator and torch's from integers, such as (seed, epoch, rank)."""
    mixed = random.Random(repr(key)).getrandbits(63)
    random.seed(mixed)
    torch.manual_seed(mixed)


def generator(*key: int) -> torch.Generator:
    """A new generator, seeded from integers, for the order of the data."""
    return torch.Generator().manual_seed(random.Random(repr(key)).getrandbits(63))


def progress(items: Sequence[T], what: str, process: Process) -> Iterable[T]:
    """The items, with a progress bar on standard error if that is a terminal."""
    quiet = not process.main or not sys.stderr.isatty()
    bar: Iterable[T] = tqdm(items, what, disable=quiet, leave=False)
    return bar


def say(line: str, process: Process) -> None:
    """Print a line to standard error, from the main process only."""
    if process.main:
        tqdm.write(line, file=sys.stderr)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically."""
    _replace(path, lambda part: part.write_text(json.dumps(content, ensure_ascii=False, indent=1)))


def _save(path: Path, content: Any) -> None:
    _replace(path, lambda part: torch.save(content, part))


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    write(part)
    part.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text())) if path.exists() else None
