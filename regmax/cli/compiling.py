"""``regmax compile``: compile the kernels of the CPU before the first call."""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ..mapping.methods.kernel import kernel_of
from ..nn.layer import RegularizedMax
from ..regularizers.errors import clipped, told
from ..regularizers.regularizer import Regularizer
from .common import UsageError, needs, note, working
from .listing import quiet_registry
from .names import add_names, chosen
from .scores import LONGEST

DTYPES = (torch.float32, torch.float64)
OTHERS = {
    "cpu.laplacian": ("float64", "potentials"),
    "cpu.sparse_sums": ("float32 float64", "forward backward"),
    "cpu.sparse_dots": ("float32 float64", "forward"),
    "from_value.rows": ("float32 float64", "sums"),
    "from_value.separable": ("float64", "forward backward"),
    "from_value.coupled": ("float64", "forward backward"),
    "from_value.kinked": ("float64", "forward"),
}
"""The modules of functions that attention, the losses of linear layers, transport plans and an Ω
given by its value need besides, with the dtypes and the names of these functions."""


def add_to(commands: Any) -> None:
    """Add this command to the parser's subcommands."""
    parser = commands.add_parser(
        "compile",
        help="compile the kernels of the CPU before the first call, as for a container",
        description="Compiles what the first calls of mappings on the CPU would compile, forward "
        "and backward, for float32 and float64, and keeps it on disk for all later processes. "
        "Without names, also what attention and your own regularizers need besides. What is there "
        "already is not compiled again.",
        epilog="example: regmax compile sparsemax 'tsallis(alpha=1.5) + 0.1*tv'",
    )
    add_names(parser, "default: all regularizers")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compile, and print a line for each name. Of all names, the status is 1 if one raises."""
    with needs("fast", "regmax compile"):
        importlib.import_module("numba")
        from ..kernels.cpu.compiling import CORES
    tasks: dict[str, Callable[[], str]] = {}
    for name, omega in chosen(quiet_registry(), arguments.names):
        if isinstance(omega, Exception):
            note(f"left out: {name}: {told(omega)}")
        else:
            tasks[name] = functools.partial(compile_kernels, omega)
    if not arguments.names:
        tasks["others"] = compile_others
    width, status = max(map(len, tasks), default=0), 0
    logger = logging.getLogger("regmax")
    level = logger.level
    logger.setLevel(logging.ERROR)  # this command says itself that it takes long
    pool = ThreadPoolExecutor(CORES)
    try:
        running = {name: pool.submit(_timed, task) for name, task in tasks.items()}
        for name, each in running.items():
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


def _timed(task: Callable[[], str]) -> tuple[float, str]:
    """How long a task takes, and the method."""
    start = time.perf_counter()
    method = task()
    return time.perf_counter() - start, method


def compile_kernels(omega: Regularizer) -> str:
    """Compile what a layer needs for each dtype; returns the method of its forward pass."""
    layer = RegularizedMax(omega)
    d = omega.entries if omega.entries and omega.entries <= LONGEST else 4
    for dtype in DTYPES:
        x = torch.linspace(0, 1, 2 * d, dtype=dtype, device="cpu").view(2, d).requires_grad_()
        kernel = kernel_of(omega, x)
        if kernel is not None:
            kernel.compile(dtype)
        y = layer(x)
        y.backward(torch.linspace(-1, 1, 2 * d, dtype=dtype, device="cpu").view(2, d))
    return layer.solve(x.detach()).path if kernel is None else f"{kernel.name} kernel"


def compile_others() -> str:
    """Compile what calls need besides."""
    from ..kernels.cpu.compiling import address_of

    for module, (dtypes, names) in OTHERS.items():
        for dtype, name in itertools.product(dtypes.split(), names.split()):
            address_of(f"regmax.kernels.{module}", name, dtype)
    return "numba kernels"
