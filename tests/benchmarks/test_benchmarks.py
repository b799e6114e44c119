"""The benchmarks run, the report has its parts, the arithmetic is right. No time is judged."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import (
    attention_steps,
    child,
    inputs,
    loss_steps,
    own,
    plan,
    report,
    summary,
    words,
)
from benchmarks.peers import COPY, REFERENCE
from benchmarks.plots import spaced
from benchmarks.sections import Bench, linear, main
from benchmarks.timing import CpuWatch, interleave, spread

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_quick_run_measures_everything_and_reports_it(tmp_path):
    """One test, so that test processes do not each measure."""
    assert command.main(["--quick", "--threads", "1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "benchmarks" / "cpu.json").read_text(encoding="utf-8"))
    check_sections(result["sections"])
    check_figures(result)
    check_verdicts(result["verdicts"])
    check_origin(result)
    check_page(tmp_path, result)


def check_sections(sections):
    assert set(sections) == set(plan.SECTIONS)
    wanted = plan.plan("cpu", quick=True)
    names = {REFERENCE, *(f"regmax {mapping}" for mapping in plan.MAPPINGS)}
    for section, cases in {
        "main": len(wanted.shapes) * len(wanted.main_inputs),
        "size": len(wanted.sizes),
        "rows": len(wanted.row_counts),
        "inputs": len(wanted.inputs),
    }.items():
        by_case = {}
        for row in sections[section]:
            by_case.setdefault(summary.key(row), set()).add(row["name"])
        assert len(by_case) == cases
        for found in by_case.values():
            assert names <= found
    assert {row["mapping"] for row in sections["generic-size"]} == set(own.OWN)
    assert {row["d"] for row in sections["generic-size"]} == set(wanted.own_sizes)
    assert set(summary.own(sections["generic"])) == set(own.OWN)
    assert set(summary.composed(sections["composed"])) == set(own.COMPOSED)
    assert {row["input"] for row in sections["linear"]} == set(wanted.linear_inputs)
    check_learning(sections, wanted)
    assert [row["mapping"] for row in sections["first"]] == list(wanted.isolated)
    if sys.platform == "linux":
        assert names <= {row["name"] for row in sections["memory"]}


def check_learning(sections, wanted):
    losses, attention = sections["losses"], sections["attention"]
    for rows, names, cases in (
        (losses, loss_steps.NAMES, len(wanted.losses) * len(wanted.main_inputs) + 1),
        (attention, attention_steps.NAMES, len(wanted.attention) * 2),
    ):
        assert len({summary.key(row) for row in rows}) == cases
        assert all([row["name"] for row in rows].count(name) == cases for name in names)
        assert max(row["error"] for row in rows) < 1e-5
    references = {row["name"] for row in losses + attention if row["family"] == "torch"}
    assert references == {
        loss_steps.CROSS_ENTROPY,
        attention_steps.MATH,
        "torch SDPA default",
    }
    if sys.platform == "linux":
        assert {row["name"] for row in losses} == {r["name"] for r in losses if "memory" in r}


def check_figures(result):
    figures = numbers(result)
    assert len(figures) > 1000
    assert all(math.isfinite(figure) for figure in figures)
    for row in result["sections"]["main"]:
        if row["family"] in ("regmax", "torch"):
            assert row["error"] < 1e-5
        assert (row["zeros"] > 0) == (row["mapping"] != "softmax")


def numbers(item):
    if isinstance(item, dict):
        item = item.values()
    elif not isinstance(item, list):
        assert item is not None
        return [item] if isinstance(item, int | float) else []
    return [figure for part in item for figure in numbers(part)]


def check_verdicts(verdicts):
    said = "\n".join(verdict["what"] for verdict in verdicts)
    for mapping in plan.SOFTMAX_BARS["cpu"]:
        assert f"{mapping} / torch.softmax, geometric mean" in said
        assert f"{mapping} / torch.softmax, worst case" in said
    assert said.count("time per score") == len(plan.CPU.linear_inputs)
    for omega in own.OWN.values():
        assert f"{omega.label}, by its value: certified error" in said
    for composition in own.COMPOSED:
        assert f"{composition} / prox and base by hand, both" in said
    assert said.count("/ CrossEntropyLoss") == len(loss_steps.NAMES)


def check_origin(result):
    assert result["hardware"]["cpu"]
    assert {"python", "regmax", "torch"} <= set(result["versions"])
    assert result["command"].startswith("python -m benchmarks --quick")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert result["commit"]


def check_page(out, result):
    """It has its parts, and comes from the JSON alone."""
    page = out / "benchmarks.md"
    text = page.read_text(encoding="utf-8")
    headings = re.findall("^### (.*)$", text, flags=re.MULTILINE)
    assert {"Bars", "Random and adversarial inputs", "First calls"} <= set(headings)
    assert "sizes that mean nothing" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    if importlib.util.find_spec("matplotlib") is not None:
        pictures = re.findall(r"\]\((.*\.svg)\)", text)
        assert len(pictures) == 4
        assert all((out / picture).exists() for picture in pictures)
    page.unlink()
    assert command.main(["--render", "--out", str(out)]) == 0
    assert page.read_text(encoding="utf-8") == text == report.render([result])


def test_the_committed_page_is_what_its_json_says():
    files = [ROOT / "docs" / "benchmarks" / f"{device}.json" for device in command.DEVICES]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    if not results:
        pytest.skip("no figures are committed")
    page = ROOT / "docs" / "benchmarks.md"
    assert page.read_text(encoding="utf-8") == report.render(results)
    assert not any(result["quick"] for result in results)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_so(tmp_path, capsys):
    assert command.main(["--device", "cuda", "--out", str(tmp_path)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_device_s_plan_makes_the_same_tables():
    """The plan of a GPU with all its candidates, on the CPU's clock."""
    tiny = dataclasses.replace(plan.plan("cuda", quick=True), mappings=("sparsemax",))
    bench = Bench("cuda", tiny, CpuWatch(), 1, lambda text: None)
    bench.device = "cpu"
    sections = {"main": main(bench), "linear": linear(bench)}
    assert not bench.failed
    rows = sections["main"]
    assert {row["dtype"] for row in rows} == {"bfloat16", "float32"}
    assert {REFERENCE, COPY, "regmax sparsemax"} <= {row["name"] for row in rows}
    said = {verdict.what for verdict in summary.verdicts("cuda", sections, tiny.mappings)}
    assert {
        "sparsemax / torch.softmax, worst case",
        "sparsemax: share of the copy bandwidth, worst case",
    } <= said
    assert "### Share of the copy bandwidth" in report.WRITERS["main"](rows, {"device": "cuda"})


# --- arithmetic


def row(name, seconds, *, rows=4, d=8, kind="normal", error=1e-7, dtype="float32"):
    """A row of figures; ``seconds`` forward, twice that backward."""
    family, mapping = name.split(" ")[:2]
    times = {"forward": 1.0, "backward": 2.0, "both": 3.0}
    return {
        "rows": rows,
        "d": d,
        "dtype": dtype,
        "input": kind,
        "name": name,
        "family": family,
        "mapping": mapping,
        "variant": "",
        "zeros": 0.5,
        "error": error,
        **{phase: {"median": factor * seconds} for phase, factor in times.items()},
    }


def test_geomean():
    assert summary.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert summary.geomean([0.5, 2.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no values"):
        summary.geomean([])


def test_spread():
    found = spread([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (found.median, found.low, found.high, found.n) == (3.0, 2.0, 4.0, 5)
    assert spread([7.0]).low == 7.0


def test_softmax_verdicts_are_of_the_mean_and_of_the_worst_case():
    rows = [row(REFERENCE, 1.0), row(REFERENCE, 1.0, kind="ties")]
    rows += [row("regmax sparsemax", 0.25), row("regmax sparsemax", 4.0, kind="ties")]
    mean, worst = summary.verdicts("cpu", {"main": rows}, ["sparsemax"])
    assert (mean.figure, mean.ok) == (pytest.approx(1.0), True)
    assert (worst.figure, worst.ok) == (pytest.approx(4.0), False)
    assert worst.worst == f"4 × 8, {inputs.describe('ties')}"


def test_a_case_that_failed_does_not_pass():
    rows = [row(REFERENCE, 1.0), row(REFERENCE, 1.0, kind="ties"), row("regmax sparsemax", 0.1)]
    (verdict,) = summary.verdicts("cpu", {"main": rows}, ["sparsemax"])
    assert verdict.figure is None
    assert not verdict.ok
    assert "–" in report._verdicts([verdict.to_dict()])


def test_times_faster_than_entmax():
    rows = [row(REFERENCE, 1.0), row("regmax entmax15", 1.0), row("entmax entmax15", 19.0)]
    verdict = summary.verdicts("cpu", {"main": rows}, ["entmax15"])[-1]
    assert (verdict.figure, verdict.bar, verdict.ok) == (pytest.approx(19.0), 20.0, False)


def test_adasplash_counts_where_it_is_about_as_accurate():
    rows = [
        row("regmax entmax15", 2.0, error=1e-6),
        row("adasplash entmax15 n_iter=1", 1.0, error=1e-3),
        row("adasplash entmax15 n_iter=10", 4.0, error=2e-6),
    ]
    verdict = summary.verdicts("cuda", {"main": [row(REFERENCE, 9.0), *rows]}, ["entmax15"])[2]
    assert "adasplash" in verdict.what
    assert (verdict.figure, verdict.ok) == (pytest.approx(0.5), True)


def test_share_of_the_copy_bandwidth():
    rows = [row(REFERENCE, 9.0), row(COPY, 1.0), row("regmax sparsemax", 1.0)]
    (found,) = summary.shares(rows, "regmax sparsemax").values()
    assert found == pytest.approx({"forward": 1.0, "backward": 0.75, "both": 2.5 / 3})
    verdict = summary.verdicts("cuda", {"main": rows}, ["sparsemax"])[-1]
    assert (verdict.figure, verdict.ok) == (pytest.approx(2.5 / 3), True)


def test_cvxpylayers_is_compared_per_row():
    rows = [
        row("regmax sparsemax", 1.0, rows=2),
        row("cvxpylayers sparsemax", 10.0, rows=2),
        row("regmax sparsemax", 4.0, rows=100),
    ]
    found = summary.conic_speedups(rows)["sparsemax"]
    assert found["same"] == pytest.approx(10.0)
    assert found["per row"] == pytest.approx((10 / 2) / (4 / 100))


def test_an_omega_by_its_value_is_judged_per_row():
    certificate = {"certified": 1e-7, "iterations": 3.0, "most": 4.0, "path": "solver dual"}
    rows = [
        row("regmax tsallis15", 1.0, rows=100) | certificate,
        row("regmax entmax15", 0.1, rows=100),
        row("regmax tsallis15", 1.0, rows=2),
        row("cvxpylayers tsallis15", 5.0, rows=2),
    ]
    found = summary.own(rows)["tsallis15"]
    assert found["conic"] == pytest.approx((5.0 / 2) / (1.0 / 100))
    assert found["closed"] == pytest.approx(10.0)
    judged = [v for v in summary.verdicts("cpu", {"generic": rows}, []) if "Tsallis" in v.what]
    assert [v.ok for v in judged] == [False, True, False, True]


def test_an_omega_that_was_not_measured_does_not_pass():
    verdicts = summary.verdicts("cpu", {"generic": [], "composed": []}, [])
    assert verdicts
    assert not any(verdict.ok for verdict in verdicts)


def test_compositions_are_compared_with_their_two_steps():
    rows = [row("regmax a", 1.2) | {"mapping": "tsallis + tv"}]
    rows += [row("by hand", 1.0) | {"family": "by hand", "mapping": "tsallis + tv"}]
    verdicts = summary.verdicts("cpu", {"composed": rows}, [])
    found = {v.what: v.figure for v in verdicts}
    assert found["tsallis + tv / prox and base by hand, forward"] == pytest.approx(1.2)


def test_a_task_that_takes_too_long_is_stopped_and_is_no_fault():
    with pytest.raises(child.Failed, match="stopped after") as caught:
        child.generic(1, "quadratic", 1, 16, 0.01)
    assert not caught.value.ours


@pytest.mark.parametrize("name", own.COMPOSED)
def test_compositions_by_hand_are_the_same(name):
    x = inputs.case("normal", 4, 16, torch.float64)
    ours, by_hand = (c.apply(x.x, x.alpha) for c in own.composed_candidates(name, 16))
    assert torch.allclose(ours, by_hand, atol=1e-12)


@pytest.mark.parametrize("name", own.OWN)
def test_an_omega_and_its_reference_are_the_same(name):
    x = inputs.case("normal", 4, 16, torch.float64)
    y = own.own_candidate(name, 16).apply(x.x, x.alpha)
    assert torch.allclose(y, own.reference(name, 16).apply(x.x, x.alpha), atol=1e-8)
    assert own.certified(name, x)["certified"] < plan.OWN_ERROR_BAR


def test_growth_is_per_score():
    rows = [
        row("regmax fusedmax", 1.0, rows=100, d=10),
        row("regmax fusedmax", 3.0, rows=1, d=1000),
    ]
    assert summary.growth(rows) == {"normal": pytest.approx(3.0)}
    (verdict,) = summary.verdicts("cpu", {"linear": rows}, ["fusedmax"])
    assert not verdict.ok


class Counted:
    """A run that takes the seconds it says, by a watch that believes it."""

    def __init__(self, name, seconds):
        self.name, self.seconds, self.log = name, seconds, []

    def forward(self):
        self.log.append("forward")

    def backward(self):
        self.log.append("backward")

    def reset(self):
        self.log.append("reset")


class Believing:
    def start(self, run):
        run.forward()
        run.backward()
        run.reset()
        return run.seconds

    def read(self, lap):
        return lap, 2 * lap


def test_turns_follow_the_budget_and_are_spread_over_the_rounds():
    fast, slow = Counted("fast", 0.01), Counted("slow", 1.0)
    found = interleave([fast, slow], Believing(), budget=0.3, rounds=60, at_least=3)
    assert found["fast"].both.n == 10
    assert found["slow"].both.n == 3
    assert found["slow"].both.median == pytest.approx(3.0)
    assert slow.log == ["forward", "backward", "reset"] * 4  # one to know its cost


def test_labels_keep_their_order_and_their_distance():
    values = [10.0, 10.1, 10.2, 500.0, 9.9]
    moved = spaced(values, 1.0, 1000.0, gap=0.1)
    places = sorted(math.log(v, 1000.0) for v in moved)
    assert all(b - a > 0.0999 for a, b in itertools.pairwise(places))
    assert sorted(range(5), key=values.__getitem__) == sorted(range(5), key=moved.__getitem__)
    assert moved[3] == pytest.approx(500.0)


@pytest.mark.parametrize("kind", inputs.KINDS)
def test_inputs_are_reproducible_and_leave_something_in_each_row(kind):
    a, b = inputs.case(kind, 5, 16), inputs.case(kind, 5, 16)
    assert torch.equal(a.x, b.x)
    assert a.x.shape == a.v.shape == (5, 16)
    assert a.x.dtype == torch.float32
    assert torch.isfinite(a.x).any(-1).all()
    assert a.x.is_contiguous()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.5, "1.5 s"), (2e-3, "2 ms"), (1.234e-5, "12.3 µs"), (5e-9, "5 ns"), (1234.0, "1234 s")],
)
def test_seconds(value, text):
    assert words.seconds(value) == text
