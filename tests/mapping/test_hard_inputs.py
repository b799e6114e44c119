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

import regmax
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


@pytest.mark.parametrize("name", MAPPINGS)
def test_sizes_and_scales(name):
    """float64 within 1e-9 of the reference and float32 within 5e-6, for some γ and shifts."""
    f, reference = MAPPINGS[name]
    for k, d in enumerate((1, 2, 3, 7, 30, 200)):
        for gamma, scale, shift in ((1.0, 1.0, 0.0), (0.5, 6.0, 5.0), (3.0, 0.05, -1e3)):
            x = normal(2, d, seed=k) * scale + shift
            x[1] = (x[1] * 2).round() / 2
            right = expected(reference, x, None, gamma)
            torch.testing.assert_close(f(x, gamma=gamma), right, rtol=0, atol=1e-9)
            x = (x - shift).float()
            right = expected(reference, x, None, gamma)
            torch.testing.assert_close(f(x, gamma=gamma).double(), right, rtol=0, atol=5e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_lowest_number_is_a_low_score(mapping, gamma):
    """Additive masks hold finfo.min; over γ < 1 that overflows."""
    f, _ = mapping
    x, at = normal(3, 6, seed=18).float(), torch.tensor([1, 4])
    gamma = torch.tensor(gamma, requires_grad=True)
    lowest, low = (x.index_fill(1, at, v).requires_grad_() for v in (torch.finfo(F32).min, -1e4))
    y = f(lowest, gamma=gamma)
    torch.testing.assert_close(y, f(low, gamma=gamma), rtol=0, atol=16 * torch.finfo(F32).eps)
    for g in torch.autograd.grad(y[:, 0].sum(), [lowest, gamma]):
        assert torch.isfinite(g).all()


@by_name(hard_inputs())
@pytest.mark.parametrize("dtype", [F32, F64])
def test_gradients(mapping, case, dtype):
    """First and second derivatives are finite, also where y is 0; J1 = 0; empty rows get zeros."""
    f, _ = mapping
    x, mask = case.make(dtype)
    x = x.contiguous().requires_grad_()
    gamma = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    y = f(x, mask=mask, gamma=gamma)
    good = ~y.detach().isnan().any(-1, keepdim=True)
    v = normal(*x.shape, seed=1).to(dtype)
    g, g_gamma = torch.autograd.grad(torch.where(good, y, 0), (x, gamma), v, create_graph=True)
    g = torch.where(good, g, 0)
    assert torch.isfinite(g).all()
    assert (g[~participants(x.detach(), mask)] == 0).all()
    assert torch.isfinite(g_gamma) or case.spoilt
    largest = g.detach().abs().amax(-1) if x.numel() else g.sum(-1)
    slack = (100 + x.shape[-1]) * torch.finfo(dtype).eps
    assert (g.detach().sum(-1).abs() <= slack * (1 + largest)).all()
    if g.requires_grad:
        second = torch.autograd.grad((g * v).sum(), (x, gamma), materialize_grads=True)
        assert torch.isfinite(torch.where(good, second[0], 0)).all()


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
@pytest.mark.parametrize("d", [7, 4096, 100_000])
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


def test_certificates(mapping):
    """Every answer to a hard input is certified, up to the rounding of the scores.

    Where Ω has no curvature at 0 (α > 2) an entry exactly at the threshold could move at no cost.
    """
    f, _ = mapping
    entmax = isinstance(f, functools.partial)
    plugins = {"softmax": "entropy", "sparsemax": "gini", "entmax15": "tsallis"}
    plugins |= {"pnormmax": "pnorm", "fusedmax": "tv", "oscarmax": "oscar"}
    name = "tsallis" if entmax else plugins[f.__name__]
    omega = regmax.regularizer(name, **(f.keywords if entmax else {}))
    for case in hard_inputs():
        x, mask = case.make(F64)
        solution = regmax.RegularizedMax(omega).solve(x, mask)
        if entmax and f.keywords["alpha"] > 2 and ("ties" in case.name or "lattice" in case.name):
            continue
        largest = torch.where(participants(x, mask), x, 0).nan_to_num(0, 0, 0).abs().amax(-1)
        allowed = 1e-8 + 512 * torch.finfo(F64).eps * largest
        good = ~solution.y.isnan().any(-1)
        assert (solution.error_bound <= allowed)[good].all(), case.name


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
