"""Curvatures of every structure: derivatives against differences, and dense linear algebra."""

import pytest
import torch
from mapping_checks import normal as random
from omegas import Quadratic
from torch.autograd import gradcheck, gradgradcheck

import regmax
from regmax import RegularizedMax, Regularizer
from regmax.regularizers import curvature
from regmax.regularizers.curvature import Dense, Diagonal, DiagonalPlusRankOne, MatrixFree

F64 = torch.float64


class RankOne(Regularizer):
    """½‖y‖² + ½⟨u, y⟩², with its curvature declared."""

    def __init__(self, u):
        self.u = u

    def value(self, y):
        return y.square().sum(-1) / 2 + (self.u * y).sum(-1).square() / 2

    def curvature(self, y):
        return DiagonalPlusRankOne(torch.ones_like(y), self.u.expand_as(y))


def spd(d):
    b = random(d, d, seed=d) / d**0.5
    return b @ b.T + 0.3 * torch.eye(d, dtype=F64)


@pytest.mark.parametrize(
    ("omega", "inside", "kind"),
    [
        (RankOne, random(3, seed=5), DiagonalPlusRankOne),
        (lambda q: Quadratic((q + q.T) / 2), spd(3), MatrixFree),
    ],
)
def test_structures_that_the_grid_has_not(omega, inside, kind, monkeypatch):
    monkeypatch.setattr(curvature, "DENSE_LIMIT", 2)
    given = (0.3 * random(2, 3, seed=3)).requires_grad_(), inside.requires_grad_()
    assert isinstance(omega(inside).curvature(given[0].detach().clamp_min(1e-30)), kind)

    def f(x, inside):
        return RegularizedMax(omega(inside))(x)

    assert gradcheck(f, given, atol=1e-6, fast_mode=True)
    assert gradgradcheck(f, given, atol=1e-5, fast_mode=True)


# -- curvature structures against dense linear algebra -----------------------------------------


def structures(rows, d, seed=0):
    h = random(rows, d, seed=seed).abs() + 0.2
    u = random(rows, d, seed=seed + 1)
    b = random(rows, d, d, seed=seed + 2)
    m = b @ b.mT / d + 0.2 * torch.eye(d, dtype=F64)
    free = MatrixFree(lambda v: (m @ v.unsqueeze(-1)).squeeze(-1), torch.float64)
    return {
        "diagonal": (Diagonal(h), torch.diag_embed(h)),
        "rank one": (
            DiagonalPlusRankOne(h, u),
            torch.diag_embed(h) + u.unsqueeze(-1) * u.unsqueeze(-2),
        ),
        "dense": (Dense(m), m),
        "matrix-free": (free, m),
    }


def support_of(rows, d):
    support = torch.rand(rows, d, generator=torch.Generator().manual_seed(1)) < 0.6
    support[:, 0] = True
    support[0] = True
    support[1, 1:] = False  # one element
    return support


def basis(on):
    """Orthonormal basis of {w : 1ᵀw = 0, w = 0 off S}."""
    s = on.nonzero().squeeze(-1)
    p = torch.eye(len(s), dtype=F64) - 1 / len(s)
    values, vectors = torch.linalg.eigh(p)
    z = torch.zeros(len(on), len(s) - 1, dtype=F64)
    z[s] = vectors[:, values > 0.5]
    return z


@pytest.mark.parametrize("kind", ["diagonal", "rank one", "dense", "matrix-free"])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_curvature_against_dense_linear_algebra(kind, d):
    rows = 5
    h, m = structures(rows, d)[kind]
    support, v, t = support_of(rows, d), random(rows, d, seed=8), random(rows, d, seed=9).abs()
    assert torch.allclose(h.matvec(v), (m @ v.unsqueeze(-1)).squeeze(-1))
    more = (m + torch.diag_embed(t)) @ v.unsqueeze(-1)
    assert torch.allclose(h.plus_diagonal(t).matvec(v), more.squeeze(-1))
    w, low = h.jacobian(v, support), h.min_eigenvalue(support)
    assert low.shape == (rows,)
    for i in range(rows):
        z = basis(support[i])
        inner = z.T @ m[i] @ z
        expected = z @ torch.linalg.solve(inner, z.T @ v[i]) if z.shape[1] else 0 * v[i]
        assert torch.allclose(w[i], expected, atol=1e-10)
        assert (w[i][~support[i]] == 0).all()
        if not z.shape[1]:
            assert low[i] == torch.inf
            continue
        smallest = torch.linalg.eigvalsh(inner)[0]
        assert low[i] <= smallest * (1 + 1e-9)  # a lower bound
        assert low[i] > 0
        if kind == "dense":
            assert torch.allclose(low[i], smallest)


@pytest.mark.parametrize("first", structures(1, 1))
@pytest.mark.parametrize("second", structures(1, 1))
def test_curvatures_add_up(first, second):
    (a, m), (b, n) = structures(3, 4)[first], structures(3, 4, seed=5)[second]
    total, v = a.plus(b), random(3, 4, seed=9)
    torch.testing.assert_close(total.matvec(v), ((m + n) @ v.unsqueeze(-1)).squeeze(-1))
    support = torch.tensor([[True, True, True, False]]).expand(3, 4)
    expected = Dense(m + n).jacobian(v, support)
    torch.testing.assert_close(total.jacobian(v, support), expected, atol=1e-9, rtol=1e-9)
    kinds = {type(a), type(b)}
    sparse = DiagonalPlusRankOne if first != second else Dense
    wanted = Diagonal if kinds == {Diagonal} else sparse if Dense not in kinds else Dense
    assert type(total) is (MatrixFree if MatrixFree in kinds else wanted)


@pytest.mark.parametrize("kind", ["dense", "matrix-free", "diagonal"])
def test_lowest_sees_negative_curvature(kind):
    d = 5
    m = torch.diag(torch.tensor([1.0, 2.0, -0.5, 1.0, 3.0], dtype=F64))
    h = {
        "dense": Dense(m),
        "diagonal": Diagonal(m.diagonal()),
        "matrix-free": MatrixFree(lambda v: v @ m, torch.float64),
    }[kind]
    assert h.min_eigenvalue(torch.ones(d, dtype=torch.bool)) <= 0


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_the_sign_of_the_least_eigenvalue_does_not_depend_on_the_size_of_entries(shift):
    """Rounding of the largest entries of D H D hides its least eigenvalue, not its sign."""
    m = random(60, 5, 5, seed=4)
    h = m @ m.mT / 5 + (0.1 - shift) * torch.eye(5, dtype=F64)
    scale = 10 ** (6 * random(60, 5, seed=5).clamp(-1, 1))
    h = h * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    low = Dense(h).min_eigenvalue(torch.ones(60, 5, dtype=torch.bool))
    assert ((low < 0) if shift else (low > 0)).all()


def test_lowest_of_a_matrix_free_curvature_is_on_the_safe_side():
    for seed in range(5):
        m = torch.diag(random(40, seed=seed).abs() + 1e-3)
        low = MatrixFree(lambda v, m=m: v @ m, torch.float64).min_eigenvalue(
            torch.ones(40, dtype=torch.bool)
        )
        z = basis(torch.ones(40, dtype=torch.bool))
        assert low <= torch.linalg.eigvalsh(z.T @ m @ z)[0] * (1 + 1e-9)


class ByProducts(Quadratic):
    """A curvature that is declared by its products alone."""

    def curvature(self, y):
        return MatrixFree(lambda v: v @ self.q + 2 * y * v, y.dtype)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transforms_of_a_curvature_by_products():
    def transformed(omega):
        layer = RegularizedMax(omega)
        (_, second) = torch.func.jvp(
            torch.func.grad(lambda x: layer(x).pow(3).sum()), (x,), (x.square(),)
        )
        return torch.func.vmap(torch.func.hessian(lambda x: layer(x).pow(3).sum()))(x), second

    q, x = spd(4), 0.4 * random(2, 4, seed=3)
    for a, b in zip(transformed(ByProducts(q)), transformed(Quadratic(q)), strict=True):
        assert torch.allclose(a, b, atol=1e-9)


class Hiding(type(regmax.penalty("owl", weights=[3.0, 2.0, 1.0]))):
    """Ordered weights in a dict."""

    def __init__(self, weights):
        self.held, self.entries = {"weights": weights}, len(weights)

    @property
    def weights(self):
        return self.held["weights"]


@pytest.mark.parametrize("base", ["gini", "tsallis"])
def test_tensors_that_a_penalty_hides(base):
    weights = torch.tensor([0.1, 0.05, 0.01], dtype=F64)
    x, index = torch.tensor([[0.3, 0.1, -0.2]], dtype=F64, requires_grad=True), torch.tensor([0])
    for f in (
        lambda omega: RegularizedMax(omega)(x).pow(3).sum(),
        lambda omega: RegularizedMax(omega).max(x).sum(),
        lambda omega: regmax.FenchelYoungLoss(omega)(x, index),
    ):
        got, expected = (
            torch.autograd.grad(f(regmax.regularizer(base) + penalty), x)[0]
            for penalty in (Hiding(weights), regmax.penalty("owl", weights=weights))
        )
        assert (expected != 0).any()
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)
        with pytest.raises(regmax.RegularizerError, match="is not one of its attributes"):
            f(regmax.regularizer(base) + Hiding(weights.clone().requires_grad_()))
