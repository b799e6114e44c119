"""Fenchel–Young losses: the methods of one loss agree, and transforms and compilers follow it."""

import io
import itertools

import pytest
import torch
from loss_cases import (
    F64,
    FORMULAS,
    OMEGAS,
    Priced,
    close,
    column,
    distributions,
    indices,
    prices,
    value_and_gradient,
)
from mapping_checks import normal
from torch.func import grad, hessian, jvp, vmap

import regmax
from regmax.losses import EntmaxLoss, FenchelYoungLoss, SparsemaxLoss, fenchel_young, targets

# forward mode makes PyTorch warn of its own deprecated parts
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


# -- one loss, several methods -------------------------------------------------------------------


@pytest.mark.parametrize(("d", "learns"), [(300, False), (2000, False), (20, True), (300, True)])
@pytest.mark.parametrize("name", ["gini", "pnorm", "tsallis 1.3", "tsallis 1.5"])
def test_the_support_alone_or_all_entries(monkeypatch, name, d, learns):
    """A kernel of losses does not take smoothing with weights."""
    pytest.importorskip("numba")
    x, k = 6 * normal(4, d, seed=1), indices(4, d)
    x[0, 3] = -torch.inf
    k[1], k[2] = -100, int(x[2].argmax())
    gamma = torch.tensor(0.5, dtype=F64, requires_grad=learns)
    key = {"tsallis": "alpha", "pnorm": "p"}.get(name.split()[0])
    theta = torch.tensor(1.4, dtype=F64, requires_grad=learns)
    omega = regmax.regularizer(name.split()[0], **({key: theta} if key else {}))
    weight, taken = torch.ones(d), []

    def results():
        out = []
        for smoothing, dtype in itertools.product((0.0, 0.1), (torch.float32, F64)):
            loss = FenchelYoungLoss(
                omega, gamma, weight=weight, reduction="none", label_smoothing=smoothing
            )
            leaf = x.to(dtype).requires_grad_()
            value = loss(leaf, k)
            wanted = [
                leaf,
                *(t for t in (gamma, theta if key else None) if learns and t is not None),
            ]
            out.append([value, *torch.autograd.grad(value.sum(), wanted)])
        return out

    def packed(*args, method=fenchel_young.packed):
        found = method(*args)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(fenchel_young, "packed", packed)
    short = results()
    assert taken
    assert all(taken)
    monkeypatch.setattr(fenchel_young, "packed", lambda *args: None)
    monkeypatch.setattr(fenchel_young, "of_rows", lambda *args: None)
    for some, others in zip(short, results(), strict=True):
        for a, b in zip(some, others, strict=True):
            exact = a.dtype == F64 and some[0].dtype == F64
            tolerance = 1e-13 if exact else 2e-6
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_twin_agrees(monkeypatch, name):
    """``losses`` in one go, and ``reference`` in operations for any transform."""
    x = 2 * normal(5, 40, seed=1)
    x[1, 7], x[2], x[3, 0] = -torch.inf, -torch.inf, torch.nan
    results = []
    for _ in range(2):
        for t in (indices(5, 40), distributions(5, 40)):
            loss = FenchelYoungLoss(OMEGAS[name][0](40), 0.8, reduction="none", label_smoothing=0.1)
            results += value_and_gradient(loss, x, t)
        monkeypatch.setattr(fenchel_young.transforms, "under_transform", lambda tensors: False)
        monkeypatch.setattr(fenchel_young, "_by_value", lambda omega: True)
    for a, b in zip(results[:4], results[4:], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, equal_nan=True)


def test_blocks_change_nothing(monkeypatch):
    x, t = 2 * normal(3, 17, 30, seed=1), distributions(51, 30).reshape(3, 17, 30)
    x[0, 3, 2] = -torch.inf
    for name in ("entropy", "gini", "tsallis 1.3", "tv"):
        for target, smoothing in ((t, 0.0), (indices(51, 30).reshape(3, 17), 0.1)):
            loss = FenchelYoungLoss(OMEGAS[name][0](30), dim=-1, label_smoothing=smoothing)
            whole = value_and_gradient(loss, x, target)
            with monkeypatch.context() as patch:
                patch.setattr(targets, "BLOCK", 100)
                for a, b in zip(whole, value_and_gradient(loss, x, target), strict=True):
                    close(a, b, 1e-15)


# -- torch.func, torch.compile, torch.export ---------------------------------------------------


@pytest.mark.parametrize("name", ["entropy", "tsallis 1.5", "tv", "fused entmax", "priced"])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1, "ignore_index": 0}])
def test_transforms(name, settings):
    x, omega = 2 * normal(4, 5, seed=1), OMEGAS[name][0](5)
    weight = torch.tensor([0.5, 1, 2, 0.3, 0.3], dtype=F64) if settings else None
    mean = FenchelYoungLoss(omega, weight=weight, **settings)
    each = FenchelYoungLoss(omega, weight=weight, reduction="none", **settings)
    for t in (torch.tensor([1, 0, 2, 3]), distributions(4, 5)):
        leaf = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(mean(leaf, t), leaf)
        close(grad(mean)(x, t), g, 1e-9)
        second = torch.autograd.functional.hessian(lambda x, t=t: mean(x, t), x)
        close(hessian(mean)(x, t), second, 1e-8)
        close(jvp(lambda x, t=t: mean(x, t), (x,), (x,))[1], (g * x).sum(), 1e-9)
        close(vmap(each)(x, t), each(x, t), 1e-9)
        (g,) = torch.autograd.grad(each(leaf, t).sum(), leaf)
        close(vmap(grad(each))(x, t), g, 1e-9)


def test_an_index_out_of_range_is_nan_where_nobody_may_look():
    x, k = normal(3, 5), torch.tensor([1, 7, -2])
    value = vmap(SparsemaxLoss(reduction="none"))(x, k)
    assert torch.isnan(value).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("alpha", "smoothing", "t"),
    [(1.4, 0.1, torch.tensor([1, 0, 2, 3])), (column(1.4, 1.7), 0.0, distributions(2, 5))],
)
def test_compiled_training(alpha, smoothing, t):
    torch._dynamo.reset()
    weight = torch.tensor([0.5, 1, 2, 0.3, 0.3], dtype=F64)
    alpha = torch.nn.Parameter(alpha.detach()) if isinstance(alpha, torch.Tensor) else alpha
    loss = EntmaxLoss(alpha, weight=weight, label_smoothing=smoothing, ignore_index=0)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    x = normal(len(t), 5, seed=1).requires_grad_()
    expected, found = loss(x, t), compiled(x, t)
    close(found, expected)
    leaves = [x, *loss.parameters()]
    pairs = (torch.autograd.grad(value, leaves) for value in (found, expected))
    for a, b in zip(*pairs, strict=True):
        close(a, b)


def test_an_omega_by_its_value_breaks_the_graph_and_is_right():
    torch._dynamo.reset()
    loss, x, k = FenchelYoungLoss(Priced(prices(5))), normal(4, 5), indices(4, 5)
    compiled = torch.compile(loss, backend="aot_eager")
    close(compiled(x, k), loss(x, k))


def test_export():
    loss = SparsemaxLoss(label_smoothing=0.1, weight=torch.linspace(0.5, 1, 5, dtype=F64))
    sample = (normal(4, 5), indices(4, 5))
    batch = {0: torch.export.Dim("rows")}
    program = torch.export.export(loss, sample, dynamic_shapes=(batch, batch))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n in (4, 7):
        x, k = normal(n, 5, seed=n), indices(n, 5, seed=n)
        close(loaded(x, k), loss(x, k))
