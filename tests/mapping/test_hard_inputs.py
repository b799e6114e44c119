"""Every mapping on the shared table of hard inputs: values, zeros, gradients, masks, precision."""

import functools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import references
import torch
from mapping_checks import normal

from regmax import functional
from regmax.testing import HARD_INPUTS, hard_inputs

F32, F64 = torch.float32, torch.float64
partial = functools.partial
MAPPINGS = {
    "softmax": (functional.softmax, references.entropy),
    "sparsemax": (functional.sparsemax, references.sparsemax),
    "entmax15": (functional.entmax15, partial(references.tsallis, alpha=1.5)),
    **{
        f"entmax {alpha}": (
            partial(functional.entmax, alpha=alpha),
            partial(references.tsallis, alpha=alpha),
        )
        for alpha in (0.5, 1.3, 4.0)
    },
    "pnormmax": (functional.pnormmax, partial(references.pnorm, p=1.5)),
    "fusedmax": (functional.fusedmax, partial(references.fusedmax, lam=0.1)),
    "oscarmax": (functional.oscarmax, partial(references.oscarmax, lam=0.01)),
}


SMALL = [case for case in hard_inputs() if case.name != "no rows"]


def by_name(cases):
    return pytest.mark.parametrize("case", cases, ids=str)


@pytest.fixture(params=MAPPINGS)
def mapping(request):
    return MAPPINGS[request.param]


def participants(x, mask):
    on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
    return on & (x != -torch.inf)


def expected(reference, x, mask, gamma=1.0):
    """The reference row by row, on the participants alone; NaN for a spoilt row."""
    y = torch.zeros(x.shape, dtype=F64)
    for at in np.ndindex(x.shape[:-1]):
        on = participants(x, mask)[at]
        row = x[at][on]
        if not torch.isfinite(row).all():
            y[at] = torch.nan
        elif len(row):
            y[at][on] = torch.from_numpy(references.rows(reference, row[None], gamma)[0])
    return y


@by_name(SMALL)
def test_values(mapping, case):
    f, reference = mapping
    x, mask = case.make(F64)
    if x.shape[-1] > 100 and f is functional.fusedmax:
        pytest.skip("the path of the fused lasso takes minutes")
    torch.testing.assert_close(
        f(x, mask=mask), expected(reference, x, mask), rtol=0, atol=1e-12, equal_nan=True
    )
    x, mask = case.make(F32)
    y = f(x, mask=mask)
    assert y.dtype == F32
    torch.testing.assert_close(
        y.double(), expected(reference, x, mask), rtol=0, atol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize("gamma", [1e-6, 1e-3, 1e3, 1e6])
def test_gamma(mapping, gamma):
    """Values, and γ ∂y/∂γ = −J x: Π_Ω does not change when x and γ grow together."""
    f, reference = mapping
    for scale in (gamma, 1.0):
        x = normal(3, 6, seed=2) * scale
        y = expected(reference, x, None, gamma)
        torch.testing.assert_close(f(x, gamma=gamma), y, rtol=0, atol=1e-12)
        y32 = f(x.float(), gamma=gamma).double()
        right = expected(reference, x.float(), None, gamma)
        torch.testing.assert_close(y32, right, rtol=0, atol=1e-6)
        for dtype, rtol in ((F64, 1e-9), (F32, 1e-3)):
            leaf = x.to(dtype).requires_grad_()
            t = torch.tensor(gamma, dtype=dtype, requires_grad=True)
            v = normal(3, 6, seed=3).to(dtype)
            g, g_gamma = torch.autograd.grad(f(leaf, gamma=t), (leaf, t), v)
            centred = leaf.detach() - leaf.detach().amax(-1, keepdim=True)
            right = -(g * centred).sum() / gamma
            size = (g * centred).abs().sum() / gamma
            rounding = 1e2 * torch.finfo(dtype).eps * centred.abs().max() / gamma**2
            atol = float(rtol * size + rounding)
            torch.testing.assert_close(g_gamma, right, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [4096, 100_000])
def test_half_precision(mapping, dtype, d):
    """Computed in float32, rounded once; rows sum to one within a unit of the output's rounding.

    Unless all entries are 1e-5, as oscarmax makes them here: for float16 that is 168 units of its
    least spacing or 167, and nothing between.
    """
    f, _ = mapping
    x = normal(2, d, seed=5).to(dtype)
    y = f(x)
    assert y.dtype == dtype
    assert torch.equal(y, f(x.float()).to(dtype))
    even = bool((y == y[:, :1]).all())
    unit = torch.finfo(dtype).eps
    least = torch.finfo(dtype).smallest_normal * unit
    assert (y.double().sum(-1) - 1).abs().max() <= max(unit, d * least / 2 if even else 0)


@by_name([case for case in HARD_INPUTS if case.big])
def test_big(mapping, case):
    """Rows sum to one within 2 ulp·√d, and float32 keeps 2e-7 of what float64 finds."""
    f, _ = mapping
    x, mask = case.make(F32)
    y, wide = f(x, mask=mask), f(x.double(), mask=mask)
    slack = 2 * math.sqrt(x.shape[-1])
    assert (y.double().sum(-1) - 1).abs().max() <= slack * torch.finfo(F32).eps
    assert (wide.sum(-1) - 1).abs().max() <= slack * torch.finfo(F64).eps
    torch.testing.assert_close(y.double(), wide, rtol=0, atol=2e-7)


HARD_VALUES = Path(references.__file__).with_name("hard_values.py")


@pytest.mark.slow
def test_hard_values_in_little_time():
    """In a process of its own, which is ended after some time: then its last line says what it was
    computing."""
    command, pipe = [sys.executable, HARD_VALUES, "--rows", "200"], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said = process.communicate(timeout=600)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0]
            pytest.fail(f"no end after 600 s: {said.splitlines()[-1]}")
    assert process.returncode == 0, [line for line in said.splitlines() if ": " in line]
