"""What an installation without extras can do; run from outside the repository."""

import importlib.metadata
import importlib.util

import torch

import regmax
from regmax import functional

assert importlib.metadata.version("regmax") == regmax.__version__
assert not importlib.util.find_spec("numba"), "this environment is to be without extras"

x = torch.tensor([1.0, 1.1, 0.2, -0.5, 0.9], requires_grad=True)
for name in dir(functional):
    y = getattr(functional, name)(x)
    assert torch.isclose(y.sum(), torch.ones(())), (name, y)
    (g,) = torch.autograd.grad(y[0], x)
    assert torch.isfinite(g).all(), (name, g)


class Cubic(regmax.Regularizer):
    def value(self, y):
        return y.pow(3).sum(-1) / 6


assert regmax.RegularizedMax(Cubic()).solve(x.double()).converged
regmax.Entmax15Loss()(torch.randn(3, 5, requires_grad=True), torch.tensor([0, 1, 4])).backward()

assert not importlib.util.find_spec("numpy"), "this environment is to be without NumPy"
said = ""
try:
    regmax.penalty("grid_tv", shape=(2, 2))
except ImportError as error:
    said = str(error)
assert "NumPy" in said, said
print(f"regmax {regmax.__version__}: {', '.join(dir(functional))}")
