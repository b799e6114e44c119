"""Routers of a mixture of experts on digits: weights, capacity and balance."""

import pytest
import torch

pytest.importorskip("sklearn")

from examples import router


@pytest.mark.parametrize("name", router.ROUTERS)
def test_weights_sum_to_k_and_no_expert_is_over_its_capacity(name):
    torch.manual_seed(0)
    made = router.Router(8, 4, 2, 1.25, router.ROUTERS[name][0]).double()
    tokens = torch.randn(24, 8, dtype=torch.float64)
    _, y, kept = made(tokens)
    assert torch.allclose(y.sum(-1), torch.full((24,), 2.0, dtype=torch.float64))
    assert (y >= 0).all()
    assert (kept > 0).sum(0).max() <= 15  # 1.25 · 2 · 24 / 4
    assert torch.equal(kept, torch.where(kept > 0, y, 0))
    if name.endswith("plan"):
        assert torch.allclose(y.sum(0), torch.full((4,), 12.0, dtype=torch.float64))
    elif "top" not in name:
        assert y.max() <= 1
    (y * torch.randn_like(y)).sum().backward()
    assert made.scores.weight.grad.abs().sum() > 0


def test_the_table(capsys):
    router.main(["--seeds", "1", "--epochs", "1"])
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split(" | ")[0].lstrip("| "): line for line in lines[2:] if line}
    assert list(cells) == list(router.ROUTERS)
    assert "experts used, of 16" in lines[0]
