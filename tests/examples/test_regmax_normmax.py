"""The plugin in examples/regmax-normmax: installed as anybody's, it is there and keeps its word."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import plugin_packages
import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / "examples" / "regmax-normmax"
PAGE = ROOT / "docs" / "writing-a-regularizer.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs Python with the plugin installed, in a copy of its folder."""
    pytest.importorskip("hatchling")
    home = tmp_path_factory.mktemp("home") / HOME.name
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return plugin_packages.installed(home, tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_its_own_tests_pass(installed):
    assert plugin_packages.passing_tests(installed) > 50


def test_it_is_listed_and_valid(installed):
    told = installed("-c", plugin_packages.LIST_AND_VALIDATE, "norm")
    listed, validated = told.split(plugin_packages.BETWEEN)
    (line,) = [line for line in listed.splitlines() if line.startswith("  norm ")]
    assert "normmax" in line
    assert "alpha=2.0" in line
    assert "regmax-normmax" in line
    assert "1 of 1 agree" in validated


PROGRAM = """
import pickle, torch, regmax, regmax_normmax
from regmax.functional import normmax, sparsemax

x = torch.tensor([[1.0, 1.1, 0.2, -0.5, 0.9]], dtype=torch.float64)
alpha = torch.tensor([[1.5]], requires_grad=True)
y = normmax(x, alpha=alpha)
y[0, 0].backward()
assert alpha.grad.shape == (1, 1) and alpha.grad.item() != 0

target = torch.tensor([1])
loss = regmax.NormmaxLoss(alpha=3.0)
same = regmax.FenchelYoungLoss(regmax.regularizer("norm", alpha=3.0))
assert loss(x, target) == same(x, target)
assert regmax.RegularizedMax(regmax.regularizer("norm")).explain(x).count("closed form")

# large alpha: equal weights on the support; alpha near 1: all on the largest
y = normmax(x, alpha=1e4)
assert ((y == 0) | ((y - 1 / 3).abs() < 1e-3)).all()
assert normmax(x, alpha=1.001).max() > 0.999
"""


def test_it_is_there_by_name_and_takes_ugly_scores(installed):
    installed("-W", "error", "-c", PROGRAM)


def test_what_its_readme_says_is_printed(installed):
    text = (HOME / "README.md").read_text(encoding="utf-8")
    (block,) = [code for language, code in FENCE.findall(text) if language == "python"]
    said = re.findall(r"^print\(.*\)\s+# (.*)$", block, flags=re.MULTILINE)
    assert len(said) == 2
    assert installed("-W", "error", "-c", block).splitlines() == said


@pytest.mark.parametrize("name", ["regmax_normmax.py", "pyproject.toml"])
def test_the_tutorial_has_it_word_for_word(name):
    blocks = [code for _, code in FENCE.findall(PAGE.read_text(encoding="utf-8"))]
    assert (HOME / name).read_text(encoding="utf-8") in blocks
