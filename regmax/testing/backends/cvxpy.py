"""cvxpy with Clarabel, an interior-point method, at its tightest tolerances: values only."""

from __future__ import annotations

import importlib.util
import math
import time
from typing import ClassVar

import torch

from ...regularizers.regularizer import Regularizer
from .base import Answer, Backend, Task
from .conic import batches, lacks_program, program, quiet, scatter

TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "tol_ktratio": 1e-10}


class Cvxpy(Backend):
    """One convex program per row, solved by Clarabel on the CPU."""

    name: ClassVar[str] = "cvxpy"

    def missing(self) -> str | None:
        for package in ("cvxpy", "clarabel"):
            if importlib.util.find_spec(package) is None:
                return f'{package} is not installed: pip install "regmax[validate]"'
        return None

    def unsuitable(self, omega: Regularizer) -> str | None:
        return lacks_program(omega)

    def answers(self, task: Task) -> list[Answer]:
        start = time.perf_counter()
        y = torch.zeros_like(task.z)
        with quiet():
            for omega, index, entries in batches(task):
                conic = program(omega, entries.shape[-1])
                rows = task.z[index].gather(-1, entries)
                for i, z, where in zip(index, rows, entries, strict=True):
                    conic.z.value = z.detach().double().cpu().numpy()
                    conic.problem.solve(solver="CLARABEL", **TIGHT)
                    found = conic.y.value
                    values = torch.full_like(z, math.nan) if found is None else torch.tensor(found)
                    scatter(values.unsqueeze(0), y, i.reshape(1), where.unsqueeze(0))
        return [Answer("cvxpy Clarabel", y, None, time.perf_counter() - start, 1e-5, math.inf)]
