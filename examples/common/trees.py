"""The tree of all hypotheses of nonzero probability (Peters et al. 2019, Figure 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from regmax.plots.style import PALETTE, QUIET, styled

END = "⟨/s⟩"
SIZE = 10  # points
WIDTH = 0.602 * SIZE / 72  # inches of a character of DejaVu Sans Mono
BRANCH = 8.0  # characters
Hypothesis = tuple[Sequence[str], float]
"""Symbols, and the logarithm of the probability."""


@dataclass
class Node:
    """Symbols without a branch between them, the probability of the first after its prefix, and the
    nodes that may follow."""

    text: str
    probability: float
    children: list[Node] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0

    @property
    def shown(self) -> str:
        """The text in the node's box."""
        return self.text or "⟨s⟩"

    @property
    def end(self) -> float:
        """The right end of the box, in characters."""
        return self.x + len(self.shown) + 0.6


def tree(hypotheses: Sequence[Hypothesis]) -> Node:
    """The hypotheses as a tree. They must contain all sequences of nonzero probability."""
    return _node("", 1.0, [([*symbols, END], logp) for symbols, logp in hypotheses])


def _node(text: str, probability: float, below: Sequence[Hypothesis]) -> Node:
    """The node of ``text`` with the hypotheses ``below`` it."""
    groups: dict[str, list[Hypothesis]] = {}
    for symbols, logp in below:
        if symbols:
            groups.setdefault(symbols[0], []).append((symbols[1:], logp))
    if len(groups) == 1:
        [(symbol, rest)] = groups.items()
        return _node(text + symbol, probability, rest)
    total = _mass(below)
    masses = sorted(((_mass(rest) / total, s, rest) for s, rest in groups.items()), reverse=True)
    return Node(text, probability, [_node(s, mass, rest) for mass, s, rest in masses])


def _mass(hypotheses: Sequence[Hypothesis]) -> float:
    return math.fsum(math.exp(logp) for _, logp in hypotheses)


@styled
def draw(trees: Sequence[tuple[str, Node]]) -> Any:
    """A figure of trees with their titles, from left to right. Branches show their probability, and
    leaves that of the whole hypothesis."""
    leaves = [_place(root, 1.0, 0) for _, root in trees]
    right = max([*(_right(root) for _, root in trees), *(len(title) * 1.1 for title, _ in trees)])
    size = (right * WIDTH, sum(0.32 * count + 0.5 for count in leaves))
    figure = Figure(figsize=size, dpi=150)
    heights = [count + 1.6 for count in leaves]
    axes = figure.subplots(len(trees), squeeze=False, height_ratios=heights)[:, 0]
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1, hspace=0)
    for axis, (title, root), count in zip(axes, trees, leaves, strict=True):
        axis.text(0.4, -1, title, fontsize=SIZE, fontweight="bold", va="center")
        _draw(axis, root, 1.0)
        axis.set(xlim=(0, right), ylim=(count, -1.6))
        axis.axis("off")
    return figure


def _place(node: Node, x: float, leaf: int) -> int:
    """Place leaves at heights from ``leaf`` on, inner nodes at the mean; return the next height."""
    node.x, node.y = x, leaf
    for child in node.children:
        leaf = _place(child, node.end + BRANCH, leaf)
    if not node.children:
        return leaf + 1
    node.y = sum(child.y for child in node.children) / len(node.children)
    return leaf


def _right(node: Node) -> float:
    return max([node.end + BRANCH, *map(_right, node.children)])


def _draw(axis: Any, node: Node, mass: float) -> None:
    """Draw a node of probability ``mass``, and its children."""
    box = {"boxstyle": "round,pad=0.2", "facecolor": "none", "edgecolor": PALETTE[0]}
    style = {"family": "DejaVu Sans Mono", "fontsize": SIZE, "va": "center"}
    axis.text(node.x, node.y, node.shown, bbox=box, **style)
    if not node.children:
        axis.text(node.end + 0.5, node.y, f"{mass:.3f}", **style)
    for child in node.children:
        x, width, height = node.end, child.x - 0.5 - node.end, child.y - node.y
        number, at = f"{child.probability:.2g}", 0.56
        gap = 0.42 * (len(number) + 0.5) / width  # the number is between two parts of the line
        for ends in ((0.0, at - gap), (at + gap, 1.0)):
            points = [(x + t * width, node.y + t * height) for t in ends]
            axis.plot(*zip(*points, strict=True), color=QUIET, lw=1)
        middle = (x + at * width, node.y + at * height)
        axis.text(*middle, number, fontsize=8, ha="center", va="center")
        _draw(axis, child, mass * child.probability)
