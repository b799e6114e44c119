"""The Jacobian of a layer, against autograd row by row and against the printed formula."""

import pytest
import torch
from mapping_checks import normal as drawn
from omegas import Cubic
from torch.autograd import forward_ad

import regmax
from regmax.optimality.jacobian import dense_jacobian

F64 = torch.float64
OMEGAS = {
    "softmax": regmax.regularizer("entropy"),
    "entmax": regmax.regularizer("tsallis"),
    "pnormmax": regmax.regularizer("pnorm"),
    "fusedmax": regmax.regularizer("tv"),
    "fused entmax": regmax.regularizer("tsallis") + 0.1 * regmax.penalty("tv"),
    "by value": Cubic(),
}


def by_rows(layer, x, mask):
    """(rows, d, d) by autograd, one row at a time."""
    flat, on = x.reshape(-1, x.shape[-1]), mask.expand(x.shape).reshape(-1, x.shape[-1])
    each = [
        torch.autograd.functional.jacobian(lambda t, m=m: layer(t, m), r)
        for r, m in zip(flat, on, strict=True)
    ]
    return torch.stack(each)


@pytest.mark.parametrize("name", OMEGAS)
def test_is_what_autograd_gives(name):
    x, mask = drawn(2, 3, 5), drawn(3, 5, seed=1) > -0.8
    layer = regmax.RegularizedMax(OMEGAS[name], 0.4)
    j = layer.jacobian(x, mask)
    assert j.shape == (2, 3, 5, 5)
    assert not j.requires_grad
    torch.testing.assert_close(j.reshape(6, 5, 5), by_rows(layer, x, mask), atol=1e-9, rtol=0)
    torch.testing.assert_close(j, j.mT, atol=1e-9, rtol=0)
    assert bool((j.masked_select(~mask.unsqueeze(-1)) == 0).all())


@pytest.mark.parametrize("name", ["softmax", "entmax", "by value"])
def test_is_the_printed_formula_over_gamma(name):
    x, gamma = drawn(6), 0.7
    layer = regmax.RegularizedMax(OMEGAS[name], gamma)
    printed = dense_jacobian(OMEGAS[name], layer(x)) / gamma
    torch.testing.assert_close(layer.jacobian(x), printed, atol=1e-8, rtol=0)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_operator_and_its_norms(dim):
    x, gamma = 2 * drawn(3, 4, 5), 0.6
    layer = regmax.RegularizedMax(OMEGAS["fused entmax"], gamma, dim=dim)
    dense, j = layer.jacobian(x), layer.jacobian(x, dense=False)
    assert j.shape == dense.shape
    v = drawn(*x.shape, seed=2)
    expected = torch.einsum("...ij,...j->...i", dense, v.movedim(dim, -1)).movedim(-1, dim)
    torch.testing.assert_close(j @ v, expected)
    assert torch.equal(j.matvec(v), j @ v)
    torch.testing.assert_close(j.dense(), dense)
    torch.testing.assert_close(j.norm(), torch.linalg.matrix_norm(dense, 2))
    torch.testing.assert_close(j.norm("frobenius"), torch.linalg.matrix_norm(dense))
    assert "Jacobian(of shape" in repr(j)
    with pytest.raises(ValueError, match="kind must be one of 'spectral', 'frobenius'; got 'max'"):
        j.norm("max")


def test_rows_without_an_answer():
    x = torch.tensor([[1.0, 0.9, 0.0], [torch.nan, 0.0, 1.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 3, [True] * 3, [False] * 3])
    j = regmax.RegularizedMax(regmax.regularizer("gini")).jacobian(x, mask, dense=False)
    assert j.dense().isnan().all(-1).all(-1).tolist() == [False, True, False]
    assert not bool(j.dense()[2].any())
    assert j.norm().tolist() == pytest.approx([1.0, torch.nan, 0.0], nan_ok=True)


@pytest.mark.parametrize("x", [[1.0, 2.0], torch.tensor([1, 2])])
def test_what_are_no_scores(x):
    with pytest.raises(TypeError, match="x must be"):
        regmax.RegularizedMax(regmax.regularizer("gini")).jacobian(x)


def test_of_a_loss():
    mapping = regmax.SparsemaxLoss().mapping  # along dimension 1, or 0 of one row
    assert mapping.jacobian(drawn(2, 3, 4)).shape == (2, 4, 3, 3)
    assert mapping.jacobian(drawn(3)).shape == (3, 3)
    assert torch.equal(mapping(drawn(3)), regmax.functional.sparsemax(drawn(3)))
    assert mapping.max(drawn(3)).shape == ()
    assert "along dim 0" in mapping.explain(drawn(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype):
    x = drawn(2, 4, dtype=dtype)
    layer = regmax.RegularizedMax(regmax.regularizer("tsallis"))
    assert layer.jacobian(x).dtype == torch.float32
    torch.testing.assert_close(
        layer.jacobian(x).double(), layer.jacobian(x.double()), atol=1e-6, rtol=0
    )


def test_without_gradients_and_in_inference_mode():
    x = drawn(2, 4)
    layer = regmax.RegularizedMax(regmax.regularizer("tsallis"))
    expected = layer.jacobian(x)
    with torch.no_grad():
        assert torch.equal(layer.jacobian(x), expected)
    with torch.inference_mode():
        j = layer.jacobian(drawn(2, 4), dense=False)
        assert torch.equal(j.dense(), expected)
        assert torch.equal(j @ torch.ones(2, 4, dtype=F64), j @ torch.ones(2, 4, dtype=F64))


def test_is_differentiable_in_scores_and_hyperparameters():
    x, alpha = drawn(1, 4).requires_grad_(), torch.tensor(1.3, dtype=F64, requires_grad=True)

    def j(x, alpha):
        return regmax.RegularizedMax(regmax.regularizer("tsallis", alpha=alpha)).jacobian(x)

    assert torch.autograd.gradcheck(j, (x, alpha))


def test_an_approximation_has_a_dense_jacobian_alone():
    layer = regmax.RegularizedMax(regmax.regularizer("oscar", lam=0.2, exact=False))
    x = drawn(5)
    expected = torch.autograd.functional.jacobian(layer, x)
    torch.testing.assert_close(layer.jacobian(x), expected)
    j = layer.jacobian(x, dense=False)
    torch.testing.assert_close(j.norm(), torch.linalg.matrix_norm(expected, 2))
    with pytest.raises(regmax.RegularizerError, match="take it dense"):
        j @ x


@pytest.mark.filterwarnings("ignore:.*jit.script.* is deprecated")
def test_forward_mode_is_refused():
    """It saw no tangent, and gave the derivative 0."""
    layer, x = regmax.RegularizedMax(regmax.regularizer("entropy")), drawn(2, 4)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        layer.jacobian(forward_ad.make_dual(x, torch.ones_like(x)))
    with pytest.raises(NotImplementedError, match="jacrev"):
        torch.func.vmap(layer.jacobian)(x)


def test_what_is_no_vector_is_refused():
    j = regmax.RegularizedMax(regmax.regularizer("gini"), dim=0).jacobian(drawn(3, 5), dense=False)
    assert (j @ torch.ones(3, 1)).shape == (3, 5)
    with pytest.raises(ValueError, match=r"v must broadcast to x: v has shape \(3,\), x \(3, 5\)"):
        j @ torch.ones(3)
    with pytest.raises(TypeError, match=r"v must be a torch\.Tensor; got list"):
        j @ [1.0] * 3
