"""Every compiled kernel of a mapping beside its closed form in float64, by public calls: rows of
every kind, masks, numbers and tensors for each row, strides, half precision."""

import math

import numpy as np
import pytest
import torch
from devices import need_triton
from mapping_checks import normal
from row_checks import hard_rows
from ways import DEVICE, F32, F64, TRITON, by, by_ways, found_and_right, once, ways

import regmax
from regmax import functional, kernels

# the interpreter is numpy, which warns where IEEE arithmetic is meant
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KEYS = {"entmax": "alpha", "pnormmax": "p", "fusedmax": "lam", "oscarmax": "lam"}
SIMPLE = {
    "softmax": ("softmax", None),
    "sparsemax": ("sparsemax", None),
    "entmax 1.5": ("entmax", 1.5),
    "entmax 1.3": ("entmax", 1.3),
    "entmax 3": ("entmax", 3.0),
    "pnormmax 1.5": ("pnormmax", 1.5),
    "fusedmax .1": ("fusedmax", 0.1),
    "oscarmax .05": ("oscarmax", 0.05),
}
SEVERAL = {
    "entmax": ("entmax", (0.6, 1.0, 1.2, 2.0, 2.5)),
    "pnormmax": ("pnormmax", (1.1, 2.0)),
    "fusedmax": ("fusedmax", (0.0, 0.003, 1.0, 30.0)),
    "oscarmax": ("oscarmax", (0.0, 0.0003, 0.01, 3.0)),
}
"""Numbers of the rows of one batch."""
OTHERS = {f"{k} {theta}": (k, theta) for k, several in SEVERAL.values() for theta in several}
CASES = SIMPLE | OTHERS | SEVERAL
SIZES = (1, 2, 3, 15, 16, 17, 37, 64, 130, 700)


def mapped(case, mask=None, **fixed):
    """As a function of x, γ and the hyperparameter."""
    mapping, _ = CASES[case]

    def f(x, gamma, *theta):
        hyper = dict(zip([KEYS.get(mapping)], theta, strict=False))
        on = None if mask is None else mask.to(x.device)
        return getattr(functional, mapping)(x, gamma=gamma, mask=on, **hyper, **fixed)

    return f


def numbers(case, rows, dtype=F64):
    """γ and the hyperparameter, one for each row."""
    _, theta = CASES[case]
    gamma = torch.linspace(0.5, 2, rows, dtype=dtype).unsqueeze(-1)
    if theta is None:
        return [gamma]
    several = theta if isinstance(theta, tuple) else (theta,)
    return [gamma, torch.tensor(several, dtype=dtype).repeat(rows)[:rows].unsqueeze(-1)]


def check(y, right, x):
    """Values, exact zeros, sums, equal members of groups."""
    d, eps = x.shape[-1], torch.finfo(x.dtype).eps
    size = 1 + x.double().nan_to_num(0, 0, 0).abs().amax(-1, keepdim=True).clamp_max(1e4)
    slack = 2e-7 if x.dtype == F32 else 4e-15 * (1 + math.sqrt(d)) * size
    off = (y.double() - right).abs().nan_to_num(0, posinf=1)
    assert torch.equal(y.isnan(), right.isnan())
    assert bool((off <= slack).all()), (off - slack).max()
    assert bool((y[right == 0] == 0).all())
    alive = (right.sum(-1) > 0.5) & right.isfinite().all(-1)
    assert bool(((y.double().sum(-1) - 1).abs() <= 2 * eps * math.sqrt(d))[alive].all())


def alike(y, right):
    """Rows with the same support and the same groups: float32 may round entries together."""
    same = (y > 0) == (right > 0)
    counts = [torch.tensor([len(row.unique()) for row in t]) for t in (y, right)]
    return same.all(-1) & (counts[0] == counts[1])


def compare(way, case, dtype, d, step, masks):
    """Values and gradients of every ``step``-th of rows of all kinds."""
    x = torch.stack([*hard_rows(d).values()])
    x = torch.cat([x, 1e-3 * x[:3], 30 * x[:2] + 3, x[:1] + 64])[::step].to(dtype)
    mask = normal(*x.shape, seed=d) > -1
    mask[:, 0] = True
    v = normal(*x.shape, seed=7).to(dtype)
    for masked in masks:
        given = [x, *numbers(case, len(x))]
        f = mapped(case, mask if masked else None)
        (y, *got), (right, *wanted) = found_and_right(way, f, given, v)
        check(y, right, x)
        good = alike(y, right)
        assert good.double().mean() > 0.5
        assert dtype == F32 or good.double().mean() > 0.9
        for g, expected in zip(got, wanted, strict=True):
            size = 1 + expected[good].abs().amax(-1, keepdim=True)
            steep = 1e3 if CASES[case][1] in (2.5, 3.0, SEVERAL["entmax"][1]) else 1
            near = (1e-11 if dtype == F64 else 3e-5) * steep * (1 + d / 20)
            off = (g.double() - expected)[good].abs() / size
            assert bool((off <= near).all()), (d, off.max())


@pytest.mark.parametrize("case", [*SIMPLE, *OTHERS, "entmax"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_values_and_gradients(case, dtype):
    for d in SIZES:
        compare("cpu", case, dtype, d, 1, (False, True))


@pytest.mark.slow
@pytest.mark.parametrize("way", TRITON)
@pytest.mark.parametrize("case", SIMPLE | SEVERAL)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_values_and_gradients_of_triton(way, case, dtype):
    if way == "packed" and case.startswith(("softmax", "fused", "oscar")):
        pytest.skip("these are not packed")
    several = case in SEVERAL
    if several if dtype == F32 else not several and way != "registers":
        pytest.skip("one dtype of the interpreter")
    compare(way, case, dtype, 21, 2 if case in SEVERAL else 4, (True,))
    compare(way, case, dtype, 1, 8, (True,))


FEW = ("sparsemax", "entmax 3", "pnormmax 1.5", "fusedmax .1", "oscarmax .05")


@pytest.mark.parametrize(("way", "case"), by_ways(SIMPLE, FEW))
def test_values_that_are_no_scores(way, case):
    x, mask = normal(11, 21).float(), normal(11, 21, seed=1) > -0.6
    x[0, 3:19], x[1], mask[2] = -torch.inf, -torch.inf, False
    for row, value, on in ((3, torch.nan, True), (4, torch.nan, False), (5, torch.inf, True)):
        x[row, 5], mask[row, 5] = value, on
    x[6, 8], mask[6, 8] = torch.inf, False
    x[7, 9:] = torch.finfo(F32).min
    mask[8], mask[8, 20] = False, True
    x[9] = torch.finfo(F32).min
    x[10, 0], mask[10, 0] = torch.finfo(F32).max, True
    v = torch.ones(11, 21)  # J annihilates constants
    given = [x, *numbers(case, 11)]
    (y, *got), (right, *_) = found_and_right(way, mapped(case, mask), given, v)
    check(y, right, x)
    assert y.isnan().all(-1).tolist() == [i in (3, 5) for i in range(11)]
    assert bool((got[0].abs() < 1e-5).all())


@pytest.mark.parametrize(
    ("way", "case"), by_ways(SIMPLE, ("entmax 1.5", "fusedmax .1", "oscarmax .05"))
)
def test_a_row_alone_and_strides(way, case):
    """The same bits alone, in any batch, with any strides, with numbers for tensors."""
    wide, v = normal(20, 75).float() * 3, normal(20, 50, seed=1).float()
    wide[7, 3], wide[11], wide[13, ::2] = torch.nan, -torch.inf, -torch.inf
    for d in (5, 17, 50) if way == "cpu" else (21,):
        x, w = wide[: 20 if way == "cpu" else 3, 7 : 7 + d].to(DEVICE), v[:, :d]
        given = [x, *(t[:1].to(x) for t in numbers(case, 3, F32))]
        w = w[: len(x)].to(x)

        def run(x, w, *rest):
            leaf = x.detach().requires_grad_()
            y = mapped(case)(leaf, *rest)
            return y.detach(), torch.autograd.grad(y, leaf, w)[0]

        with by(way):
            whole = run(*given[:1], w, *given[1:])
            for k in range(len(x)):
                row = slice(k, k + 1)
                for a, b in zip(run(x[row], w[row], *given[1:]), whole, strict=True):
                    assert torch.equal(a[0].nan_to_num(5.0), b[k].nan_to_num(5.0))
            other = run(x.contiguous(), w, *given[1:])
            turned = run(x.t().contiguous().t(), w, *given[1:])
            for a, b, c in zip(whole, other, turned, strict=True):
                assert torch.equal(a.nan_to_num(5.0), b.nan_to_num(5.0))
                assert torch.equal(a.nan_to_num(5.0), c.nan_to_num(5.0))
            fixed = run(x, w, *(t.item() for t in given[1:]))
            for a, b in zip(whole, fixed, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("case", ["sparsemax", "entmax 1.3", *SEVERAL])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_many_rows_with_supports_of_all_sizes(case, dtype):
    """Rows with about as many entries are computed together, each as it is in any other batch;
    the numbers of rows are near those that wait for each other."""
    for rows, d in ((17, 2100), (65, 400), (139, 30)):
        scale = torch.logspace(-2, 1, rows, dtype=dtype)[torch.randperm(rows)].unsqueeze(-1)
        x, mask = normal(rows, d, dtype=dtype) * scale, normal(rows, d, seed=1) > -0.6
        x[3], mask[4], x[5, : d // 2] = torch.nan, False, -torch.inf
        given, of_mask = numbers(case, rows, dtype), rows // 2
        whole, free = mapped(case, mask)(x, *given), mapped(case)(x, *given)
        for r in range(rows):
            two = [r, r - 1]  # one number has a kernel of its own
            few = [t[two] for t in given]
            for y, on in ((free, None), (whole, mask[two]))[: 1 + (r < of_mask)]:
                found = mapped(case, on)(x[two], *few)
                assert torch.equal(found.nan_to_num(5.0), y[two].nan_to_num(5.0)), (r, d)


@pytest.mark.parametrize(("way", "case"), by_ways(SIMPLE, ("softmax", "entmax 1.5", "fusedmax .1")))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(way, case, dtype):
    x, v = normal(3, 21).to(dtype) * 2, normal(3, 21, seed=1).to(dtype)
    with by(way):
        found, wide = [], []
        for t, into in ((x, found), (x.float(), wide)):
            leaf = t.to(DEVICE).requires_grad_()
            y = mapped(case)(leaf, 0.7, *numbers(case, 3)[1:])
            into += [y.detach(), torch.autograd.grad(y, leaf, v.to(y))[0]]
    assert all(t.dtype == dtype for t in found)
    # Triton's interpreter rounds bfloat16 towards 0
    near = 4e-3 if dtype == torch.bfloat16 and DEVICE == "cpu" else 0
    torch.testing.assert_close(found[0], wide[0].to(dtype), rtol=0, atol=near)
    torch.testing.assert_close(found[1], wide[1].to(dtype), rtol=0.02, atol=2e-3)


@once
@pytest.mark.parametrize("alpha", [1 - 1e-7, 1 + 1e-9, 1 + 1e-7, 1 + 1e-4, 1.01, 2 + 1e-9, 5.0])
def test_entmax_through_one_and_two(way, alpha):
    for dtype, near in ((F32, 2e-7), (F64, 1e-14)):
        given = [3 * normal(3, 21, dtype=dtype), torch.full((3, 1), alpha, dtype=F64)]
        f = mapped("entmax 1.5")
        (y, *_), (right, *_) = found_and_right(
            way, lambda x, a, f=f: f(x, 0.7, a), given, normal(3, 21, seed=1).to(dtype)
        )
        torch.testing.assert_close(y.double(), right, rtol=0, atol=near)


@ways
@pytest.mark.parametrize("case", ["sparsemax", "entmax 1.5", "entmax 3", "pnormmax 1.5"])
def test_many_entries_near_the_threshold(way, case):
    """Their sum moves by thousands of roundings of the threshold."""
    d = 3000 if way == "cpu" else 600
    x = torch.full((2, d), -0.7)
    x[:, 0] = 0.0
    x[1] -= 1e-4 * torch.rand(d, generator=torch.Generator().manual_seed(0))
    few = 1e-3 * normal(1, 100).float()
    for rows in (x, few):
        given = [rows, *numbers(case, 1)]
        (y, *_), (right, *_) = found_and_right(way, mapped(case), given, rows)
        torch.testing.assert_close(y.double(), right, rtol=0, atol=3e-7)


LONG = {
    "entmax": (0.5, 1.5, 1.9, 1.999, 2.0, 2.001, 5.0),
    "pnormmax": (1.001, 1.5, 1.9, 1.999, 2.0),
    "fusedmax": (1e-4, 0.1, 10.0, 1e3),
    "oscarmax": (1e-6, 1e-4, 0.01, 3.0, 10.0),
}


@pytest.mark.parametrize("theta", [(name, t) for name, some in LONG.items() for t in some], ids=str)
def test_long_rows_in_float32(theta):
    """Beside float64: entries that are differences of nearby numbers have a sum in error."""
    (name, t), i, g = theta, torch.arange(30_000), normal(30_000)
    hyper = {KEYS[name]: t}
    fall = -i * (t * (1 + 1e-5) if "lam" in hyper else 1 / len(i))
    for x in (t.float() for t in ((i == 0) * 0.5, (i % 7) * 1e-3, g, 1e-4 * g, 0 * i, fall)):
        y, right = (getattr(functional, name)(z, **hyper) for z in (x, x.double()))
        torch.testing.assert_close(y.double(), right, rtol=0, atol=1e-7)
    omega = functional.hyperparameters_of(name)[0](**hyper)
    if "lam" in hyper:
        assert regmax.RegularizedMax(omega).solve(x.double()).error_bound < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("way", TRITON)
@pytest.mark.parametrize("case", ["sparsemax", "entmax 3", "pnormmax 1.5", "fusedmax .1"])
def test_numbers_out_of_range_where_nobody_looks(way, case):
    given = [normal(4, 21).to(DEVICE), *(t.to(DEVICE) for t in numbers(case, 4))]
    given[-1][1], given[1][2] = torch.nan, torch.nan
    with by(way):
        y = mapped(case)(*given)
    assert y.isnan().all(-1).tolist() == [False, True, True, False]


def off(values, ulps):
    """float32 values, every other one off by some last places."""
    if values.dtype != np.float32:
        return values
    moved = values * np.float32(1 + ulps * 2.0**-23)
    odd = np.ascontiguousarray(values).view(np.int32) & 1
    return np.where(odd, moved, values).astype(np.float32)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU needs no imitation")
@pytest.mark.parametrize("case", ["softmax", "sparsemax", "entmax 1.3", "entmax 3", "pnormmax 1.1"])
def test_arithmetic_of_a_gpu(case, monkeypatch):
    """exp, log and division of float32 are off by two last places, min and max drop NaN, and fma
    rounds once: the tolerances hold."""
    need_triton()
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def fma(builder, x, y, z):
        exact = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    def replace(name, function):
        def call(builder, *args):
            data = function(*(a.data for a in args))
            return TensorHandle(np.asarray(data), args[0].dtype.scalar)

        monkeypatch.setattr(InterpreterBuilder, f"create_{name}", call)

    replace("exp", lambda x: off(np.exp(x), 2))
    replace("log", lambda x: off(np.log(x), 2))
    replace("fdiv", lambda x, y: off(np.asarray(x / y), 2))
    for name, function in (("minimumf", np.fmin), ("maximumf", np.fmax)):
        replace(name, function)
        replace(name.replace("imum", "num"), function)
    monkeypatch.setattr(InterpreterBuilder, "create_fma", fma)
    x = normal(4, 21).float()
    x[1] *= 5
    x[2, 3:9], x[3, 4] = -torch.inf, torch.nan
    for way in TRITON:
        (y, *_), (right, *_) = found_and_right(way, mapped(case), [x, *numbers(case, 4)], x * 0)
        check(y, right, x)


@pytest.mark.parametrize("case", ["fusedmax .1", "oscarmax .05"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_long_rows_of_penalties(case, dtype):
    """Rows all of whose entries matter, and few; single blocks, sorted rows, at many λ."""
    for d in (200, 1500, 4096):
        rows = hard_rows(d)
        x = torch.stack(
            [rows[k] for k in ("normal", "ties", "sawtooth", "ramp", "parabola", "walk")]
        )
        x = torch.cat([x, -torch.arange(d).double()[None] / d])
        for scale in (1e-5, 1e-2, 1.0, 30.0):
            z = (scale * x).to(dtype)
            for lam in (1e-4, 0.1 * scale, 0.03, 10.0, 1e-3 / d):
                f = mapped(case)
                y = f(z, 1.0, lam)
                with kernels.reference():
                    right = f(z.double(), 1.0, lam)
                bound = 1e-12 + (torch.finfo(F32).eps / 2 if dtype == F32 else 0)
                assert (y.double() - right).abs().max() <= bound, (d, scale, lam)


@pytest.mark.parametrize("case", ["fusedmax .1", "oscarmax .05"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_great_scores_of_penalties(case, dtype):
    """Shifts keep the answer where they keep the scores' differences; finfo.min is a score."""
    f, x = mapped(case), (normal(4, 50, seed=1) * 64).round() / 64
    right, lowest = f(x.to(dtype), 1.0), torch.finfo(dtype).min
    for shift in (2.0**10, -(2.0**16)) + ((1e6, 2.0**40) if dtype == F64 else ()):
        assert torch.equal(f((x + shift).to(dtype), 1.0), right)
    for scale in (1e6, 1e20, 1e30):
        z = (x * scale).to(dtype)
        assert torch.equal(f(z, 1.0), functional.sparsemax(z)), scale
    for gamma in (1.0, 1e-6, 1e6):
        two = torch.tensor([[0.5, lowest, 0.25, 0.25], [lowest] * 4], dtype=dtype)
        near = torch.tensor([[0.5, -1e12, 0.25, 0.25], [0.0] * 4], dtype=dtype)
        torch.testing.assert_close(f(two, gamma), f(near, gamma), rtol=0, atol=1e-6)
    far = torch.tensor([[torch.finfo(dtype).max, lowest, 0.0]], dtype=dtype)
    assert f(far, 1.0).tolist() == [[1, 0, 0]]


def near_the_bound(d=100):
    """Rows of a few entries that matter, and of many. With λ = 0.05 entries 1.2 below the largest
    are cut, in exact arithmetic."""
    i, x = torch.arange(d, dtype=F64), normal(d, seed=3)
    at = torch.tensor([0, 1, 15, 16, 31, 32, 33, 63, 64, 80, d - 1])
    bound = torch.where(i % 7 == 0, 8.8, torch.where(i % 7 == 1, 8.8 - 1e-12, 9.0 + 1e-9 * x))
    bound[70:73] = torch.tensor([10.0, 8.8 + 1e-12, 9.0])
    return torch.stack(
        [
            (x - 9).index_fill(0, at[::2], 3.0),
            (x - 9).index_fill(0, at[4:5], 3.0),
            (x - 9).index_put((at,), 1 + x[: len(at)] / 9),
            bound,
            x / 30,
            (x * 3).round() / 128,
            torch.full((d,), -2.0, dtype=F64),
            torch.where(i < 60, 0.001, 0.0).double(),
            torch.where(i % 50 < 3, 0.2 + x / 50, 0.0),
            x.cumsum(0) / 9,
            torch.floor(i / 11) * 0.01,
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fusedmax .1", "oscarmax .05"])
@pytest.mark.parametrize(("d", "lam"), [(100, 0.0), (100, 2e-4), (100, 0.05), (64, 0), (700, 0)])
@pytest.mark.parametrize("way", ["registers"])
def test_groups_of_chains_in_triton(way, case, d, lam):
    """Tiles of several rows, and of one; members of a group are equal to the bit."""
    x = near_the_bound() if d == 100 else normal(2, d).cumsum(1) / 10
    mask = normal(*x.shape, seed=1) > (9 if lam == 2e-4 else 0.5) * -1
    lam = lam if d == 100 else 1 / d
    given = [x, *(torch.full((len(x), 1), t, dtype=F64) for t in (1.0, lam))]
    v = normal(*x.shape, seed=7)
    (y, *got), (right, *wanted) = found_and_right(way, mapped(case, mask), given, v)
    torch.testing.assert_close(y, right, rtol=0, atol=2e-15)
    assert not bool((y[right == 0] != 0).any())
    for have, row in zip(y, right, strict=True):
        assert len(have.unique()) == len(row.unique())
        assert all(len(have[row == value].unique()) == 1 for value in row[row > 0].unique())
    for g, expected in zip(got, wanted, strict=True):
        size = 1 + expected.abs().max()
        torch.testing.assert_close(g, expected, rtol=0, atol=1e-11 * size.item())


@pytest.mark.slow
def test_no_jump_of_a_chain_has_the_wrong_sign_by_rounding_in_triton():
    """Groups next to each other, of sums that are rounded by more than what parts them."""
    draw = torch.Generator().manual_seed(5)
    size = torch.rand(32, 57, generator=draw).double()
    x = -(size * 10.0 ** torch.randint(-16, 1, (32, 57), generator=draw)).sort(-1).values
    x = x[24:31].index_fill(-1, torch.tensor([0]), 0.0).to(DEVICE)
    with by("registers"):
        assert bool((functional.oscarmax(x, lam=1e-14).diff(dim=-1) <= 0).all())


@pytest.mark.parametrize("d", [10, 64, 130, 700])
@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "pnormmax"])
def test_a_nearly_constant_gradient_keeps_its_digits(name, d):
    """J annihilates constants: J(v + c) = J v, whatever c."""
    mapping = getattr(functional, name)
    x = torch.randn(20, d, generator=torch.Generator().manual_seed(d))
    v = torch.randn(20, d, dtype=torch.float64) + 1e4
    found = []
    for dtype, given in ((torch.float32, v), (torch.float64, v.float().double() - 1e4)):
        at = x.to(dtype).requires_grad_()
        found.append(torch.autograd.grad(mapping(at), at, given.to(dtype))[0].double())
    assert (found[0] - found[1]).abs().max() <= 2e-6
