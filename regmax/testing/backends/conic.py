"""Rows as convex programs in cvxpy: max ⟨y, z⟩ − Ω(y) over the simplex."""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...domains import Bounded, Plans, Projected
from ...regularizers.errors import RegularizerError
from ...regularizers.penalty import Penalized, who
from ...regularizers.regularizer import Regularizer
from .base import Answer, Backend, Task

TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "tol_ktratio": 1e-10}


@dataclass(frozen=True, eq=False)
class Program:
    """minimise Ω(y) − ⟨z, y⟩ subject to y ∈ D, with z a parameter, and l, u and k where D is not
    the simplex."""

    problem: Any
    z: Any
    y: Any
    bounds: dict[str, Any]


class Conic(Backend):
    """A backend for every Ω that has a convex program."""

    needs: ClassVar[tuple[str, ...]]
    """The packages that it imports."""

    def missing(self) -> str | None:
        for package in self.needs:
            if importlib.util.find_spec(package) is None:
                return f'{package} is not installed: pip install "regmax[validate]"'
        return None

    def unsuitable(self, omega: Regularizer) -> str | None:
        return lacks_program(omega)


def quiet() -> AbstractContextManager[Any]:
    """Suppress cvxpy's warnings. Powers become second-order cones, which is exact for rational
    exponents. The certificate judges inaccurate solutions."""
    return warnings.catch_warnings(action="ignore")


def program(
    omega: Regularizer, d: int, domain: Bounded | Plans | Projected | None, sizes: dict[str, int]
) -> Program:
    """A new program: cvxpylayers modifies the programs that it compiles. ``sizes``: those of the
    numbers of the domain."""
    import cvxpy

    z, y = cvxpy.Parameter(d), cvxpy.Variable(d)
    # 2y ≥ 0, because cvxpy may remove y ≥ 0 from the cones before cvxpylayers sees it
    constraints, bounds = [2 * y >= 0, cvxpy.sum(y) == 1], {}
    if domain is not None:
        bounds = {name: cvxpy.Parameter(size) for name, size in sizes.items()}
        constraints = domain.as_cvxpy(y, **bounds)
    value = omega.as_cvxpy(y)
    seen = cvxpy.Constant(0) + value
    if not (seen.is_scalar() and seen.is_convex()):
        raise RegularizerError(
            f"{who(omega)}.as_cvxpy(y) must be one number, convex by the rules of cvxpy; got shape "
            f"{seen.shape}, {seen.curvature}"
        )
    return Program(cvxpy.Problem(cvxpy.Minimize(value - z @ y), constraints), z, y, bounds)


def lacks_program(omega: Regularizer) -> str | None:
    """Why Ω has no convex program, or None."""
    if isinstance(omega, Penalized):
        return lacks_program(omega.base)
    if omega.declares("as_cvxpy"):
        return None
    return f"{type(omega).__name__} defines no as_cvxpy"


def batches(task: Task) -> Iterator[tuple[Regularizer, Tensor, Tensor]]:
    """(Ω, row indices, entry indices (rows, m)): rows that share one program, masked entries
    dropped, but those of plans and of domains of the user's own, and hyperparameters as numbers."""
    rows, d = task.z.shape
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    mask = None if isinstance(task.bounds, Plans | Projected) else task.mask
    counts = [d] * rows if mask is None else mask.sum(-1).tolist()
    numbers = [_numbers(task.omega, i, ... if mask is None else mask[i]) for i in range(rows)]
    for i in range(rows):
        groups[(counts[i], tuple(sorted(numbers[i].items())))].append(i)
    for (count, _), members in groups.items():
        index = torch.tensor(members, device=task.z.device)
        entries = torch.arange(d, device=task.z.device).expand(len(members), d)
        if mask is not None:
            entries = (~mask[index]).to(torch.uint8).argsort(dim=-1, stable=True)[:, :count]
        omega = task.omega.with_tensors(
            {
                k: torch.tensor(n, dtype=torch.float64, device="cpu")
                for k, n in numbers[members[0]].items()
            }
        )
        yield omega, index, entries


def scatter(values: Tensor, like: Tensor, index: Tensor, entries: Tensor) -> None:
    """Write the answers of one batch into ``like`` (rows, d)."""
    block = torch.zeros_like(like[index])
    like[index] = block.scatter(-1, entries, values.detach().to(like))


def _numbers(omega: Regularizer, row: int, on: Any) -> dict[str, Any]:
    """The hyperparameters of one row by dotted name; of the entries ``on`` if each has its own."""
    found: dict[str, Any] = {}
    for name, item in omega.per_row_tensors(entries=True).items():
        if item.ndim and item.shape[-1] > 1:
            found[name] = tuple(item.detach()[row][on].tolist())
        else:
            found[name] = item.detach().reshape(-1)[row if item.numel() > 1 else 0].item()
    return found


class Cvxpy(Conic):
    """One convex program per row, solved by Clarabel, an interior-point method, on the CPU."""

    name: ClassVar[str] = "cvxpy"
    domains: ClassVar[bool] = True
    needs = ("cvxpy", "clarabel")

    def answers(self, task: Task) -> list[Answer]:
        start = time.perf_counter()
        y = torch.zeros_like(task.z)
        with quiet():
            for omega, index, entries in batches(task):
                numbers = {} if task.bounds is None else task.bounds.conic(index[0], entries[0])
                sizes = {k: t.shape[-1] for k, t in numbers.items()}
                conic = program(omega, entries.shape[-1], task.bounds, sizes)
                rows = task.z[index].gather(-1, entries)
                for i, z, where in zip(index, rows, entries, strict=True):
                    conic.z.value = z.detach().double().cpu().numpy()
                    if task.bounds is not None:
                        for name, t in task.bounds.conic(i, where).items():
                            conic.bounds[name].value = t.double().cpu().numpy()
                    conic.problem.solve(solver="CLARABEL", **TIGHT)
                    found = conic.y.value
                    values = z * math.nan if found is None else torch.tensor(found, device="cpu")
                    scatter(values.unsqueeze(0), y, i.reshape(1), where.unsqueeze(0))
        return [Answer("cvxpy Clarabel", y, None, time.perf_counter() - start, 1e-5, math.inf)]
