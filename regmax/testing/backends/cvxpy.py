"""cvxpy with Clarabel, an interior-point method, at its tightest tolerances: values only."""

from __future__ import annotations

import math
import time
from typing import ClassVar

import torch

from .base import Answer, Task
from .conic import Conic, batches, program, quiet, scatter

TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "tol_ktratio": 1e-10}


class Cvxpy(Conic):
    """One convex program per row, solved by Clarabel on the CPU."""

    name: ClassVar[str] = "cvxpy"
    domains: ClassVar[bool] = True
    needs = ("cvxpy", "clarabel")

    def answers(self, task: Task) -> list[Answer]:
        start = time.perf_counter()
        y = torch.zeros_like(task.z)
        with quiet():
            for omega, index, entries in batches(task):
                sizes = {}
                if task.bounds is not None:
                    sizes = {
                        k: t.shape[-1] for k, t in task.bounds.conic(index[0], entries[0]).items()
                    }
                conic = program(omega, entries.shape[-1], task.bounds, sizes)
                rows = task.z[index].gather(-1, entries)
                for i, z, where in zip(index, rows, entries, strict=True):
                    conic.z.value = z.detach().double().cpu().numpy()
                    if task.bounds is not None:
                        for name, t in task.bounds.conic(i, where).items():
                            conic.bounds[name].value = t.double().cpu().numpy()
                    conic.problem.solve(solver="CLARABEL", **TIGHT)
                    found = conic.y.value
                    values = (
                        torch.full_like(z, math.nan)
                        if found is None
                        else torch.tensor(found, device="cpu")
                    )
                    scatter(values.unsqueeze(0), y, i.reshape(1), where.unsqueeze(0))
        return [Answer("cvxpy Clarabel", y, None, time.perf_counter() - start, 1e-5, math.inf)]
