"""The conformance kit: every promise of an Ω as a named check; and the cross-check.

    from regmax.testing import parametrize_with_checks

    @parametrize_with_checks([MyOmega()])
    def test_mine(omega, check):
        check(omega)

or, without pytest, ``check_regularizer(MyOmega())``. Each method that a class overrides has a check
whose name contains the method's name: ``check_grad`` for ``grad``. The report of a failure has the
smallest input found.

The kit for solvers is ``parametrize_solver_with_checks([MySolver()])`` and
``check_solver(MySolver())``; that for domains is ``check_domain(MyDomain(), entries=6)``.
``regmax.crosscheck`` and its backends are here too. This chapter imports ``regmax.nn`` and the
chapters below it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .domains import check_domain, domain_checks
    from .harness import Check, check_regularizer, checks_for, parametrize_with_checks
    from .inputs import HARD_INPUTS, HardInput, hard_inputs
    from .promise import Skipped
    from .solvers import check_solver, parametrize_solver_with_checks, solver_checks

__all__ = [
    "HARD_INPUTS",
    "Check",
    "HardInput",
    "Skipped",
    "check_domain",
    "check_regularizer",
    "check_solver",
    "checks_for",
    "domain_checks",
    "hard_inputs",
    "parametrize_solver_with_checks",
    "parametrize_with_checks",
    "solver_checks",
]

_MODULES = ("domains", "harness", "inputs", "promise", "solvers")


def __getattr__(name: str) -> Any:
    """Import the kit lazily: this package also holds a plugin, the backends of the cross-check,
    which every call of regmax loads."""
    if name in __all__:
        for module in _MODULES:
            found = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
