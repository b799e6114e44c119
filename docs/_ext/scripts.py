"""Indices and powers of formulas in running text, as in ``R^d`` and ``‖u‖_p^(p−2)``, are typeset.

Pages and docstrings write mathematics in Unicode, which reads well in a terminal too. What stands
after ``_`` or ``^`` becomes a subscript or a superscript. Code, formulas in TeX and names with
underscores stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

LETTER = "A-Za-zΑ-Ωα-ω"
OPERATOR = "argmax|argmin|max|min|prox|mean|head"
# what can carry an index: one letter, an operator, or the end of a term
BASE = rf"(?:(?<![\w^])(?:[{LETTER}∂∇]|{OPERATOR})|(?<=[)\]}}|‖ᵀ′*’ᵢⱼ₊Ω])|(?<=\d)(?=\^))"
BRACED = r"\{(?:[^{}]|\{[^{}]*\})*\}|\((?:[^()]|\([^()]*\))*\)|\[[^\[\]]*\]|\|\w\||[↓↑]"
GROUP = rf"{BRACED}|[+−-]?(?:\d[\d.]*|[a-z]|base|prox|[A-Z]{{1,3}}|[Α-Ωα-ω][A-Z]?)(?![A-Za-z0-9_])"
SCRIPTS = re.compile(rf"{BASE}(?P<scripts>(?:[_^](?:{GROUP}))+)")
SCRIPT = re.compile(rf"([_^])({GROUP})")
ASIS = (
    nodes.literal,
    nodes.FixedTextElement,
    nodes.math,
    nodes.raw,
    addnodes.desc_signature,
    addnodes.literal_strong,
    nodes.Invisible,
)


def typeset(text: str) -> list[nodes.Node]:
    """The text as nodes, with subscripts and superscripts."""
    found: list[nodes.Node] = []
    end = 0
    for match in SCRIPTS.finditer(text):
        start = match.start("scripts")
        found.append(nodes.Text(text[end:start]))
        for sign, group in SCRIPT.findall(match["scripts"]):
            kind = nodes.subscript if sign == "_" else nodes.superscript
            bare = group[0] == "{" or (group[0] == "(" and sign == "^")
            found.append(kind("", "", *typeset(group[1:-1] if bare else group)))
        end = match.end()
    return [*found, nodes.Text(text[end:])]


class Scripts(SphinxTransform):
    """Before quotation marks change (750)."""

    default_priority = 700

    def apply(self, **_: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if SCRIPTS.search(text.astext()) and not _asis(text):
                text.parent.replace(text, typeset(text.astext()))


def _asis(node: nodes.Node) -> bool:
    return node is not None and (isinstance(node, ASIS) or _asis(node.parent))


def setup(app: Any) -> dict[str, Any]:
    app.add_transform(Scripts)
    return {"parallel_read_safe": True, "version": "1"}
