"""``regmax new-plugin`` writes a package that installs and keeps every promise."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from plugin_packages import BETWEEN, LIST_AND_VALIDATE, installed, passing_tests

from regmax.cli import main


def written(folder: Path, name: str) -> Path:
    assert main(["new-plugin", name, "--out", str(folder)]) == 0
    (home,) = folder.iterdir()
    return home


@pytest.mark.slow
def test_the_package_installs_and_its_tests_pass(tmp_path, capsys):
    pytest.importorskip("hatchling")
    home = written(tmp_path / "work", "My-Ridge")
    said = capsys.readouterr().out
    assert "regmax-my-ridge" in said
    assert "regmax validate my_ridge" in said
    run = installed(home, tmp_path / "site")
    assert passing_tests(run) > 25
    told = run("-c", LIST_AND_VALIDATE, "my_ridge", "--against", "generic")
    listed, validated = told.split(BETWEEN)
    (line,) = [line for line in listed.splitlines() if line.startswith("  my_ridge ")]
    assert "myridgemax" in line
    assert "regmax-my-" in line  # the column is broken after a hyphen
    assert "1 of 1 agree" in validated


def test_every_name_follows_from_one(tmp_path):
    home = written(tmp_path, "regmax-Two_Words")
    assert home.name == "regmax-two-words"
    files = sorted(p.relative_to(home).as_posix() for p in home.rglob("*.*"))
    assert files == [
        "README.md",
        "pyproject.toml",
        "regmax_two_words.py",
        "tests/test_two_words.py",
    ]
    metadata = tomllib.loads((home / "pyproject.toml").read_text())
    assert metadata["project"]["name"] == "regmax-two-words"
    assert metadata["project"]["entry-points"]["regmax"] == {"two_words": "regmax_two_words"}
    source = (home / "regmax_two_words.py").read_text()
    for line in ("class TwoWords(", 'name = "two_words"', 'mapping = "twowordsmax"'):
        assert line in source


def test_a_name_that_ends_in_max_is_the_mapping(tmp_path):
    assert 'mapping = "mymax"' in (written(tmp_path, "mymax") / "regmax_mymax.py").read_text()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tv", "taken by TV of plugin 'tv'"),
        ("sparse", "taken by the mapping 'sparsemax'"),
        ("graph", "taken by the installed module 'regmax_graph'"),
        ("1d", "be at most 60 letters"),
        ("lambda", "no word or module of Python"),
        ("../evil", "be at most 60 letters"),
        ("json", "no word or module of Python"),
        ("a" * 300, "be at most 60 letters"),
        ("grid_tv", "taken by GridTV of plugin 'graph'"),
        ("", "be at most 60 letters"),
        ("a__b", "one - or _ between"),
    ],
)
def test_a_bad_name_is_refused(name, reason, tmp_path, capsys):
    assert main(["new-plugin", name, "--out", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path, capsys):
    home = written(tmp_path, "mine")
    (home / "regmax_mine.py").write_text("precious")
    assert main(["new-plugin", "mine", "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (home / "regmax_mine.py").read_text() == "precious"


def test_a_folder_that_cannot_be_is_a_usage_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["new-plugin", "mine", "--out", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err
