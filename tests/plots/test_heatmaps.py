"""Heat maps of attention, and the figures of attention heads."""

import pytest
import torch
from mapping_checks import normal as drawn

from regmax import plots
from regmax.functional import fusedmax, oscarmax, softmax
from regmax.plots import heatmaps

pytest.importorskip("matplotlib")

F64 = torch.float64
ROWS = torch.tensor(
    [
        [0.1, 0.1, 0.2, 0.2, 0.1, 0.2, 0.1, 0.0],
        [0.15, 0.2, 0.15, 0.2, 0.1, 0.1, 0.05, 0.05],
        [0.0, 0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0],
        [0.0, 0.02, 0.0, 0.95, 0.0, 0.03, 0.0, 0.0],
        [0.0] * 8,
    ],
    dtype=F64,
)


def borders(axis):
    """Where a panel has borders: beside cells (row, column left of it), below cells."""
    beside, below = set(), set()
    for (x0, y0), (x1, y1) in axis.collections[0].get_segments():
        if x0 == x1:
            beside.add((round(y0 + 0.5), round(x0 - 0.5)))
        else:
            assert y0 == y1
            below.add((round(y0 - 0.5), round(x0 + 0.5)))
    return beside, below


def words(axis):
    return [t.get_text() for t in axis.get_xticklabels()], [
        t.get_text() for t in axis.get_yticklabels()
    ]


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


class TestAttention:
    def test_a_cell_has_the_colour_of_its_weight_and_zeros_are_grey(self):
        from matplotlib.colors import to_rgba

        (image,) = plots.attention(ROWS).axes[0].images
        colours = image.to_rgba(image.get_array())
        grey = torch.tensor(to_rgba(heatmaps.ZERO))
        same = (torch.tensor(colours) - grey).abs().amax(-1) < 1e-2
        assert torch.equal(same, ROWS == 0)
        assert image.get_array().compressed().tolist() == ROWS[ROWS > 0].tolist()
        assert image.get_clim() == (0, 0.95)
        light = torch.tensor(image.cmap(torch.linspace(0, 1, 50).numpy()))[:, :3].sum(-1)
        assert bool((light.diff() <= 1e-6).all())  # the heavier, the darker

    def test_borders(self):
        beside, below = borders(plots.attention(ROWS).axes[0])
        for i in range(5):
            for j in range(7):
                assert ((i, j) in beside) == (ROWS[i, j].item() != ROWS[i, j + 1].item())
        for i in range(4):
            for j in range(8):
                assert ((i, j) in below) == bool(ROWS[i : i + 2, j].any())

    def test_clusters(self):
        figure = plots.attention(ROWS, clusters=True)
        signs = figure.axes[0].collections[1:]
        at = [[tuple(xy) for xy in sign.get_offsets().round().tolist()] for sign in signs]
        assert at == [
            [(2, 0), (3, 0), (5, 0)],  # the heaviest of a row first
            [(0, 0), (1, 0), (4, 0), (6, 0)],
            [(1, 1), (3, 1)],
            [(0, 1), (2, 1)],
            [(4, 1), (5, 1)],
            [(6, 1), (7, 1)],
            [(2, 2), (5, 2)],
        ]
        shapes = [len(sign.get_paths()[0].vertices) for sign in signs]
        assert shapes[0] == shapes[2] == shapes[6] != shapes[1] == shapes[3]
        dark = [sign.get_facecolor()[0, :3].sum() < 1.5 for sign in signs]
        assert dark == [True] * 6 + [False]  # to be seen on their cells
        assert len(plots.attention(ROWS).axes[0].collections) == 1
        assert any("one sign" in label for label in labels(figure))
        assert not any("one sign" in label for label in labels(plots.attention(ROWS)))

    def test_what_takes_no_part_is_white(self, tmp_path):
        mask = torch.ones(8, dtype=torch.bool)[: ROWS.shape[1]].clone()
        mask[-1] = False
        y = ROWS.clone()
        y[:, -1] = torch.nan  # what a masked cell holds does not matter
        figure = plots.attention(y, mask=mask)
        weights, white = figure.axes[0].images
        assert bool(white.get_array().mask[:, :-1].all())
        assert not bool(white.get_array().mask[:, -1].any())
        assert weights.get_array().shape == ROWS.shape
        assert "white: masked out" in labels(figure)
        by_name = plots.attentions({"a": ROWS, "b": y}, mask={"b": mask})
        assert [len(axis.images) for axis in by_name.axes[:2]] == [1, 2]
        figure.savefig(tmp_path / "x.png")
        with pytest.raises(ValueError, match="mask must broadcast to weights"):
            plots.attention(ROWS, mask=mask[:2], axes=figure.axes[0])

    @pytest.mark.parametrize(
        ("weights", "more", "words"),
        [
            (torch.zeros(3), {}, r"^weights must be a tensor of shape .* got \(3,\)"),
            (torch.zeros(0, 3), {}, r"got \(0, 3\)"),
            ([[0.5, 0.5]], {}, "got list"),
            (torch.tensor([[0.5, -0.5]]), {}, r"nonnegative and finite; got .* in \[-0.5, 0.5\]"),
            (torch.tensor([[0.5, torch.nan]]), {}, "nonnegative and finite"),
            (torch.ones(2, 3), {"source": ["a"]}, "source must have 3 words, .*; got 1"),
            (torch.ones(2, 3), {"target": ["a"] * 3}, "target must have 2 words, .*; got 3"),
        ],
    )
    def test_refuses(self, weights, more, words):
        with pytest.raises(ValueError, match=words):
            plots.attention(weights, **more)


def clustered(x):
    return oscarmax(x, lam=0.2)


def inches(figure, axis):
    """(left, bottom, right, top) of a panel with its words."""
    box = axis.get_tightbbox()
    return tuple(side / figure.dpi for side in (box.x0, box.y0, box.x1, box.y1))


class TestAttentions:
    def panels(self, rows, columns, number=3):
        several = {}
        for k, mapping in enumerate((softmax, fusedmax, clustered, softmax, clustered)[:number]):
            several[f"mapping {k}"] = mapping(2 * drawn(rows - (k == 1), columns, seed=k))
        source = [f"wort{'lich' * (j % 5)}" for j in range(columns)]
        target = {name: [f"w{i}" for i in range(len(y))] for name, y in several.items()}
        return several, source, target

    @pytest.mark.parametrize(
        ("rows", "columns", "number"), [(3, 4, 1), (3, 2, 5), (25, 25, 4), (5, 60, 2)]
    )
    def test_nothing_is_cut_and_nothing_overlaps(self, rows, columns, number, tmp_path):
        several, source, target = self.panels(rows, columns, number)
        figure = plots.attentions(several, source, target)
        figure.savefig(tmp_path / "x.png")
        width, height = figure.get_size_inches()
        boxes = [inches(figure, axis) for axis in figure.axes]
        key = figure.legends[0].get_window_extent()
        boxes.append(tuple(side / figure.dpi for side in (key.x0, key.y0, key.x1, key.y1)))
        assert len(boxes) == number + 2  # the colour bar, and the key
        for k, (x0, y0, x1, y1) in enumerate(boxes):
            assert min(x0, y0, width - x1, height - y1) >= -0.01
            for u0, v0, u1, v1 in boxes[:k]:
                apart = x1 <= u0 + 0.01 or u1 <= x0 + 0.01 or y1 <= v0 + 0.01 or v1 <= y0 + 0.01
                assert apart
        assert width <= max(heatmaps.WIDEST, 0.2 * columns + 3)

    def test_each_model_has_its_words_and_all_have_one_scale(self):
        several, source, target = self.panels(6, 7)
        figure = plots.attentions(several, source, target, clusters=("mapping 2",))
        *panels, bar = figure.axes
        assert [axis.get_title() for axis in panels] == list(several)
        assert [words(axis) for axis in panels] == [(source, target[name]) for name in several]
        top = max(float(y.max()) for y in several.values())
        assert {axis.images[0].get_clim() for axis in panels} == {(0, top)}
        assert bar.get_xlim() == (0, top)
        assert [len(axis.collections) > 1 for axis in panels] == [False, False, True]
        cells = {round(axis.get_window_extent().width) for axis in panels}
        assert len(cells) == 1

    def test_refuses(self):
        with pytest.raises(ValueError, match="weights must hold"):
            plots.attentions({})
        with pytest.raises(ValueError, match=r"weights\['b'\] must be a tensor"):
            plots.attentions({"a": ROWS, "b": torch.zeros(3)})
        for wrong in ([ROWS], ROWS):
            with pytest.raises(ValueError, match=r"weights must hold .* by name; got"):
                plots.attentions(wrong)
        for more in ({"target": {"b": ["x"]}}, {"mask": {"b": None}}, {"clusters": ["b"]}):
            words = f"{next(iter(more))} must name one of a; got 'b'"
            with pytest.raises(ValueError, match=words):
                plots.attentions({"a": ROWS}, **more)


class TestHeads:
    @pytest.mark.parametrize(
        ("draw", "arguments", "words"),
        [
            ("histograms", ([1.2, 1.5],), r"^values must be a dict .* got \[1.2, 1.5\]"),
            ("histograms", ({},), "^values must be a dict .* not empty; got {}"),
            ("histograms", ({"a": ["x"]},), r"^values\['a'\] must hold numbers, .* got \['x'\]"),
            ("histograms", ({"a": {"m": None}},), r"^values\['a'\]\['m'\] must hold numbers"),
            ("histograms", ({"a": [1.5]}, "α", "heads", (2, 1)), r"^span must .* span=\(2, 1\)"),
            ("histograms", ({"a": [1.5]}, "α", "heads", 3), "^span must .* got span=3"),
            ("histograms", ({"a": [1.5]}, "α", "heads", (0, 1), 0), "^span must .* bins=0"),
            ("trajectories", ([1, 2], [1.0, 2.0]), "^values must be a dict"),
            ("trajectories", ([1, 2], {"a": 3.0}), r"^values\['a'\] must have one entry .* got 1"),
            ("trajectories", (["x"], {"a": [3.0]}), "^steps must hold numbers"),
            ("head_densities", ([1],), "^values must be a dict"),
            ("head_densities", ({"a": [1.0]},), r"^values\['a'\] must be a dict"),
            ("diversity_by_layer", (3,), "^values must be a dict .* got 3"),
            ("diversity_by_layer", ({"a": {"m": "x"}},), r"^values\['a'\]\['m'\] must hold"),
        ],
    )
    def test_refuses(self, draw, arguments, words):
        with pytest.raises((TypeError, ValueError), match=words):
            getattr(plots, draw)(*arguments)

    def test_trajectories(self, tmp_path):
        steps = [0, 10, 20]
        values = {"encoder": 1 + drawn(3, 4, 1, 1), "decoder, head 2": [1.0, 1.5, 1.25]}
        figure = plots.trajectories(steps, values)
        figure.savefig(tmp_path / "x.png")
        (axis,) = figure.axes
        assert len(axis.lines) == 5
        assert all(list(line.get_xdata()) == steps for line in axis.lines)
        assert axis.lines[2].get_ydata().tolist() == values["encoder"][:, 2, 0, 0].tolist()
        assert axis.lines[4].get_ydata().tolist() == values["decoder, head 2"]
        assert len({line.get_color() for line in axis.lines}) == 2
        assert labels(figure) == list(values)
        with pytest.raises(ValueError, match=r"values\['a'\] must have .* of the 3 steps; got 2"):
            plots.trajectories(steps, {"a": [1.0, 2.0]})

    def test_head_densities_are_sorted_in_each_layer(self, tmp_path):
        table = drawn(3, 4).sigmoid()
        figure = plots.head_densities({"encoder": {"a": table, "b": table.tolist()}})
        figure.savefig(tmp_path / "x.png")
        for axis in figure.axes:
            lines = [line.get_ydata().tolist() for line in axis.lines]
            assert lines == table.sort(-1).values.T.tolist()
            assert list(axis.get_xticks()) == [1, 2, 3]
