"""γ by the number of keys: its equation, its gradients, and the keys that a layer counts."""

from __future__ import annotations

import math

import pytest
import torch

from regmax.nn import LengthScaled, MultiheadAttention, attention

F64 = torch.float64
N, L, E, H = 2, 5, 8, 2


def random(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.double()


def test_the_equation():
    module = LengthScaled(3, delta=0.5, beta=0.7, reach=2.0).double()
    torch.testing.assert_close(1 / module(100), torch.full((3, 1, 1), 0.5 + 0.7, dtype=F64))
    with torch.no_grad():
        module.c.fill_(math.atanh(0.6))
    expected = 0.5 + 0.7 * math.log(100) ** 1.2
    torch.testing.assert_close(1 / module(100), torch.full((3, 1, 1), expected, dtype=F64))
    scalable = LengthScaled(1, delta=0.0, beta=0.43, power=1).double()
    assert 1 / scalable(50).item() == pytest.approx(0.43 * math.log(50))


def test_each_query_has_its_own():
    module, x = random(LengthScaled(H, E)), torch.randn(N, L, E, dtype=F64)
    n = torch.arange(1, L + 1)[:, None]
    gamma = module(n, x)
    assert gamma.shape == (N, H, L, 1)
    torch.testing.assert_close(gamma[1, :, 3], module(4, x[1, 3:4])[:, 0])
    assert torch.autograd.gradcheck(lambda *t: module(n, x), tuple(module.parameters()))
    assert module.half()(n, x.half()).dtype == torch.float32


def test_a_layer_counts_the_keys_of_each_query():
    layer = MultiheadAttention(E, H, batch_first=True, omega="entmax15", gamma=LengthScaled(H, E))
    random(layer)
    x, hidden = torch.randn(N, L, E, dtype=F64), torch.ones(L, L, dtype=torch.bool).triu(1)
    out, _ = layer(x, x, x, attn_mask=hidden)
    q, k, v = (
        t.unflatten(-1, (H, -1)).transpose(1, 2)
        for t in torch.nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(
            3, -1
        )
    )
    gamma = layer.gamma(torch.arange(1, L + 1)[:, None], x)
    heads = attention(q, k, v, "entmax15", is_causal=True, gamma=gamma)
    torch.testing.assert_close(out, layer.out_proj(heads.transpose(1, 2).flatten(2)))
    floating = torch.zeros(L, L, dtype=F64).masked_fill(hidden, -torch.inf)
    torch.testing.assert_close(layer(x, x, x, attn_mask=floating, need_weights=False)[0], out)
    out.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in layer.gamma.parameters())


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"delta must be >= 0, beta > 0 and reach > 0"):
        LengthScaled(H, delta=-1.0)
    with pytest.raises(ValueError, match=r"x must have shape \(..., L, 8\); got None"):
        LengthScaled(H, E)(3)
    assert repr(LengthScaled(2, power=1)) == "LengthScaled(2, power=1)"
