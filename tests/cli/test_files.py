"""Regularizers and arguments that files hold, as NAME on the command line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regmax.cli import main
from regmax.cli.names import named

MINE = """
import torch
import regmax
from beside import HALF
from regmax import Regularizer

W = torch.arange(1.0, 6.0)

class Elastic(regmax.Regularizer):
    def __init__(self, mu=1.0):
        self.mu = mu

    def value(self, y):
        return HALF * y.square().sum(-1) + self.mu * y.pow(4).sum(-1) / 4

class Priced(regmax.Regularizer):
    def __init__(self, w):
        self.w = w
        self.entries = len(w)

    def value(self, y):
        return (self.w * y.square()).sum(-1) / 2

class Ours(regmax.Penalty):
    lovasz = True

    def value(self, y):
        return y.abs().sum(-1)

    def prox(self, v, step):
        return v

ready = Priced(W)
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with regularizers that no plugin offers, and with arguments for them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    np.save("w.npy", np.arange(1.0, 8.0))
    torch.save(torch.arange(1.0, 4.0), "w.pt")
    (tmp_path / "w.csv").write_text("3, 2, 1, 0.5\n")
    return tmp_path


class TestNames:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("mine.py:Elastic", "Elastic()"),
            ("./mine.py:Elastic(mu=2)", "Elastic(mu=2)"),
            ("mine.py:Elastic:mu=2", "Elastic(mu=2)"),
            ("mine.py:Elastic + 0.1*tv", "Elastic() + 0.1*ChainTV()"),
            ("mine.py:2*Elastic(mu=3) + gini()", "2.0*Elastic(mu=3) + Gini()"),
            ("mine.py:ready", "Priced(w=tensor(shape=(5,)))"),
            ("mine.py:Priced(w=W)", "Priced(w=tensor(shape=(5,)))"),
            ("mine.py:Priced(w='w.npy')", "Priced(w=tensor(shape=(7,)))"),
            ("mine.py:Priced(w='w.pt')", "Priced(w=tensor(shape=(3,)))"),
            ("gini + owl(weights='w.csv')", "Gini() + OWL(weights=tensor(shape=(4,)))"),
            ("tsallis:alpha='w.npy'", "Tsallis(alpha=tensor(shape=(7,)))"),
        ],
    )
    def test_accepted(self, text, said, folder):
        label, omega = named(text)
        assert label == text
        assert str(omega) == said

    def test_a_file_runs_once(self, folder):
        with (folder / "mine.py").open("a") as file:
            file.write("import pathlib\npathlib.Path('runs').mkdir()\n")  # once
        assert type(named("mine.py:Elastic")[1]) is type(named("mine.py:Elastic")[1])

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("none.py:Elastic", "none.py: no such file"),
            ("mine.py:Elastc", "is named 'Elastc'"),
            ("mine.py:Elastc(mu=2)", ", ready (did you mean 'Elastic'?)"),
            ("mine.py:Elastc", "; mine.py has Elastic, Priced, Ours, ready"),
            ("mine.py:Priced", "regularizer 'Priced' needs w=...; got nothing"),
            ("mine.py:Elastic(nu=1)", "has no hyperparameter 'nu'; accepted: mu"),
            ("mine.py:Ours", "that is a penalty, not a regularizer"),
            ("mine.py:number", "that is int, not a regularizer"),
            ("mine.py", "mine.py: which of its regularizers? mine.py has Elastic, Priced, Ours"),
            ("mine.py:", "which of its regularizers? mine.py has Elastic, Priced, Ours, ready"),
            ("mine.py:Priced(w='none.npy')", "none.npy: no such file"),
            ("mine.py:Elastic(2.0)", "Elastic takes its arguments by name: Elastic("),
            ("broken.py:Elastic", "broken.py:Elastic: invalid syntax"),
            ("raises.py:Elastic", "raises.py:Elastic: a fault of the file"),
        ],
    )
    def test_refused(self, text, words, folder, capsys):
        (folder / "broken.py").write_text("class Elastic(:\n")
        (folder / "raises.py").write_text("raise ValueError('a fault of the file')\n")
        assert main(["validate", text]) == 2
        out = capsys.readouterr()
        assert words in out.err
        assert out.out == ""


class TestCommands:
    def test_validate(self, folder, capsys):
        argv = ["validate", "mine.py:Elastic", "mine.py:ready", "mine.py:Priced(w='w.npy')"]
        assert main([*argv, "--against", "generic"]) == 0
        out = capsys.readouterr().out
        assert [f"6 rows of {d}:" in out for d in (12, 5, 7)] == [True] * 3
        assert "3 of 3 agree" in out

    def test_plot_and_compile(self, folder, capsys):
        for kind in ("mapping", "path", "convergence"):
            assert main(["plot", "mine.py:ready", "--kind", kind, "--out", f"{kind}.svg"]) == 0
            assert (folder / f"{kind}.svg").stat().st_size > 1000
        capsys.readouterr()
        assert main(["compile", "mine.py:Elastic", "mine.py:ready"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line.split(" s  ")[1] for line in said] == ["kernel from the value"] * 2


def test_rows_have_as_many_entries_as_the_regularizer(capsys):
    grid = "gini + 0.1*grid_tv(shape=(4, 5))"
    assert main(["validate", grid, "--against", "generic"]) == 0
    assert "6 rows of 20: ok" in capsys.readouterr().out
    assert main(["compile", grid]) == 0
