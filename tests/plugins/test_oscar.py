"""oscarmax: against scipy's isotonic regression and every pattern; the paper's approximation."""

from __future__ import annotations

import numpy as np
import references
import torch
from mapping_checks import normal

from regmax.functional import oscarmax


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
