"""Indices and powers in the text of a page: what is typeset, and what stays."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("sphinx")

EXTENSION = Path(__file__).parents[2] / "docs" / "_ext" / "scripts.py"
TAG = {"Text": "", "subscript": "_", "superscript": "^"}


@pytest.fixture(scope="module")
def typeset():
    function = runpy.run_path(str(EXTENSION))["typeset"]

    def marked(text: str) -> str:
        """A subscript a as _<a>, a superscript as ^<a>."""

        def read(node):
            name = type(node).__name__
            inside = "".join(map(read, node.children)) if node.children else node.astext()
            return f"{TAG[name]}<{inside}>" if TAG[name] else inside

        return "".join(map(read, function(text)))

    return marked


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x ∈ R^d.", "x ∈ R^<d>."),
        ("‖u‖_p^(p−2) Σu", "‖u‖_<p>^<p−2> Σu"),
        ("½‖y‖_p², Π_Ω(x)", "½‖y‖_<p>², Π_<Ω>(x)"),
        ("argmax_{y ∈ Δ} ⟨y, x⟩", "argmax_<y ∈ Δ> ⟨y, x⟩"),
        ("Σ_{i<j} |y_{i+1} − y_i|", "Σ_<i<j> |y_<i+1> − y_<i>|"),
        ("(zᵢ − t)₊^(1/(p−1))", "(zᵢ − t)₊^<1/(p−1)>"),
        ("J_{P_Δ}, w_k y_[k]", "J_<P_<Δ>>, w_<k> y_<[k]>"),
        ("∂_kΩ, prox_λR(v), J_base, 2^−52", "∂_<k>Ω, prox_<λR>(v), J_<base>, 2^<−52>"),
        *[(text, text) for text in ("max_iter, as_cvxpy, test_gini.py", "a _ b, __init__, f(x)_")],
    ],
)
def test_indices_and_powers_are_typeset_and_names_are_not(typeset, text, said):
    assert typeset(text) == said
