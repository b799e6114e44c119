"""Every compiled kernel of a loss beside its closed form in float64, by public calls: indices and
distributions, smoothing, masks, rows of every kind, and what a loss moves."""

import itertools

import pytest
import torch
from devices import CUDA, need_triton
from mapping_checks import normal
from ways import DEVICE, F32, F64, TRITON, by, by_ways, derivatives, found_and_right, once, ways

import regmax
from regmax import kernels

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAMES = {"tsallis": "alpha", "pnorm": "p"}
SIMPLE = (("entropy", None), ("gini", None), ("tsallis", 1.5), ("tsallis", 3.0), ("pnorm", 1.5))
OTHERS = {"tsallis": (0.6, 1.0, 1 + 1e-12, 1 + 1e-9, 1.3, 2.0), "pnorm": (1.1, 2.0)}
CASES = (*SIMPLE, *((kind, theta) for kind, several in OTHERS.items() for theta in several))
each_case = pytest.mark.parametrize(("kind", "theta"), CASES)
each_simple = pytest.mark.parametrize(("kind", "theta"), SIMPLE)
INF, NAN = torch.inf, torch.nan


def omega(kind, *theta):
    given = [t for t in theta if t is not None]
    return regmax.regularizer(kind, **dict(zip([NAMES.get(kind)], given, strict=False)))


def loss(kind, target, mask=None, **settings):
    """As a function of x, γ and the hyperparameter."""

    def f(x, gamma, *theta):
        k = target.to(x) if target.is_floating_point() else target.to(x.device)
        on = None if mask is None else mask.to(x.device)
        made = regmax.FenchelYoungLoss(
            omega(kind, *theta), gamma, reduction="none", ignore_index=-1, **settings
        )
        return made(x, k, on)

    return f


def numbers(theta, rows, per_row=True):
    """γ and the hyperparameter; of several, each row has one."""
    gamma = torch.linspace(0.5, 2, rows, dtype=F64).unsqueeze(-1) if per_row else torch.tensor(0.75)
    if theta is None:
        return [gamma.double()]
    several = theta if isinstance(theta, tuple) else (theta,)
    own = torch.tensor(several, dtype=F64).repeat(rows)[:rows].unsqueeze(-1)
    return [gamma.double(), own if per_row else own[0, 0]]


def scores(d, size):
    """Scores, targets, of which some are the largest and one is ignored, and a mask."""
    g = torch.Generator().manual_seed(0)
    x, k = size * normal(16, d), torch.randint(d, (16,), generator=g)
    k[3:6], k[6] = x[3:6].argmax(-1), -1
    mask = torch.rand(16, d, generator=g) > 0.3
    if d > 5:
        x[7, 2], x[8], mask[9], x[10, 1] = -INF, -INF, False, NAN
        x[11, k[11]], x[12, k[12]], x[13] = 2, -INF, 3.0
        x[14, 0], x[14, 1], k[14] = 1e2, -1e2, 1
    return x, k, mask


def distributions(x, mask=None):
    """Of any sum, over entries that take part: some have many zeros, one is Π_Ω(x) of softmax;
    and one is 0, in rows of several entries."""
    t = 3 * torch.rand(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    few = torch.rand(8, x.shape[1], generator=torch.Generator().manual_seed(2)) > 0.2
    t[:8] = t[:8].masked_fill(few, 0)
    t[4], t[5] = x[4].softmax(-1), torch.eye(x.shape[1], dtype=x.dtype)[0]
    on = x != -INF if mask is None else mask & (x != -INF)
    t = torch.where(on, t, 0)
    t[2] = 0
    return t


def check(way, kind, theta, dtype, target, sizes, settings, rows=range(16)):
    """Of the ``rows`` of the scores."""
    for d, size in sizes:
        (wide, k, mask), few = scores(d, size), list(rows)
        x, k, near = wide[few].to(dtype), k[few], (2e-11 if dtype == F64 else 4e-6) * (1 + d / 100)
        learning = {"cpu": (True,), "registers": (False, True)}.get(way, (False,))
        for (eps, on, per_row), learnt in itertools.product(settings, learning):
            t, on, mass = k, mask if on else None, torch.ones(len(x), dtype=F64)
            if target == "distributions":
                t = distributions(wide.to(dtype), on)[few]
                mass = t.double().sum(-1).clamp_min(1)
            given = [x, *numbers(theta, len(x), per_row)]
            f = loss(kind, t, None if on is None else on[few], label_smoothing=eps)
            (value, *got), (right, *wanted) = found_and_right(way, f, given, 1 / mass, learnt)
            assert not bool((value < 0).any())
            close = {"rtol": near, "atol": near, "equal_nan": True}
            torch.testing.assert_close(value.double() / mass, right / mass, **close)
            for g, expected in zip(got, wanted, strict=True):
                scale = 1 + expected.abs().max().nan_to_num().item() * (g is not got[0])
                torch.testing.assert_close(g.double(), expected, rtol=0, atol=near * scale)


@each_case
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("target", ["indices", "distributions"])
def test_values_and_gradients(kind, theta, dtype, target):
    sizes = ((1, 1.0), (2, 0.01), (16, 1.0), (37, 4.0), (37, 100.0), (700, 1.0))
    settings = [(0.0, False, True), (0.2, True, True), (0.1, False, False), (0.0, True, False)]
    if target == "distributions":
        settings = settings[::3]
    check("cpu", kind, theta, dtype, target, sizes, settings)


@pytest.mark.slow
@pytest.mark.parametrize("way", TRITON)
@pytest.mark.parametrize(("kind", "theta"), [*SIMPLE, *OTHERS.items()])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("target", ["indices", "distributions"])
def test_values_and_gradients_of_triton(way, kind, theta, dtype, target):
    """An interpreted row takes a fifth of a second: a row of each kind, several numbers at once."""
    several = isinstance(theta, tuple)
    if several if dtype == F32 else not several and way != "registers":
        pytest.skip("one dtype of the interpreter")
    settings, rows = [(0.0, False, True), (0.2, True, True)], (0, 3, 6, 7, 8, 9, 10, 11, 12, 14)
    if way != "registers":  # one of them is enough to see how the row is read
        settings = settings[way == "chunks" :][:1]
    if target == "distributions":
        settings, rows = settings[:1], (0, 2, 4, 5, 7, 8, 10, 11, 13, 14)
    check(way, kind, theta, dtype, target, ((21, 2.0),), settings, rows)
    check(way, kind, theta, dtype, target, ((1, 1.0),), settings[:1], rows[:3])


FEW = (("gini", None), ("tsallis", 1.5))


@pytest.mark.parametrize(("way", "case"), by_ways(SIMPLE, FEW))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(way, case, dtype):
    kind, theta = case
    few = slice(None) if way == "cpu" else slice(3, 7)
    wide, k, _ = scores(21, 2.0)
    x, k = wide[few].nan_to_num(0, 0, 0).clamp(-9, 9).to(dtype), k[few]
    soft = distributions(wide.nan_to_num(0, 0, 0))[few].to(dtype)
    for t in (k, soft):
        f = loss(kind, t)
        with by(way):
            given = [x.to(DEVICE), *numbers(theta, 1)]
            value, g = derivatives(f, given, x.new_ones(len(x)), learnt=False)
        with kernels.reference():
            right, h, *_ = derivatives(f, [x.double(), *numbers(theta, 1)], torch.ones(len(x)))
        eps = torch.finfo(dtype).eps
        assert value.dtype == g.dtype == dtype
        torch.testing.assert_close(value.double(), right, rtol=2 * eps, atol=2 * eps)
        torch.testing.assert_close(g.double(), h, rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize(("way", "case"), by_ways(SIMPLE, FEW))
def test_a_row_alone_and_strides(way, case):
    kind, theta = case
    rows, last = (6, 107) if way == "cpu" else (3, 28)
    wide, soft = normal(rows, 136).float(), torch.rand(rows, 140, generator=torch.Generator())
    x, t, k = wide[:, 7:last].to(DEVICE), soft[:, 7:last], torch.arange(rows) * 3
    for target in (k.to(DEVICE), t.to(DEVICE)):

        def run(x, target):
            leaf = x.detach().requires_grad_()
            value = loss(kind, target)(leaf, 1.0, *([] if theta is None else [theta]))
            return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

        with by(way):
            every, other = run(x, target), run(x.contiguous(), target)
            for i in range(0, rows, 2):
                one = run(x[i : i + 1].contiguous(), target[i : i + 1])
                for a, b, c in zip(every, one, other, strict=True):
                    assert torch.equal(a[i : i + 1], b)
                    assert torch.equal(a, c)


@ways
def test_small_losses_have_digits(way):
    """Two scores at the distance δ: sparsemax has the loss (1 − δ)²/4 for δ < 1, softmax
    log(1 + e^(−δ)); where y_k is 1 up to rounding, from the sums of the other entries. A sparse
    mapping's loss is 0 iff y = e_k."""

    def value(kind, x, k, *theta):
        with by(way):
            return loss(kind, k.to(DEVICE))(x.to(DEVICE), 1.0, *theta).double().cpu()

    delta = torch.tensor([1 - 2.0**-10, 1 - 2.0**-20, 1.0])
    k = torch.zeros(3, dtype=torch.int64)
    x = torch.stack([torch.zeros_like(delta), -delta], 1)
    expected = (1 - delta.double()) ** 2 / 4
    torch.testing.assert_close(value("gini", x, k), expected, rtol=2e-7, atol=0)
    delta = torch.tensor([10.0, 30.0, 60.0])
    x = torch.stack([torch.zeros_like(delta), -delta], 1)
    expected = (-delta.double()).exp().log1p()
    torch.testing.assert_close(value("entropy", x, k), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        value("entropy", 1e4 * x, 1 - k), 1e4 * delta.double(), rtol=1e-7, atol=0
    )
    for kind, *theta in (("gini",), ("tsallis", 1.3), ("tsallis", 1.5), ("pnorm", 1.5)):
        edge = 1 / (theta[0] - 1) if kind == "tsallis" else 1.0
        x = torch.full((4, 21), -60.0)
        x[:, 2] = 0.0
        x[:, 7] = -edge * torch.tensor([1 - 2**-8, 1 - 2**-4, 1.0, 1.5], dtype=F64)
        k = torch.full((4,), 2)
        (found, g, *_), (right, *_) = found_and_right(
            way, loss(kind, k), [x, *(torch.tensor(t) for t in (1.0, *theta))], torch.ones(4)
        )
        torch.testing.assert_close(found.double(), right, rtol=2e-4, atol=1e-15)
        assert bool((found >= 0).all())
        assert bool(((found == 0) == (g == 0).all(1)).all())


@ways
@pytest.mark.parametrize("dtype", [F32, F64])
def test_small_losses_of_distributions_have_digits(way, dtype):
    """½‖t − y‖² where y > 0, and 0 only at t = y."""
    if way != "cpu" and dtype == F32:
        pytest.skip("Triton adds terms of Ω(t) and Ω(y), whose rounding in float32 is larger")
    y = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=dtype)
    move = torch.tensor([[1.0, -1.0, 2.0, -2.0]], dtype=dtype)
    for kind, *theta in (("gini",), ("tsallis", 2.0), ("pnorm", 2.0)):
        for step in (2.0**-6, 2.0**-12, 2.0**-16):
            with by(way):
                found = loss(kind, y + step * move)((y + 3).to(DEVICE), 1.0, *theta).item()
                same = loss(kind, y)((y + 3).to(DEVICE), 1.0, *theta).item()
            near = (1e-5 if dtype == F32 else 1e-10) if kind == "pnorm" else 1e-7
            assert found == pytest.approx(5 * step**2, rel=near)
            assert same < 1e-15


@each_case
def test_distributions_of_any_sum(kind, theta):
    x, t = normal(6, 40).float(), torch.rand(6, 40, generator=torch.Generator())
    theta, results = ([] if theta is None else [torch.tensor(theta)]), []
    for size in (1.0, 2.0**-110, 2.0**100):
        found = derivatives(loss(kind, t * size), [x, torch.tensor(0.7), *theta], torch.ones(6))
        results.append([a.double() / size for a in found[:2]])
    for a, b in zip(results[0] * 2, results[1] + results[2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", TRITON)
def test_what_is_wrong_where_nobody_looks(way):
    """Targets, and numbers of a row, are NaN."""
    x, soft = normal(5, 21).to(DEVICE), torch.rand(5, 21).to(DEVICE)
    soft[0, 1], soft[1, 2], soft[3] = -1, NAN, 0
    for t in (torch.tensor([21, -2, 0, -1, 3]).to(DEVICE), soft):
        with by(way):
            value, g = derivatives(lambda x, t=t: loss("gini", t)(x, 1.0), [x], torch.ones(5))
        assert value.isnan().tolist() == [True, True, False, False, False]
        assert not bool(g[[0, 1, 3]].any())
    alpha = torch.tensor([[1.0], [1.5], [4.0], [2.0], [NAN]], dtype=F64).to(DEVICE)
    gamma = torch.tensor([[0.3], [1.0], [2.0], [NAN], [0.7]], dtype=F64).to(DEVICE)
    with by(way):
        value = loss("tsallis", torch.arange(5).to(DEVICE))(x, gamma, alpha)
    assert value.isnan().tolist() == [False, False, False, True, True]


@once
def test_arguments_of_a_loss(way):
    """Reductions, weights, dimensions, dtypes of a distribution, a gradient of any size."""
    x, k = normal(2, 6, 3).float(), torch.tensor([[0, 5, -100], [2, 2, 1]])
    mask, weight = normal(1, 6, 3, seed=3) > -0.8, torch.linspace(0.5, 1, 6)
    soft, generator = torch.rand(2, 6, 3, generator=torch.Generator()), torch.Generator()
    last, rows = {"dim": -1}, normal(4, 6, seed=4).float()
    cases = [
        ({"reduction": "mean"}, x, k, None),
        ({"reduction": "none", "label_smoothing": 0.1}, x, k, mask),
        ({"reduction": "sum", "weight": weight}, x, k, None),
        ({"reduction": "none", "weight": weight, "label_smoothing": 0.1}, x, k, mask),
        ({}, x, soft, None),
        ({"reduction": "none", "weight": weight}, x, soft * mask, mask),
        ({"label_smoothing": 0.1}, x, soft * mask, mask),
        (last, rows, torch.randint(6, (8,), generator=generator)[::2], None),
        (last, rows, torch.full((4,), -100), None),
        (last, rows[0], torch.tensor(2), None),
        (last, rows[:0], torch.zeros(0, dtype=torch.int64), None),
        (last, rows, soft.reshape(6, 6)[:4].half(), None),
        (last, rows, soft.reshape(6, 6)[:4].double(), None),
        (last, rows.t().contiguous().t(), soft.reshape(6, 6)[:4], None),
    ]
    for settings, x, target, on in cases:
        made = regmax.FenchelYoungLoss(omega("tsallis", 1.5), 0.7, **settings)
        on_device = [t if t is None else t.to(DEVICE) for t in (target, on)]

        def f(x, made=made, target=target, on=on, moved=on_device):
            return made(x, *(moved if x.device.type == DEVICE else (target, on)))

        with kernels.reference():
            right = derivatives(f, [x], torch.tensor(3.0))
        with by(way):
            found = derivatives(f, [x.to(DEVICE)], torch.tensor(3.0))
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=5e-6, atol=5e-6, equal_nan=True)


@pytest.mark.slow
@pytest.mark.skipif(CUDA, reason="the interpreter takes tensors of the CPU")
@each_simple
def test_what_a_loss_moves(kind, theta):
    """Less than cross-entropy, with label smoothing and ignored rows too; nothing reads a result
    back."""
    need_triton()
    from gpu_on_cpu import traffic

    index = torch.tensor([3, 7, -100])
    sizes = ((F32, 1000, 0.0), (F32, 1000, 0.1), (torch.bfloat16, 1000, 0.0), (F32, 9000, 0.0))
    for (dtype, d, eps), soft in itertools.product(sizes, (False, True)):
        if soft and eps:
            continue
        x = normal(3, d).to(dtype).requires_grad_()
        k = normal(3, d, seed=1).softmax(-1).to(dtype) if soft else index
        own = regmax.FenchelYoungLoss(omega(kind, theta), label_smoothing=eps)
        usual = torch.nn.CrossEntropyLoss(label_smoothing=eps)
        moved, other = (traffic(lambda: loss(x, k).backward()) for loss in (own, usual))  # noqa: B023
        assert moved.looks == []
        assert moved.total < other.total, (dtype, d, eps)
