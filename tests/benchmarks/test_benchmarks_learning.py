"""Losses and attention as the benchmarks run them: the same numbers, the right arithmetic."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks import attention_steps, inputs, learning_page, loss_steps, summary


def row(name, seconds, *, d=100, kind="a"):
    """A row of figures."""
    times = {"median": seconds, "low": seconds, "high": seconds, "n": 3}
    return {
        "rows": 4,
        "d": d,
        "dtype": "float32",
        "input": kind,
        "name": name,
        "zeros": 0.5,
        "error": 1e-7,
        **dict.fromkeys(("forward", "backward", "both"), times),
    }


def test_losses_are_judged_on_the_most_classes_by_their_worst_case():
    *ours, missing = loss_steps.NAMES
    rows = [row(loss_steps.CROSS_ENTROPY, 1.0, d=10), row(ours[0], 9.0, d=10)]
    for kind, seconds in (("a", 0.5), ("b", 0.75)):
        rows += [row(loss_steps.CROSS_ENTROPY, 1.0, kind=kind)]
        rows += [row(name, seconds, kind=kind) for name in ours]
    rows += [row(missing, 0.5, kind="a")]
    *judged, without = summary.verdicts("cpu", {"losses": rows}, [])
    assert [(v.figure, v.worst, v.ok) for v in judged] == [(0.75, "b", True)] * len(ours)
    assert without.figure is None
    assert not any(v.ok for v in summary.verdicts("cpu", {"losses": []}, []))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_loss_that_is_off_shows_in_its_error(smoothing):
    given = loss_steps.batch(inputs.case("normal", 6, 10), smoothing)
    package = not smoothing and importlib.util.find_spec("entmax") is not None
    steps = loss_steps.steps(given, package=package)
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        step.forward()
        step.backward()
        x = step.leaves[0]
        assert loss_steps.facts(step, given, 4)["error"] < 1e-6, step.name
        x.grad[1, 2] += 1e-3 / 6
        assert loss_steps.facts(step, given, 4)["error"] == pytest.approx(1e-3, rel=1e-2)
        step.reset()
        assert all(leaf.grad is None for leaf in step.leaves)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_that_is_off_shows_in_its_error(causal):
    given = attention_steps.heads((2, 3, 4, 8), causal, "cpu")
    for step in attention_steps.steps(given):
        step.forward()
        step.backward()
        assert all(leaf.grad is not None for leaf in step.leaves), step.name
        assert attention_steps.facts(step, given)["error"] < 1e-5, step.name
        step.y = step.y + 1e-3
        assert attention_steps.facts(step, given)["error"] == pytest.approx(1e-3, rel=1e-2)


def test_losses_are_in_units_of_cross_entropy():
    rows = [row(loss_steps.CROSS_ENTROPY, 2.0), row(loss_steps.NAMES[1], 1.0)]
    rows[1]["memory"] = {"forward": 1.0, "both": 1.25}
    text = learning_page.WRITERS["losses"](rows, {})
    assert f"| {loss_steps.CROSS_ENTROPY} | 1.00 | – |" in text
    assert f"| {loss_steps.NAMES[1]} | 0.50 | 1.00, 1.25 |" in text


def test_attention_is_in_units_of_the_backend_that_keeps_the_weights():
    rows = [row(attention_steps.MATH, 2.0), row(attention_steps.NAMES[0], 3.0)]
    text = learning_page.WRITERS["attention"](rows, {})
    assert f"| {attention_steps.NAMES[0]} | 1.50 |" in text
