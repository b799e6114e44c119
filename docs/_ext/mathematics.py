"""Displayed formulas of docstrings, in Unicode so that a terminal shows them, as TeX."""

from __future__ import annotations

import re

NAMED = """
    α alpha  γ gamma  δ delta  θ theta  λ lambda  μ mu  τ tau  Δ Delta  Π Pi  Ω Omega  ≤ le  ≥ ge
    ∈ in  ⟨ langle  ⟩ rangle  ‖ |  · cdot  ∇ nabla  ∂ partial  Σ sum  ½ tfrac12  … dots"""
TEX = str.maketrans(
    {sign: rf"\{name} " for sign, name in re.findall(r"(\S) (\S+)", NAMED)}
    | {"−": "-", "⁻": "^{-", "¹": "1}", "²": "^2", "ᵀ": r"^\top ", "₊": "_+", "*": r"^\star "}
    | {"₁": "_1", "₂": "_2", "\u2003": r" \qquad "}
)
OPERATORS = {
    **{name: rf"\{name}" for name in ("max", "min", "log", "exp")},
    **{name: rf"\operatorname{{{name}}}" for name in ("prox", "sign", "mean", "diag")},
    **{f"arg{name}": rf"\operatorname{{arg\,{name}}}" for name in ("max", "min")},
}
CODE = re.compile(r"[A-Z][a-z]\w*\(|\w\.\w|\w=\w|[\"#]")


def is_formula(block: str) -> bool:
    """Whether an indented block is mathematics, not code."""
    unusual = any(ord(sign) > 127 for sign in block)
    return unusual and bool(re.search("[=≤≥∈]", block)) and not CODE.search(block)


def tex(formula: str) -> str:
    """A formula as TeX; words in it are upright."""
    text = re.sub(" {2,}", "\u2003", formula.strip())
    text = re.sub(r"([_^])\(([^()]*)\)", r"\1{\2}", text)
    text = re.sub(r"_(\[[^\]]*\]|[A-Zα-ω]{2,})", lambda index: f"_{{{' '.join(index[1])}}}", text)
    text = re.sub(r"(_?)( ?)([A-Za-z]{2,})( ?)", _word, text).translate(TEX).strip()
    if not text.isascii():
        raise ValueError(f"a sign without TeX: {text}")
    return text


def _word(found: re.Match[str]) -> str:
    index, before, word, after = found.groups()
    if word in OPERATORS:
        return f"{index}{before}{OPERATORS[word]}{after}"
    return rf"_{{\mathrm{{{word}}}}}{after}" if index else rf"\text{{{before}{word}{after}}}"
