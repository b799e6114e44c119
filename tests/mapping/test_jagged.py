"""Mappings of jagged nested tensors: of each sequence alone."""

import pytest
import torch

import regmax
from regmax import functional

F64 = torch.float64
NAMES = ("softmax", "sparsemax", "pnormmax", "entmax15", "entmax", "fusedmax", "oscarmax")
LENGTHS = (3, 0, 5, 1)


def jagged(*rest, at=1, holes=False, dtype=F64):
    """Values that learn, and the nested tensor (N, ..., L, ...) of them with L at ``at``."""
    torch.manual_seed(0)
    gap = 2 if holes else 0
    starts = torch.tensor([0, *LENGTHS]).cumsum(0) + gap * torch.arange(len(LENGTHS) + 1)
    shape = list(rest)
    shape.insert(at - 1, int(starts[-1]))
    values = (2 * torch.randn(shape, dtype=dtype)).requires_grad_()
    lengths = torch.tensor(LENGTHS) if holes else None
    return values, torch.nested.nested_tensor_from_jagged(values, starts, lengths, at)


def same(mapping, values, x, dim):
    """Values and gradients of ``mapping(x, dim)`` and of that of each sequence."""
    y = mapping(x, dim)
    assert y.is_nested
    assert y.shape == x.shape
    found = y.unbind()
    inside = dim % x.ndim - 1
    expected = [
        mapping(t, inside) if t.shape[inside] else t * 0 for t in x.unbind() if t is not None
    ]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    grads = [
        torch.autograd.grad(sum((t * t.detach().cos()).sum() for t in each), values)[0]
        for each in (found, expected)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", NAMES)
def test_each_sequence_is_mapped_alone(name):
    mapping = getattr(functional, name)
    for rest, at in (((), 1), ((4,), 1), ((4, 2), 1), ((4, 2), 2), ((4, 2), 3)):
        for holes in (False, True):
            values, x = jagged(*rest, at=at, holes=holes)
            for dim in (*range(1, x.ndim), -1):
                same(lambda t, dim: mapping(t, dim=dim, gamma=0.8), values, x, dim)


@pytest.mark.parametrize("dim", [1, 2])
def test_numbers_masks_and_layers(dim):
    values, x = jagged(4)
    alpha = torch.tensor([[1.2, 1.5, 1.7, 2.0]], dtype=F64)
    alpha = (alpha if dim == 1 else alpha[:, :1]).requires_grad_()
    on = torch.nested.nested_tensor_from_jagged(values.detach() > -1, x.offsets())
    y = functional.entmax(x, alpha=alpha, dim=dim, mask=on)
    expected = [
        functional.entmax(t, alpha=alpha, dim=dim - 1, mask=m) if len(t) else t * 0
        for t, m in zip(x.unbind(), on.unbind(), strict=True)
    ]
    for a, b in zip(y.unbind(), expected, strict=True):
        torch.testing.assert_close(a, b)
    first, second = (
        torch.autograd.grad(sum(t.square().sum() for t in each), [values, alpha])
        for each in (y.unbind(), expected)
    )
    torch.testing.assert_close(first, second)
    columns = torch.tensor([[True, False, True, True]])
    same(lambda t, dim: functional.fusedmax(t, dim=dim, mask=columns), values, x, dim)
    for options in ({}, {"certify": True}, {"solver": "fista"}):
        layers = {
            d: regmax.RegularizedMax(regmax.regularizer("gini"), dim=d, tol=1e-10, **options)
            for d in (dim, dim - 1)
        }
        same(lambda t, d, own=layers: own[d](t), values, x, dim)


def test_a_padding_that_is_nan():
    """What lies between the sequences does not matter."""
    values, x = jagged(4, holes=True)
    with torch.no_grad():
        values[3:5] = torch.nan
    y = functional.sparsemax(x, dim=1)
    assert all(t.isfinite().all() for t in y.unbind())
    (g,) = torch.autograd.grad(sum(t.square().sum() for t in y.unbind()), values)
    assert g.isfinite().all()


def test_compiled_and_in_half_precision():
    x = jagged(4, dtype=torch.bfloat16)[1].detach()
    torch._dynamo.reset()
    for dim in (1, 2):
        expected = functional.entmax15(x, dim=dim)
        assert expected.dtype == torch.bfloat16
        found = torch.compile(lambda t, dim=dim: functional.entmax15(t, dim=dim), backend="eager")(
            x
        )
        for a, b in zip(found.unbind(), expected.unbind(), strict=True):
            assert torch.equal(a, b)


def test_what_is_refused():
    _, x = jagged(4)
    with pytest.raises(ValueError, match="dim must not be 0 where x is nested"):
        functional.sparsemax(x, dim=0)
    with pytest.raises(ValueError, match=r"dim must be in \[-3, 2\]"):
        functional.sparsemax(x, dim=3)
    other = torch.nested.nested_tensor_from_jagged(x.values() > 0, x.offsets().clone())
    for t in (torch.ones(9, 1), torch.ones(4, 1, 1), x):
        with pytest.raises(ValueError, match="gamma must broadcast to the scores of each sequence"):
            functional.sparsemax(x, gamma=t)
    with pytest.raises(ValueError, match="alpha must broadcast to the scores of each sequence"):
        functional.entmax(x, alpha=torch.full((9, 1), 1.5))
    with pytest.raises(ValueError, match=r"mask must broadcast .* got a nested tensor"):
        functional.sparsemax(x, mask=other)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_are_refused():
    x = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)])
    with pytest.raises(TypeError, match=r"x must be a dense tensor .*to_padded_tensor"):
        functional.sparsemax(x)
