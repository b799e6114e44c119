"""``regmax compile``: compile the kernels of the CPU before the first call."""

from __future__ import annotations

import argparse
import importlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ..mapping.compiled import kernel_of
from ..nn.layer import RegularizedMax
from ..regularizers.errors import clipped, told
from ..regularizers.regularizer import Regularizer
from .common import UsageError, needs, note, working
from .listing import quiet_registry
from .names import by_default, named, with_defaults

DTYPES = (torch.float32, torch.float64)


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "compile",
        help="compile the kernels of the CPU before the first call, as for a container",
        description="Compiles what the first calls of mappings on the CPU would compile, forward "
        "and backward, for float32 and float64, and keeps it on disk for all later processes. "
        "What is there already is not compiled again.",
        epilog="example: regmax compile sparsemax 'tsallis(alpha=1.5) + 0.1*tv'",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="regularizers, mappings or expressions (default: all regularizers)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compile, and print a line for each name. Of all names, the status is 1 if one raises."""
    with needs("fast", "regmax compile"):
        importlib.import_module("numba")
        from ..kernels.cpu.compiling import CORES
    found = quiet_registry()
    omegas = [named(name) for name in arguments.names]
    for name in [] if arguments.names else with_defaults(found):
        omega = by_default(found, name)
        if isinstance(omega, Exception):
            note(f"left out: {name}: {told(omega)}")
        else:
            omegas.append((name, omega))
    width, status = max((len(name) for name, _ in omegas), default=0), 0
    logger = logging.getLogger("regmax")
    level = logger.level
    logger.setLevel(logging.ERROR)  # this command says itself that it takes long
    pool = ThreadPoolExecutor(CORES)
    try:
        running = [pool.submit(_timed, omega) for _, omega in omegas]
        for (name, _), each in zip(omegas, running, strict=True):
            try:
                with working(f"compiling {name}"):
                    seconds, method = each.result()
            except Exception as error:  # a plugin's code may raise anything
                reason = f"{clipped(name, 80)}: {told(error)}"
                if arguments.names:
                    raise UsageError(reason) from error
                note(reason)
                status = 1
                continue
            print(f"{name:{width}}  {seconds:6.1f} s  {method}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
        logger.setLevel(level)
    return status


def _timed(omega: Regularizer) -> tuple[float, str]:
    """How long it takes to compile what a layer needs, and the method."""
    start = time.perf_counter()
    method = compile_kernels(omega)
    return time.perf_counter() - start, method


def compile_kernels(omega: Regularizer) -> str:
    """Compile what a layer needs for each dtype; returns the method of its forward pass."""
    layer = RegularizedMax(omega)
    d = omega.entries if omega.entries and omega.entries < 1 << 16 else 4
    for dtype in DTYPES:
        x = torch.linspace(0, 1, 2 * d, dtype=dtype, device="cpu").view(2, d).requires_grad_()
        kernel = kernel_of(omega, x)
        if kernel is not None:
            kernel.compile(dtype)
        y = layer(x)
        y.backward(torch.linspace(-1, 1, 2 * d, dtype=dtype, device="cpu").view(2, d))
    return "no kernel" if kernel is None else f"{kernel.name} kernel"
