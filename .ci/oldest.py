"""What the oldest accepted PyTorch can do; run from outside the repository."""

import importlib.metadata
import sys

import torch

import regmax
from regmax import functional, kernels
from regmax.nn import MultiheadAttention, attention

assert importlib.metadata.version("torch").startswith(sys.argv[1]), torch.__version__

MAPPINGS = ("softmax", "sparsemax", "entmax", "entmax15", "pnormmax", "fusedmax", "oscarmax")
rows = torch.randn(16, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Cubic(regmax.Regularizer):
    def value(self, y):
        return (y.square() + y.pow(3)).sum(-1) / 2


def slopes(mapping, x):
    """y, a vector–Jacobian product, and one of second order."""
    x = x.clone().requires_grad_()
    y = mapping(x)
    (first,) = torch.autograd.grad((y * rows).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * rows).sum() + 0 * x.sum(), x)
    return torch.stack([y.detach(), first.detach(), second])


for mapping in [
    *(getattr(functional, name) for name in MAPPINGS),
    regmax.RegularizedMax(regmax.regularizer("tsallis") + 0.1 * regmax.penalty("tv")),
    regmax.RegularizedMax(Cubic()),
]:
    found = slopes(mapping, rows)
    with kernels.reference():
        expected = slopes(mapping, rows)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(torch.func.vmap(mapping)(rows), found[0])

logits = torch.randn(3, 5, requires_grad=True)
for loss in (regmax.Entmax15Loss(), regmax.FenchelYoungLoss(Cubic())):
    (slope,) = torch.autograd.grad(loss(logits, torch.tensor([0, 1, 4])), logits)
    assert torch.isfinite(slope).all()
q = torch.randn(2, 4, 5, 8, requires_grad=True)
attention(q, q, q, "fusedmax", is_causal=True).sum().backward()
x = torch.randn(2, 3, 8)
assert MultiheadAttention(8, 2, omega="sparsemax", batch_first=True)(x, x, x)[0].shape == x.shape
print(f"regmax {regmax.__version__} with PyTorch {torch.__version__}")
