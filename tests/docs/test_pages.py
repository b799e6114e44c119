"""The pages keep their word: each code block runs, and prints what it says."""

from __future__ import annotations

import functools
import inspect
import re
import runpy
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from regmax import cli, functional, losses
from regmax.testing import checks_for, solver_checks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = sorted(page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *SITE]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
# README.md is also a page of PyPI, which follows absolute links alone
OURS = re.compile(r"\]\(https://(github\.com/regmax/regmax/blob|raw\.\S+?/regmax)/main/")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page, in order, as (language, text); directives are no code."""
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [(language, text) for language, text in found if not language.startswith("{")]


def having(language: str) -> list[str]:
    return [page for page in PAGES if any(language == found for found, _ in blocks(page))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one's own, with scores of one's own."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "attention.npy", rng.normal(size=(4, 12)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(text: str, page: str, namespace: dict, capsys) -> None:
    capsys.readouterr()
    exec(compile(text, page, "exec"), namespace)
    printed = iter(capsys.readouterr().out.splitlines())
    for said in re.findall(r"^ *print\(.*\)\s+# (.*)$", text, flags=re.MULTILINE):
        assert said in printed, f"{said!r} is not printed, or not in this order, by\n{text}"


def test_every_block_is_of_a_language_that_is_checked():
    known = {"python", "sh", "toml", "text"}
    strange = {p: {language for language, _ in blocks(p)} - known for p in PAGES}
    assert {page: found for page, found in strange.items() if found} == {}


@pytest.mark.parametrize("page", having("python"))
def test_python_runs_in_order_and_prints_what_it_says(page, folder, capsys):
    namespace = {"__name__": "page"}
    for language, text in blocks(page):
        if language == "python":
            ran(text, page, namespace, capsys)


def test_each_block_of_the_readme_stands_alone(folder, capsys):
    for language, text in blocks("README.md"):
        if language == "python":
            ran(text, "README.md", {"__name__": "page"}, capsys)


@pytest.mark.parametrize("page", having("sh"))
def test_shell_lines_run_or_name_what_there_is(page, folder):
    for language, text in blocks(page):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words:
                checked(words)


def checked(words: list[str]) -> None:
    """Run what is quick; of what installs or trains, see that the names are right."""
    match words:
        case ["regmax", "demo", *_]:
            pass  # minutes; tests/cli/test_cli.py runs it
        case ["regmax", *arguments]:
            assert cli.main(arguments) == 0, words
        case ["make", target, *_]:
            assert target in TARGETS, words
        case ["pip", "install", *wanted]:
            for extra in re.findall(r"\[([a-z,]+)\]", " ".join(wanted)):
                assert set(extra.split(",")) <= set(EXTRAS), words
        case ["python", "-m", module, *_]:
            assert module == "pytest" or find_spec(module), words
        case ["python", script, *_]:
            assert (ROOT / script).is_file(), words
        case ["torchrun", "--nproc-per-node", _, script]:
            assert (ROOT / script).is_file(), words
        case ["cd", _] | ["pre-commit", *_]:
            pass
        case _:
            raise AssertionError(f"nobody checks the line {shlex.join(words)}")


def test_toml_is_toml():
    for page in having("toml"):
        for language, text in blocks(page):
            if language == "toml":
                assert tomllib.loads(text)


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    if page == "README.md":
        text = OURS.sub("](", text)
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    home = (ROOT / page).parent
    assert [link for link in links if not (home / link).exists()] == []


def test_the_links_of_the_readme_are_absolute():
    text = FENCE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert re.findall(r"\]\((?!https:|#)([^)]*)", text) == []
    assert len(OURS.findall(text)) > 15


def test_the_reference_names_every_mapping():
    page = (DOCS / "api" / "mappings.md").read_text()
    assert [name for name in dir(functional) if f"functional.{name}\n" not in page] == []


def test_the_reference_names_every_loss():
    page = (DOCS / "api" / "losses.md").read_text()
    assert [
        name for name in dir(losses) if f"{name}(" not in page and f"{name}\n" not in page
    ] == []


def test_a_name_that_sets_a_hyperparameter_does_not_document_it():
    for callable_ in (functional.entmax15, losses.Entmax15Loss):
        assert "Tsallis(alpha=1.5)" in callable_.__doc__
        assert "``alpha``" not in callable_.__doc__
    assert "``alpha``" in functional.entmax.__doc__
    assert "``alpha``" in losses.EntmaxLoss.__doc__


def test_nothing_is_said_of_a_machine():
    here = [str(Path.home()), str(ROOT.parent)]
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert not [path for path in here if len(path) > 5 and path in text]


@pytest.mark.parametrize(
    ("name", "told"),
    [("theorem", "clustered: entropy + 0.1 · oscar"), ("domains", "no weight above 0.6")],
)
def test_the_figures_of_pages_are_drawn(name, told, tmp_path):
    pytest.importorskip("matplotlib")
    script = runpy.run_path(str(DOCS / "figures" / f"{name}.py"))
    script["draw"](tmp_path / f"{name}.svg")
    assert told in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")


def test_migrating_names_all_that_entmax_offers():
    entmax = pytest.importorskip("entmax")
    page = (DOCS / "migrating-from-entmax.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    names = [name for name in dir(entmax) if not name.startswith("_")]
    assert len(names) > 20
    assert [name for name in names if name not in words] == []
    callables = [item for name in names if callable(item := getattr(entmax, name))]
    arguments = {a for item in callables for a in inspect.signature(item).parameters} - {"X"}
    assert sorted(arguments - words) == []


@functools.cache
def namespace(page: str) -> dict:
    """What the Python blocks of a page define."""
    found: dict = {"__name__": "page"}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "shared"])
def test_the_regularizers_of_the_tutorial_pass_the_kit(name):
    """The one by its value is slow: it passes a part of the kit."""
    page = namespace("docs/writing-a-regularizer.md")
    omega = {"fast": page["FastPrior"](page["prior"].detach()), "shared": page["shared"]}[name]
    checks = {check.name: check for check in checks_for(omega)}
    some = ("check_optimality", "check_jacobian_finite_differences", "check_mask")
    for each in checks if name == "fast" else some:
        checks[each](omega)


@pytest.mark.slow
def test_the_solver_of_the_tutorial_passes_the_kit():
    solver = namespace("docs/writing-a-solver.md")["ProjectedGradient"]()
    checks = {check.name: check for check in solver_checks(solver)}
    for name in ("optimum", "stopped_early", "budget", "iterations", "unsuitable"):
        checks[f"check_{name}"](solver)
