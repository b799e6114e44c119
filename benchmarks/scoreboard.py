"""``python -m benchmarks.scoreboard``: promises of ``regmax.testing``, put to other packages too.

A layer passes if it is right to half of the digits of its dtype, √ε. What is right is computed here
with more digits, without regmax, for the scores as they are stored. Each cell is a process: a row
that takes more than ``LIMIT`` seconds, or ends the process, has failed.
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
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from regmax.testing.inputs import hard_inputs, normal
from regmax.testing.promise import worst
from regmax.testing.search import Case, fixed_cases, random_cases, show, shrunk

from . import page

PAGE = page.ROOT / "docs" / "compared.md"
LIMIT = 60.0
MOST = 64
"""Entries of a row at most: what fails is printed."""
SINGLE, FULL, HALF = (
    (torch.float32,),
    (torch.float64, torch.float32),
    (torch.float16, torch.bfloat16),
)


@dataclass(frozen=True)
class Layer:
    """``call``: Python code of x, (rows, d), and a number a. ``kind``: which of ``weights`` it is.

    ``dtypes``; ``masks``, scores of −inf; ``learns``, a gradient in a: what the documentation, the
    tests or the maintainers of the package say it can do.
    """

    package: str
    call: str
    kind: str = "entmax"
    numbers: tuple[float, ...] = (2.0,)
    dtypes: tuple[torch.dtype, ...] = FULL
    masks: bool = True
    learns: bool = False

    def __call__(self, x: Tensor, a: float | Tensor) -> Tensor:
        root = self.module.partition(".")[0]
        y: Tensor = eval(self.call, {root: sys.modules[root], "x": x, "a": a})
        return y

    @property
    def module(self) -> str:
        return self.call.partition("(")[0].rpartition(".")[0]

    def code(self, x: Tensor, a: float) -> str:
        return re.sub(r"\bx\b", show(x), re.sub(r"\ba\b", f"{a:g}", self.call))


A, ALL = (1.25, 1.75, 2.5), (*FULL, *HALF)
SUBSETS = "regmax.functional.sparsemax(x, domain=regmax.Simplex(a, upper=1.0))"
LAYERS = (
    Layer("regmax", "regmax.functional.softmax(x)", numbers=(1.0,), dtypes=ALL),
    Layer("torch", "torch.softmax(x, -1)", numbers=(1.0,), dtypes=ALL),
    Layer("regmax", "regmax.functional.sparsemax(x)", dtypes=ALL),
    Layer("entmax", "entmax.sparsemax(x)"),
    Layer("entmax", "entmax.sparsemax_bisect(x)"),
    Layer("sparsemax", "sparsemax.Sparsemax()(x)", masks=False),
    Layer("POT", "ot.utils.proj_simplex(x.T).T", masks=False),
    Layer(
        "liger-kernel",
        "liger_kernel.transformers.LigerSparsemax()(x.cuda()).cpu()",
        dtypes=SINGLE,
        masks=False,
    ),
    Layer("adasplash", "adasplash.triton_sparsemax(x.cuda()).cpu()", dtypes=SINGLE, masks=False),
    Layer("regmax", "regmax.functional.entmax15(x)", numbers=(1.5,), dtypes=ALL),
    Layer("entmax", "entmax.entmax15(x)", numbers=(1.5,)),
    Layer("regmax", "regmax.functional.entmax(x, alpha=a)", numbers=A, dtypes=ALL, learns=True),
    Layer("entmax", "entmax.entmax_bisect(x, alpha=a)", numbers=A, learns=True),
    Layer("entmax", "entmax.normmax_bisect(x, alpha=a)", "normmax", (1.5, 2.0, 3.0), masks=False),
    Layer("regmax", SUBSETS, "subsets", dtypes=ALL),
    Layer("entmax", "entmax.budget_bisect(x, budget=a)", "subsets", masks=False),
)


def weights(kind: str, x: Any, a: Any) -> Any:
    """α-entmax, softmax at 1 and sparsemax at 2; normmax, argmax ⟨y, x⟩ − ‖y‖_a; subsets, sparsemax
    with y ≤ 1 and a sum of a: one row of numpy's longdouble, by bisection for a threshold τ."""
    top = math.ceil(a) if kind == "subsets" else 1
    z, factor = x - np.sort(x)[-top], a - 1 if kind == "entmax" else 1
    if factor == 0:
        return np.exp(z) / np.exp(z).sum()

    def y(tau: Any) -> Any:
        u = np.maximum(z - tau, 0)
        return np.minimum(u, 1) if kind == "subsets" else (factor * u) ** (1 / (a - 1))

    low, high = -np.longdouble(1) / factor, np.longdouble(0)  # y_i ≥ 1 for ``top`` entries, y_i = 0
    for _ in range(90):
        tau = (low + high) / 2
        sums = (y(tau) ** a).sum() if kind == "normmax" else y(tau).sum()
        low, high = (tau, high) if sums > (a if kind == "subsets" else 1) else (low, tau)
    return y(low) / (y(low).sum() if kind == "normmax" else 1)


def exact(layer: Layer, a: float, x: Tensor) -> Tensor:
    each = [weights(layer.kind, row.astype(np.longdouble), a) for row in x.double().numpy()]
    return torch.from_numpy(np.stack(each).astype(np.float64))


# -- the columns: the error, and what came ---------------------------------------------------------


def values(layer: Layer, a: float, x: Tensor) -> tuple[float, list[Tensor]]:
    """y, zero where x is −inf, and a gradient that is finite."""
    leaf, best = x.clone().requires_grad_(), exact(layer, a, x)
    y = layer(leaf, a)
    (g,) = torch.autograd.grad(y, leaf, normal(*x.shape).to(y))
    good = bool(torch.isfinite(g).all()) and not y[x == -torch.inf].any()
    return worst(y - best) if good else math.inf, [y, best, *(() if good else (g,))]


def derivatives(layer: Layer, a: float, x: Tensor) -> tuple[float, list[Tensor]]:
    """∂y/∂x, and ∂y/∂a in the last column where it learns, relative to 1 + the largest."""
    by_x, by_a = jacobian(layer, (x, torch.tensor(a, dtype=x.dtype)))
    row = np.append(x[0].double().numpy(), a).astype(np.longdouble)
    steps = np.longdouble(1e-6) * np.eye(len(row), dtype=row.dtype)[: len(row) - 1 + layer.learns]
    ends = [[weights(layer.kind, t[:-1], t[-1]) for t in (row + s, row - s)] for s in steps]
    best = torch.from_numpy(np.stack([(y - t) / 2e-6 for y, t in ends], -1).astype(np.float64))
    j = torch.cat([by_x[0, :, 0], by_a.mT], -1)[:, : len(steps)]
    return worst(j - best) / (1 + worst(best)), [j, best]


def ends(layer: Layer, a: float, x: Tensor) -> tuple[float, list[Tensor]]:
    """An answer and its gradient, or an error."""
    with contextlib.suppress(Exception):
        leaf = x.clone().requires_grad_()
        layer(leaf, a).sum().backward()
    return 0.0, []


def ordinary(dtypes: Iterable[torch.dtype] = FULL) -> Iterator[Tensor]:
    cases = [*fixed_cases((1, 2, 3, 5), False), *random_cases(6, True, False, 10)]
    scores = [*(case.x for case in cases), normal(4, MOST), 4 * normal(4, MOST)]
    return (x.to(dtype) for x, dtype in itertools.product(scores, dtypes))


def hard(**flags: bool) -> Iterator[Tensor]:
    """Hard inputs, their masks as scores of −inf."""
    for case, dtype in itertools.product(hard_inputs(**flags), FULL):
        x, mask = case.make(dtype)
        yield x if mask is None else x.masked_fill(~mask, -torch.inf)


COLUMNS: dict[str, tuple[Callable[[], Iterable[Tensor]], Callable[..., Any]]] = {
    "values": (ordinary, values),
    "hard inputs": (functools.partial(hard, finite=True, masked=False), values),
    "derivatives": (ordinary, derivatives),
    "masks": (functools.partial(hard, masked=True, spoilt=False), values),
    "half precision": (functools.partial(ordinary, HALF), values),
    "ends": (hard, ends),
}


def fits(name: str, layer: Layer, a: float, x: Tensor) -> bool:
    """Whether the row has a point and, for derivatives, the same entries are at 0 and 1 nearby."""
    if name == "ends" or int((x > -torch.inf).sum()) < (a if layer.kind == "subsets" else 1):
        return name == "ends"
    if name != "derivatives":
        return True
    y = exact(layer, a, torch.cat([x, x + 0.05 * normal(16, x.shape[-1]).clamp(-1, 1)]))
    inside = (y > 1e-9) & (y < 1 - 1e-9)
    return bool((inside == inside[0]).all())


def rows(name: str, layer: Layer, a: float) -> Iterator[Tensor]:
    """Each alone, (1, d)."""
    for x in COLUMNS[name][0]():
        if x.numel() and x.shape[-1] <= MOST and x.dtype in layer.dtypes:
            each = x.reshape(-1, x.shape[-1]).split(1)
            yield from (row for row in each if fits(name, layer, a, row))


# -- running ---------------------------------------------------------------------------------------


def fails(name: str, layer: Layer, a: float, x: Tensor) -> str:
    """What came, and what is right; nothing if that is the same."""
    try:
        error, found = COLUMNS[name][1](layer, a, x)
    except Exception as raised:  # whatever a package raises
        return f"{type(raised).__name__}: {raised}".splitlines()[0]
    texts = [str([float(f"{n:.6g}") for n in t.flatten().tolist()]) for t in found]
    words = zip(("", ", exact ", ", gradient "), texts, strict=False)
    return "" if error <= torch.finfo(x.dtype).eps ** 0.5 else "".join(w + t for w, t in words)


def work(name: str, layer: Layer, pipe: Any) -> None:
    """Sends each row before it is tried, then the cell and a report of a small row that fails."""
    torch.set_num_threads(1)
    importlib.import_module(layer.module)
    tried, failed = 0, []
    for a in layer.numbers:
        for x in rows(name, layer, a):
            pipe.send(layer.code(x, a))
            tried += 1
            if fails(name, layer, a, x):
                failed.append((x.numel(), worst(x.nan_to_num(neginf=0)), a, x))
    if not failed:
        pipe.send(("pass" if tried else "–", ""))
        return
    *_, a, x = min(failed, key=lambda found: found[:2])

    def breaks(case: Case) -> bool:
        return fits(name, layer, a, case.x) and bool(fails(name, layer, a, case.x))

    x = shrunk(breaks, Case(x), True, 200).x
    report = f"`{layer.code(x, a)}`: {fails(name, layer, a, x)}"
    pipe.send((f"**{len(failed)} of {tried} fail**", report))


def cell(name: str, layer: Layer, limit: float = LIMIT) -> tuple[str, str]:
    """What ``work`` finds, in a process."""
    if name == "masks" and not layer.masks:
        return "–", ""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["regmax.testing.search", "benchmarks.page"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(name, layer, there))
    process.start()
    there.close()
    message: Any = "the import"
    with contextlib.suppress(EOFError):
        # ends: the rows do, or one of them is late
        while isinstance(message, str) and here.poll(limit):
            message = here.recv()
    process.join(1)
    why = "the process ended" if process.exitcode else f"no answer in {limit:g} seconds"
    process.kill()
    if isinstance(message, tuple):
        return message
    if process.exitcode == 1:
        raise RuntimeError(f"this program failed at {name} of {layer.call}, {message}")
    return f"**{why}**", f"`{message}`: {why}"


def board(layers: Iterable[Layer]) -> str:
    """The table, and below it what failed."""
    lines, reports = [], []
    for layer in layers:
        print(layer.call, file=sys.stderr, flush=True)
        found = {name: cell(name, layer) for name in COLUMNS}
        lines.append([f"{layer.package}: `{layer.call}`", *(text for text, _ in found.values())])
        reports += [f"- {name}: {report}" for name, (_, report) in found.items() if report]
    return "\n".join([page.table(["", *COLUMNS], lines), "", *reports])


def main(arguments: Sequence[str] | None = None) -> None:
    names = list(dict.fromkeys(layer.package for layer in LAYERS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard", description=__doc__)
    parser.add_argument("packages", nargs="*", default=names, help="default: all")
    parser.add_argument(
        "--out", type=Path, default=PAGE, metavar="PAGE", help="default: %(default)s"
    )
    given = parser.parse_args(arguments)
    here, left = {}, []
    for name in given.packages:
        try:
            here[name] = f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            left.append(f"{name} is not installed")
    layers = [layer for layer in LAYERS if layer.package in here]
    if not torch.cuda.is_available():
        left += [f"`{layer.call}` needs a GPU" for layer in layers if "cuda" in layer.call]
        layers = [layer for layer in layers if "cuda" not in layer.call]
    text = f"{datetime.datetime.now(datetime.UTC).date()}: {', '.join(here.values())}."
    text += f" Not run: {'; '.join(left)}." if left else ""
    text += f"\n\n{board(layers)}"
    page.write(given.out, "scoreboard", text)
    print(given.out)


if __name__ == "__main__":
    main()
