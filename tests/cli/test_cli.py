"""The command line: what it prints, its exit status, and what it says to wrong input."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from omegas import Demanding, Raises

import regmax
from regmax.cli import demo, listing, main, scores, validate
from regmax.cli.common import UsageError, needs, working
from regmax.regularizers.registry import Offer, registry

BUILT_IN = {
    "divergence": "-",
    "entropy": "softmax",
    "fermi_dirac": "-",
    "gini": "sparsemax",
    "jensen_shannon": "-",
    "oscar": "oscarmax",
    "pnorm": "pnormmax",
    "tsallis": "entmax,",
    "tv": "fusedmax",
}


WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The message of a command that must end with status 2."""
    assert main(argv) == 2
    out = capsys.readouterr()
    assert out.out == ""
    return out.err


class Lie(regmax.Regularizer):
    """Gini with a closed form that is off by 1e-5."""

    name = "lie"
    mapping = "liemax"

    def value(self, y):
        return y.square().sum(-1) / 2

    def closed_form(self, x, gamma, mask=None):
        y = regmax.kernels.simplex.project(x / gamma, mask)
        return (y + 1e-5 * (y > 0)) / (1 + 1e-5 * (y > 0).sum(-1, keepdim=True))


def offer(monkeypatch, extra):
    """Make some plugin offer more regularizers."""
    for name, cls in extra.items():
        planted = Offer(name, cls, "third", "regmax-third 1.0")
        monkeypatch.setitem(registry()._offers["regularizer"], name, [planted])


@pytest.fixture
def planted(monkeypatch):
    """A registry in which some plugin offers ``lie``, ``raises`` and ``demanding``."""
    offer(monkeypatch, {"lie": Lie, "raises": Raises, "demanding": Demanding})


class TestMain:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            ([], "no COMMAND; accepted: list, validate, plot"),
            (["--verson"], "unknown option '--verson' (did you mean '--version'?)"),
            (["lst"], "unknown choice 'lst' (did you mean 'list'?); accepted: list, validate"),
            (["plot", "gini", "--kid", "path"], "unknown option '--kid' (did you mean '--kind'?)"),
            (["plot", "gini", "--kind", "pat"], "unknown choice 'pat' (did you mean 'path'?)"),
            (["validate", "--dtype", "float33"], "(did you mean 'float32'?)"),
            (["list", "all"], "regmax list: error: unknown argument 'all'"),
        ],
    )
    def test_what_is_nearly_right(self, argv, said, capsys):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        assert stop.value.code == 2
        assert said in capsys.readouterr().err

    def test_version(self, capsys):
        with pytest.raises(SystemExit) as stop:
            main(["--version"])
        assert stop.value.code == 0
        assert capsys.readouterr().out == f"regmax {regmax.__version__}\n"

    def test_as_a_module(self):
        run = subprocess.run(
            [sys.executable, "-m", "regmax", "list"], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0
        assert "fusedmax" in run.stdout

    def test_interrupt(self, capsys, monkeypatch):
        def interrupt(*_args, **_kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr(validate, "crosscheck", interrupt)
        assert main(["validate", "gini"]) == 130


class TestList:
    def test_every_built_in_with_its_mapping_and_distribution(self, capsys):
        assert main(["list"]) == 0
        out = capsys.readouterr().out
        regularizers = out.split("\npenalties\n")[0]
        for name, mapping in BUILT_IN.items():
            (line,) = [ln for ln in regularizers.splitlines() if ln.startswith(f"  {name} ")]
            assert mapping in line
            assert f"regmax {regmax.__version__}" in line
        assert "lam=0.1" in out
        assert "alpha=1.5" in out

    def test_penalties(self, capsys):
        main(["list"])
        out = capsys.readouterr().out
        part = out.split("\npenalties\n")[1].split("\n\n")[0]
        for name in regmax.available("penalty"):
            (line,) = [ln for ln in part.splitlines() if ln.startswith(f"  {name} ")]
            assert "R(y) = Σ" in line
            assert f"regmax {regmax.__version__}" in line
        (line,) = [ln for ln in part.splitlines() if ln.startswith("  owl ")]
        assert "weights" in line
        for name in [*registry().names("solver"), *registry().names("backend")]:
            assert f"\n  {name} " in out

    def test_it_fits_80_columns_without_colours(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("NO_COLOR", "1")
        main(["list"])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert "\x1b" not in out

    def test_a_plugin_at_fault_is_named(self, capsys, monkeypatch):
        monkeypatch.setattr(
            registry(), "faults", ["regmax plugin 'x' (x 1.0) failed in its import"]
        )
        assert main(["list"]) == 0
        assert "at fault\n  regmax plugin 'x' (x 1.0)" in capsys.readouterr().out


class TestValidate:
    def test_all_by_default(self, tmp_path, capsys):
        np.save(tmp_path / "x.npy", np.eye(2, 5))
        argv = ["--against", "generic", "--scores", str(tmp_path / "x.npy")]
        assert main(["validate", *argv]) == 0
        out = capsys.readouterr().out
        assert all(f"\n{name} " in out for name in BUILT_IN)
        assert f"{len(BUILT_IN)} of {len(BUILT_IN)} agree by every method" in out

    def test_every_backend(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        assert main(["validate", "gini", "fusedmax", "--against", "generic,cvxpylayers,cvxpy"]) == 0
        out = capsys.readouterr().out
        assert all(method in out for method in ("generic", "DIFFCP", "MOREAU", "cvxpy Clarabel"))
        assert max(map(len, out.splitlines())) <= 80

    @pytest.mark.parametrize("suffix", [".npy", ".pt", ".csv"])
    def test_own_scores(self, suffix, tmp_path, capsys):
        x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        x[0, 1, 2] = -torch.inf
        path = tmp_path / f"scores{suffix}"
        if suffix == ".npy":
            np.save(path, x.numpy())
        elif suffix == ".pt":
            torch.save(x.float(), path)
        else:
            lines = [",".join(map(repr, row)) for row in x.reshape(-1, 7).tolist()]
            path.write_text("# scores\n" + "\n".join(lines) + "\n\n")
        report = tmp_path / "report.json"
        argv = ["validate", "tv:lam=0.5", "entmax15", "--scores", str(path), "--gamma", "0.5"]
        assert main([*argv, "--against", "generic", "--json", str(report)]) == 0
        assert "6 rows of 7" in capsys.readouterr().out
        data = json.loads(report.read_text())
        assert data["ok"] is True
        assert data["gamma"] == 0.5
        assert set(data["reports"]) == {"tv:lam=0.5", "entmax15"}
        assert data["reports"]["tv:lam=0.5"]["rows"]

    def test_many_rows_are_thinned_out_and_it_says_so(self, tmp_path, capsys):
        np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(100, 5)))
        argv = ["validate", "gini", "--against", "generic", "--scores", str(tmp_path / "x.npy")]
        assert main(argv) == 0
        out = capsys.readouterr()
        assert "64 rows of 5" in out.out
        assert "64 of 100 rows" in out.err
        assert main([*argv, "--rows", "0"]) == 0
        assert "100 rows of 5" in capsys.readouterr().out

    def test_a_lie_is_status_1_and_named(self, planted, tmp_path, capsys):
        path = tmp_path / "report.json"
        argv = ["validate", "gini", "lie", "--against", "generic,cvxpylayers", "--json", str(path)]
        assert main(argv) == 1
        out = capsys.readouterr().out
        assert "1 of 2 agree" in out
        assert "FAILED   closed form" in out
        data = json.loads(path.read_text())
        assert data["ok"] is False
        assert data["reports"]["gini"]["ok"] is True
        assert data["reports"]["lie"]["culprits"] == ["closed form"]

    def test_code_that_raises_is_status_1_and_the_rest_goes_on(self, planted, tmp_path, capsys):
        path = tmp_path / "report.json"
        argv = ["validate", "raises", "gini", "--against", "generic", "--json", str(path)]
        assert main(argv) == 1
        out = capsys.readouterr().out
        assert "ZeroDivisionError: a fault of the plugin" in out
        assert "gini         ok" in out
        assert "ZeroDivisionError" in json.loads(path.read_text())["reports"]["raises"]["error"]

    def test_a_plugin_without_defaults_is_left_to_those_who_name_it(self, capsys, monkeypatch):
        offer(monkeypatch, {"demanding": Demanding})
        assert main(["validate", "--against", "generic"]) == 0
        out = capsys.readouterr()
        assert "demanding" not in out.out
        assert f"{len(BUILT_IN)} of {len(BUILT_IN)} agree" in out.out
        assert out.err.startswith("left out: demanding has no default for price; name it: ")
        assert "'demanding(price=...)'" in out.err
        for text in ("demanding:price=2", "demanding(price=2)"):
            assert main(["validate", text, "--against", "generic"]) == 0

    def test_a_contested_name_is_a_warning(self, capsys, monkeypatch):
        monkeypatch.setattr(listing, "contested", lambda found: ["the name 'x' is claimed by"])
        assert main(["validate", "gini", "--against", "generic"]) == 0
        assert "warning: the name 'x' is claimed by" in capsys.readouterr().err


class TestValidateRefuses:
    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["nonsense"], ["'nonsense'", ", ".join(BUILT_IN)]),
            (["gini", "--against", "cvxpylayer"], ["(did you mean 'cvxpylayers'?)"]),
            (["gini", "--against", "generic,oracle"], ["'oracle'", "cvxpylayers"]),
            (["--against", ","], ["names no backend"]),
            *(([f"--gamma={gamma}"], ["--gamma must be"]) for gamma in ("0", "-1", "nan", "inf")),
            (["gini", "--device", "warp"], ["--device warp"]),
            pytest.param(["gini", "--device", "cuda"], ["not usable"], marks=WITHOUT_CUDA),
            (["gini", "--rows", "-1"], ["--rows"]),
            (["gini", "--json", "no/such/report.json"], ["does not exist"]),
        ],
    )
    def test_arguments(self, argv, words, capsys):
        message = refused(capsys, "validate", *argv)
        assert all(word in message for word in words), message

    @pytest.mark.parametrize(
        ("typed", "meant"),
        [
            ("ginni", "gini"),
            ("sparsmax", "sparsemax"),
            ("gini + 0.1*grid_tvv", "grid_tv"),
            ("tsalis(alpha=1.5) + 0.1*tv", "tsallis"),
        ],
    )
    def test_a_name_that_is_nearly_right(self, typed, meant, capsys):
        message = refused(capsys, "validate", typed)
        assert f"(did you mean '{meant}'?)" in message
        assert ", ".join([*BUILT_IN, "entmax, entmax15, fusedmax"]) in message

    def test_missing_default_backend_is_a_warning(self, capsys, monkeypatch):
        backend = registry().names("backend")["cvxpylayers"]
        monkeypatch.setattr(backend, "missing", lambda self: "cvxpylayers is not installed")
        assert main(["validate", "gini"]) == 0
        assert "not validated against cvxpylayers" in capsys.readouterr().err

    def test_domain(self, tmp_path, capsys):
        report = tmp_path / "report.json"
        argv = ["validate", "gini", "--against", "generic", "--json", str(report)]
        assert main([*argv, "--domain", "AtMost(2, upper=0.7)"]) == 0
        assert json.loads(report.read_text())["domain"] == "AtMost(2, upper=0.7)"
        assert "gini  " in capsys.readouterr().out
        text = refused(capsys, "validate", "gini", "--domain", "Box(2, 1, 0)")
        assert "--domain must be" in text
        assert main([*argv, "--domain", "Simplex(total=9, upper=0.5)"]) == 1
        assert "no y has sum = 9" in capsys.readouterr().out
        assert main([*argv, "--domain", "Transport()"]) == 1  # its solver does not compute plans
        out = capsys.readouterr().out
        assert "FAILED   nothing to compare with" in out

    def test_file_missing_or_of_another_kind(self, tmp_path, capsys):
        def message(name: str) -> str:
            return refused(capsys, "validate", "gini", "--scores", str(tmp_path / name))

        assert "no such file" in message("none.npy")
        (tmp_path / "x.txt").write_text("1")
        assert ".npy, .pt, .csv" in message("x.txt")
        os.mkfifo(tmp_path / "pipe.npy")
        for suffix in scores.SUFFIXES:
            (tmp_path / f"folder{suffix}").mkdir()
            (tmp_path / f"empty{suffix}").touch()
            assert "not a file" in message(f"folder{suffix}")
            assert re.search("not a readable|no scores", message(f"empty{suffix}"))
        assert "not a file" in message("pipe.npy")
        assert "cannot be read" in message("x" * 300 + ".npy")

    def test_a_file_larger_than_memory(self, tmp_path, capsys):
        """Of an array only the rows that are asked for are read; a text is refused."""
        path = tmp_path / "x.npy"
        np.lib.format.open_memmap(path, "w+", shape=(1 << 34, 8))[-1] = np.arange(8)
        rows, total = scores.load(path, 3)
        assert (rows[-1].tolist(), total) == ([*range(8)], 1 << 34)
        expanded = torch.arange(3.0).expand(1 << 40, 3)
        torch.save(expanded, tmp_path / "x.pt")
        rows, total = scores.load(tmp_path / "x.pt", 2)
        assert (rows.tolist(), total) == ([[0, 1, 2]] * 2, 1 << 40)
        for name in ("x.npy", "x.pt"):
            all_rows = ("gini", "--rows", "0", "--scores", str(tmp_path / name))
            assert "scores are too many" in refused(capsys, "validate", *all_rows)
        path = tmp_path / "x.csv"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        assert "larger than" in refused(capsys, "validate", "gini", "--scores", str(path))

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (np.float64(3.0), "single number"),
            (np.zeros((3, 0)), "no scores"),
            (np.array([[1.0, np.nan]]), "NaN in row 0"),
            (np.array([[1.0, 2.0], [1.0, np.inf]]), "+inf in row 1"),
            (np.full((1, 2), -np.inf), "no finite score in row 0"),
            (np.array(["a"]), "real numbers"),
            ("", "no scores"),
            ("a,b\n1,2\n", "line 1, column 1: 'a' is not a number"),
            ("1,2\n3\n", "line 2 has 1 columns, the first row 2"),
            ("1,2\n3,\n", "line 2, column 2: '' is not a number"),
            ({"x": torch.zeros(2)}, "found dict"),
            (torch.zeros(2, dtype=torch.complex64), "complex64"),
            (torch.eye(2).to_sparse(), "torch.sparse_coo"),
            (torch.eye(2, device="meta"), "meta"),
            (lambda: torch.nested.nested_tensor([torch.eye(2)], layout=torch.jagged), "nested"),
            (Path("anything"), "not a readable"),  # it would run code
            *((suffix, "not a readable") for suffix in (".npy", ".pt", ".csv")),
        ],
    )
    @pytest.mark.filterwarnings("ignore:(Sparse CSR|The PyTorch API of nested)")
    def test_files(self, content, words, tmp_path, capsys):
        kinds = {np.ndarray: ".npy", np.float64: ".npy", str: ".csv"}
        path = tmp_path / f"x{kinds.get(type(content), '.pt')}"
        if isinstance(content, str) and content in scores.SUFFIXES:
            path = path.with_suffix(content)
            path.write_bytes(b"\x93\xff\x00nonsense")
        elif path.suffix == ".npy":
            np.save(path, content)
        elif path.suffix == ".csv":
            path.write_text(content)
        else:
            torch.save(content() if callable(content) else content, path)
        assert words in refused(capsys, "validate", "gini", "--scores", str(path))


class Exits(regmax.Regularizer):
    name = "exits"

    def value(self, y):
        raise SystemExit(0)


def test_a_default_backend_whose_name_another_has(monkeypatch, capsys):
    found = registry()
    kept = found._offers["backend"]["generic"]
    other = Offer("generic", Exits, "third", "regmax-third 1.0")
    monkeypatch.setitem(found._offers["backend"], "generic", [*kept, other])
    assert "regmax.generic" in validate.backends(found, None)
    with pytest.raises(UsageError, match="claimed by"):
        validate.backends(found, "generic")


def test_compile_of_rows_of_one_length(capsys):
    assert main(["compile", "gini + 0.1*owl(weights=(2, 1))"]) == 0
    capsys.readouterr()
    assert "x must have 400" in refused(capsys, "compile", "gini + grid_tv(shape=(20000, 20000))")


def test_code_that_exits_is_status_2(monkeypatch, capsys):
    offer(monkeypatch, {"exits": Exits})
    assert "a plugin raised SystemExit(0)" in refused(capsys, "validate", "exits")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" + ".join(["gini"] * 2000), "at most 500 calls and operators"),
        ("1" * 400 + "*gini", "numbers (whole ones below 2**63)"),
        ("1e400*gini", "the factor must be > 0 and finite; got inf"),
        ("g" * 10**6, "no regularizer or penalty is named"),
        ("(" * 10**6, "cannot read"),
        ("1*" + "-" * 10**6 + "1*gini", "cannot read"),
        ("gini(" + "a" * 10**6 + "=1)", "has no hyperparameter"),
        ("gini + 0.1*grid_tv(shape=(20000, 20000))", "x must have 400000000 entries"),
        ("gini + 0.1*graph_tv(edges=[(0, 1)], nodes=10000000000)", "10000000000 entries"),
    ],
    ids=lambda item: item[:20],
)
def test_a_text_from_outside_ends_soon_with_a_short_message(text, words, capsys):
    status = main(["validate", "--against", "generic", text])
    said = capsys.readouterr()
    assert status in (1, 2)
    assert words in " ".join((said.err + said.out).split())
    assert len(said.err + said.out) < 3000


class TestDemo:
    @pytest.mark.parametrize("argv", [["--epochs", "0"], ["--seed", "-1"]])
    def test_refuses(self, argv, capsys):
        assert argv[0] in refused(capsys, "demo", *argv)

    def test_refuses_a_file_as_folder(self, tmp_path, capsys):
        (tmp_path / "file").write_text("")
        assert "--out" in refused(capsys, "demo", "--out", str(tmp_path / "file"))

    @pytest.mark.slow
    def test_one_epoch(self, tmp_path, capsys, monkeypatch):
        data = demo.digits()
        small = demo.Digits(data.train_x[:96], data.train_y[:96], data.test_x, data.test_y)
        monkeypatch.setattr(demo, "digits", lambda: small)
        assert main(["demo", "--epochs", "1", "--out", str(tmp_path / "a" / "b")]) == 0
        out = capsys.readouterr().out
        assert "6 of 6 agree by every method" in out
        for mapping in ("softmax", "sparsemax", "entmax15", "pnormmax", "fusedmax", "oscarmax"):
            assert f"\n{mapping} " in out
        picture = tmp_path / "a" / "b" / "attention-maps.png"
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_same_seed_same_result(self):
        data = demo.digits()
        small = demo.Digits(data.train_x[:64], data.train_y[:64], data.test_x, data.test_y)
        before = torch.random.get_rng_state()
        runs = [demo.train("x", regmax.regularizer("tv"), small, 1, seed=3) for _ in range(2)]
        assert torch.equal(runs[0].weights, runs[1].weights)
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_learns(self):
        result = demo.train("sparsemax", regmax.regularizer("gini"), demo.digits(), 8, seed=0)
        assert result.accuracy > 0.9
        assert result.support < 32
        assert result.weights.sum(-1).allclose(torch.ones(()))


class TestCommon:
    def test_needs_names_the_extra(self):
        with (
            pytest.raises(UsageError, match=r"drawing needs nowhere.*pip install 'regmax\[demo\]'"),
            needs("demo", "drawing"),
        ):
            import nowhere  # noqa: F401

    def test_working_says_what_takes_long(self, capsys, monkeypatch):
        monkeypatch.setattr("regmax.cli.common._SECONDS_BETWEEN_LINES", 0.01)
        with working("thinking"):
            time.sleep(0.5)
        assert capsys.readouterr().err.startswith("thinking: 0 s\n")

    def test_working_clears_its_line_on_a_terminal(self, monkeypatch):
        out = Terminal()
        monkeypatch.setattr(sys, "stderr", out)
        with working("thinking"):
            time.sleep(1.2)
        assert out.getvalue() == "thinking: 1 s\r             \r"
