"""Figures of a mapping on a row and of convergence, and the expressions that commands read."""

from __future__ import annotations

import builtins

import pytest
import torch
from omegas import Quartic

import regmax
from regmax import RegularizedMax, plots
from regmax.cli import main
from regmax.cli.common import UsageError
from regmax.cli.names import named
from regmax.testing.backends.generic import definition

F64 = torch.float64


def texts(figure):
    """The words of a figure."""
    found = [
        figure.get_suptitle(),
        *(t.get_text() for le in figure.legends for t in le.get_texts()),
    ]
    for axis in figure.axes:
        found += [axis.get_title(), axis.get_title(loc="left"), axis.get_xlabel()]
        if axis.get_legend() is not None:
            found += [t.get_text() for t in axis.get_legend().get_texts()]
    return found


def traced(name="tsallis", rows=5, **settings):
    layer = RegularizedMax(definition(regmax.regularizer(name)), on_failure="ignore", **settings)
    generator = torch.Generator().manual_seed(0)
    return layer.solve(torch.randn(rows, 9, generator=generator, dtype=F64), trace=True)


class TestMapping:
    @pytest.mark.parametrize("name", ["divergence", "entropy", "tsallis", "oscar"])
    def test_every_regularizer(self, name, tmp_path):
        figure = plots.mapping(regmax.regularizer(name), gamma=0.7)
        figure.savefig(tmp_path / "x.png")
        curves, scores, *bars = figure.axes
        assert len(bars) == (2 if name in ("divergence", "entropy") else 3)
        assert len(scores.lines[-1].get_xdata()) == 20
        heights = [patch.get_height() for patch in bars[-1].patches]
        y = RegularizedMax(regmax.regularizer(name), 0.7)(plots.example())
        assert heights == y.tolist()
        (curve,) = [line for line in curves.lines if line.get_label().endswith("γ = 0.7")][:1]
        t = torch.tensor(curve.get_xdata())
        pairs = torch.stack([t, torch.zeros_like(t)], -1)
        y = RegularizedMax(regmax.regularizer(name), 0.7)(pairs)[:, 0]
        assert curve.get_ydata() == pytest.approx(y.tolist())

    def test_groups_have_colours_and_zeros_circles(self):
        x = torch.tensor([1.0, 1.01, -3.0, 0.9, 0.91, 0.7, -3.0])
        figure = plots.mapping(regmax.regularizer("tv", lam=0.03), x, name="fusedmax")
        bars = figure.axes[-1]
        colours = [patch.get_facecolor() for patch in bars.patches]
        assert colours[0] == colours[1] != colours[3] == colours[4] != colours[5]
        assert list(bars.lines[-1].get_xdata()) == [2, 6]
        assert "fusedmax: 5 above 0, 2 fused groups" in texts(figure)
        assert "exactly 0" in texts(figure)
        assert "masked out" not in texts(figure)

    def test_masked_entries(self):
        x = torch.tensor([1.0, -torch.inf, 1.01, -3.0])
        figure = plots.mapping(regmax.regularizer("tv"), x)
        assert "masked out" in texts(figure)
        assert "a row of 3 scores" in texts(figure)
        colours = [patch.get_facecolor() for patch in figure.axes[-1].patches]
        assert colours[0] == colours[2]  # neighbours among those that take part
        assert list(figure.axes[-1].lines[-1].get_xdata()) == [3]

    def test_an_omega_of_as_many_entries(self, tmp_path):
        omega = regmax.regularizer("gini") + 0.1 * regmax.penalty("grid_tv", shape=(3, 4))
        figure = plots.mapping(omega)
        figure.savefig(tmp_path / "x.svg")
        assert "two scores, t and 0" not in texts(figure)
        assert "a row of 12 scores" in texts(figure)

    def test_one_score(self):
        figure = plots.mapping(regmax.regularizer("gini"), torch.zeros(1))
        assert "a row of 1 score" in texts(figure)
        assert all(tick == round(tick) for tick in figure.axes[-1].get_xticks())

    def test_an_omega_of_ones_own_by_its_value(self):

        assert "Quartic(): " in " ".join(texts(plots.mapping(Quartic())))

    @pytest.mark.parametrize("x", [torch.zeros(2, 3), torch.tensor([0.0, torch.nan]), [0.0, 1.0]])
    def test_refuses(self, x):
        with pytest.raises(ValueError, match="x must be one row of scores"):
            plots.mapping(regmax.regularizer("gini"), x)


class TestConvergence:
    def test_median_and_worst_row_of_each_point(self, tmp_path):
        solutions = {name: traced(solver=name) for name in ("newton", "fista", "interior")}
        figure = plots.convergence(solutions)
        figure.savefig(tmp_path / "x.png")
        gap, residual, support = figure.axes
        assert gap.get_yscale() == residual.get_yscale() == "log"
        trace = solutions["fista"].trace
        for axis, kept in ((gap, trace.gap), (residual, trace.residual), (support, trace.support)):
            median, worst = axis.lines[2:4]
            assert len(median.get_xdata()) == len(trace)
            assert median.get_ydata() == pytest.approx(kept.double().median(-1).values.tolist())
            assert worst.get_ydata() == pytest.approx(kept.amax(-1).tolist())
        assert texts(figure)[1:6] == ["newton", "fista", "interior", "median row", "worst row"]

    def test_refuses_what_has_no_trace(self):
        layer, x = RegularizedMax(regmax.regularizer("gini")), torch.zeros(2, 3)
        with pytest.raises(ValueError, match=r"closed form has no trace: solve\(x, trace=True\)"):
            plots.convergence(layer.solve(x))
        with pytest.raises(ValueError, match="mine took closed form"):
            plots.convergence({"mine": layer.solve(x, trace=True)})
        for wrong in (1, {}, [layer.solve(x)], {"mine": 1}):
            with pytest.raises(TypeError, match=r"^solutions must be what layer.solve\(x, trace"):
                plots.convergence(wrong)  # type: ignore[arg-type]


def without_matplotlib(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("no", name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)


def test_without_matplotlib_the_extra_is_named(monkeypatch, capsys):
    without_matplotlib(monkeypatch)
    with pytest.raises(ImportError, match=r"needs matplotlib.*pip install 'regmax\[plot\]'"):
        plots.mapping(regmax.regularizer("gini"))
    assert main(["plot", "gini"]) == 2
    assert "pip install 'regmax[plot]'" in capsys.readouterr().err


class TestNames:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("tv", "TV(lam=0.1)"),
            ("fusedmax", "TV(lam=0.1)"),
            ("tv:lam=0.5", "TV(lam=0.5)"),
            ("oscar:exact=False", "Oscar(lam=0.01, exact=False)"),
            ("tsallis(alpha=1.5) + 0.1*tv", "Tsallis(alpha=1.5) + 0.1*ChainTV()"),
            (" 0.5 * (gini + 2*tv) ", "0.5*Gini() + ChainTV()"),
            ("gini + owl(weights=[3, 2.5, -1])", "Gini() + OWL(weights=(3.0, 2.5, -1.0))"),
            ("gini + 0.1*grid_tv(shape=(4, 5))", "Gini() + 0.1*GridTV(shape=(4, 5))"),
            ("tv(lam=0.2) + entropy", "Gini() + Entropy() + 0.2*ChainTV()"),
            ("Tsallis(alpha=1.5) + 0.1*ChainTV()", "Tsallis(alpha=1.5) + 0.1*ChainTV()"),
        ],
    )
    def test_accepted(self, text, said):
        label, omega = named(text)
        assert label == text
        assert repr(omega) == said

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("nonsense", "no regularizer or penalty is named 'nonsense'; accepted: divergence, "),
            ("grid_tv", "penalty 'grid_tv' needs shape=..."),
            ("clique_tv", "that is a penalty, not a regularizer; add it to one"),
            ("2*3", "that is int, not a regularizer"),
            ("gini(", r"cannot read 'gini\('; accepted: names, name\(key=value, ...\), numbers"),
            ("gini + (tv - oscar)", r"cannot read 'tv - oscar'; accepted: names, name\(key=value"),
            ("gini(1)", r"gini takes its arguments by name: gini\(key=value"),
            ("tv:lam", "cannot read 'lam'"),
            ("tv:lam=inf", "lam must be >= 0 and finite"),
            ("gini(alpha=2)", r"no hyperparameter 'alpha'; accepted: \(none\)"),
            ("gini + owl()", "weights"),
            ("tsallis(alpha=-1)", "alpha must be > 0; got -1"),
            ("tsallis(alpha=x)", "cannot read 'x'; accepted: .* as a value a number"),
            ("-1*gini", "the factor must be > 0"),
            ("True*gini", r"cannot read 'True \* gini'"),
            ("gini*entropy", "one of the factors must be a number"),
            ("gini + 1", "what is added must be"),
            ("gini - gini", "cannot read 'gini - gini'; accepted: names"),
            ("gini/2", "cannot read 'gini / 2'"),
            ("", "no regularizer or penalty is named ''; accepted: divergence"),
            ("gini + tv + oscar", "no prox of a sum"),
            ("oscar(exact=False) + gini", "is an approximation"),
            ("__import__('os').system('exit 1')", "cannot read"),
            ("(lambda: gini)()", "cannot read"),
            ("gini.__class__()", "no regularizer or penalty is named .gini.__class__"),
            ("(\0)", "cannot read"),
            ("+".join(["gini"] * 5000), "gini"),
            ("(" * 500 + "gini" + ")" * 500, "cannot read"),
        ],
    )
    def test_refused(self, text, words):
        with pytest.raises(UsageError, match=words):
            named(text)
