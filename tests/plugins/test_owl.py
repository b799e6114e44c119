"""Ordered weights: against a conic solver, every order, OSCAR; groups; gradients; refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mapping_checks import normal

import regmax

F64 = torch.float64
ROWS = [
    [2.0, 1.5, 1.0, 0.3, -0.4, -1.0],
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, -3.0],
    [5.0, 4.0, 3.0, 2.0, 1.0, 0.0],
    [-1.0] * 6,
]


def owl(weights):
    return regmax.penalty("owl", weights=weights)


def brute_value(w, y):
    """max over all orders: w does not increase."""
    return max(float(np.dot(w, p)) for p in itertools.permutations(y))


@pytest.mark.parametrize("w", ROWS, ids=str)
def test_the_definition(w):
    penalty = owl(w)
    y = (2 * normal(4, 6, seed=1)).round() / 2
    for row, value in zip(y.tolist(), penalty.value(y).tolist(), strict=True):
        assert value == pytest.approx(brute_value(w, row))


def test_oscar_and_the_clique_are_ordered_weights():
    d = 9
    k = torch.arange(1, d + 1)
    v = normal(5, d, seed=3)
    on = normal(5, d, seed=4) > -0.8
    for name, w in (("oscar", d - k), ("clique_tv", d + 1 - 2 * k)):
        special, general = regmax.penalty(name), owl(w.double())
        for step in (0.01, 0.1, 1.0):
            torch.testing.assert_close(special.prox(v, step), general.prox(v, step))
            torch.testing.assert_close(special.prox(v, step, on), general.prox(v, step, on))
        torch.testing.assert_close(special.value(v), general.value(v))
    pairs = (v.unsqueeze(-1) - v.unsqueeze(-2)).abs().sum((-1, -2)) / 2
    torch.testing.assert_close(special.value(v), pairs)


def test_masked_rows_have_the_first_weights():
    w = ROWS[0]
    v, mask = normal(3, 6, seed=5), torch.tensor([1, 0, 1, 1, 0, 1]).bool()
    held, on = v.masked_fill(~mask, torch.nan), mask.expand(3, 6)
    short = owl(w[:4])
    z = owl(w).prox(held, 0.2, on)
    assert torch.equal(z[:, mask], short.prox(v[:, mask], 0.2))
    assert (z[:, ~mask] == 0).all()
    torch.testing.assert_close(owl(w).value(held, on), short.value(v[:, mask]))
    # as of a point of the face of Δ
    y = normal(3, 6, seed=6).abs() * mask
    torch.testing.assert_close(owl(w).value(y, on), owl(w).value(y))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_hard_rows(data):
    d = data.draw(st.integers(1, 8))
    number = st.one_of(st.sampled_from([0.0, 1.0, -1e9, 1e9, 1e-200]), st.floats(-5, 5))
    v = data.draw(st.lists(number, min_size=d, max_size=d))
    w = sorted(data.draw(st.lists(number, min_size=d, max_size=d)), reverse=True)
    step = data.draw(st.sampled_from([0.0, 1e-3, 1.0, 1e6, 1e30]))
    x = torch.tensor([v], dtype=F64)
    z = owl(w).prox(x, step)
    assert z.isfinite().all()
    assert z.max() == 0
    most = 1 + x.abs().max().item()
    if step * (w[0] - w[-1]) < 1e12:
        order = x[0].argsort(descending=True)
        assert (z[0][order].diff() <= 0).all()
        noise = 1e-14 * (most + step * (w[0] - w[-1]))
        u = (x - z)[0].numpy()
        u = u - u.mean() + step * np.mean(w)
        tops = np.sort(u)[::-1].cumsum() - step * np.cumsum(w)
        assert tops.max() <= 8 * d * noise + 1e-15 * step * np.abs(w).max() * d * 8


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1.0, 2.0], ValueError, r"weights must not increase; got 1 at index 0 and then 2"),
        ([1.0, np.nan], ValueError, r"weights must be finite; got nan at index 1"),
        (3, TypeError, r"weights must be numbers w_1 >= .*; got 3"),
        ("ab", TypeError, r"weights must be .*; got 'ab'"),
        (torch.tensor([2, 1]), TypeError, r"weights must be .*; got torch.int64"),
        (torch.ones(2, 2), ValueError, r"weights must be .*; got shape \(2, 2\)"),
        ([], ValueError, r"weights must be .*; got \[\]"),
    ],
)
def test_arguments(weights, error, message):
    with pytest.raises(error, match=message):
        owl(weights)


def test_rows_of_another_length():
    penalty = owl(ROWS[0])
    with pytest.raises(ValueError, match="there are 6, and rows have 5 entries"):
        penalty.value(torch.zeros(2, 5))
    layer = regmax.RegularizedMax(regmax.Penalized(regmax.regularizer("gini"), penalty, 0.1))
    with pytest.raises(ValueError, match=r"x must have 6 entries along dim=1, as .*OWL"):
        layer(torch.zeros(2, 5))
    grid = regmax.penalty("grid_tv", shape=(2, 2))
    inner = regmax.Penalized(regmax.regularizer("gini"), grid, 0.1)
    with pytest.raises(ValueError, match=r"rows of 4 entries, and OWL\(.*\) for rows of 6"):
        _ = regmax.Penalized(inner, penalty, 0.1).entries
