"""The built-in solvers, offered through the hook that plugins use.

This chapter imports ``regmax.optimality`` and the chapters that it imports.
"""

from __future__ import annotations

from ..optimality.certificates import certify
from ..optimality.problem import Problem
from ..regularizers.hooks import hookimpl
from .base import Solved, Solver, chosen, either, merged, polish, solve
from .fista import Fista
from .interior import Interior
from .newton import Newton
from .proximal import Proximal

__all__ = [
    "Fista",
    "Interior",
    "Newton",
    "Proximal",
    "Solved",
    "Solver",
    "certify",
    "choose",
    "chosen",
    "either",
    "merged",
    "polish",
    "solve",
]


@hookimpl
def regmax_solvers() -> list[type[Solver]]:
    return [Newton, Fista, Proximal, Interior]


def choose(problem: Problem) -> tuple[list[Solver], str]:
    """The solvers that ``"auto"`` tries, in order, and the reason for the first."""
    if problem.proximal:
        return [Proximal(), Newton()], "Ω has a penalty given by its prox: dual proximal steps"
    if problem.structured:
        return [Fista()], "Ω has a penalty: proximal gradient steps"
    if problem.separable:
        why = "Ω is separable: the dual is one scalar root"
    elif problem.legendre:
        why = "the slope of Ω is infinite at 0: Newton steps in scores"
    elif problem.bounds is not None:
        why = "Newton steps between the bounds"
    else:
        why = "Ω is smooth up to the boundary of the simplex"
    return [Newton(), Interior()], why
