"""The program runs and writes its tables, the errors it reports are errors. No time is judged."""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
import re
from pathlib import Path

import pytest
import torch
from processes import python

from benchmarks import __main__ as command
from benchmarks import first, inputs, learning, own, page, peers, plan, sections
from benchmarks.timing import Figure, Step

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_quick_run_writes_every_section(tmp_path, monkeypatch):
    monkeypatch.setattr(first, "first", lambda *task: [1.0] * 4)  # the test below starts a process
    assert command.main(["--quick", "--threads", "1", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    titles = re.findall("^### (.*)$", text, flags=re.MULTILINE)
    assert len(titles) >= len(sections.SECTIONS)
    assert "A quick run" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    for name in (f"regmax {mapping}" for mapping in plan.MAPPINGS):
        assert text.count(f"| {name} | ") >= 4
    for name in ("torch.compile", "torch.func.grad", "torch.func.jvp"):
        assert f"| regmax, {name} | " in text
    errors = re.findall(r"^\| regmax.* (\de-\d\d) \|$", text, flags=re.MULTILINE)
    assert len(errors) > 40
    assert max(map(float, errors)) < 1e-5


def test_a_first_call_runs_in_a_process_of_its_own():
    assert all(seconds > 0 for seconds in first.first("cpu", 1, "softmax", 2, 8))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_so(tmp_path, capsys):
    assert command.main(["--device", "cuda", "--out", str(tmp_path)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_plan_of_a_gpu_runs():
    bench = sections.Bench("cpu", 1, quick=True)
    bench.plan = dataclasses.replace(plan.plan("cuda", quick=True), shapes=((4, 32),))
    text = sections.mappings(bench)
    assert "bfloat16" in text
    assert not bench.failed


def test_a_candidate_that_fails_is_named():
    def broken(x):
        raise ArithmeticError("no answer")

    x = torch.ones(2, requires_grad=True)
    steps = [Step("torch softmax", torch.sum, (x,)), Step("regmax broken", broken, (x,))]
    bench = sections.Bench("cpu", 1, quick=True)
    assert "broken" not in bench.table([("a case", steps)])
    assert bench.left_out == [("regmax broken, a case", "ArithmeticError: no answer")]
    assert bench.failed


def test_a_run_replaces_the_tables_of_its_device(tmp_path):
    file = tmp_path / "benchmarks.md"
    for device, text in (("cpu", "one"), ("cuda", "two"), ("cpu", "three")):
        page.write(file, device, text)
    file.write_text(file.read_text(encoding="utf-8") + "prose\n", encoding="utf-8")
    page.write(file, "cuda", "four")
    words = re.sub("<!--.*?-->", "", file.read_text(encoding="utf-8")).split()
    assert words == ["#", "Benchmarks", "three", "four", "prose"]


def test_ratios_are_over_the_reference_of_the_same_case():
    figures = {
        "slow": {"a": Figure(1.0, 8.0, 0.0), "b": Figure(3.0, 4.0, 0.0)},
        "fast": {"a": Figure(1.0, 2.0, 0.0), "b": Figure(1.0, 2e-3, 0.0)},
        "half": {"a": Figure(1.0, 2.0, 0.0)},
    }
    lines = page.ratios(figures, {"slow": 1e-7}, "fast", True).splitlines()
    assert lines[0] == "|  | mean | worst | a | b | error |"
    assert lines[2] == "| fast | 1.00 | 1.00 | 1 s, 2 s | 1 s, 2 ms |  |"
    assert lines[3] == "| slow | 89.4 | 2,000 | 1.00, 4.00 | 3.00, 2,000 | 1e-07 |"
    assert lines[4] == "| half | 1.00 | 1.00 | 1.00, 1.00 | – |  |"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the malloc of glibc")
def test_times_are_taken_in_warm_memory_and_peaks_in_new():
    program = """
import resource, torch
from benchmarks import memory
from benchmarks.timing import Step

def faults(size=1 << 24):  # of 64 MiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

step = Step("copy", torch.clone, (torch.ones(1 << 22, requires_grad=True),), torch.ones(1 << 22))
step.forward(), step.backward(), step.reset()
for _ in range(2):
    memory.keep()
    assert sum(faults() for _ in range(4)) < 64, "memory is new"
    forward, both = memory.peak(step, "cpu")
    assert 0.9 < forward < 1.2 and 1.8 < both < 2.2, (forward, both)
"""
    python(program, cwd=ROOT)


@pytest.mark.parametrize("name", own.OWN)
def test_an_omega_by_its_value_is_solved(name):
    omega, case = own.OWN[name], inputs.case("normal", 4, 16, torch.float64)
    step = omega.candidate(16).step(case, exact=omega.exact(16))
    step.forward()
    assert step.error(step) < 1e-8
    assert omega.certified(step) < 1e-8


def steps():
    x = inputs.case("normal", 6, 10).x
    package = importlib.util.find_spec("entmax") is not None
    found = learning.losses(x, package=package) + learning.losses(x, 0.1)
    found += learning.own_losses(own.Cubic(), x.double())
    found += learning.heads((2, 3, 4, 8), True, "cpu")
    return [*found, peers.regmax_candidate("entmax").step(inputs.case("normal", 6, 10))]


@pytest.mark.parametrize("step", steps(), ids=lambda step: step.name)
def test_a_wrong_answer_shows_in_the_error(step):
    step.forward()
    step.backward()
    assert all(leaf.grad is not None for leaf in step.leaves)
    assert step.error(step) < 1e-5
    with torch.no_grad():
        step.y += 1e-3
        step.leaves[0].grad[..., 2] += 1e-3 / 6
    assert step.error(step) == pytest.approx(1e-3, rel=0.05)
