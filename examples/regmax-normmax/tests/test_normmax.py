"""normmax passes the conformance kit."""

import torch

import regmax
from regmax.testing import Check, parametrize_with_checks
from regmax_normmax import Norm


@parametrize_with_checks([Norm(1.5), Norm(torch.tensor(3.0))])
def test_normmax(omega: regmax.Regularizer, check: Check) -> None:
    check(omega)
