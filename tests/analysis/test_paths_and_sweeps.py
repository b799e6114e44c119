"""Paths and sweeps, against single calls of the mappings."""

import pytest
import torch
from mapping_checks import normal as drawn

import regmax
from regmax import analysis
from regmax.functional import entmax, sparsemax

FUSED = regmax.regularizer("tsallis") + 0.1 * regmax.penalty("tv")


class TestPath:
    def test_each_point_is_a_call(self):
        x, values = drawn(2, 5), [0.2, 1.0, 3.0]
        found = analysis.path(regmax.regularizer("gini"), x, values=values)
        assert found.over == "gamma"
        assert found.present == 1.0
        for gamma, y in zip(values, found.y, strict=True):
            torch.testing.assert_close(y, sparsemax(x, gamma=gamma))
        assert torch.equal(found.groups[0], analysis.groups(found.y[0], "clusters"))

    def test_over_a_hyperparameter_with_a_mask(self):
        x, mask = drawn(5), torch.tensor([1, 1, 0, 1, 1]).bool()
        omega = regmax.regularizer("tsallis", alpha=1.2)
        found = analysis.path(omega, x, "alpha", [1.5, 2.0], gamma=0.5, mask=mask)
        assert found.present == 1.2
        torch.testing.assert_close(found.y[0], entmax(x, 1.5, gamma=0.5, mask=mask))
        assert not bool(found.y[:, 2].any())
        assert bool((found.groups[:, 2] == -1).all())

    def test_what_it_refuses(self):
        omega, x = regmax.regularizer("tsallis"), drawn(4)
        with pytest.raises(ValueError, match=r"got 'alpa' \(did you mean 'alpha'\?\)"):
            analysis.path(omega, x, "alpa")
        with pytest.raises(ValueError, match="alpha must be > 0; got -1"):
            analysis.path(omega, x, "alpha", [1.0, -1.0])
        with pytest.raises(ValueError, match="values must hold at least one number"):
            analysis.path(omega, x, values=[])
        with pytest.raises(TypeError, match=r"x must be a torch\.Tensor; got list"):
            analysis.path(omega, [1.0, 2.0])
        with pytest.raises(TypeError, match=r"values must hold numbers, .*; got \['a'\]"):
            analysis.path(omega, x, values=["a"])
        with pytest.raises(ValueError, match="gamma must be > 0 and finite; got inf at index"):
            analysis.path(omega, x, values=[float("inf")])
        with pytest.raises(TypeError, match=r"over must be one name; got \['gamma', 'alpha'\]"):
            analysis.path(omega, x, ["gamma", "alpha"])


class TestSweep:
    def test_the_columns_are_those_of_single_calls(self):
        x, mask = drawn(3, 6), drawn(3, 6, seed=1) > -1
        mask[2] = False
        found = analysis.sweep(FUSED, x, {"gamma": [0.5, 2.0], "lam": [0.0, 0.2]}, mask).to_dict()
        assert found["gamma"] == [0.5, 0.5, 2.0, 2.0]
        assert found["lam"] == [0.0, 0.2, 0.0, 0.2]
        omega = regmax.regularizer("tsallis") + 0.2 * regmax.penalty("tv")
        layer = regmax.RegularizedMax(omega, 0.5)
        solution, j = layer.solve(x, mask), layer.jacobian(x, mask)
        y = solution.y[:2]
        expected = {
            "support": analysis.support_size(y).double().mean(),
            "entropy": torch.special.entr(y).sum(-1).mean(),
            "groups": analysis.group_count(y, omega, mask=mask[:2]).double().mean(),
            "sensitivity": torch.linalg.matrix_norm(j[:2], 2).mean(),
        }
        for name, number in expected.items():
            assert found[name][1] == pytest.approx(float(number)), name
        assert all(0 <= error < 1e-7 for error in found["error"])

    def test_what_it_prints(self):
        found = analysis.sweep(regmax.regularizer("gini"), drawn(2, 4), {"gamma": [0.5, 1]})
        lines = repr(found).splitlines()
        assert lines[0].split() == ["gamma", "support", "entropy", "groups", "sensitivity", "error"]
        assert len(lines) == 1 + len(found) == 3
        assert found._repr_markdown_().splitlines()[0].startswith("| gamma | support |")

    def test_a_row_with_a_nan_is_not_hidden(self):
        x = torch.tensor([[1.0, torch.nan], [0.0, 1.0]])
        found = analysis.sweep(regmax.regularizer("gini"), x, {"gamma": [1.0]}).to_dict()
        assert all(number != number for name, (number,) in found.items() if name != "gamma")

    def test_what_it_refuses(self):
        with pytest.raises(ValueError, match=r"over\['lam'\] must hold at least one number"):
            analysis.sweep(FUSED, drawn(4), {"lam": []})
        with pytest.raises(ValueError, match="got none"):
            analysis.sweep(FUSED, drawn(4), {})
        with pytest.raises(TypeError, match=r"over\['lam'\] must hold numbers, .*; got \['a'\]"):
            analysis.sweep(FUSED, drawn(4), {"lam": ["a"]})
        for wrong in ("gamma", ["gamma"]):
            with pytest.raises(TypeError, match="over must be a dict of names and their values"):
                analysis.sweep(FUSED, drawn(4), wrong)
        for given in (0.1, iter([0.1]), {0.1: 1}.keys(), torch.tensor(0.1, dtype=torch.float64)):
            assert analysis.sweep(FUSED, drawn(4), {"lam": given}).to_dict()["lam"] == [0.1]

    def test_to_pandas(self):
        pandas = pytest.importorskip("pandas")
        found = analysis.sweep(regmax.regularizer("gini"), drawn(4), {"gamma": [1.0, 2.0]})
        assert isinstance(found.to_pandas(), pandas.DataFrame)
        assert found.to_pandas().shape == (2, 6)


def test_paths_and_sweeps_on_a_domain():
    x, domain = drawn(3, 6), regmax.Simplex(2.0, upper=0.7)
    omega = regmax.regularizer("tsallis", alpha=1.5)
    found = analysis.path(omega, x, "alpha", [1.2, 2.0], domain=domain)
    assert torch.allclose(found.y[0], entmax(x, 1.2, domain=domain), rtol=0, atol=1e-12)
    assert torch.allclose(found.y[1], sparsemax(x, domain=domain), rtol=0, atol=1e-12)
    table = analysis.sweep(omega, x, {"gamma": [0.01]}, domain=domain).to_dict()
    assert table["support"] == [3.0]  # 0.7, 0.7 and 0.6
    assert table["error"][0] <= 1e-8


def test_a_sweep_refuses_plans():
    with pytest.raises(NotImplementedError, match="plans"):
        analysis.sweep(
            regmax.regularizer("entropy"), drawn(3, 4), {"gamma": [1.0]}, domain=regmax.Transport()
        )


def test_a_path_over_gamma_of_a_row_with_an_infinite_score():
    x = torch.tensor([[1.0, torch.inf, 0.0], [1.0, 0.5, 0.0]], dtype=torch.float64)
    found = analysis.path(regmax.regularizer("gini"), x, "gamma")
    assert found.y[:, 0].isnan().all()
    assert torch.equal(
        found.y[:, 1], analysis.path(regmax.regularizer("gini"), x[1:], "gamma").y[:, 0]
    )
