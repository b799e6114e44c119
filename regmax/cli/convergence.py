"""The convergence of solvers on a value-only Ω: a table and a picture."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from .. import plots
from ..nn.layer import RegularizedMax
from ..optimality.solution import Solution
from ..plots.style import INK, formula
from ..regularizers.registry import suggestion
from ..regularizers.regularizer import Regularizer
from ..testing.backends.generic import definition
from .common import UsageError, table, working
from .listing import quiet_registry


def made_up(rows: int, d: int) -> Tensor:
    """(rows, d) scores of scale 0.3, 1 and 3 in turn."""
    scale = torch.tensor([0.3, 1.0, 3.0], dtype=torch.float64, device="cpu").repeat(rows // 3 + 1)[
        :rows, None
    ]
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(rows, d, generator=generator, dtype=torch.float64, device="cpu")


def converge(
    name: str, omega: Regularizer, x: Tensor, gamma: float, wanted: list[str]
) -> tuple[Any, str]:
    """A picture of the convergence of each solver, and a table of the results."""
    solutions: dict[str, Solution] = {}
    lines = []
    for asked in wanted:
        with working(f"solving {name} with {asked}"):
            solution, seconds = solved(omega, x, gamma, asked)
        if isinstance(solution, str):
            lines.append([asked, "refused", "", "", "", solution])
            continue
        label = f"auto: {solution.path.replace('solver ', '')}" if asked == "auto" else asked
        solutions[label] = solution
        steps = solution.iterations.double()
        lines.append(
            [
                label,
                f"{int(solution.converged.sum())} of {solution.converged.numel()}",
                f"{steps.median():g}",
                f"{steps.max():g}",
                f"{solution.error_bound.max():.1e}",
                f"{seconds:.3f}",
            ]
        )
    if not solutions:
        reasons = "; ".join(f"{line[0]}: {line[-1]}" for line in lines)
        raise UsageError(f"--solver: none can take {name} ({reasons}); auto chooses one that can")
    header = ["solver", "converged", "iterations", "most", "worst certified error", "seconds"]
    title = f"{name}, γ = {gamma:g}: {len(x)} rows of {x.shape[-1]} scores"
    caption = f"{title}; value-only Ω; iterations of the median row, and the most of any row"
    figure = plots.convergence(solutions)
    figure.suptitle(formula(title), fontsize=14, color=INK)
    return figure, f"{caption}\n{table(header, lines)}"


def solvers(wanted: str | None) -> list[str]:
    """The requested solvers, each once."""
    names = list(dict.fromkeys(n.strip() for n in (wanted or "auto").split(",") if n.strip()))
    known = ["auto", *quiet_registry().names("solver")]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = ", ".join(map(repr, unknown)) or repr(wanted)
        like = suggestion(unknown[0], known) if unknown else ""
        raise UsageError(f"--solver must name solvers: {', '.join(known)}; got {got}{like}")
    return names


def solved(
    omega: Regularizer, x: Tensor, gamma: float, solver: str
) -> tuple[Solution | str, float]:
    """A traced solution for the value-only Ω, and the seconds of an untraced solve; or the solver's
    reason to refuse."""
    layer = RegularizedMax(definition(omega), gamma, solver=solver, on_failure="ignore")
    with torch.no_grad():
        try:
            solution = layer.solve(x, trace=True)
        except ValueError as error:
            if "cannot take" not in str(error):
                raise
            return str(error).partition(": ")[2].partition(";")[0], 0.0
        start = time.perf_counter()
        layer(x)
        return solution, time.perf_counter() - start
