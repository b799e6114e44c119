"""Structured mappings and the generic solver beside a conic solver that differentiates itself."""

import pytest
import torch

import regmax
from regmax import RegularizedMax, Regularizer

pytest.importorskip("cvxpylayers")

from regmax.testing.backends import CvxpyLayers, Task

F64 = torch.float64
R, P = regmax.regularizer, regmax.penalty


class Quadratic(Regularizer):
    """½ yᵀQy: no symmetry, so that no theorem applies."""

    def __init__(self, q):
        self.q = q

    def value(self, y):
        return (y * (y @ self.q)).sum(-1) / 2

    def as_cvxpy(self, y):
        import cvxpy

        return 0.5 * cvxpy.quad_form(y, cvxpy.psd_wrap(self.q.numpy()))


def quadratic(d, seed=1):
    a = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return Quadratic(a @ a.T / d + 0.1 * torch.eye(d, dtype=F64))


OMEGAS = {
    "fused entmax": lambda: R("tsallis", alpha=1.5) + 0.1 * P("tv"),
    "clustered softmax": lambda: R("entropy") + 0.02 * P("oscar"),
    "pnormmax on a grid": lambda: R("pnorm", p=1.5) + 0.1 * P("grid_tv", shape=(3, 4)),
    "quadratic + tv": lambda: quadratic(12) + 0.1 * P("tv"),
    "quadratic + oscar": lambda: quadratic(12) + 0.05 * P("oscar"),
    "quadratic + grid": lambda: quadratic(12) + 0.1 * P("grid_tv", shape=(3, 4)),
}


@pytest.mark.parametrize("name", OMEGAS)
def test_agrees_with_a_conic_solver(name):
    """1e-6 in values and 1e-4 in vector–Jacobian products."""
    omega, generator = OMEGAS[name](), torch.Generator().manual_seed(2)
    scale = torch.tensor([[0.3], [0.3], [1], [1], [3], [3]], dtype=F64)
    x = (scale * torch.randn(6, 12, generator=generator, dtype=F64)).requires_grad_()
    v = torch.randn(6, 12, generator=generator, dtype=F64)
    solution = RegularizedMax(omega).solve(x)
    assert (solution.error_bound <= 1e-8).all()
    (product,) = torch.autograd.grad(solution.y, x, v)
    diffcp = CvxpyLayers().answers(Task(omega, x.detach(), v, None))[0]
    assert diffcp.method == "cvxpylayers DIFFCP"
    assert (solution.y - diffcp.y).abs().max() <= 1e-6
    assert (product - diffcp.vjp).abs().max() <= 1e-4
