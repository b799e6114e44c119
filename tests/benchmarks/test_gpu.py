"""The report of ``make gpu``: its cases by Triton's interpreter, and what it says of each end."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from devices import need_triton

from benchmarks import gpu
from benchmarks.gpu_report import Report, kernel_files
from benchmarks.timing import Step

ROOT = Path(__file__).parents[2]
UNINTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="of the interpreter")


@pytest.fixture(scope="module")
def cases():
    need_triton()
    from benchmarks import gpu_cases

    return gpu_cases


@UNINTERPRETED
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_case_is_right_and_every_triton_file_has_one(cases):
    import interpreted

    modules = set()
    with cases.interpreted(), interpreted.used():
        for name, case in cases.CASES.items():
            found = cases.check(case, case.steps(case.tiny, "cpu")[0])
            assert found["fell"] == "", name
            assert max(found["y"], found["gradients"]) <= found["bound"], (name, found)
            modules.update(found["modules"])
    files = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in kernel_files()]
    assert len(files) > 15
    assert not set(files) - modules


@UNINTERPRETED
def test_a_wrong_kernel_and_one_that_is_not_launched_are_found(cases):
    from regmax import kernels

    def off(x, _):
        return torch.softmax(x, -1) * (1 + 1e-3 * kernels.asked())

    own = cases.CASES["softmax"]
    step = own.steps((5, 20), "cpu")[0]
    found = cases.check(own, Step("regmax", off, step.leaves, step.v))
    assert found["y"] == pytest.approx(1e-3, rel=1e-2)
    assert found["fell"] == "no kernel was launched"


def steps(end):
    """Of a case in a process of its own, that ends in some way."""
    return f"lambda shape, device: [Step('regmax', lambda x: {end}, (torch.ones(2, 2),))]"


@UNINTERPRETED
@pytest.mark.slow
def test_what_ends_a_process_is_noted_and_the_next_case_runs(cases, tmp_path, monkeypatch):
    ends = {"killed": "os.abort()", "hangs": "time.sleep(99)", "raises": "1 / 0"}
    made = [f"g.CASES[{k!r}] = g.Case((2, 2), (2, 2), {steps(end)})" for k, end in ends.items()]
    program = (
        "import dataclasses, os, sys, time, torch\nfrom benchmarks import gpu_cases as g\n"
        "from benchmarks.timing import Step\n"
        "g.LIMIT, right = 12, dataclasses.replace(g.CASES['softmax'], tiny=(3, 9))\n"
        "g.CASES.clear()\n" + "\n".join(made) + "\ng.CASES['softmax'] = right\n"
        "g.main(*sys.argv[1:])\n"
    )
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(gpu, "CASES", (sys.executable, str(tmp_path / "program.py")))
    (tmp_path / "test_some.py").write_text(
        "def test_right(): pass\ndef test_wrong(): assert 1 == 2\n"
    )
    monkeypatch.setattr(gpu, "TESTS", {str(tmp_path / "test_some.py"): ()})
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "| right | 1 of 4 cases, 1 tests |" in text
    wrong = text.partition("## Wrong")[2].partition("##")[0]
    for name, how in (("killed", "Aborted"), ("hangs", "Timeout"), ("raises", "ZeroDivisionError")):
        assert re.search(rf"^\| {name} \| .*{how}", wrong, re.M)
    assert "test_wrong | assert 1 == 2 |" in wrong
    assert "softmax" not in wrong
    assert re.search(r"^\| softmax \| 3 × 9 \| \S+e-08 .* torch softmax [\d,.]+ \|$", text, re.M)


def report(tmp_path, **cases):
    found = Report(tmp_path / "gpu.md", "now", time.time())
    found.names = [*cases, "not begun"]
    for name, lines in cases.items():
        for line in lines:
            found.note(json.dumps({"case": name, **line}))
    return found


GOOD = {"y": 1e-8, "gradients": 1e-8, "bound": 1e-5, "first": 1.0, "fell": "", "kernels": []}
FAST, SLOW = ({"times": {"regmax": (1, t), "torch": (1, 1), "liger": (1, 1)}} for t in (1.4, 1.6))


def test_times_and_what_fell_back_or_did_not_run_is_no_failure(tmp_path):
    found = report(
        tmp_path,
        fast=[GOOD, FAST],
        slow=[GOOD, SLOW],
        fell=[{**GOOD, "fell": "no kernel was launched"}, FAST],
        rival=[GOOD, {"failed": {"liger": "too long"}}, {"failure": "the device is lost"}],
    )
    found.note("a line of a package")
    text = found.text()
    assert not found.wrong
    assert "| right | 3 of 5 cases, 0 tests |" in text
    assert "| slow | torch | 1.00 | 1.60 |\n| slow | liger | 1.00 | 1.60 |" in text
    assert "| fast | torch" not in text
    assert "| fell | no kernel was launched |" in text
    assert "| liger beside rival | too long |" in text
    assert "| not begun | no time was left |" in text


@pytest.mark.parametrize(
    "lines",
    [
        [{**GOOD, "y": 1e-4}],
        [{**GOOD, "gradients": float("inf")}],
        [{"failure": "RuntimeError"}],
        [GOOD, {"failure": "illegal memory access"}],
    ],
)
def test_errors_and_crashes_are_failures(tmp_path, lines):
    found = report(tmp_path, bad=lines)
    assert found.wrong
    assert "## Wrong" in found.text()


def test_without_a_package_tests_are_not_run(tmp_path, monkeypatch):
    file = tmp_path / "test_some.py"
    file.write_text("import no_such_package\ndef test_right(): pass\n")
    monkeypatch.setattr(gpu, "TESTS", {str(file): ()})
    found = gpu.tested(str(file), time.time() + 60, gpu.environment("cpu", tmp_path))[1]
    assert found["failed"] == {}
    assert found["cut"] == "no_such_package is not installed"


@pytest.mark.slow
def test_a_file_that_takes_too_long_is_cut_off(tmp_path, monkeypatch):
    file = tmp_path / "test_some.py"
    file.write_text("import time\ndef test_one(): pass\ndef test_two(): time.sleep(99)\n")
    monkeypatch.setattr(gpu, "TESTS", {str(file): ()})
    found = gpu.tested(str(file), time.time() + 15, gpu.environment("cpu", tmp_path))[1]
    assert (found["passed"], found["failed"]) == (1, {})
    assert found["cut"] == "the time was over"


def test_the_plugins_are_found_without_an_installation(tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    expected = set(importlib.metadata.distribution("regmax").entry_points.select(group="regmax"))
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    env = gpu.environment("cuda", tmp_path)
    assert "TRITON_INTERPRET" not in env
    assert str(tmp_path) in env["PYTHONPATH"]
    (made,) = importlib.metadata.distributions(path=[str(tmp_path)])
    assert {(e.name, e.value) for e in made.entry_points} == {(e.name, e.value) for e in expected}


def test_the_files_of_gpu_tests_are_listed():
    """They take their devices, or their ways, from the helpers."""
    uses = re.compile(r"from devices import .*(?:DEVICES|GPU)|from ways import|DEVICE = .cuda")
    files = (ROOT / "tests").glob("*/test_*.py")
    found = {str(f.relative_to(ROOT)) for f in files if uses.search(f.read_text(encoding="utf-8"))}
    assert found - {"tests/benchmarks/test_gpu.py"} == set(gpu.TESTS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_so(tmp_path, capsys):
    assert gpu.main(["--out", str(tmp_path / "new")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
