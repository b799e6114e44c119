"""Figures of Ω at two and three scores, its regularization paths, and all of them together."""

from __future__ import annotations

import pytest
import torch
from omegas import Weighted

import regmax
from regmax import RegularizedMax, plots
from regmax.plots import mappings, three_scores

pytest.importorskip("matplotlib")

F64 = torch.float64


class Elastic(regmax.Regularizer):
    """A third party's: known by its value, with a hyperparameter of its own."""

    name = "elastic"
    hyperparameters = ("mu",)
    ranges = {"mu": (">= 0", lambda mu: mu >= 0)}  # noqa: RUF012

    def __init__(self, mu=1.0):
        self.mu = mu

    def value(self, y):
        return self.per_row("mu") * y.square().sum(-1) / 2 - torch.special.entr(y).sum(-1)


FIRST = ["entropy", "gini", "oscar", "pnorm"]
EACH = [
    *map(regmax.regularizer, FIRST),
    *(regmax.regularizer(name) for name in regmax.available() if name not in FIRST),
    Elastic(),
]
FEW = [regmax.regularizer(name) for name in ("entropy", "tsallis", "oscar")]


def lines(axis):
    return {line.get_label(): torch.tensor(line.get_ydata()) for line in axis.lines}


class TestLabel:
    def test_the_mapping_with_its_hyperparameters(self):
        said = [plots.label(omega) for omega in (*EACH[:2], regmax.regularizer("tv", lam=0.5))]
        assert said == ["softmax", "sparsemax", "fusedmax(lam=0.5)"]
        assert plots.label(Elastic()) == "Elastic(mu=1.0)"

    def test_titles_are_formulas(self):
        figure = plots.path(regmax.regularizer("tv"), name="fusedmax:lam=0.2")
        assert figure.get_suptitle() == "fusedmax, λ = 0.2, γ = 1"
        figure = plots.curves({"tsallis(alpha=1.5) + 0.1*tv": EACH[0]})
        assert figure.get_suptitle() == "tsallis(α = 1.5) + 0.1 · tv, γ = 1"

    def test_figures_have_no_background(self):
        figure = plots.curves(EACH[0])
        for part in (figure, *figure.axes):
            assert part.get_facecolor()[3] == 0


class TestCurves:
    @pytest.mark.parametrize("omega", EACH, ids=repr)
    def test_max_and_argmax_of_each(self, omega):
        left, right = plots.curves(omega, gamma=0.8).axes
        t = torch.tensor(left.lines[0].get_xdata())
        pairs = torch.stack([t, torch.zeros_like(t)], -1)
        for gamma in (1.6, 0.8, 0.4):
            layer = RegularizedMax(omega, gamma)
            top, y = lines(left)[f"γ = {gamma:g}"], lines(right)[f"γ = {gamma:g}"]
            assert torch.equal(y, layer(pairs)[:, 0])
            raised = top - layer.max(pairs)
            assert torch.allclose(raised, raised[:1])  # up to a constant
            assert bool((top >= t.clamp(min=0) - 1e-9).all())
        assert lines(left)["max(t, 0)"].tolist() == t.clamp(min=0).tolist()

    def test_several_and_equal_ones_share_a_line(self):
        names = {
            "a": regmax.regularizer("tv", lam=0.2),
            "b": regmax.regularizer("gini"),
            "c": regmax.regularizer("oscar", lam=0.4),
        }
        left, right = plots.curves(names).axes
        assert list(lines(left)) == ["a,\nc", "b", "max(t, 0)"]
        assert list(lines(right)) == ["a,\nc", "b", "softmax"]


class TestSurface:
    @pytest.mark.parametrize("omega", FEW, ids=repr)
    def test_the_second_weight(self, omega, monkeypatch):
        from mpl_toolkits.mplot3d.axes3d import Axes3D

        seen = []
        drawn = Axes3D.plot_surface
        monkeypatch.setattr(
            Axes3D, "plot_surface", lambda self, *a, **k: seen.append(a) or drawn(self, *a, **k)
        )
        figure = plots.surface(omega, gamma=0.5)
        first, second, height = map(torch.tensor, seen[0])
        x = torch.stack([first, second, torch.zeros_like(first)], -1)
        assert torch.equal(height, RegularizedMax(omega, 0.5)(x)[..., 1])
        (axis,) = figure.axes
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("t$_1$", "t$_2$")
        assert first[0, 0] == -three_scores.WIDTH * 0.5


class TestSimplex:
    @pytest.mark.parametrize("omega", FEW, ids=repr)
    def test_patterns_and_answers(self, omega):
        figure = plots.simplex(omega, gamma=0.7)
        scores, answers = figure.axes
        shown = torch.as_tensor(scores.images[0].get_array())
        at = torch.linspace(-three_scores.SPAN, three_scores.SPAN, three_scores.PIXELS, dtype=F64)
        for row, column in ((3, 200), (120, 118), (180, 40)):
            point = torch.stack([at[column], at[row] + 1e-4])
            y = RegularizedMax(omega, 0.7)(0.7 * three_scores.scores_at(point)[None])
            assert three_scores.patterns(y).item() == shown[row, column]
        y = RegularizedMax(omega, 0.7)(0.7 * three_scores.lattice(0.2)) @ three_scores.CORNERS
        dots = [ln for ln in answers.lines if ln.get_marker() == "o"]
        drawn = torch.cat([torch.tensor(dot.get_xydata()) for dot in dots])
        assert torch.cdist(y, drawn).amin(1).max() < 2e-3  # each answer has its dot
        assert torch.cdist(drawn, y).amin(1).max() < 2e-3

    def test_what_is_fused(self):
        figure = plots.simplex(regmax.regularizer("tv", lam=0.2))
        said = {text.get_text() for text in figure.legends[0].get_texts()}
        assert said == {words for words, _ in three_scores.PATTERNS}
        figure = plots.simplex(regmax.regularizer("gini"))
        said = [text.get_text() for text in figure.legends[0].get_texts()]
        assert said == ["three entries above 0", "two entries above 0", "one entry above 0"]

    def test_titles_of_panels_stay_below_the_title(self):
        figure = plots.simplex(dict(zip("abcdef", 2 * FEW, strict=True)))
        figure.draw_without_rendering()
        room = [axis.title.get_window_extent().y1 for axis in figure.axes if axis.get_title()]
        assert (figure._suptitle.get_window_extent().y0 - max(room)) / figure.dpi > 0.1


class TestPath:
    @pytest.mark.parametrize("omega", FEW, ids=repr)
    def test_lines_are_what_the_layer_gives(self, omega):
        figure = plots.path(omega, gamma=0.9)
        names = ["gamma", *(name for _, name, _ in omega.declared())]
        letters = {"gamma": "temperature γ", "alpha": "α", "lam": "λ"}
        said = [letters.get(name, name) for name in names]
        assert [axis.get_xlabel() for axis in figure.axes] == said
        x = mappings.default_row(omega)
        for name, axis in zip(names, figure.axes, strict=True):
            drawn = [line for line in axis.lines if line.get_linewidth() == 1.5]
            assert len(drawn) == len(x)
            at = drawn[0].get_xdata()
            for k in (0, 57, 211, 399):
                if name == "gamma":
                    layer = RegularizedMax(omega, float(at[k]))
                else:
                    hyper = {key: getattr(omega, key) for key in omega.arguments}
                    layer = RegularizedMax(type(omega)(**(hyper | {name: float(at[k])})), 0.9)
                y = torch.tensor([line.get_ydata()[k] for line in drawn], dtype=F64)
                assert torch.allclose(y, layer(x), atol=1e-7)

    @pytest.mark.parametrize("name", ["tv", "oscar"])
    def test_fused_lines_merge_bit_for_bit(self, name):
        omega = regmax.regularizer(name)
        figure = plots.path(omega, over=["lam"])
        (axis,) = figure.axes
        thin = [torch.tensor(ln.get_ydata()) for ln in axis.lines if ln.get_linewidth() == 1.5]
        wide = [torch.tensor(ln.get_ydata()) for ln in axis.lines if ln.get_linewidth() == 6]
        y, shared = torch.stack(thin, -1), torch.stack(wide, -1)
        ids = regmax.analysis.groups(y, omega)
        same = ((ids[:, :, None] == ids[:, None]) & (ids[:, :, None] >= 0)).sum(-1) > 1
        assert torch.equal(~shared.isnan(), same)
        assert torch.equal(shared[same], y[same])
        assert bool((y[-1] == y[-1, 0]).all())  # all are one at the end
        assert not bool(same[0].any())
        assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "equal weights"

    def test_own_scores_and_what_takes_no_part(self):
        x = torch.tensor([1.0, -torch.inf, 0.3])
        (axis,) = plots.path(regmax.regularizer("gini"), x).axes
        assert len([line for line in axis.lines if line.get_linewidth() == 1.5]) == 2

    def test_nested_hyperparameters(self):
        omega = 0.5 * regmax.regularizer("tsallis") + 0.1 * regmax.penalty("tv")
        figure = plots.path(omega)
        assert [axis.get_xlabel() for axis in figure.axes][:2] == ["temperature γ", "λ"]
        assert "base.base.α" in [axis.get_xlabel() for axis in figure.axes]
        with pytest.raises(ValueError, match=r"over must name one of gamma, lam, .*; got 'alpha'"):
            plots.path(omega, over=["alpha"])

    @pytest.mark.parametrize("values", [[0.0, 0.1, 2.0], torch.tensor([2.0, 0.1]), [0.3]])
    def test_the_arguments_of_the_numbers(self, values):
        omega, x = regmax.regularizer("tv"), torch.tensor([1.0, 1.1, 0.2])
        found = regmax.analysis.path(omega, x, "lam", values)
        (axis,) = plots.path(omega, x, "lam", values).axes
        drawn = [line for line in axis.lines if line.get_linewidth() == 1.5]
        for k, line in enumerate(drawn):
            assert line.get_xdata() == pytest.approx(found.values.tolist())
            assert line.get_ydata() == pytest.approx(found.y[:, k].tolist())

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("gamma", [-1.0]), "gamma must be"),
            (("lam", []), "values must hold at least one number"),
            ((["gamma", "lam"], [1.0]), "values go with one name in over; got gamma, lam"),
            ((None, [1.0]), "values go with one name in over; got gamma, lam"),
            ((0.5,), r"over must name one of gamma, lam; got 0\.5"),
        ],
    )
    def test_arguments_that_are_wrong(self, arguments, words):
        with pytest.raises(ValueError, match=words):
            plots.path(regmax.regularizer("tv"), torch.zeros(3), *arguments)


class TestOverview:
    def test_all_on_one(self, tmp_path):
        figure = plots.overview(Elastic(), name="mine")
        assert figure.get_suptitle() == "mine, γ = 1"
        assert len(figure.axes) == 2 + 1 + 2 + 2
        plots.save(figure, tmp_path / "x.svg")
        assert (tmp_path / "x.svg").stat().st_size < 300_000

    @pytest.mark.parametrize(("entries", "axes"), [(2, 2 + 2), (3, 1 + 2 + 2), (5, 2)])
    def test_what_is_for_its_number_of_entries(self, entries, axes):
        edges = [(k, k + 1) for k in range(entries - 1)]
        omega = regmax.regularizer("gini") + 0.1 * regmax.penalty("graph_tv", edges=edges)
        assert len(plots.overview(omega).axes) == axes


@pytest.mark.parametrize("draw", [plots.curves, plots.surface, plots.simplex])
class TestRefuses:
    def test_another_number_of_entries(self, draw):
        grid = regmax.regularizer("gini") + regmax.penalty("grid_tv", shape=(3, 4))
        with pytest.raises(ValueError, match=r"is made for rows of 12 entries; this picture is of"):
            draw({"on a grid": grid})

    def test_a_number_of_entries_that_is_not_declared(self, draw):
        omega = Weighted(torch.arange(1.0, 6.0))
        with pytest.raises(ValueError, match=r"made for rows of another number of .*or path at a"):
            draw(omega)
        x = torch.linspace(-1, 1, 5)
        assert len(plots.mapping(omega, x).axes) > 2
        assert len(plots.path(omega, x).axes) == 1

    def test_none_and_others(self, draw):
        with pytest.raises(ValueError, match="omegas must hold at least one regularizer"):
            draw({})
        with pytest.raises(TypeError, match=r"^a must be a regmax.Regularizer, or .* got str"):
            draw({"a": "gini"})
        with pytest.raises(
            TypeError, match=r"omegas must be a regmax.Regularizer, or a dict .*'gini'"
        ):
            draw("gini")
        with pytest.raises(TypeError, match=r"gamma must be a number or a .*; got str 'a'"):
            draw(regmax.regularizer("gini"), "a")
