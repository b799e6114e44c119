"""``python -m benchmarks.scoreboard``: the rows of ``regmax.testing``, put to other packages too.

The exact weights have 30 digits, by bisection in mpmath, without regmax. Each layer runs in a
process: a row that takes more than ``LIMIT`` seconds, or ends the process, has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib
import importlib.metadata
import itertools
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.autograd.functional import jacobian

import regmax
from regmax.testing.derivatives import smooth_rows
from regmax.testing.inputs import hard_inputs, normal
from regmax.testing.known import Known, hard
from regmax.testing.promise import worst
from regmax.testing.search import Case, fixed_cases, random_cases, show, shrunk
from regmax.testing.subject import Subject

from . import page, peers

LIMIT = 60.0
FULL, HALF = (torch.float64, torch.float32), (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Layer:
    """``call``, Python code of x (rows, d) and alpha, is α-entmax: softmax at 1, sparsemax at 2.

    ``learns``: it documents a gradient in α. ``outside``: columns outside its documented domain.
    ``accuracy``: an error that it documents, where that is more than half of the digits.
    """

    package: str
    call: str
    alphas: tuple[float, ...]
    learns: bool = False
    outside: tuple[str, ...] = ()
    accuracy: float = 0.0

    def __call__(self, x: Tensor, alpha: float | Tensor) -> Tensor:
        root = self.module.partition(".")[0]
        y: Tensor = eval(self.call, {root: sys.modules[root], "x": x, "alpha": alpha})
        return y

    @property
    def module(self) -> str:
        return self.call.partition("(")[0].rpartition(".")[0]

    def code(self, x: Tensor, alpha: float) -> str:
        return f"`x = {show(x)}`, `{self.call.replace('=alpha', f'={alpha}')}`"


@functools.cache
def _conic(d: int) -> peers.Candidate:
    return peers.conic(lambda cp, y, d: cp.sum_squares(y) / 2, d, jobs=None)


def conic(x: Tensor) -> Tensor:
    """Sparsemax as a program, by cvxpylayers with its default solver."""
    return _conic(x.shape[-1]).apply(x, x)


SOME = (1.25, 1.75, 2.5)
CONIC = "benchmarks.scoreboard.conic(x)"
LAYERS = (
    Layer("regmax", "regmax.functional.softmax(x)", (1.0,)),
    Layer("torch", "torch.softmax(x, -1)", (1.0,)),
    Layer("regmax", "regmax.functional.sparsemax(x)", (2.0,)),
    Layer("entmax", "entmax.sparsemax(x)", (2.0,)),
    Layer("entmax", "entmax.sparsemax_bisect(x)", (2.0,)),
    Layer("POT", "ot.utils.proj_simplex(x.T).T", (2.0,), outside=("masks",)),
    Layer("cvxpylayers", CONIC, (2.0,), outside=("masks", "half precision"), accuracy=1e-3),
    Layer("regmax", "regmax.functional.entmax15(x)", (1.5,)),
    Layer("entmax", "entmax.entmax15(x)", (1.5,)),
    Layer("regmax", "regmax.functional.entmax(x, alpha=alpha)", SOME, learns=True),
    Layer("entmax", "entmax.entmax_bisect(x, alpha=alpha)", SOME, learns=True),
)

# -- the exact answer ------------------------------------------------------------------------------


@functools.cache
def digits(row: tuple[float, ...], alpha: float, more: float = 0.0) -> list[Any]:
    """The weights for α + ``more`` ≥ 1; zeros in a row of −inf alone."""
    if max(row) == -math.inf:
        return [mpf(0)] * len(row)
    with mp.workprec(2400):  # the difference of two doubles, exactly
        z = [mpf(t) - mpf(max(row)) for t in row]
    with mp.workdps(40):
        a = mpf(alpha) - 1 + mpf(more)
        if a == 0:
            z = [mp.exp(t) for t in z]
            return [t / sum(z) for t in z]
        z, power, low, high = [a * t for t in z], 1 / a, mpf(-1), mpf(0)
        for _ in range(110):
            tau = (low + high) / 2
            over = sum((t - tau) ** power for t in z if t > tau) > 1
            low, high = (tau, high) if over else (low, tau)
        return [(t - low) ** power if t > low else mpf(0) for t in z]


def exact(x: Tensor, alpha: float) -> Tensor:
    rows = [[float(t) for t in digits((*row,), alpha)] for row in x.tolist()]
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


# -- the columns -----------------------------------------------------------------------------------

Found = tuple[float, float, str]
"""The error, the error allowed, and what came."""


def numbers(t: Tensor) -> str:
    return f"[{', '.join(f'{number:.6g}' for number in t.flatten().tolist())}]"


def weights(layer: Layer, alpha: float, x: Tensor) -> Found:
    """y to half of the digits, in half precision to one ulp of the largest weight; 0 where x is
    −inf; and a finite gradient."""
    leaf, best, dtype = x.clone().requires_grad_(), exact(x, alpha), torch.finfo(x.dtype)
    y = layer(leaf, alpha)
    (g,) = torch.autograd.grad(y, leaf, normal(*x.shape).to(y))
    good = bool(torch.isfinite(g).all()) and not y[x == -torch.inf].any()
    error, text = worst(y - best) if good else math.inf, f"{numbers(y)}, exact {numbers(best)}"
    if x.dtype in HALF:
        return error / (dtype.eps * worst(best)), 1.0, text
    return error, max(dtype.eps**0.5, layer.accuracy), f"{text}, gradient {numbers(g)}"


def slopes(layer: Layer, alpha: float, x: Tensor) -> Found:
    """∂y/∂x = diag(s) − ssᵀ/Σs with s = y^(2−α) on the support, and ∂y/∂α by differences in 30
    digits, both to half of the digits."""
    y = exact(x, alpha)[0]
    s = torch.where(y > 0, y.pow(2 - alpha), 0)
    by_x, by_alpha = jacobian(layer, (x, torch.tensor(alpha, dtype=x.dtype, device="cpu")))
    pairs = [(by_x[0, :, 0], s.diag() - s.outer(s) / s.sum())]
    if layer.learns:
        near = (digits((*x[0].tolist(),), alpha, h) for h in (1e-8, -1e-8))
        slope = [float((high - low) / 2e-8) for high, low in zip(*near, strict=True)]
        pairs += [(by_alpha[0], torch.tensor(slope, dtype=x.dtype, device="cpu"))]
    text = ", and ".join(f"{numbers(j)}, exact {numbers(e)}" for j, e in pairs)
    error = max(worst(j - e) / (1 + worst(e)) for j, e in pairs)
    return error, max(torch.finfo(x.dtype).eps ** 0.5, layer.accuracy), text


def ends(layer: Layer, alpha: float, x: Tensor) -> Found:
    """An answer and its gradient, or an error, in time."""
    with contextlib.suppress(Exception):
        leaf = x.clone().requires_grad_()
        layer(leaf, alpha).sum().backward()
    return 0.0, 0.0, ""


# -- their rows ------------------------------------------------------------------------------------


def omega(alpha: float) -> regmax.Regularizer:
    return regmax.regularizer("tsallis", alpha=alpha)


def ordinary(layer: Layer, alpha: float) -> Iterator[Tensor]:
    cases = [*fixed_cases((1, 2, 3, 5), False), *random_cases(6, True, False, 10)]
    yield from (case.x for case in cases)
    yield from (normal(2, 64), 4 * normal(2, 256))


def edges(layer: Layer, alpha: float) -> Iterator[Tensor]:
    """Hard scores; points of the simplex on borders of this Ω; and the layer's own answers."""
    for case, dtype in itertools.product(hard_inputs(finite=True, masked=False), FULL):
        yield case.make(dtype)[0]
    yield from (trial.z for trial in hard(Known("", omega(alpha), steep=alpha <= 1)))
    yield from (layer(x, alpha).detach() for x in ordinary(layer, alpha))


def smooth(layer: Layer, alpha: float) -> Iterator[Tensor]:
    short = (Case(x) for x in ordinary(layer, alpha) if x.shape[-1] <= 6)
    found = (smooth_rows(Subject(omega(alpha)), case) for case in short)
    yield from (case.x for case in found if case is not None)


def masked(layer: Layer, alpha: float) -> Iterator[Tensor]:
    return every(layer, alpha, masked=True, spoilt=False)


def rounded(layer: Layer, alpha: float) -> Iterator[Tensor]:
    for d, scale, dtype in itertools.product((2, 5, 64, 256), (1.0, 4.0), HALF):
        yield (scale * normal(2, d, seed=d)).to(dtype)


def every(layer: Layer, alpha: float, **flags: bool) -> Iterator[Tensor]:
    """Hard inputs, NaN too, their masks as scores of −inf."""
    for case, dtype in itertools.product(hard_inputs(**flags), FULL):
        x, mask = case.make(dtype)
        yield x if mask is None else x.masked_fill(~mask, -torch.inf)


Rows = Callable[[Layer, float], Iterator[Tensor]]
Test = Callable[[Layer, float, Tensor], Found]
COLUMNS: dict[str, tuple[Rows, Test]] = {
    "values": (ordinary, weights),
    "hard inputs": (edges, weights),
    "derivatives": (smooth, slopes),
    "masks": (masked, weights),
    "half precision": (rounded, weights),
    "ends": (every, ends),
}

# -- running ---------------------------------------------------------------------------------------


def tried(name: str, layer: Layer, alpha: float, x: Tensor) -> Found:
    try:
        return COLUMNS[name][1](layer, alpha, x)
    except Exception as error:  # whatever a package raises
        return math.inf, 0.0, f"{type(error).__name__}: {error}".splitlines()[0]


def work(name: str, layer: Layer, pipe: Any) -> None:
    """Sends each row before it is tried, then the cell and a report of the smallest scores."""
    torch.set_num_threads(1)
    importlib.import_module(layer.module)
    errors, failed = [], []
    for alpha in layer.alphas:
        for x in COLUMNS[name][0](layer, alpha):
            for row in x.reshape(-1, x.shape[-1]).split(1) if x.numel() else ():
                pipe.send(layer.code(row, alpha))
                error, allowed, _ = tried(name, layer, alpha, row)
                errors.append(error)
                failed += [] if error <= allowed else [(error, alpha, row)]
    if not failed:
        pipe.send((f"{len(errors)}" + (f", {max(errors):.1g}" if max(errors) else ""), ""))
        return
    sizes = [(x.numel() > 64, x.numel() + worst(x.nan_to_num(neginf=0))) for _, _, x in failed]
    least, alpha, row = failed[sizes.index(min(sizes))]

    def breaks(case: Case) -> bool:
        error, allowed, _ = tried(name, layer, alpha, case.x)
        return error > allowed and error >= least / 2

    row = shrunk(breaks, Case(row), True, 200).x
    report = f"{layer.code(row, alpha)}: {tried(name, layer, alpha, row)[2]}"
    pipe.send((f"**{len(failed)} of {len(errors)} fail**", report))


def cell(name: str, layer: Layer) -> tuple[str, str]:
    """What ``work`` finds in a process."""
    if name in layer.outside:
        return "–", ""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["regmax.testing.known", "benchmarks.peers"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(name, layer, there))
    process.start()
    there.close()
    message: Any = "at the import"
    with contextlib.suppress(EOFError):
        while isinstance(message, str) and here.poll(LIMIT):
            message = here.recv()
    process.join(1)
    if process.exitcode == 1:
        raise RuntimeError(f"this program failed at {layer.call}, {name}, {message}")
    why = "no end" if process.exitcode is None else "the process ended"
    process.kill()
    return message if isinstance(message, tuple) else (f"**{why}**", f"{message}: {why}")


def board(layers: Iterable[Layer]) -> str:
    """The table, and below it what failed."""
    lines, reports = [], []
    for layer in layers:
        found = {name: cell(name, layer) for name in COLUMNS}
        lines.append([f"`{layer.call}`", *(text for text, _ in found.values())])
        reports += [f"- {name}: {report}" for name, (_, report) in found.items() if report]
    return page.table(["", *COLUMNS], lines) + "\n\n" + "\n".join(reports)


def main(arguments: Sequence[str] | None = None) -> None:
    names = list(dict.fromkeys(layer.package for layer in LAYERS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard", description=__doc__)
    parser.add_argument("packages", nargs="*", default=names, help="default: all installed")
    versions = {}
    for name in parser.parse_args(arguments).packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = f"{name} {importlib.metadata.version(name)}"
    print(f"{datetime.datetime.now(datetime.UTC).date()}: {', '.join(versions.values())}.\n")
    print(board(layer for layer in LAYERS if layer.package in versions))


if __name__ == "__main__":
    main()
