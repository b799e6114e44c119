"""Attention whose weights are in another domain than the simplex."""

import pytest
import torch

from regmax import AtMost, Box, Simplex
from regmax.functional import entmax15
from regmax.nn import MultiheadAttention, attention, attention_weights, explain_attention

F64 = torch.float64
L, S = 4, 6
pytestmark = pytest.mark.filterwarnings("ignore:.*jit.script.* is deprecated")
DOMAINS = {
    "capped": lambda: Simplex(upper=0.4),
    "total of each head": lambda: Simplex(torch.tensor([1.5, 0.8], dtype=F64).view(2, 1, 1)),
    "cap of each key": lambda: AtMost(1.2, torch.linspace(0.3, 0.8, S, dtype=F64)),
    "box": lambda: Box(0.05, 0.6),
}
each = pytest.mark.parametrize("name", DOMAINS)


def qkv():
    generator = torch.Generator().manual_seed(3)
    shapes = ((3, 2, L, 5), (3, 2, S, 5), (3, 2, S, 7))
    made = [2 * torch.randn(shape, generator=generator, dtype=F64) for shape in shapes]
    made[1][:, :, 2] = made[1][:, :, 1]  # ties
    return [t.requires_grad_() for t in made]


def mask_of(keys=S):
    mask = torch.ones(3, 1, L, keys, dtype=torch.bool)
    mask[0, 0, 1, 3:] = mask[1, 0, :, 0] = False
    mask[2, 0, 3] = False
    return mask


def gradients(out, inputs):
    return torch.autograd.grad((out * out.detach().sin()).sum(), inputs, retain_graph=True)


@each
def test_weights_are_the_mapping_of_the_scores(name):
    q, k, v = inputs = qkv()
    domain, mask = DOMAINS[name](), mask_of()
    s = q @ k.mT / 5**0.5
    y = entmax15(s, mask=mask, domain=domain)
    weights = attention_weights(q, k, "entmax15", attn_mask=mask, domain=domain)
    assert torch.allclose(weights, y, rtol=0, atol=1e-13)
    assert torch.equal(weights == 0, y == 0)
    out = attention(q, k, v, "entmax15", attn_mask=mask, domain=domain)
    assert torch.allclose(out, y @ v, rtol=0, atol=1e-12)
    assert (out[2, :, 3] == 0).all()  # no keys
    for a, b in zip(gradients(out, inputs), gradients(y @ v, inputs), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-11)


@each
@pytest.mark.parametrize("causal", [False, True])
def test_chunks_are_as_all_queries_at_once(name, causal):
    inputs, domain = qkv(), DOMAINS[name]()
    if causal and domain.fixed_total:
        domain = AtMost(1.2, 0.4)
    given = {"is_causal": True} if causal else {"attn_mask": mask_of()}
    given |= {"domain": domain}
    assert explain_attention(*inputs, "sparsemax", chunk=3, **given).startswith("chunks")
    whole = attention(*inputs, "sparsemax", **given)
    parts = attention(*inputs, "sparsemax", chunk=3, **given)
    assert torch.allclose(parts, whole, rtol=0, atol=1e-13)
    for a, b in zip(gradients(parts, inputs), gradients(whole, inputs), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_learned_bounds_and_those_of_each_query_take_all_scores():
    inputs = qkv()
    caps = torch.full((L, 1), 0.5, dtype=F64, requires_grad=True)
    for domain in (Simplex(upper=caps), AtMost(caps.detach() + 0.5), Box(0.0, caps[0])):
        way = explain_attention(*inputs, "sparsemax", chunk=2, domain=domain)
        assert "domain= learns, or differs between queries" in way
    attention(*inputs, "sparsemax", chunk=2, domain=Simplex(upper=caps)).square().sum().backward()
    assert (caps.grad != 0).any()


def test_sinks_groups_and_causal_rows():
    q, k, v = qkv()
    domain = Simplex(upper=0.5)
    weights = attention_weights(q, k, "entmax15", sink=torch.tensor([0.5, 3.0]), domain=domain)
    total = weights.sum(-1)
    assert (total <= 1 + 1e-12).all()
    assert (total < 0.6).any()
    assert (total >= 0.5 - 1e-12).all()  # the sink has at most its cap
    one = attention(q, k[:, :1], v[:, :1], "softmax", enable_gqa=True, domain=domain)
    both = attention(q, *(t[:, :1].expand_as(t) for t in (k, v)), "softmax", domain=domain)
    assert torch.allclose(one, both, rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match=r"no y has sum = 1 at row .*: the upper bounds"):
        attention(q, k, v, "softmax", is_causal=True, domain=domain)
    packed = attention(
        *(t[0] for t in (q, k[:, :, :L], v[:, :, :L])),
        *("sparsemax",),
        cu_seq_q=torch.tensor([0, 3, L]),
        domain=AtMost(0.8),
    )
    alone = attention(q[0, :, :3], k[0, :, :3], v[0, :, :3], "sparsemax", domain=AtMost(0.8))
    assert torch.allclose(packed[:, :3], alone, rtol=0, atol=1e-13)


def test_the_simplex_itself_has_its_kernels():
    inputs = qkv()
    plain = explain_attention(*inputs, "entmax15")
    assert explain_attention(*inputs, "entmax15", domain=Simplex()) == plain
    with pytest.raises(TypeError, match="domain must be"):
        attention(*inputs, "entmax15", domain="box")


def test_layer():
    caps = torch.nn.Parameter(torch.full((2, 1, 1), 0.4))
    layer = MultiheadAttention(8, 2, omega="entmax15", batch_first=True, domain=Simplex(upper=caps))
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 4] = True
    out, weights = layer(x, x, x, padding, average_attn_weights=False)
    assert weights.amax().item() == caps.amax().item()
    assert (weights[1, ..., 4] == 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(()))
    other, _ = layer(x, x, x, padding, need_weights=False)
    assert torch.allclose(out, other, atol=1e-6)
    out.square().sum().backward()
    assert (caps.grad != 0).all()
    assert "domain.upper" in layer.state_dict()
    assert "domain=Simplex(upper=" in repr(layer)
    taken = MultiheadAttention.from_torch(layer, layer.omega, domain=layer.domain)
    assert torch.equal(taken(x, x, x, padding)[0], out)
    torch._dynamo.reset()
    recorded = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.allclose(recorded(x, x, x, padding)[0], out, atol=1e-6)
