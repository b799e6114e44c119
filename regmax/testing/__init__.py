"""The conformance kit: every promise of an Ω as a named check.

    from regmax.testing import parametrize_with_checks

    @parametrize_with_checks([MyOmega()])
    def test_mine(omega, check):
        check(omega)

or, without pytest, ``check_regularizer(MyOmega())``. A method that a class overrides is a claim,
and each claim has a check whose name holds the name of the method: ``check_grad`` for ``grad``.
Inputs are drawn and shrunk by hypothesis: ``pip install regmax[testing]``.
"""

from __future__ import annotations

from .harness import Check, check_regularizer, checks_for, parametrize_with_checks
from .inputs import HARD_INPUTS, HardInput, hard_inputs
from .promise import Skipped

__all__ = [
    "HARD_INPUTS",
    "Check",
    "HardInput",
    "Skipped",
    "check_regularizer",
    "checks_for",
    "hard_inputs",
    "parametrize_with_checks",
]
