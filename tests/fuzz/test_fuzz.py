"""Random Ω: a short run, the same each time, of what ``make fuzz`` does for as long as it is let;
and what fuzzing has found."""

import fuzzing
import pytest
import torch
from omegas import Square

import regmax
from regmax import FenchelYoungLoss, RegularizedMax, SoftmaxLoss, SparsemaxLoss

pytestmark = pytest.mark.slow


def test_under_fire():
    fuzzing.run(15)


# -- what it found ---------------------------------------------------------------------------------


def owl(d, lam):
    weights = [float(d - k) ** 0.5 for k in range(d)]
    return regmax.regularizer("gini") + lam * regmax.penalty("owl", weights=weights)


@pytest.mark.parametrize("d", [16, 300])
def test_a_loss_of_no_rows_whose_temperature_learns(d):
    gamma = torch.tensor(1.0, requires_grad=True)
    x = torch.zeros(0, d, requires_grad=True)
    for reduction in ("mean", "sum", "none"):
        loss = SoftmaxLoss(gamma=gamma, reduction=reduction)
        value = loss(x, torch.zeros(0, dtype=torch.int64))
        found = torch.autograd.grad(value.sum(), (x, gamma))
        assert found[0].shape == (0, d)
        assert found[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "omega", [Square(), regmax.regularizer("gini")], ids=["by value", "kernel"]
)
def test_a_target_on_the_lowest_score(omega, dtype):
    """Its cost and its gradient have no least score, and no difference of scores overflows."""
    info = torch.finfo(dtype)
    loss = FenchelYoungLoss(omega, reduction="none")
    for high, low in ((0.0, -1e30), (0.0, info.min), (info.max, -1e30), (info.max, info.min)):
        x = torch.tensor([[high, low, 0.5 * low]], dtype=dtype, requires_grad=True)
        value = loss(x, torch.tensor([1]))
        expected = torch.tensor([high], dtype=torch.float64) - low
        if expected < info.max:
            torch.testing.assert_close(value, expected.to(dtype))
        (g,) = torch.autograd.grad(value, x)
        assert g.tolist() == [[1, -1, 0]]
        half = torch.tensor([[0.5, 0, 0.5]], dtype=dtype)
        value = loss(x, half)
        assert value >= 0
        (g,) = torch.autograd.grad(value, x)
        assert g.tolist() == [[0.5, 0, -0.5]]


def test_a_mask_written_to_after_the_loss():
    x = torch.tensor([[1.0, 0.5, 0.8, 0.2]], dtype=torch.float64, requires_grad=True)
    found = []
    for change in (False, True):
        mask = torch.tensor([True, True, False, True])
        value = SparsemaxLoss()(x, torch.tensor([0]), mask)
        if change:
            mask.logical_not_()
        (g,) = torch.autograd.grad(value, x, create_graph=True)
        found.append((g, *torch.autograd.grad(g.square().sum(), x)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("omega", ["gini", "tv"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, None], ids=str)
def test_a_target_written_to_after_the_loss_is_refused(smoothing, omega):
    """As by cross-entropy: a second backward, and one with a graph, read it again."""
    x = torch.tensor([[1.0, 0.5, 0.8, 0.2]], dtype=torch.float64, requires_grad=True)
    for again in (False, True):
        target = torch.tensor([0])
        if smoothing is None:
            target = torch.tensor([[0.5, 0.25, 0.25, 0.0]], dtype=torch.float64)
        loss = FenchelYoungLoss(regmax.regularizer(omega), label_smoothing=smoothing or 0.0)
        value = loss(x, target)
        if not again:
            torch.autograd.grad(value, x, retain_graph=True)
        target.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(value, x, create_graph=again)


def test_numbers_in_a_tuple_hide_no_tensor():
    """The gradient of a loss with ordered weights is y − t, without J times what is constant."""
    x = torch.randn(16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    omega = 0.02 * owl(16, 5e3)
    (g,) = torch.autograd.grad(FenchelYoungLoss(omega)(x, torch.tensor(3)), x)
    y = RegularizedMax(omega)(x).detach()
    t = torch.nn.functional.one_hot(torch.tensor(3), 16)
    torch.testing.assert_close(g, y - t, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("omega", "scale"),
    [(2.0 * regmax.regularizer("gini"), 1e6), (0.001 * regmax.regularizer("entropy"), 1e10)],
    ids=str,
)
def test_scores_whose_rounding_is_beyond_the_slopes(omega, scale):
    """float32 scores far apart: the largest takes all, it is not lost in the rounding."""
    x = torch.tensor([1.54, -0.29, -2.18]) * scale
    for solver in ("newton", "auto"):
        assert RegularizedMax(omega, 0.5, solver=solver)(x).tolist() == [1, 0, 0]


def test_a_masks_strides_are_not_those_of_the_rows():
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(16, 6, generator=torch.Generator().manual_seed(1)) < 0.5
    omega = 2.0 * (regmax.regularizer("entropy") + regmax.regularizer("gini"))
    layer = RegularizedMax(omega, dim=0)
    y = layer(x, mask)
    for i in range(6):
        assert torch.equal(layer(x[:, i], mask[:, i]), y[:, i])


@pytest.mark.parametrize("name", ["tv", "oscar"])
@pytest.mark.parametrize("base", ["gini", "entropy"])
def test_no_weight_holds_no_ties_together(name, base):
    """With the number 0 as its weight a penalty is none, and equal scores move by themselves."""
    x = torch.tensor([0.5, 0.5, 0.2, 0.2], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([1.0, -1.0, 2.0, 0.5], dtype=torch.float64)
    without = regmax.regularizer(base)
    (expected,) = torch.autograd.grad(RegularizedMax(without)(x), x, v)
    same = without + 0 * regmax.penalty(name)
    (g,) = torch.autograd.grad(RegularizedMax(same)(x), x, v)
    assert torch.equal(g, expected)
    with regmax.kernels.reference():
        (g,) = torch.autograd.grad(RegularizedMax(same)(x), x, v)
    torch.testing.assert_close(g, expected)
    assert torch.allclose(torch.func.jacrev(RegularizedMax(same))(x) @ v, expected)
    mapping = {"tv": regmax.functional.fusedmax, "oscar": regmax.functional.oscarmax}[name]
    if base == "gini":
        assert torch.equal(torch.autograd.grad(mapping(x, lam=0.0), x, v)[0], expected)


@pytest.mark.parametrize("c", [1e-2, 1e-3, 1e-4])
def test_a_newton_step_in_log_y_that_goes_too_far_down(c):
    """Powers with an infinite slope at 0: from below the way back is long."""
    omega = c * (regmax.regularizer("tsallis", alpha=0.6) + regmax.regularizer("pnorm", p=1.5))
    x = torch.tensor([1.541, -0.2934], dtype=torch.float64)
    solution = RegularizedMax(omega, solver="newton").solve(x)
    assert solution.converged
    assert solution.iterations <= 20
