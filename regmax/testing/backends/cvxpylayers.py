"""cvxpylayers: conic solvers that differentiate their solution (DIFFCP and MOREAU)."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Answer, Task
from .conic import Conic, Program, batches, program, quiet, scatter

# Settings under which these solvers reach 1e-5 in y and 1e-3 in vector–Jacobian products; their
# defaults do not. Exponential cones go to Clarabel, as SCS leaves them inaccurate without a
# warning, and no tighter than 1e-11: closer to the boundary, diffcp's derivative of that cone
# breaks down (softmax of 40 scores of scale 4: error 40 in a product at 1e-12, 3e-6 at 1e-11).
DIFFCP_COMMON = {"n_jobs_forward": 1, "n_jobs_backward": 1, "mode": "lsmr"}
DIFFCP_EXPONENTIAL = {
    "solve_method": "CLARABEL",
    "tol_gap_abs": 1e-11,
    "tol_gap_rel": 1e-11,
    "tol_feas": 1e-11,
    "tol_ktratio": 1e-10,
}
DIFFCP_OTHER = {"solve_method": "SCS", "eps": 1e-8, "max_iters": 50000}
# "auto" would pick an active-set method that fails in silence on larger penalties. MOREAU reads its
# settings when the layer is made, and ignores those of a call. After a short step it may stop at an
# infeasible point, and the layer returns that point, unless the reduced tolerances are as tight as
# the others (measured on sparsemax, 4,096 rows of 20: three rows off by up to 0.43, products by
# 1.2; 9e-11 and 8e-7 with these). Equilibration makes products less accurate as scores grow
# (fusedmax of 50 scores of scale 20: 4e-3; 4e-6 without it), and long steps end early at
# exponential cones (softmax, 1,024 rows of 20: 8e-6; 5e-7 with these).
MOREAU = {
    "solver": "ipm",
    "ipm_settings": {
        "tol_gap_abs": 1e-14,
        "tol_gap_rel": 1e-14,
        "tol_feas": 1e-12,
        "reduced_tol_gap_abs": 1e-14,
        "reduced_tol_gap_rel": 1e-14,
        "reduced_tol_feas": 1e-12,
        "equilibrate_enable": False,
        "max_step_fraction": 0.9,
    },
}
_CONES = threading.Lock()


class CvxpyLayers(Conic):
    """Differentiable convex programs: DIFFCP, and MOREAU if installed.

    DIFFCP works on the CPU in float64; scores on a GPU are copied there and back. MOREAU works on
    the scores' device if its build supports that, and on the CPU otherwise.
    """

    name: ClassVar[str] = "cvxpylayers"
    needs = ("cvxpylayers", "diffcp", "scs", "clarabel")

    def answers(self, task: Task) -> list[Answer]:
        with quiet():
            answers = [_answer("DIFFCP", task, 1e-5, 1e-3)]
            if importlib.util.find_spec("moreau") is not None:
                answers.append(_answer("MOREAU", task, 2e-5, 1e-2))
        return answers


def _answer(solver: str, task: Task, tol: float, vjp_tol: float) -> Answer:
    start = time.perf_counter()
    y, products = torch.zeros_like(task.z), torch.zeros_like(task.z)
    accurate = True  # the products
    for omega, index, entries in batches(task):
        z = task.z[index].gather(-1, entries)
        v = task.v[index].gather(-1, entries)
        conic = program(omega, entries.shape[-1], None, {})
        # MOREAU's derivative of exponential cones is off by 0.4 on peaked softmax: values only
        accurate = accurate and not (solver == "MOREAU" and _exponential(conic))
        solution, product = _solve(solver, conic, z, v)
        scatter(solution, y, index, entries)
        scatter(product, products, index, entries)
    seconds = time.perf_counter() - start
    vjp = products if accurate else None
    return Answer(f"cvxpylayers {solver}", y, vjp, seconds, tol, vjp_tol)


def _solve(solver: str, conic: Program, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    from cvxpylayers.torch import CvxpyLayer

    device = z.device if solver == "MOREAU" and _moreau_runs_on(z.device) else torch.device("cpu")
    z = z.detach().to(device, torch.float64).requires_grad_()
    with _without_direct_cones():
        layer = CvxpyLayer(
            conic.problem,
            parameters=[conic.z],
            variables=[conic.y],
            solver=solver,
            solver_args=_arguments(solver, conic),
        )
    with torch.enable_grad():
        (y,) = layer(z)
        (product,) = torch.autograd.grad(y, z, v.to(y))
    return y, product


@contextmanager
def _without_direct_cones() -> Iterator[None]:
    """Disable cvxpy's direct cones. Since 1.9.3 it passes a cone of variables, as in ‖y_g‖ or a
    norm of norms, to MOREAU outside of the constraint rows, and cvxpylayers loses it."""
    try:
        from cvxpy.reductions.solvers.conic_solvers.moreau_conif import MOREAU as interface
    except ImportError:
        yield
        return
    with _CONES:
        kinds: frozenset[str] = getattr(interface, "DIR_CONE_KINDS", frozenset())
        interface.DIR_CONE_KINDS = frozenset()
        try:
            yield
        finally:
            interface.DIR_CONE_KINDS = kinds


def _arguments(solver: str, conic: Program) -> dict[str, Any]:
    if solver == "MOREAU":
        return MOREAU
    return DIFFCP_COMMON | (DIFFCP_EXPONENTIAL if _exponential(conic) else DIFFCP_OTHER)


def _exponential(conic: Program) -> bool:
    return bool(conic.problem.get_problem_data("SCS")[0]["dims"].exp > 0)


def _moreau_runs_on(device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    import moreau

    return bool(moreau.device_available(device.type))
