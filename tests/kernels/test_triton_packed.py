"""Packed sequences, sinks and dropout of attention in Triton, where they are odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import TRITON_DEVICES, need_triton

need_triton()

from triton_attention import SMALL, TOLERANCE, dense, noted, prepare  # noqa: E402

from regmax import kernels  # noqa: E402
from regmax.kernels.triton import powers  # noqa: E402
from regmax.kernels.triton.attention_launch import ThresholdAttention  # noqa: E402
from regmax.nn import AdaptiveEntmax, attention, attention_weights  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.fixture(params=TRITON_DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    prepare(monkeypatch)
    return str(request.param)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Any]]:
    """The calls of the kernel, and what they compute."""
    return noted(monkeypatch)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_sinks_that_are_no_numbers(name: str, device: str, calls: Any) -> None:
    q, k, v = (torch.randn(1, 4, 5, 8, device=device) for _ in range(3))
    sink = torch.tensor([-torch.inf, torch.inf, torch.nan, -1e38], device=device)[:, None, None]
    mask = torch.ones(5, 5, dtype=torch.bool, device=device)
    mask[1] = False
    mine = attention(q, k, v, name, attn_mask=mask, sink=sink, gamma=0.1)
    assert calls[0] == ["forward"]
    with kernels.reference():
        want = attention(q, k, v, name, attn_mask=mask, sink=sink, gamma=0.1)
    torch.testing.assert_close(mine, want, rtol=0, atol=TOLERANCE, equal_nan=True)
    assert bool(mine[0, 1:3].isnan().all())
    assert torch.equal(mine[0, 0, 1], torch.zeros_like(mine[0, 0, 1]))


def test_a_sink_that_takes_all(device: str, calls: Any) -> None:
    """A weight of 1 on the sink: the results and all gradients are 0."""
    q, k, v = (torch.randn(1, 1, 20, 8, device=device, requires_grad=True) for _ in range(3))
    sink = torch.tensor(1e3, device=device, requires_grad=True)
    out = attention(q, k, v, "sparsemax", sink=sink)
    found = torch.autograd.grad(out, (q, k, v, sink), torch.randn_like(out))
    assert calls[0] == ["forward", "backward"]
    assert not any(bool(t.any()) for t in (out, *found))


def test_the_bound_counts_the_sink(device: str) -> None:
    q, k, v = (torch.randn(1, 1, 20, 8, device=device) for _ in range(3))
    for steps in (0, 2):
        kernel = ThresholdAttention(powers.LINEAR, blocks=SMALL, steps=steps, limit=torch.inf)
        how = kernels.base.Arrangement(1.0)
        out, top, t, total, gap, *_ = kernel.solve(how, False, q, k, v, None, 2.0, 1.0)
        z = torch.cat([q @ k.mT, torch.full((1, 1, 20, 1), 2.0, device=device)], -1).double()
        p = (1 + z - (top + t)[..., None]).clamp_min(0)
        y = p / p.sum(-1, keepdim=True)
        r = z - y
        exact = r.amax(-1) - (y * r).sum(-1)
        assert torch.allclose(total.double(), p.sum(-1), rtol=1e-5)
        assert bool((exact <= gap + 1e-5).all())
        assert torch.allclose(out.double(), y[..., :-1] @ v.double(), atol=TOLERANCE)


def test_packed_otherwise(device: str, calls: Any) -> None:
    """Without the kernel each sequence is computed alone."""
    q, k, v = (torch.randn(2, 8, 8, device=device) for _ in range(3))
    places = torch.tensor([0, 5, 8], device=device)
    for more in ({"chunk": 3}, {"certify": True}, {"omega": "pnormmax"}):
        more = {"omega": "sparsemax", **more}
        mine = attention(q, k, v, cu_seq_q=places, **more)
        want = [attention(*(t[:, i:j] for t in (q, k, v)), **more) for i, j in ((0, 5), (5, 8))]
        torch.testing.assert_close(mine, torch.cat(want, 1))
    assert calls[0] == []


def test_dropout_has_seeds(device: str, calls: Any) -> None:
    q, k, v = (torch.randn(1, 2, 40, 8, device=device) for _ in range(3))
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(attention(q, k, v, "softmax", dropout_p=0.5))
    assert calls[0] == ["forward"] * 3
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
    one, other = calls[1][0], calls[1][2]
    kept = [ThresholdAttention(powers.LINEAR).factors(how, q, k) > 0 for how in (one, other)]
    assert 0.4 < float((kept[0] == kept[1]).float().mean()) < 0.6
    heads = kept[0][0]
    assert 0.4 < float((heads[0] == heads[1]).float().mean()) < 0.6
    assert 0.4 < float((heads[0, 1:] == heads[0, :-1]).float().mean()) < 0.6


@pytest.mark.parametrize("more", ["packed", "sink", "drop"])
def test_second_derivatives(more: str, device: str, calls: Any) -> None:
    q, k, v = (torch.randn(1, 1, 8, 8, device=device, requires_grad=True) for _ in range(3))
    sink = torch.full((1, 1, 1), 0.5, device=device, requires_grad=True)
    omega = AdaptiveEntmax(1).to(device)
    places = torch.tensor([0, 5, 8], device=device) if more != "sink" else None
    out = attention(
        *(q, k, v, omega), sink=sink, cu_seq_q=places, dropout_p=0.3 if more == "drop" else 0.0
    )
    inputs = (q, k, v, sink, omega.a)
    once = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    graph = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    for mine, want in zip(graph, once, strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)
    assert calls[0] == ["forward", "backward"]
    kept = ThresholdAttention(powers.LINEAR).factors(calls[1][0], q, k) if more == "drop" else 1.0
    mask = None if places is None else dense(((5, 3), (5, 3)), False).to(device)
    with kernels.reference():
        weights = attention_weights(q, k, omega, attn_mask=mask, sink=sink)
        want = ((weights * kept) @ v).square().sum()
        want = torch.autograd.grad(want, inputs, create_graph=True)
    mine, want = (
        torch.autograd.grad(sum(t.square().sum() for t in each), inputs) for each in (graph, want)
    )
    for a, b in zip(mine, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
