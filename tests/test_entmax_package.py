"""Against the ``entmax`` package: its own tests pass on regmax, its known defects are none here."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mapping_checks import normal

from regmax.functional import entmax, entmax15, sparsemax

F64 = torch.float64
# forward mode makes PyTorch warn of its own deprecated parts
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_the_tests_in_its_wheel_pass(tmp_path):
    """All that concern sparsemax and entmax, run from the installed wheel, on regmax."""
    pytest.importorskip("entmax")
    tests = ("root_finding", "topk", "mask", "losses")
    modules = [f"entmax.test_{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-c", os.devnull]
    command += [
        "-p",
        "no:cacheprovider",
        "-p",
        "entmax_adapter",
        "-k",
        "not normmax and not budget",
    ]
    done = subprocess.run(
        [*command, "--pyargs", *modules],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HELPERS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^105 passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout[-300:]


HELPERS = str(Path(__file__).parent / "helpers")
MAPPINGS = {
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax 1.3": lambda x, **k: entmax(x, alpha=1.3, **k),
    "entmax, a tensor": lambda x, **k: entmax(x, alpha=torch.tensor(1.5), **k),
}


@pytest.fixture(params=MAPPINGS)
def mapping(request):
    return MAPPINGS[request.param]


def test_a_row_of_nothing_is_zero(mapping):
    x = normal(3, 5)
    x[1] = -torch.inf
    x.requires_grad_()
    y = mapping(x)
    assert (y[1] == 0).all()
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), x)
    assert torch.isfinite(g).all()
    assert torch.isfinite(h).all()
    assert (g[1] == 0).all()


def test_scores_of_a_million_keep_float32(mapping):
    """A shift by the row's maximum costs nothing: the answer is that of the scores as they came."""
    x = normal(50, 30, dtype=torch.float32) + 1e6
    expected = mapping(x.double())
    assert (mapping(x) - expected).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_rows_sum_to_one(mapping, dtype):
    for d in (4096, 100_000):
        for scale in (1.0, 0.01):
            y = mapping((scale * normal(4, d)).to(dtype))
            assert (y.double().sum(-1) - 1).abs().max() <= torch.finfo(dtype).eps


def test_a_second_gradient_with_zeros_in_the_output(mapping):
    x = torch.tensor([[3.0, 2.9, 0.1, -4.0]], dtype=F64, requires_grad=True)
    y = mapping(x)
    assert (y == 0).any()
    (g,) = torch.autograd.grad(y[0, 0], x, create_graph=True)
    if g.requires_grad:
        (h,) = torch.autograd.grad(g.square().sum(), x)
        assert torch.isfinite(h).all()


@pytest.mark.parametrize("step", [0.0, 1e-7, -1e-7, 1e-5, 1e-3, 0.1])
def test_alpha_near_one(step):
    """Values, and the derivative in alpha, against p(log p − ⟨p, log p⟩…) continued from alpha = 1.

    float32 alpha = 1 + 1e-7 and the gradient at 1 + 1e-5 are where bisection loses all digits.
    """
    x = normal(4, 6, seed=3)
    alpha = torch.tensor(1 + step, dtype=F64, requires_grad=True)
    y = entmax(x, alpha=alpha)
    (slope,) = torch.autograd.grad(y[0, 0], alpha)
    h = 1e-4
    with torch.no_grad():
        f = [entmax(x, alpha=1 + step + k * h)[0, 0] for k in (-2, -1, 1, 2)]
    expected = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
    assert slope.item() == pytest.approx(expected.item(), rel=1e-7)
    single = torch.tensor(1 + step, dtype=torch.float32, requires_grad=True)
    y32 = entmax(x.float(), alpha=single)
    torch.testing.assert_close(y32.double(), y, rtol=0, atol=2e-6)
    (slope32,) = torch.autograd.grad(y32[0, 0], single)
    assert slope32.item() == pytest.approx(slope.item(), rel=1e-3)


def test_alpha_one_is_softmax_and_not_uniform():
    x = normal(4, 6)
    torch.testing.assert_close(entmax(x, alpha=1.0), x.softmax(-1), rtol=0, atol=1e-15)
    one = torch.ones((), dtype=torch.float32)
    torch.testing.assert_close(entmax(x, alpha=one), x.softmax(-1), rtol=0, atol=1e-15)


def test_alpha_of_any_row_shape():
    x = normal(6, 5)
    alpha = torch.linspace(1.1, 1.9, 6, dtype=F64)
    y = entmax(x, alpha=alpha[:, None])
    for i in range(6):
        assert torch.allclose(y[i], entmax(x[i], alpha=alpha[i].item()), atol=1e-14)
    with pytest.raises(ValueError, match=r"alpha must broadcast .*\(6,\).*\(6, 5\)"):
        entmax(x, alpha=alpha)


def test_every_transform_that_fails_there(mapping):
    """vmap, jvp, jacrev, jacfwd, func.grad and compile(fullgraph)."""
    x = normal(3, 5, seed=2)
    j = torch.autograd.functional.jacobian(mapping, x)
    torch.testing.assert_close(torch.func.jacrev(mapping)(x), j)
    torch.testing.assert_close(torch.func.jacfwd(mapping)(x), j)
    torch.testing.assert_close(torch.func.vmap(mapping)(x), mapping(x))
    tangent = torch.func.jvp(mapping, (x,), (x,))[1]
    torch.testing.assert_close(tangent, torch.einsum("abcd,cd->ab", j, x))
    g = torch.func.grad(lambda x: mapping(x).square().sum())(x)
    torch.testing.assert_close(g, 2 * torch.einsum("abcd,ab->cd", j, mapping(x)))
    torch._dynamo.reset()
    compiled = torch.compile(mapping, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), mapping(x), rtol=0, atol=1e-14)


def test_rows_sum_to_one_without_asking(mapping):
    for dtype in (torch.float32, F64):
        y = mapping(normal(20, 1000, dtype=dtype) * 3)
        slack = 2 * torch.finfo(dtype).eps * math.sqrt(1000)
        assert (y.double().sum(-1) - 1).abs().max() <= slack
