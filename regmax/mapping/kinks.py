"""Answers on kinks of Ω: rows whose derivatives are not those of the value beside its kinks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..optimality.problem import Problem
from ..regularizers.arguments import few
from ..regularizers.errors import ConvergenceWarning, warn
from ..regularizers.penalty import smooth_part, who
from ..regularizers.regularizer import Regularizer
from ..solvers.kinks import multiplied, near_kinks
from .methods.solver import Forward, Settings
from .rows import Rows


def noted(rows: Rows, result: Forward, settings: Settings) -> Forward:
    """An answer that will be differentiated, with its rows on kinks: for a closed form those of the
    value, for a solver those of a penalty along the support, and which of these have derivatives
    that are not known."""
    solved = result.solved
    if solved is None:
        omega, y, near = _near(rows, result)
    else:
        omega, y, near = solved.at.problem.omega, result.y, solved.at.kinked()
    if near is None or not bool(near.any()):
        return result
    known = torch.zeros_like(near)
    if result.tied is None:
        with torch.no_grad():
            tied = multiplied(Problem(omega, rows.z.double(), rows.mask))
        if tied is not None:
            away = (tied.y - y).norm(dim=-1) + tied.certificate.error_bound
            known = near & (away <= settings.tolerance(result.y.dtype))
            result = replace(result, tied=(tied, tied.bound & known))
    if solved is None:
        _warn(omega, near & ~known)
        return result
    unknown = near if result.tied is None else near & ~result.tied[1]
    return replace(result, unknown=unknown) if bool(unknown.any()) else result


def under_transform(rows: Rows, result: Forward) -> Tensor:
    """y. The derivatives of transforms are those beside the kinks."""
    omega, _, near = _near(rows, result)
    if near is not None:
        _warn(omega, near)
    return result.y


def _near(rows: Rows, result: Forward) -> tuple[Regularizer, Tensor, Tensor | None]:
    """Ω and y in float64, and the rows in which the y of a closed form is next to a kink of the
    value; None where there are none."""
    omega, y = rows.omega, result.y
    leaves = smooth_part(omega).leaves()
    if result.solved is not None or all(leaf.declares("curvature") for leaf in leaves):
        return omega, y, None
    tensors = omega.tensors(fixed=True)
    wide = {k: t.double() for k, t in tensors.items() if t.is_floating_point()}
    omega, y = omega.with_tensors(wide) if wide else omega, y.double()
    with torch.no_grad():
        near = near_kinks(smooth_part(omega, rows.mask), y)
    return omega, y, near if bool(near.any()) else None


def _warn(omega: Regularizer, rows: Tensor) -> None:
    if bool(rows.any()):
        warn(
            f"{who(omega)}: the answer of the closed form is on kinks of the value in "
            f"{int(rows.sum())} of {rows.numel()} rows (rows {few(rows)}), and its derivatives "
            "there are not known: their gradient is that beside the kinks",
            ConvergenceWarning,
        )


def without(y: Tensor, omega: Regularizer, unknown: Tensor | None) -> Tensor:
    """y, whose derivatives are NaN in rows where they are not known: in x, γ and all of Ω."""
    if unknown is None:
        return y
    warn(
        f"{who(omega)}: the penalty is not differentiable at y, along the support, in "
        f"{int(unknown.sum())} of {unknown.numel()} rows (rows {few(unknown)}): their gradient is "
        "NaN",
        ConvergenceWarning,
    )
    # through a zero that depends on all tensors: sign(0), which is in ∇R, has the derivative 0
    per_row, none = omega.per_row_tensors(), torch.zeros_like(y[..., :1])
    for name, t in omega.tensors().items():
        zero = torch.nan_to_num(0 * t)
        none = none + (zero if name in per_row else zero.sum()).to(y.dtype)
    y = y + torch.where(unknown.unsqueeze(-1), none, 0)
    y.register_hook(lambda v: torch.where(unknown.unsqueeze(-1) & (v != 0), torch.nan, v))
    return y
