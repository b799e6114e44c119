"""Plans with given sums of rows and columns: conic solvers and hard plans."""

import pytest
import torch
from mapping_checks import normal
from omegas import Inverse
from torch.autograd import gradcheck

import regmax
from regmax import RegularizedMax, Transport
from regmax.testing.inputs import VALUES, hard_values

F64 = torch.float64


OMEGAS = {
    "gini": lambda: regmax.regularizer("gini"),
    "entropy": lambda: regmax.regularizer("entropy"),
    "tsallis 0.5": lambda: regmax.regularizer("tsallis", alpha=0.5),
    "tsallis 1.5": lambda: regmax.regularizer("tsallis", alpha=1.5),
    "tsallis 1.75": lambda: regmax.regularizer("tsallis", alpha=1.75),
    "scaled": lambda: 2 * regmax.regularizer("tsallis", alpha=1.25),
    "fermi_dirac": lambda: regmax.regularizer("fermi_dirac"),
    "own": lambda: Inverse(torch.tensor(0.2, dtype=F64)),
}
STANDARD = [name for name in OMEGAS if name not in ("fermi_dirac", "own")]
SHAPES = {"square": (4, 4), "wide": (3, 4), "tall": (6, 4)}


def sums(seed, *shape):
    return (normal(*shape, seed=seed) / 2).exp()


def domains(n, m):
    """The default; and rows and columns that differ."""
    rows, columns = sums(20, n, 1), sums(21, m)
    return Transport(), Transport(rows, columns * rows.sum() / columns.sum())


def off(y, domain, dim=-1):
    """The largest error of a sum, of plans in the last two dimensions."""
    plans = domain.region(y, dim, None)
    return max((y.sum(-1) - plans.rows).abs().max(), (y.sum(-2) - plans.columns).abs().max())


def by_cvxpy(omega, x, gamma, domain):
    """The answer and the maximum of one plan."""
    cvxpy = pytest.importorskip("cvxpy")
    plans = domain.region(x, 1, None)
    y = cvxpy.Variable(x.shape, nonneg=True)
    value = sum(omega.as_cvxpy(y[i]) for i in range(len(x)))
    limits = [
        cvxpy.sum(y, axis=1) == plans.rows.expand(len(x)).numpy(),
        cvxpy.sum(y, axis=0) == plans.columns.expand(x.shape[1]).numpy(),
    ]
    goal = cvxpy.Minimize(gamma * value - cvxpy.sum(cvxpy.multiply(x.numpy(), y)))
    problem = cvxpy.Problem(goal, limits)
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return torch.tensor(y.value), -goal.value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OMEGAS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_answers_and_maxima_are_those_of_a_conic_solver(name, shape):
    omega = OMEGAS[name]()
    for domain in domains(*SHAPES[shape]):
        layer = RegularizedMax(omega, 0.8, domain=domain)
        for scale in (0.3, 2.0, 8.0):
            x = normal(*SHAPES[shape], seed=int(10 * scale), scale=scale)
            if name == "tsallis 0.5":  # whose definition has a negative power of y
                continue
            y, best = by_cvxpy(omega, x, 0.8, domain)
            assert (layer(x) - y).abs().max() <= 3e-5
            assert abs(layer.max(x).item() - best) <= 1e-6 * (1 + abs(best))


@pytest.mark.parametrize("name", OMEGAS)
def test_each_plan_is_certified_and_has_its_sums(name):
    omega, x = OMEGAS[name](), normal(8, 6, 4, seed=1, scale=1.5)
    for domain in domains(6, 4):
        solution = RegularizedMax(omega, 0.8, domain=domain, certify=True).solve(x)
        assert solution.converged.all()
        assert solution.error_bound.shape == (8,)
        assert solution.error_bound.max() <= 1e-8
        assert off(solution.y, domain) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, F64], ids=str)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", STANDARD)
def test_hard_plans_have_their_sums(name, values, dtype):
    omega = OMEGAS[name]()
    for n, m in ((5, 5), (1, 5), (5, 1), (2, 7)):
        x = hard_values(values, 4 * n, m, F64).view(4, n, m).to(dtype)
        x = torch.where(x.isfinite(), x, 0)
        layer = RegularizedMax(omega, domain=Transport(), on_failure="raise")
        small = x.abs().amax((-1, -2)) <= 1e7
        for plan in x[~small]:  # rounding of the scores is more than 1e-9: said, or right
            try:
                y = layer(plan)
            except regmax.ConvergenceError:
                continue
            assert off(y.double(), Transport()) <= 1e-7
        y = layer(x[small])
        assert y.dtype == dtype
        assert (y >= 0).all()
        tol = max(torch.finfo(dtype).eps * max(n, m) ** 0.5 * 2 * max(n / m, 1), 1e-12)
        assert off(y.double(), Transport()) <= tol


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 100.0, "integers", "permuted"])
@pytest.mark.parametrize("name", STANDARD)
def test_large_scores_ties_and_lattices(name, scale):
    n, omega = 6, OMEGAS[name]()
    if scale == "integers":
        x = normal(64, n, n, seed=8, scale=2.0).round()
    elif scale == "permuted":  # the answer is a vertex, with as many parts as columns
        x = 40 * torch.eye(n, dtype=F64)[torch.randperm(n, generator=torch.Generator())]
        x = x + normal(64, n, n, seed=9)
    else:
        x = normal(64, n, n, seed=8, scale=scale)
    layer = RegularizedMax(omega, domain=Transport(), on_failure="raise")
    solution = layer.solve(x)
    assert off(solution.y, Transport()) <= 1e-12 + 4e-15 * x.abs().max()
    assert (solution.y.sum(-1) - 1).abs().max() <= 8 * torch.finfo(F64).eps
    assert solution.error_bound.max() <= 1e-7 * (1 + x.abs().max())
    assert torch.equal(layer(x[5:6]), layer(x)[5:6])
    x.requires_grad_()
    (g,) = torch.autograd.grad((layer(x) * normal(n, n, seed=10)).sum(), x)
    assert g.isfinite().all()
    assert g.sum(-1).abs().max() <= 1e-10
    assert g.sum(-2).abs().max() <= 1e-10


def test_entropy_is_what_sinkhorn_converges_to():
    x = normal(32, 5, 5, seed=11, scale=2.0)
    p = x.clone()
    for _ in range(3000):
        p = p - p.logsumexp(-1, keepdim=True)
        p = p - p.logsumexp(-2, keepdim=True)
    y = regmax.functional.softmax(x, domain=Transport())
    assert (y - p.exp()).abs().max() <= 1e-12


def test_one_row_is_the_simplex_mapping_of_given_columns():
    x, columns = normal(3, 1, 4, seed=13), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=F64)
    y = regmax.functional.softmax(x, domain=Transport(1.0, columns))
    assert torch.allclose(y, columns.expand(3, 1, 4), rtol=0, atol=1e-15)
    y = regmax.functional.softmax(x.mT, domain=Transport(columns.unsqueeze(-1), 1.0))
    assert torch.allclose(y, columns.unsqueeze(-1).expand(3, 4, 1), rtol=0, atol=1e-15)


def test_other_dimensions():
    x, omega = normal(3, 4, 2, 5, seed=14), regmax.regularizer("tsallis", alpha=1.5)
    rows, columns = sums(15, 3, 1, 1, 5), sums(16, 3, 4, 2, 1)
    columns = columns * rows.sum(-1, keepdim=True) / columns.sum(1, keepdim=True)
    y = RegularizedMax(omega, dim=1, domain=Transport(rows, columns, across=-1))(x)
    moved = x.permute(0, 2, 3, 1)
    given = rows.permute(0, 2, 3, 1), columns.permute(0, 2, 3, 1)
    expected = RegularizedMax(omega, domain=Transport(*given))(moved)
    assert torch.allclose(y, expected.permute(0, 3, 1, 2), rtol=0, atol=1e-14)
    assert torch.allclose(y.sum(1, keepdim=True), rows.expand(3, 1, 2, 5), rtol=0, atol=1e-12)
    assert torch.allclose(y.sum(3, keepdim=True), columns, rtol=0, atol=1e-12)
    assert RegularizedMax(omega, domain=Transport())(x[:0]).shape == (0, 4, 2, 5)


def test_masked_entries_are_0():
    x, mask = normal(4, 5, 5, seed=17), torch.ones(4, 5, 5, dtype=torch.bool)
    mask[:, 0, 1] = mask[1, 2, 3] = mask[1, 4, 4] = False
    for name in STANDARD:
        layer = RegularizedMax(OMEGAS[name](), domain=Transport())
        solution = layer.solve(x, mask)
        assert (solution.y[~mask] == 0).all()
        assert off(solution.y, Transport()) <= 1e-12
        assert solution.error_bound.max() <= 1e-8
        y = solution.y
        assert torch.equal(layer(x.masked_fill(~mask, -torch.inf)), y)
        spoilt = x.masked_fill(~mask, torch.nan)
        assert torch.equal(layer(spoilt, mask), y)
        spoilt[2, 1, 1] = torch.nan
        found = layer(spoilt, mask)
        assert found[2].isnan().all()
        assert torch.equal(found[[0, 1, 3]], y[[0, 1, 3]])
        none = mask.clone()
        none[3] = False
        assert (layer(x, none)[3] == 0).all()
        given = x[1:2].clone().requires_grad_()
        assert gradcheck(lambda t, layer=layer: layer(t, mask[1:2]), (given,), atol=1e-5)


def test_a_mask_without_a_plan_is_refused():
    x, mask = normal(2, 4, 4, seed=18), torch.ones(2, 4, 4, dtype=torch.bool)
    mask[1, 2] = False
    with pytest.raises(ValueError, match=r"no entry of row 2 takes part in plan \(1,\)"):
        regmax.functional.softmax(x, mask=mask, domain=Transport())
    mask[1, 2], mask[1, :, 3] = True, False
    with pytest.raises(ValueError, match="no entry of column 3"):
        regmax.functional.softmax(x, mask=mask, domain=Transport())
    mask[1], mask[1, :3, :2] = True, False  # three rows for two columns
    for name in STANDARD:
        with pytest.raises(ValueError, match=r"rows \[0, 1, 2\] add up to 3, and the columns"):
            RegularizedMax(OMEGAS[name](), domain=Transport())(x, mask)


def test_a_triangle_has_one_plan():
    x, mask = normal(3, 4, 4, seed=19), torch.ones(4, 4, dtype=torch.bool).tril()
    y = regmax.functional.sparsemax(x, mask=mask, domain=Transport())
    assert torch.allclose(y, torch.eye(4, dtype=F64).expand(3, 4, 4), rtol=0, atol=1e-12)


def test_wrong_arguments_name_themselves():
    x, omega = normal(2, 3, 4, seed=20), regmax.regularizer("gini")
    cases = [
        (Transport(1.0, 1.0), {}, "same total; got rows = 3 and columns = 4 in plan"),
        (Transport(1.0, 0.75000001), {}, "rows = 3 and columns = 3.00000004 in plan"),
        (Transport(torch.ones(4)), {}, "rows must broadcast to x with size 1 along dim=2"),
        (Transport(1.0, torch.ones(3, 1)), {}, "columns must broadcast to x with size 1"),
        (Transport(across=-1), {}, "must be another dimension"),
        (Transport(across=3), {}, "across=3"),
        (Transport(), {"gamma": torch.ones(3, 1)}, "gamma must have size 1 along across"),
        (Transport(), {"solver": "newton"}, 'solver="auto" alone'),
    ]
    for domain, arguments, said in cases:
        with pytest.raises(ValueError, match=said):
            RegularizedMax(omega, domain=domain, **arguments)(x)
    with pytest.raises(ValueError, match="rows must be > 0"):
        Transport(-1.0)
    with pytest.raises(TypeError, match="across must be an int"):
        Transport(across="rows")
    for other in (regmax.regularizer("pnorm", p=1.5), regmax.regularizer("tv", lam=0.1)):
        with pytest.raises(NotImplementedError, match="separable"):
            RegularizedMax(other, domain=Transport())(x)
    with pytest.raises(NotImplementedError, match="jacobian"):
        RegularizedMax(omega, domain=Transport()).jacobian(x)


def test_a_failure_is_reported():
    """p is so steep at 0 for α = 8 that Newton's method does not reach the sums."""
    x, omega = normal(1, 6, 6, seed=21, scale=5.0), regmax.regularizer("tsallis", alpha=8.0)
    with pytest.warns(regmax.ConvergenceWarning, match="plans do not have the sums"):
        RegularizedMax(omega, domain=Transport())(x)
    with pytest.raises(regmax.ConvergenceError):
        RegularizedMax(omega, domain=Transport(), on_failure="raise")(x)


@pytest.mark.parametrize("total", [1e-6, 1e4, 1e8])
def test_totals_that_are_not_near_1(total):
    """Π of scores x and sums ca, cb is c times that of x/c, a and b."""
    x, rows, columns = normal(16, 4, 4, seed=30, scale=100.0), sums(31, 4, 1), sums(32, 4)
    columns = columns * rows.sum() / columns.sum()
    layers = (
        RegularizedMax(regmax.regularizer("gini"), domain=domain, on_failure="ignore")
        for domain in (Transport(rows, columns), Transport(total * rows, total * columns))
    )
    expected, solution = next(layers)(x / total) * total, next(layers).solve(x)
    error = (solution.y - expected).norm(dim=(-1, -2))
    assert (solution.error_bound >= error - 1e-10 * total).all() or total < 1
    assert (error <= 1e-10 * total).all() or total < 1  # with scores 1e6 times as large as sums


def test_losses_of_plans():
    x, target = normal(5, 4, 4, seed=22), torch.eye(4, dtype=F64)[torch.randperm(4)].expand(5, 4, 4)
    for name in ("entropy", "gini"):
        loss = regmax.FenchelYoungLoss(OMEGAS[name](), dim=-1, domain=Transport())
        given = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(5 * loss(given, target), given)
        assert torch.allclose(g, loss.mapping(x) - target, atol=1e-12)
        assert abs(loss(x, loss.mapping(x)).item()) <= 1e-12
        with pytest.raises(ValueError, match="lie in the domain"):
            loss(x, 2 * target)
        with pytest.raises(ValueError, match="target must be a plan"):
            loss(x, torch.zeros(5, 4, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_methods_agree_in_the_cross_check():
    pytest.importorskip("cvxpy")
    omega = regmax.regularizer("tsallis", alpha=1.5)
    x, mask = normal(2, 3, 4, seed=23), torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2] = False
    for given in (None, mask):
        report = regmax.crosscheck(omega, x, ("cvxpy",), mask=given, domain=Transport())
        assert report.ok, report
    omega = regmax.regularizer("divergence", prior=torch.tensor([1.0, 2.0, 1.0, 1.0], dtype=F64))
    solution = RegularizedMax(omega, domain=Transport()).solve(x)
    assert solution.error_bound.max() <= 1e-10
    with pytest.raises(NotImplementedError, match="one number each"):
        regmax.crosscheck(omega, x, ("cvxpy",), domain=Transport())


@pytest.mark.parametrize("name", STANDARD)
def test_the_kernel_and_the_closed_form_agree(name):
    for values in VALUES:
        x = hard_values(values, 4 * 5, 4, F64).view(4, 5, 4)
        x = x[x.isfinite().all(-1).all(-1) & (x.abs().amax((-1, -2)) <= 1e3)]
        layer = RegularizedMax(OMEGAS[name](), domain=Transport(), on_failure="raise")
        with regmax.kernels.reference():
            expected = layer(x)
        assert torch.allclose(layer(x), expected, rtol=0, atol=1e-10)


def test_vmap_is_refused():
    with pytest.raises(NotImplementedError, match=r"not for torch\.vmap"):
        torch.func.vmap(RegularizedMax(OMEGAS["gini"](), domain=Transport()))(
            normal(2, 4, 3, seed=26)
        )


def test_attention_is_computed_in_one_piece():
    q, k, v = normal(3, 2, 6, 4, seed=30).unbind(0)
    given = {"omega": "sparsemax", "domain": Transport()}
    out = regmax.nn.attention(q, k, v, chunk=2, **given)
    weights = regmax.functional.sparsemax(q @ k.mT / 2, domain=Transport())
    assert torch.allclose(out, weights @ v, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*jit.script.* is deprecated")
def test_compiled_calls_run_outside_of_the_graph():
    x, layer = normal(3, 4, 4, seed=24), RegularizedMax(OMEGAS["gini"](), domain=Transport())
    assert torch.equal(torch.compile(layer)(x), layer(x))


def test_sums_are_parameters_of_the_layer():
    rows = torch.nn.Parameter(torch.ones(4, 1))
    layer = RegularizedMax(OMEGAS["gini"](), domain=Transport(rows))
    assert [p is rows for p in layer.parameters()] == [True]
    layer(normal(2, 4, 4, seed=25).float())[:, 0].sum().backward()
    assert rows.grad is not None
    assert "rows=" in repr(layer)


def test_the_multipliers_of_wide_scores_are_those_of_the_large_entries():
    """α_i + v_j = x_ij − γ(log y_ij + 1) for the entropy; y next to 0 do not tell it."""
    x, total = 40 * normal(10, 4, 5, seed=21), torch.ones(10, 4, 1, dtype=F64)
    sums = [total.requires_grad_(), torch.full((10, 1, 5), 0.8, dtype=F64, requires_grad=True)]
    layer = RegularizedMax(regmax.regularizer("entropy"), 0.7, domain=Transport(*sums))
    y = layer(x).detach()
    alpha, v = torch.autograd.grad(layer.max(x).sum(), sums)
    large = y > 1e-3
    expected = (x - 0.7 * (y.log() + 1))[large]
    torch.testing.assert_close((alpha + v)[large], expected, rtol=1e-9, atol=1e-9)
