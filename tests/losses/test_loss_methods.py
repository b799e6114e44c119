"""Fenchel–Young losses: the methods of one loss agree, and transforms and compilers follow it."""

import pytest
import torch
from loss_cases import (
    OMEGAS,
    close,
    distributions,
    indices,
    value_and_gradient,
)
from mapping_checks import normal
from torch.func import vmap

from regmax.losses import FenchelYoungLoss, SparsemaxLoss, targets

# forward mode makes PyTorch warn of its own deprecated parts
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


# -- one loss, several methods -------------------------------------------------------------------


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


def test_an_index_out_of_range_is_nan_where_nobody_may_look():
    x, k = normal(3, 5), torch.tensor([1, 7, -2])
    value = vmap(SparsemaxLoss(reduction="none"))(x, k)
    assert torch.isnan(value).tolist() == [False, True, True]
