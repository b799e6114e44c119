"""The tests of the ``entmax`` package pass on regmax, and its budget mapping is k-subsets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import regmax

TESTS = Path(__file__).parent
PLUGIN = TESTS.parent / "examples" / "regmax-normmax"


@pytest.mark.slow
def test_the_tests_in_its_wheel_pass(tmp_path):
    """All but one, which gives normmax numbers α ≤ 1, where it is not defined."""
    pytest.importorskip("entmax")
    modules = [f"entmax.test_{name}" for name in ("root_finding", "topk", "mask", "losses")]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-c", os.devnull]
    command += ["-p", "no:cacheprovider", "-p", "entmax_adapter"]
    command += ["-k", "not test_budget_grad_multiple_k"]
    done = subprocess.run(
        [*command, "--pyargs", *modules],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(TESTS / "helpers"), str(PLUGIN), os.environ.get("PYTHONPATH", "")]
            ),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^126 passed, 1 deselected", done.stdout, re.MULTILINE), done.stdout[-300:]


def subsets(x, k, dim=-1):
    return regmax.functional.sparsemax(x, dim=dim, domain=regmax.Simplex(k, upper=1.0))


def with_gradient(mapping, x, k, v):
    x = x.clone().requires_grad_()
    y = mapping(x, k)
    return y.detach(), torch.autograd.grad((y * v).sum(), x)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["random", "ties", "lattice"])
@pytest.mark.parametrize("d", [2, 5, 40])
def test_budget_bisect_and_its_gradient(d, kind, dtype):
    """For every budget, one per row too; gradients where both have the same entries at 0 and 1."""
    entmax = pytest.importorskip("entmax")
    torch.manual_seed(d)
    eps = torch.finfo(dtype).eps
    compared = 0
    for scale in (0.01, 0.3, 1.0, 10.0, 1e4):
        x, v = torch.randn(2, 24, d, dtype=dtype)
        x = x[:, torch.randint(d, (d,))] if kind == "ties" else x
        x = scale * ((2 * x).round() / 2 if kind == "lattice" else x)
        for k in (0.5, 1.0, d / 2, d - 1.0, float(d), d * torch.rand(24, 1, dtype=dtype)):
            theirs, ours = (with_gradient(f, x, k, v) for f in (entmax.budget_bisect, subsets))
            # 50 halvings of max − min leave 8 eps of the scores; both have the rounding of a sum
            atol = 8 * eps * (x.abs().max().item() + d)
            assert_close(theirs[0], ours[0], rtol=0, atol=atol)
            faces = [torch.stack([y > 0, y < 1]) for y, _ in (theirs, ours)]
            same = (faces[0] == faces[1]).all(0).all(-1)
            compared += int(same.sum())
            assert_close(theirs[1][same], ours[1][same], rtol=0, atol=16 * eps)
    assert compared > 240  # a third


def test_where_the_budget_of_entmax_differs():
    """Scores of −∞, and a gradient beside a dimension of size 1: regmax
    has the answers of a conic solver and of finite differences."""
    entmax = pytest.importorskip("entmax")
    cvxpy = pytest.importorskip("cvxpy")
    x = torch.tensor([0.1, 0.5, -torch.inf, 0.2], dtype=torch.float64)
    assert entmax.budget_bisect(x, 2.0).isnan().all()
    part = x[x.isfinite()]
    y = cvxpy.Variable(3)
    cvxpy.Problem(
        cvxpy.Minimize(cvxpy.sum_squares(y) / 2 - part.numpy() @ y),
        [y >= 0, y <= 1, cvxpy.sum(y) == 2],
    ).solve(cvxpy.CLARABEL)
    ours = subsets(x, 2.0)
    assert ours[2] == 0
    assert torch.allclose(ours[x.isfinite()], torch.tensor(y.value), atol=1e-7)

    torch.manual_seed(0)
    x = torch.randn(3, 1, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: subsets(x, 2.0), x)
    assert not torch.autograd.gradcheck(
        lambda x: entmax.budget_bisect(x, 2.0), x, raise_exception=False
    )
