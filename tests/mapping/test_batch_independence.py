"""A row's result does not depend on the rows beside it, to the bit, where entries of Ω are coupled.

Products, sums and factorisations of PyTorch round by the number of rows, on other processors in
other ways: one Ω for each runs again with the instructions of older ones.
"""

from pathlib import Path

import pytest
import torch
from mapping_checks import normal
from processes import python
from row_checks import everything, same_in_any_batch

from regmax import RegularizedMax, Regularizer
from regmax.kernels.products import Steady

TESTS = Path(__file__).parents[1]


class Coupled(Regularizer):
    def __init__(self, q, product, term):
        self.q, self.product, self.term = q, product, term

    def value(self, y):
        return (PRODUCTS[self.product](y, self.q.to(y)) * y).sum(-1) / 2 + TERMS[self.term](y)


PRODUCTS = {
    "@": lambda y, q: y @ q,
    "linear": lambda y, q: torch.nn.functional.linear(y, q),
    "column": lambda y, q: torch.matmul(q, y.unsqueeze(-1)).squeeze(-1),
    "sum": lambda y, q: (y.unsqueeze(-2) * q).sum(-1),
    "differences": lambda y, q: y - 0.3 * y.roll(1, -1) - 0.3 * y.roll(-1, -1),
}
TERMS = {
    "none": lambda y: 0,
    "cubic": lambda y: y.pow(3).sum(-1),
    "entropy": lambda y: torch.xlogy(y, y).sum(-1),
    "norm": lambda y: y.square().sum(-1).square(),
}


def case(seed, product, term, rows=8):
    """Ω, and rows whose supports are of many sizes."""
    g = torch.Generator().manual_seed(seed)
    d = 70 if seed % 8 == 7 else int(torch.randint(2, 24, (), generator=g))
    b = torch.randn(d, d, generator=g, dtype=torch.float64) / d**0.5
    scale = 10 ** (2 * torch.rand(rows, 1, generator=g, dtype=torch.float64) - 1)
    x = torch.randn(rows, d, generator=g, dtype=torch.float64) * scale
    v = torch.randn(rows, d, generator=g, dtype=torch.float64)
    return Coupled(b @ b.mT + 0.3 * torch.eye(d), product, term), x, v


# every product with the curvature that needs a factorisation, every term with one product
COUPLED = [*((product, "norm") for product in PRODUCTS), *(("@", term) for term in TERMS)]


@pytest.mark.parametrize(("product", "term"), dict.fromkeys(COUPLED))
def test_any_batch(product, term):
    for seed in range(2):
        omega, x, v = case(8 * seed + len(product) + len(term), product, term)
        layer = RegularizedMax(omega, on_failure="ignore")
        for dtype in (torch.float64, torch.float32):
            same_in_any_batch(layer, x.to(dtype), v.to(dtype))


def test_any_batch_on_two_threads():
    torch.set_num_threads(2)  # one again after the test
    test_any_batch("@", "norm")


def test_a_full_support_beside_others():
    """The gradient of each row is right."""
    omega, x, v = case(3, "differences", "cubic")
    scale = torch.logspace(-3, 1, len(x), dtype=torch.float64).unsqueeze(-1)
    x = x / x.abs().amax(-1, keepdim=True) * scale
    found = everything(RegularizedMax(omega), x, v)
    y = found["y"]
    sizes = set((y > 0).sum(-1).tolist())
    assert x.shape[-1] in sizes
    assert len(sizes) > 3
    expected = omega.curvature(y).jacobian(v, y > 0)
    torch.testing.assert_close(found["gradient"], expected, rtol=1e-8, atol=1e-10)


OPERANDS = [
    *((torch.inner, m, n) for m in ((4,), (2, 4), (3, 2, 4)) for n in ((4,), (5, 4), (3, 5, 4))),
    (torch.inner, (2, 4), (5, 3)),
    (torch.mm, (3, 4), (4, 2)),
    (torch.mm, (2, 3, 4), (4, 2)),
    (torch.bmm, (2, 3, 4), (2, 4, 5)),
    (torch.bmm, (1, 3, 4), (2, 4, 5)),
    (torch.bmm, (3, 4), (4, 5)),
    (torch.mv, (3, 4), (4,)),
    (torch.mv, (2, 3, 4), (4,)),
    (torch.dot, (4,), (4,)),
    (torch.dot, (2, 4), (4,)),
]


@pytest.mark.parametrize(("product", "m", "n"), OPERANDS)
def test_a_product_is_that_of_pytorch(product, m, n):
    """Its value, its shape, and its error."""
    a, b = normal(*m), normal(*n, seed=1)
    try:
        expected = product(a, b)
    except RuntimeError:
        with pytest.raises(RuntimeError), Steady():
            product(a, b)
    else:
        with Steady():
            found = product(a, b)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


def test_wrong_products_are_refused_as_ever():
    y, q = torch.ones(2, 3), torch.ones(4, 3)
    for other in (q, q.mT.double()):
        with pytest.raises(RuntimeError) as plain:
            _ = y @ other
        with pytest.raises(RuntimeError) as steady, Steady():
            _ = y @ other
        assert str(plain.value) == str(steady.value)


OLDER = {
    "x86-64": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
    "haswell": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"},
}


@pytest.mark.slow
@pytest.mark.parametrize("cpu", OLDER)
def test_on_an_older_processor(cpu):
    script = (
        "import sys, torch; torch.set_num_threads(1)\n"
        f"sys.path[:0] = {[str(TESTS / 'mapping'), str(TESTS / 'helpers')]}\n"
        "from test_batch_independence import test_any_batch\n"
        "for product in ('@', 'sum'): test_any_batch(product, 'norm')\n"
    )
    python(script, cwd=TESTS.parent, **OLDER[cpu])
