"""Displayed formulas of docstrings: what is mathematics, and its TeX."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXTENSION = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "_ext" / "mathematics.py"))


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("Π_{cΩ,γ} = Π_{Ω,cγ}.", r"\Pi_{c\Omega,\gamma}=\Pi_{\Omega,c\gamma}."),
        ("y = argmax_{y ∈ Δ} ½‖y‖²", r"y=\operatorname{arg\,max}_{y\in\Delta}\tfrac12\|y\|^2"),
        ("H⁻¹1 1ᵀH_SS", r"H^{-1}11^\topH_{SS}"),
        (
            "Π_base(γ prox_λR(x/γ))",
            r"\Pi_{\mathrm{base}}(\gamma\operatorname{prox}_{\lambdaR}(x/\gamma))",
        ),
        ("u^(α−1),    y* > 0", r"u^{\alpha-1},\qquady^\star>0"),
        ("J on S, 0 elsewhere", r"J\text{on}S,0\text{elsewhere}"),
        ("(x − τ)₊ y_[k]", r"(x-\tau)_+y_{[k]}"),
    ],
)
def test_a_formula_becomes_tex(formula, said):
    assert EXTENSION["tex"](formula).replace(" ", "") == said


def test_a_sign_without_tex_is_an_error():
    with pytest.raises(ValueError, match="a sign without TeX: ♥"):
        EXTENSION["tex"]("♥")


@pytest.mark.parametrize(
    ("block", "formula"),
    [
        ("    J v = P v − mean(v_S)", True),
        ("    max_{y ∈ Δ} ⟨y, z⟩ − base(y)", True),
        ("    entmax(x, alpha=1.5)", False),
        ("    AdaptiveEntmax(8)   α = 1.5 per head", False),
        ('    for step in …: record("α = 1")', False),
    ],
)
def test_code_is_no_formula(block, formula):
    assert EXTENSION["is_formula"](block) == formula
