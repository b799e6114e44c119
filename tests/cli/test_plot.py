"""``regmax plot``: what it writes, prints and refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from omegas import Demanding, Raises

import regmax
from regmax.cli import main, plot
from regmax.regularizers.registry import Offer, registry

pytest.importorskip("matplotlib")

CONVERGENCE = ("--kind", "convergence")
STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


class Four(regmax.Regularizer):
    """For rows of four entries, known by its value."""

    name = "four"
    mapping = "fourmax"
    entries = 4

    def value(self, y):
        return (y.square() * torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=y.dtype)).sum(-1)


def plant(monkeypatch, *classes, only=()):
    """A registry that offers the classes too, or besides them ``only`` these names."""
    offers = registry()._offers
    kept = {name: o for name, o in offers["regularizer"].items() if not only or name in only}
    extra = {cls.name: [Offer(cls.name, cls, "third", "regmax-third 1.0")] for cls in classes}
    monkeypatch.setitem(offers, "regularizer", kept | extra)


class TestCommand:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_domains(self, capsys):
        for kind in ("mapping", "path"):
            given = ["--kind", kind, "--domain", "Simplex(total=2, upper=0.9)", "--out", "x.svg"]
            assert main(["plot", "tv", *given]) == 0
            assert capsys.readouterr().out == "x.svg\n"
        for text in ("Ball(2)", "Simplex(-1)", "tv", "Simplex(", "open('x')", "2"):
            assert "--domain must be Simplex(" in self.refused(capsys, "gini", "--domain", text)
        given = ["--kind", "curves", "--domain", "Box()"]
        assert "--domain goes with --kind mapping or path" in self.refused(capsys, "gini", *given)

    def refused(self, capsys, *argv):
        assert main(["plot", *argv]) == 2
        out = capsys.readouterr()
        assert out.out == ""
        return out.err

    @pytest.mark.parametrize(
        ("name", "file"),
        [
            ("fusedmax", "regmax-fusedmax.png"),
            ("tv:lam=0.5", "regmax-tv-lam-0.5.png"),
            ("tsallis(alpha=1.5) + 0.1*tv", "regmax-tsallis-alpha-1.5-0.1-tv.png"),
        ],
    )
    def test_writes_and_names_a_picture(self, name, file, folder, capsys):
        assert main(["plot", name]) == 0
        assert capsys.readouterr().out == f"{file}\n"
        assert (folder / file).read_bytes().startswith(b"\x89PNG")

    def test_convergence(self, folder, capsys):
        argv = ["plot", "tsallis", *CONVERGENCE, "--solver", "auto,newton,fista", "--dim", "9"]
        assert main([*argv, "--rows", "7"]) == 0
        out = capsys.readouterr().out
        assert "tsallis, γ = 1: 7 rows of 9 scores" in out
        for solver in ("auto: newton", "newton", "fista"):
            (line,) = [ln for ln in out.splitlines() if ln.startswith(f"  {solver}  ")]
            assert "7 of 7" in line
        assert out.endswith("\nregmax-tsallis-convergence.png\n")
        assert (folder / "regmax-tsallis-convergence.png").exists()

    def test_convergence_of_own_scores_says_what_is_left_out(self, capsys):
        np.save("x.npy", np.random.default_rng(0).normal(size=(30, 4)))
        argv = ["plot", "gini", *CONVERGENCE, "--scores", "x.npy"]
        assert main([*argv, "--rows", "8"]) == 0
        out = capsys.readouterr()
        assert "8 rows of 4 scores" in out.out
        assert "8 of 30 rows" in out.err
        assert main([*argv, "--rows", "0"]) == 0
        assert "30 rows of 4 scores" in capsys.readouterr().out

    def test_a_solver_that_refuses_says_why(self, capsys):
        assert main(["plot", "tv", *CONVERGENCE, "--solver", "newton,fista", "--rows", "3"]) == 0
        out = capsys.readouterr().out
        assert "refused" in out
        assert "a penalty has no Hessian" in out
        message = self.refused(capsys, "tv", *CONVERGENCE, "--solver", "newton", "--rows", "3")
        assert "none can take tv (newton: a penalty has no Hessian)" in message

    def test_code_that_raises_is_status_1(self, capsys, monkeypatch):
        plant(monkeypatch, Raises)
        for argv in ([], *(["--kind", kind] for kind in plot.KINDS)):
            assert main(["plot", "raises", *argv]) == 1
            out = capsys.readouterr()
            assert out.out == ""
            assert "raises: ZeroDivisionError: a fault of the plugin" in out.err

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["--gamma", "0"], "--gamma must be a finite number > 0; got 0.0"),
            (["--dim", "0"], "--dim must be at least 1; got 0"),
            (["--rows", "-1", *CONVERGENCE], "--rows must be at least 0"),
            (["--rows", "0", *CONVERGENCE], "--rows must be at least 1 without --scores"),
            (["--rows", "3"], "--rows goes with --kind convergence; got mapping"),
            (["--solver", "newton"], "--solver goes with --kind convergence"),
            (
                ["--row", "0", *CONVERGENCE],
                "--row goes with --kind mapping or path; got convergence",
            ),
            (["--row", "1"], "--row goes with --scores FILE"),
            ([*CONVERGENCE, "--solver", "oracle"], "interior, newton, proximal; got"),
            ([*CONVERGENCE, "--solver", "newtn"], "(did you mean 'newton'?)"),
            ([*CONVERGENCE, "--solver", ","], "--solver must name solvers"),
            ([*CONVERGENCE, "--solver", ""], "newton, proximal; got ''"),
            (["--over", "lam"], "--over goes with --kind path; got mapping"),
            (["--kind", "path", "--over", "lam"], "--over must name one of gamma; got 'lam'"),
            (["--kind", "curves", "--dim", "3"], "--dim goes with --kind mapping or path or conv"),
            (["tv"], "--kind mapping takes one regularizer; got 2 (several: curves, surface"),
            (["--all"], "--all draws all regularizers with defaults: leave out names"),
            (["--out", "x.gif"], "must end in one of .png, .svg, .pdf"),
            (["--out", "no/x.png"], "its folder does not exist"),
            (["--scores", "no.npy"], "no such file"),
        ],
    )
    def test_refuses(self, argv, words, capsys):
        assert words in self.refused(capsys, "gini", *argv)

    def test_refuses_a_row_that_is_not_there(self, capsys):
        np.save("x.npy", np.zeros((2, 3)))
        message = self.refused(capsys, "gini", "--scores", "x.npy", "--row", "2")
        assert "x.npy has rows 0 to 1" in message
        message = self.refused(capsys, "gini", "--scores", "x.npy", "--dim", "2")
        assert "leave out --dim or --scores" in message

    def test_refuses_a_folder_as_picture(self, folder, capsys):
        (folder / "x.png").mkdir()
        assert "--out x.png" in self.refused(capsys, "gini", "--out", "x.png")

    @pytest.mark.parametrize("suffix", plot.SUFFIXES)
    def test_every_format_and_the_same_bytes_again(self, suffix, folder):
        argv = ["plot", "gini", "--kind", "simplex", "--out"]
        assert main([*argv, f"x{suffix}"]) == main([*argv, f"y{suffix}"]) == 0
        first, again = ((folder / f"{name}{suffix}").read_bytes() for name in "xy")
        assert first.startswith(STARTS[suffix])
        assert first == again

    def test_no_name(self, capsys):
        assert "name a regularizer" in self.refused(capsys)

    def test_rows_that_fill_the_memory_are_refused(self, capsys):
        for argv in (["gini + grid_tv(shape=(20000, 20000))"], ["gini", "--dim", "100000000"]):
            assert "rows of at most" in self.refused(capsys, *argv)

    def test_all_goes_on_where_one_fails_and_names_it(self, folder, capsys, monkeypatch):
        plant(monkeypatch, Raises, Demanding, Four, only=("gini",))
        assert main(["plot", "--all", "--out", "x"]) == 1
        out = capsys.readouterr()
        files = {f"x/{kind}" for kind in plot.TOGETHER}
        files |= {
            f"x/{name}-{kind}"
            for name in ("gini", "four")
            for kind in ("overview", "mapping", "convergence")
        }
        wanted = {f"{file}{suffix}" for file in files for suffix in (".svg", ".png")}
        assert set(out.out.split()) == wanted
        for file in wanted:
            start = STARTS[file[-4:]]
            assert (folder / file).read_bytes().startswith(start)
        assert "raises (regmax-third 1.0): ZeroDivisionError: a fault of the plugin" in out.err
        assert "left out: demanding has no default for price; name it:" in out.err
        assert "surface: without fourmax, which takes rows of another number" in out.err
