"""Total variation on graphs: against a conic solver, every cut, the chain; groups; gradients."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mapping_checks import normal
from processes import python

import regmax

F64 = torch.float64
EDGES = [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5), (5, 0)]
WEIGHTS = [1.0, 0.5, 0.2, 1.3, 0.7, 0.1, 2.0, 0.4]


def graph(edges=None, **kwargs):
    return regmax.penalty("graph_tv", edges=EDGES if edges is None else edges, **kwargs)


def path(d):
    return regmax.penalty("graph_tv", edges=[(i, i + 1) for i in range(d - 1)], nodes=d)


def some_graph(d, m, seed):
    """Random edges with weights that are far apart; some twice."""
    rng = np.random.default_rng(seed)
    edges = [tuple(map(int, rng.choice(d, 2, replace=False))) for _ in range(m)]
    return graph(edges, weights=(10.0 ** rng.uniform(-2, 1, m)).tolist(), nodes=d)


def brute_value(penalty, y, mask=None):
    on = np.ones(len(y), bool) if mask is None else mask
    tails, heads = penalty.graph.ends
    w = penalty._numbers
    return sum(
        w[e] * abs(y[i] - y[j])
        for e, (i, j) in enumerate(zip(tails, heads, strict=True))
        if on[i] and on[j]
    )


def check_element(penalty, u, y, step=1.0, mask=None, tol=1e-12):
    """u ∈ step·∂R(y): ⟨u, s⟩ ≤ step·R(s) for the indicators s of all sets, which is enough for a
    Lovász extension; Σu = 0; ⟨u, y⟩ = step·R(y)."""
    on = np.ones(len(y), bool) if mask is None else mask
    if mask is not None:
        assert not u[~on].any()
    size = tol * (1 + np.abs(u).max(initial=0))
    assert abs(u.sum()) <= size
    for bits in itertools.product([0.0, 1.0], repeat=len(y)):
        s = np.array(bits)
        assert u @ s <= step * brute_value(penalty, s, on) + size
    y = np.where(on, y, 0)
    assert abs(u @ y - step * brute_value(penalty, y, on)) <= size * (1 + np.abs(y).max())


@pytest.mark.parametrize("seed", range(12))
def test_every_cut(seed):
    """v − z ∈ step·∂R(z) decides the prox of a convex R, and every set of nodes decides ∂R."""
    d = 1 + seed % 7
    penalty = some_graph(d, 2 * d, seed) if d > 1 else graph([], nodes=1)
    v = normal(5, d, seed=seed)
    v = (2 * v).round() / 2 if seed % 2 else v
    for step in (0.0, 0.03, 0.3, 1.0, 50.0):
        z = penalty.prox(v, step)
        for k in range(5):
            check_element(penalty, (v - z)[k].numpy(), z[k].numpy(), step)


@pytest.mark.parametrize("d", [1, 2, 3, 17, 200])
def test_a_path_is_the_chain(d):
    chain, line = regmax.penalty("tv"), path(d)
    on = normal(6, d, seed=9) > -1
    v = normal(6, d, seed=d)
    for step in (0.0, 0.1, 1.0, 7.0, 1e30):
        a, b = line.prox(v, step), chain.prox(v, step)
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)  # other sums of the same groups
        assert torch.equal(a[:, 1:] == a[:, :-1], b[:, 1:] == b[:, :-1])
    for step in (0.1, 0.5, 1.0):  # with ties, groups that touch may count as one or two
        a, b = line.prox(v.round(), step), chain.prox(v.round(), step)
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)
        torch.testing.assert_close(line.value(v), chain.value(v))
        joined = line.groups(v)
        same = chain.groups(v)
        assert torch.equal(joined[:, 1:] == joined[:, :-1], same[:, 1:] == same[:, :-1])
    # a masked entry of a chain is skipped; that of a graph takes its edges with it
    parts = line.prox(v, 0.1, on)
    for k in range(6):
        for _, run in itertools.groupby(range(d), key=lambda i: bool(on[k, i])):
            at = list(run)
            if on[k, at[0]]:
                alone = chain.prox(v[k, at], 0.1)
                torch.testing.assert_close(parts[k, at], alone, rtol=0, atol=1e-15)


def test_a_grid():
    penalty = regmax.penalty("grid_tv", shape=(2, 3))
    y = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 7.0]])
    assert penalty.value(y.flatten()).item() == (1 + 2) + (0 + 5) + (2 + 1 + 4)
    assert penalty.entries == 6
    row = regmax.penalty("grid_tv", shape=(1, 9))
    v = normal(4, 9, seed=1)
    assert torch.equal(row.prox(v, 0.3), regmax.penalty("tv").prox(v, 0.3))


def test_groups_are_connected():
    penalty = regmax.penalty("grid_tv", shape=(2, 3))
    z = torch.tensor([1.0, 2.0, 1.0, 1.0, 2.0, 2.0])
    assert penalty.groups(z).tolist() == [0, 1, 2, 0, 1, 1]
    mask = torch.tensor([True, False, True, True, True, True])
    assert penalty.groups(z, mask).tolist() == [0, 1, 2, 0, 4, 4]
    without = graph([(0, 1), (1, 2)], weights=[0.0, 1.0])
    assert without.groups(torch.zeros(3)).tolist() == [0, 1, 1]
    given = torch.stack([z, torch.ones(6)]).expand(3, 2, 6)
    assert torch.equal(torch.func.vmap(penalty.groups)(given), penalty.groups(given))


def test_groups_are_equal_to_the_bit():
    penalty = regmax.penalty("grid_tv", shape=(8, 8))
    for dtype in (torch.float32, F64):
        v = normal(20, 64, seed=2, dtype=dtype)
        for step in (0.05, 0.3, 1.0):
            z = penalty.prox(v, step)
            assert z.dtype == dtype
            tails, heads = penalty.graph.on(v.device)
            jumps = (z[:, tails] - z[:, heads]).abs()
            assert not ((jumps > 0) & (jumps < 1e-6 if dtype == F64 else jumps < 0)).any()
            assert bool((jumps == 0).any())
            wide = penalty.prox(v.double(), step)
            assert torch.equal(z, wide.to(dtype))


def test_masked_is_the_graph_of_participants():
    penalty = graph(weights=WEIGHTS)
    v = normal(5, 6, seed=4)
    mask = torch.tensor([True, True, False, True, True, False])
    kept = [(e, w) for e, w in zip(EDGES, WEIGHTS, strict=True) if not {2, 5} & set(e)]
    place = {0: 0, 1: 1, 3: 2, 4: 3}
    small = graph([(place[i], place[j]) for (i, j), _ in kept], weights=[w for _, w in kept])
    held = v.masked_fill(~mask, torch.nan)
    z = penalty.prox(held, 0.3, mask.expand(5, 6))
    assert torch.equal(z[:, mask], small.prox(v[:, mask], 0.3))
    assert (z[:, ~mask] == 0).all()
    torch.testing.assert_close(penalty.value(held, mask.expand(5, 6)), small.value(v[:, mask]))


def test_steps_and_rows():
    penalty = graph(weights=WEIGHTS)
    v = normal(2, 3, 6, seed=5)
    step = torch.tensor([[[0.1], [0.3], [2.0]]])
    z = penalty.prox(v, step)
    for i, j in itertools.product(range(2), range(3)):
        assert torch.equal(z[i, j], penalty.prox(v[i, j], step[0, j].double()))
    assert torch.equal(penalty.prox(v, 0.0), v)
    far = penalty.prox(v, 1e30)
    torch.testing.assert_close(far, v.mean(-1, keepdim=True).expand_as(v))
    assert (far == far[..., :1]).all()
    assert penalty.prox(v[:0], 0.1).shape == (0, 3, 6)
    assert penalty.groups(v[:0]).shape == (0, 3, 6)
    v[0, 1, 2] = torch.nan
    spoilt = penalty.prox(v, 0.1)
    assert spoilt[0, 1].isnan().all()
    assert not spoilt[0, [0, 2]].isnan().any()
    assert penalty.prox(v, -0.1).isnan().all()
    twice, once = graph([(0, 1)] * 2).prox(v[1, :, :2], 0.1), path(2).prox(v[1, :, :2], 0.2)
    assert torch.equal(twice, once)


numbers = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e12, -1e12, 1e150]),
    st.floats(-10, 10, allow_subnormal=False),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_hard_rows(data):
    """v − z is, up to the rounding of the row, the nearest element of step·∂R(z)."""
    d = data.draw(st.integers(1, 9))
    pair = st.tuples(st.integers(0, d - 1), st.integers(0, d - 1)).filter(lambda e: e[0] != e[1])
    edges = data.draw(st.lists(pair, max_size=20)) if d > 1 else []
    weights = data.draw(
        st.lists(
            st.sampled_from([0.0, 1e-9, 0.3, 1.0, 1e9]), min_size=len(edges), max_size=len(edges)
        )
    )
    v = torch.tensor([data.draw(st.lists(numbers, min_size=d, max_size=d))], dtype=F64)
    step = data.draw(st.sampled_from([0.0, 1e-3, 0.1, 1.0, 1e3, 1e30, 1e300]))
    penalty = graph(edges, weights=weights, nodes=d)
    z = penalty.prox(v, step)
    size = v.abs().max().item()
    assert z.isfinite().all()
    assert (z <= v.max()).all()
    assert (z >= v.min()).all()
    assert abs((z - v).sum().item()) <= 1e-13 * d * size
    most = step * max(weights, default=0.0) * len(edges)
    if most < 1e3 * (1 + size):
        u = penalty.subgradient(z, v - z, step)
        assert (u - (v - z)).abs().max().item() <= 1e-12 * (size + most)


def test_rows_of_another_length():
    penalty = regmax.penalty("grid_tv", shape=(2, 3))
    omega = regmax.Penalized(regmax.regularizer("gini"), penalty, 0.1)
    assert omega.entries == 6
    for x, dim in ((torch.zeros(2, 5), -1), (torch.zeros(7, 6), 0)):
        with pytest.raises(ValueError, match=r"x must have 6 entries along dim=\d, as .*GridTV"):
            regmax.RegularizedMax(omega, dim=dim)(x)
    for call in (penalty.value, penalty.groups, lambda y: penalty.prox(y, 0.1)):
        with pytest.raises(ValueError, match=r"6 nodes, .* rows have 5 entries"):
            call(torch.zeros(2, 5))
    other = regmax.Penalized(omega.base, regmax.penalty("owl", weights=[1.0, 0.0]), 0.1)
    with pytest.raises(ValueError, match="x must have 2 entries"):
        regmax.RegularizedMax(other)(torch.zeros(2, 5))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"edges": [(0, 0)]}, ValueError, r"edges must be pairs .*got \(0, 0\) at index 0"),
        ({"edges": [(0, 1), (2, -1)]}, ValueError, r"edges .* got \(2, -1\) at index 1"),
        ({"edges": [(0, 1.5)]}, TypeError, r"edges .* got float64"),
        ({"edges": torch.zeros(2, 2)}, TypeError, r"edges .* got float32"),
        ({"edges": 3}, TypeError, r"edges .* got 3"),
        ({"edges": [(0, 1, 2)]}, ValueError, r"edges .* got shape \(1, 3\)"),
        ({"edges": [(0, 1), (1,)]}, TypeError, r"edges .* got \[\(0, 1\), \(1,\)\]"),
        ({"edges": []}, ValueError, r"nodes must be given where there are no edges"),
        ({"edges": [(0, 3)], "nodes": 3}, ValueError, r"nodes must be >= 4.*; got 3"),
        ({"edges": [(0, 3)], "nodes": 4.0}, TypeError, r"nodes must be an int or None; got 4.0"),
        ({"edges": [(0, 1)], "weights": [1, 2]}, ValueError, r"weights .* shape \(2,\) for 1"),
        ({"edges": [(0, 1)], "weights": [-1]}, ValueError, r"weights .* got -1 at index 0"),
        ({"edges": [(0, 1)], "weights": [np.inf]}, ValueError, r"weights .* got inf at index 0"),
        ({"edges": [(0, 1)], "weights": 2.0}, TypeError, r"weights must be numbers >= 0.* got 2.0"),
        ({"edges": [(0, 1)], "weights": torch.ones(1, dtype=int)}, TypeError, r"got torch.int64"),
    ],
)
def test_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        regmax.penalty("graph_tv", **arguments)


def test_without_numba():
    """The same functions, not compiled: the same numbers."""
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "import json, torch, regmax\n"
        "import regmax_graph\n"
        "assert not regmax_graph.compiled()\n"
        "x = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))\n"
        "p = regmax.penalty('grid_tv', shape=(3, 4))\n"
        "z = p.prox(x, .3); mask = x > -1\n"
        "print(json.dumps([z.tolist(), p.prox(x, .3, mask).tolist(), p.groups(z).tolist(),\n"
        "                  p.subgradient(z, x - z, .3).tolist(), p.prox(x, 1e300).tolist()]))\n"
    )
    run = python(script, PYTHONWARNINGS="error")
    x = normal(2, 12, seed=3)
    p = regmax.penalty("grid_tv", shape=(3, 4))
    z = p.prox(x, 0.3)
    expected = [z, p.prox(x, 0.3, x > -1), p.groups(z), p.subgradient(z, x - z, 0.3)]
    expected.append(p.prox(x, 1e300))
    for found, right in zip(json.loads(run.stdout), expected, strict=True):
        assert torch.equal(torch.tensor(found, dtype=right.dtype), right)
