"""A call with tensors for hyperparameters, after others: they are checked, followed, and freed."""

import gc
import weakref

import pytest
import torch

from regmax import functional

NAMES = {"entmax": "alpha", "pnormmax": "p", "fusedmax": "lam", "oscarmax": "lam"}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def numbers(name, shape, dtype=torch.float32):
    """Hyperparameters between 0.2 and 0.7 for a penalty, between 1.2 and 1.7 for an exponent."""
    t = 0.2 + 0.5 * torch.rand(shape, dtype=dtype)
    return (t if NAMES[name] == "lam" else 1 + t).requires_grad_()


def test_numbers_are_checked_at_every_call(name):
    mapping, key, x = getattr(functional, name), NAMES[name], torch.randn(4, 8)
    theta = numbers(name, (4, 1))
    mapping(x, **{key: theta})
    with torch.no_grad():
        theta[2] = -1.0
    with pytest.raises(ValueError, match=rf"{key} must be .*; got -1 at index \(2, 0\)"):
        mapping(x, **{key: theta})
    with pytest.raises(ValueError, match=f"{key} must broadcast to x"):
        mapping(x, **{key: theta[:2]})


def test_no_tensor_of_a_call_is_kept(name):
    mapping, key, x = getattr(functional, name), NAMES[name], torch.randn(4, 9)
    for _ in range(2):
        theta = numbers(name, (4, 1))
        gone = weakref.ref(theta)
        mapping(x, **{key: theta})
        del theta
        gc.collect()
        assert gone() is None
