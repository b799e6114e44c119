"""What objects show in a notebook; what they print stays as it is."""

import pytest
import torch

import regmax
from regmax.regularizers import display

GINI = r"\tfrac{1}{2} \lVert y \rVert_2^2"
TV = r"\sum_i \lvert y_{i+1} - y_i \rvert"


class Own(regmax.Regularizer):
    """Without a formula."""

    hyperparameters = ("mu",)

    def __init__(self, mu=1e-5):
        self.mu = mu

    def value(self, y):
        return self.mu * y.square().sum(-1)


def tsallis(**given):
    return regmax.regularizer("tsallis", **given)


def shown(text):
    return rf"$\displaystyle {text}$"


class TestFormulas:
    @pytest.mark.parametrize("name", regmax.available())
    def test_every_registered_regularizer_has_one(self, name):
        text = regmax.regularizer(name)._repr_latex_()
        assert text.startswith(r"$\displaystyle \Omega(y) = ")
        assert "mathrm" not in text
        assert text.count("$") == 2
        assert text.count("{") == text.count("}")

    @pytest.mark.parametrize(
        "penalty",
        [
            regmax.penalty("tv"),
            regmax.penalty("oscar"),
            regmax.penalty("clique_tv"),
            regmax.penalty("owl", weights=[2.0, 1.0]),
            regmax.penalty("grid_tv", shape=(2, 2)),
            regmax.penalty("graph_tv", edges=[(0, 1)]),
        ],
        ids=str,
    )
    def test_every_penalty_has_one(self, penalty):
        assert penalty._repr_latex_().startswith(r"$\displaystyle R(y) = \sum")

    @pytest.mark.parametrize(
        ("omega", "text"),
        [
            (regmax.regularizer("tv", lam=0.5), rf"\Omega(y) = {GINI} + 0.5\, {TV}"),
            (regmax.regularizer("gini") + regmax.penalty("tv"), rf"\Omega(y) = {GINI} + {TV}"),
            (1e-5 * regmax.penalty("tv"), rf"R(y) = 1 \cdot 10^{{-5}}\, {TV}"),
            (
                3 * (regmax.regularizer("entropy") + regmax.regularizer("gini")),
                rf"\Omega(y) = 3\, \left(\sum_i y_i \log y_i + {GINI}\right)",
            ),
            (tsallis(), r"\Omega(y) = \frac{\sum_i y_i^{1.5} - 1}{1.5\, (1.5 - 1)}"),
            (tsallis(alpha=1.0), r"\Omega(y) = \sum_i y_i \log y_i"),
            (
                tsallis(alpha=torch.ones(3, 1)),
                r"\Omega(y) = \frac{\sum_i y_i^{\alpha} - 1}{\alpha\, (\alpha - 1)}",
            ),
            (Own(), r"\Omega(y) = \mathrm{Own}(y, \mu = 1 \cdot 10^{-5})"),
        ],
    )
    def test_with_numbers(self, omega, text):
        assert omega._repr_latex_() == shown(text)


class TestMarkdown:
    def test_a_table(self):
        text = display.markdown(["a", "b_c"], [["x | y", "*"]])
        assert text == "| a | b\\_c |\n| --- | --- |\n| x \\| y | \\* |"

    def test_explain_is_a_str(self):
        said = regmax.RegularizedMax(regmax.regularizer("gini")).explain(torch.zeros(2, 3))
        assert isinstance(said, str)
        assert said.splitlines()[0] == "RegularizedMax(Gini())"
        lines = said._repr_markdown_().splitlines()
        assert lines[0] == "**RegularizedMax(Gini())**"
        assert "- **rows**: 2 of 3 scores along dim -1" in lines

    @pytest.mark.parametrize("x", [torch.randn(3, 4), torch.zeros(4), torch.zeros(0, 4)])
    def test_solution_and_trace(self, x):
        layer = regmax.RegularizedMax(Own(1.0), solver="fista")
        solution = layer.solve(x, trace=True)
        text = solution._repr_markdown_()
        assert text.startswith(f"**Solution**: y of shape {tuple(x.shape)} by {solution.path}")
        assert ("| CONVERGED |" in text) == (len(x) > 0)
        assert "| point | solver |" in solution.trace._repr_markdown_()
        assert repr(solution).startswith("Solution(y of shape")
