"""oscarmax: against scipy's isotonic regression and every pattern; the paper's approximation."""

from __future__ import annotations

import numpy as np
import references
import torch
from mapping_checks import (
    away_from_kinks,
    normal,
)
from torch.autograd import gradcheck

from regmax.functional import oscarmax


def test_negative_scores() -> None:
    x = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    np.testing.assert_allclose(oscarmax(x, lam=0.3).numpy(), [0.6, 0, 0.4], atol=1e-15)


# -- exact=False: P_Δ ∘ P_OSC ------------------------------------------------------------------


def composition(x: references.Row, lam: float, gamma: float = 1.0) -> references.Row:
    return references.sparsemax(references.prox_oscar(x / gamma, lam)).astype(float)


def test_the_papers_composition() -> None:
    apart = 0
    for seed, d in enumerate([1, 2, 3, 5, 9, 40]):
        for shift in (0.0, 3.0, -3.0):
            x = normal(4, d, seed=seed) + shift
            for gamma, lam in ((1.0, 0.05), (0.6, 0.02), (1.0, 0.3)):
                y = oscarmax(x, lam=lam, gamma=gamma, exact=False).numpy()
                expected = [composition(row, lam, gamma) for row in x.numpy()]
                np.testing.assert_allclose(y, expected, atol=1e-12)
                exact = oscarmax(x, lam=lam, gamma=gamma).numpy()
                apart += bool(np.abs(exact - y).max() > 1e-3)
    assert apart > 5


def test_the_papers_composition_depends_on_the_zero_of_the_scores() -> None:
    x = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    y = oscarmax(x, lam=0.3, exact=False)
    np.testing.assert_allclose(y.numpy(), [0.525, 0, 0.475], atol=1e-15)
    assert not torch.allclose(y, oscarmax(x + 5, lam=0.3, exact=False), atol=1e-2)
    far = oscarmax(x + 5, lam=0.3, exact=False)
    torch.testing.assert_close(far, oscarmax(x, lam=0.3), rtol=0, atol=1e-14)


def test_the_papers_jacobian() -> None:
    """P_OSC's: sign(z_i z_j)/|G| for |z_i| = |z_j| ≠ 0 (2017, Prop. 3)."""
    x = torch.tensor([1.0, -1.1, 0.5, 0.45, 0.05], dtype=torch.float64)
    lam = 0.03
    z = references.prox_oscar(x.numpy(), lam)
    size = np.abs(z)
    same = (np.abs(size[:, None] - size[None, :]) < 1e-12) & (size > 0)[:, None]
    a = np.sign(z[:, None] * z[None, :]) * same / np.maximum(same.sum(1, keepdims=True), 1)
    s = (references.sparsemax(z) > 0).astype(float)
    j = torch.autograd.functional.jacobian(lambda x: oscarmax(x, lam=lam, exact=False), x)
    np.testing.assert_allclose(j.numpy(), references.support_jacobian(s) @ a, atol=1e-13)


def test_the_papers_gradients() -> None:
    lam = torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    gamma = torch.tensor(0.8, dtype=torch.float64)

    def f(x: torch.Tensor, lam: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return oscarmax(x, lam=lam, gamma=gamma, exact=False)

    x = away_from_kinks(lambda x: f(x, lam, gamma), 2, 2, 4)
    assert gradcheck(f, [t.clone().requires_grad_() for t in (x, lam, gamma)])


def test_the_papers_composition_masked() -> None:
    x = normal(3, 7, seed=3)
    mask = torch.tensor([True, False, True, True, False, True, True])
    y = oscarmax(x.masked_fill(~mask, torch.nan), lam=0.1, exact=False, mask=mask)
    assert (y[:, ~mask] == 0).all()
    short = oscarmax(x[:, mask], lam=0.1, exact=False)
    torch.testing.assert_close(y[:, mask], short, rtol=0, atol=1e-14)
