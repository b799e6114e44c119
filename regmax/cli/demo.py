"""``regmax demo``: cross-check, train on real digits with each mapping, draw the attention maps."""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import attention_maps, pooling, validate
from .common import UsageError, needs, working
from .listing import quiet_registry
from .names import named
from .scores import builtin

MAPPINGS = ("softmax", "sparsemax", "entmax15", "pnormmax", "fusedmax", "oscarmax")
PROCESSES = 2


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "demo",
        help="cross-check the built-in regularizers, train on real digits, draw attention maps",
        description="Cross-checks the six built-in regularizers, trains an attention-pooling "
        "classifier of handwritten digits with each mapping, and draws their attention maps. "
        "Takes one to two minutes. Exit status 1 if a cross-check fails.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("regmax-demo"),
        metavar="DIR",
        help="folder for the picture (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=int, default=15, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. The status is that of the cross-checks."""
    if arguments.epochs < 1:
        raise UsageError(f"--epochs must be at least 1; got {arguments.epochs}")
    if not 0 <= arguments.seed < 2**63:
        raise UsageError(f"--seed must be in [0, 2^63); got {arguments.seed}")
    with needs("demo", "the demo"):
        import matplotlib.figure  # noqa: F401
    data = pooling.digits()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {arguments.out}: {error.strerror or error}") from error
    start = time.perf_counter()

    with training(data, arguments.epochs, arguments.seed) as trained:
        print("1. Cross-check of each mapping with independent methods\n", flush=True)
        found = quiet_registry()
        omegas = [named(mapping) for mapping in MAPPINGS]
        outcomes = validate.check(omegas, builtin(d=8), validate.backends(found, None), gamma=1.0)
        status = validate.summarize(outcomes)

        images = len(data.train_x) + len(data.test_x)
        print(
            f"\n2. An attention-pooling classifier of {images:,} handwritten digits, "
            f"{arguments.epochs} epochs with each mapping\n"
        )
        columns = ("mapping", "test accuracy", "pixels used of 64", "groups among them")
        print("  ".join(columns), flush=True)
        results = []
        for mapping in MAPPINGS:
            with working(f"training with {mapping}"):
                result = next(trained)
            results.append(result)
            cells = (
                f"{mapping:9}",
                f"{100 * result.accuracy:.1f} %",
                f"{result.support:.1f}",
                f"{result.group_count:.1f}",
            )
            print(
                "  ".join(c.ljust(len(h)) for c, h in zip(cells, columns, strict=True)).rstrip(),
                flush=True,
            )

    picture = arguments.out / "attention-maps.png"
    attention_maps.draw(results, data, picture)
    print(f"\n3. Attention maps of each mapping: {picture}")
    print(f"\n{time.perf_counter() - start:.0f} seconds")
    return status


@contextmanager
def training(data: pooling.Digits, epochs: int, seed: int) -> Iterator[Iterator[pooling.Trained]]:
    """The trained models, in the order of ``MAPPINGS``; they train in processes of their own, while
    the cross-check runs. Leaving the context ends the processes."""
    work = [pickle.dumps((mapping, data, epochs, seed)) for mapping in MAPPINGS]
    # an interrupt is for this process, which ends the others
    quiet = (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(PROCESSES, signal.signal, quiet) as pool:
        yield map(pickle.loads, pool.imap(_trained, work))


def _trained(work: bytes) -> bytes:
    """Bytes in, bytes out: no memory is shared with a process that ends."""
    mapping, data, epochs, seed = pickle.loads(work)
    _, omega = named(mapping)
    return pickle.dumps(pooling.train(mapping, omega, data, epochs, seed))
