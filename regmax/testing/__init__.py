"""The conformance kit: every promise of an Ω as a named check.

    from regmax.testing import parametrize_with_checks

    @parametrize_with_checks([MyOmega()])
    def test_mine(omega, check):
        check(omega)

or, without pytest, ``check_regularizer(MyOmega())``. A method that a class overrides is a claim,
and each claim has a check whose name holds the name of the method: ``check_grad`` for ``grad``.
Inputs are drawn and shrunk by hypothesis: ``pip install regmax[testing]``.

Solvers have a kit of their own: ``parametrize_solver_with_checks([MySolver()])`` and
``check_solver(MySolver())``, see :mod:`regmax.testing.solvers`.
"""

from __future__ import annotations

from .harness import Check, check_regularizer, checks_for, parametrize_with_checks
from .inputs import HARD_INPUTS, HardInput, hard_inputs
from .promise import Skipped
from .solvers import (
    SolverCheck,
    check_solver,
    parametrize_solver_with_checks,
    solver_checks,
)

__all__ = [
    "HARD_INPUTS",
    "Check",
    "HardInput",
    "Skipped",
    "SolverCheck",
    "check_regularizer",
    "check_solver",
    "checks_for",
    "hard_inputs",
    "parametrize_solver_with_checks",
    "parametrize_with_checks",
    "solver_checks",
]
