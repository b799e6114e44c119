"""The scoreboard runs with regmax and torch alone; what it calls right is right, and a layer that
is wrong, or does not end, is named with a row that shows it."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import references
import torch

import regmax
from benchmarks import scoreboard
from benchmarks.scoreboard import COLUMNS, Layer
from regmax.testing.inputs import hard_values

SUBSETS = regmax.Simplex(2.0, upper=1.0)


def here(name, layer):
    """A cell in this process."""
    sent = []
    scoreboard.work(name, layer, SimpleNamespace(send=sent.append))
    return sent[-1]


@pytest.mark.parametrize(
    "kind", ["points of the simplex", "borders", "points of the simplex + 1e6"]
)
def test_what_is_right(kind):
    for x in hard_values(kind, 15, 6).numpy():
        z = x.astype(np.longdouble)
        for a in (1.0, 1.25, 1.5, 2.0, 2.5):
            y, *_ = references.entmax_digits(x, a, x)
            assert np.abs(scoreboard.weights("entmax", z, a) - y).max() < 1e-12
        y = regmax.functional.sparsemax(torch.from_numpy(x), domain=SUBSETS).numpy()
        assert np.abs(scoreboard.weights("subsets", z, 2.0) - y).max() < 1e-14
        for a in (1.5, 2.0, 3.0):  # x − ∇‖y‖_a is τ on the support, and at most τ elsewhere
            y = scoreboard.weights("normmax", z, a)
            slack = z - z.max() - (y / (y**a).sum() ** (1 / a)) ** (a - 1)
            assert abs(y.sum() - 1) < 1e-15
            assert np.ptp(slack[y > 0]) < 1e-14
            assert (slack <= slack[y > 0].min() + 1e-14).all()


def test_a_run_with_regmax_and_torch_writes_one_table(tmp_path, monkeypatch):
    first = [next(la for la in scoreboard.LAYERS if la.package == p) for p in ("regmax", "torch")]
    monkeypatch.setattr(scoreboard, "LAYERS", (*first, Layer("no-such-package", "none(x)")))
    monkeypatch.setattr(scoreboard, "cell", here)
    file = tmp_path / "compared.md"
    scoreboard.main(["--out", str(file)])
    text = file.read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in re.findall(r"^\|.*$", text, re.MULTILINE)]
    assert lines[0] == list(COLUMNS)
    assert lines[2:] == [[f"{la.package}: `{la.call}`", *["pass"] * len(COLUMNS)] for la in first]
    assert f"torch {torch.__version__}. Not run: no-such-package is not installed." in text


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("values", "torch.softmax(1.01 * x, -1)"),
        ("hard inputs", "torch.softmax(x + 1e-9 * x**2, -1)"),
        ("derivatives", "torch.softmax(x, -1) + 0 * x - 1e-4 * (x - x.detach())"),
        ("masks", "torch.softmax(x.clamp_min(-9), -1)"),
        ("half precision", "torch.softmax(1.2 * x, -1)"),
    ],
)
def test_a_wrong_layer_is_shown_by_a_row_to_paste(name, call):
    layer = Layer("torch", call, numbers=(1.0,), dtypes=scoreboard.ALL)
    found, report = here(name, layer)
    assert re.fullmatch(r"\*\*\d+ of \d+ fail\*\*", found)
    code, came = re.fullmatch(r"`(.*)`: (.*)", report).groups()
    y = eval(code, {"torch": torch, "math": math}).flatten().tolist()
    if name != "derivatives":
        assert came.startswith(str([float(f"{n:.6g}") for n in y]))


def test_a_layer_that_raises_fails():
    found, report = here("values", Layer("math", "math.sqrt(x)"))
    assert "fail" in found
    assert "Error" in report
    assert here("ends", Layer("math", "math.sqrt(x)")) == ("pass", "")


def test_what_a_layer_is_not_meant_for_is_not_tried():
    layer = Layer("torch", "torch.softmax(x, -1)", numbers=(1.0,), masks=False)
    assert here("half precision", layer)[0] == scoreboard.cell("masks", layer)[0] == "–"


def test_a_process_that_hangs_or_ends_is_named():
    for call, why in (("time.sleep(99)", "no answer in 2"), ("os.abort()", "the process ended")):
        found, report = scoreboard.cell("ends", Layer("", call), limit=2 if "time" in call else 60)
        assert why in found
        assert why in report
