"""max_Ω and Π_Ω at two scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..regularizers.regularizer import Regularizer
from .style import INK, PALETTE, QUIET, blank, formula, frame, line, styled
from .subjects import Omegas, several, title

Line = tuple[str, dict[str, Any], Tensor, Tensor]
"""A name, its style, max_Ω and Π_Ω."""
SHADES = ((PALETTE[5], 2.0), (PALETTE[0], 1.0), (PALETTE[1], 0.5))
"""Colours of three temperatures in units of γ."""


@styled
def curves(omegas: Omegas, gamma: float = 1.0, figure: Any = None) -> Any:
    """A figure of max_Ω([t, 0]) and its slope Π_Ω([t, 0])₁ over t, side by side: Niculae & Blondel
    (2017), Figure 2.

    ``omegas``: one Ω, drawn at γ/2, γ and 2γ, or several by name, drawn at γ. Equal curves share a
    line. max_Ω is shifted by γΩ(e₂), so that it tends to 0 as t → −∞, like max(t, 0). ``figure``: a
    matplotlib figure or subfigure to draw in; by default a new one. Raises ValueError if an Ω does
    not accept two entries.
    """
    found = several(omegas, 2)
    if figure is None:
        figure = blank(9, 4.1)
        figure.suptitle(title(found, gamma), fontsize=13, color=INK)
    left, right = figure.subplots(1, 2)
    t = scores(gamma)
    if len(found) == 1:
        lines = temperatures(next(iter(found.values())), gamma, t)
    else:
        each = [(name, *_both(omega, gamma, t)) for name, omega in found.items()]
        lines = [(name, line(k), top, y) for k, (name, top, y) in enumerate(_merged(each))]
    for name, style, top, _ in lines:
        left.plot(t.tolist(), top.tolist(), linewidth=2, label=formula(name), **style)
    left.plot(t.tolist(), t.clamp(min=0).tolist(), **_REFERENCE, label="max(t, 0)")
    left.legend(frameon=False, loc="upper left", fontsize=11)
    left.set_title("max$_Ω$([t, 0]), up to a constant", fontsize=12, color=INK)
    left.set(xlabel="score t", xlim=(float(t[0]), float(t[-1])))
    frame(left)
    dashed = slopes(right, lines, t, gamma)
    right.legend(handles=dashed, frameon=False, loc="upper left", fontsize=11)
    right.set_title("Π$_Ω$([t, 0])$_1$", fontsize=12, color=INK)
    return figure


def scores(gamma: float) -> Tensor:
    """(points,) t from −4γ to 4γ."""
    return torch.linspace(-4 * gamma, 4 * gamma, 401, dtype=torch.float64, device="cpu")


def temperatures(omega: Regularizer, gamma: float, t: Tensor) -> list[Line]:
    """The curves at 2γ, γ and γ/2."""
    return [
        (f"γ = {factor * gamma:g}", {"color": colour}, *_both(omega, factor * gamma, t))
        for colour, factor in SHADES
    ]


def slopes(axis: Any, lines: list[Line], t: Tensor, gamma: float) -> list[Any]:
    """Draw Π_Ω([t, 0])₁, and softmax if it is not among the lines; return softmax's line."""
    for name, style, _, y in lines:
        axis.plot(t.tolist(), y.tolist(), linewidth=2, label=formula(name), **style)
    axis.set(xlabel="score t", xlim=(float(t[0]), float(t[-1])), ylim=(-0.03, 1.03))
    frame(axis)
    soft = (t / gamma).sigmoid()
    if any(torch.allclose(y, soft, atol=1e-9) for *_, y in lines):
        return []
    text = "softmax" if gamma == 1 else f"softmax, γ = {gamma:g}"
    drawn: list[Any] = axis.plot(t.tolist(), soft.tolist(), **_REFERENCE, label=text)
    return drawn


_REFERENCE: dict[str, Any] = {"color": QUIET, "linestyle": (0, (4, 3)), "linewidth": 1.2}


def _both(omega: Regularizer, gamma: float, t: Tensor) -> tuple[Tensor, Tensor]:
    """max_Ω([t, 0]) + γΩ(e₂), and Π_Ω([t, 0])₁."""
    pairs = torch.stack([t, torch.zeros_like(t)], -1)
    layer = RegularizedMax(omega, gamma)
    with torch.no_grad():
        end = omega.value(omega.lifted(torch.tensor([0.0, 1.0], dtype=t.dtype, device="cpu")))
        return layer.max(pairs) + gamma * end, layer(pairs)[:, 0]


def _merged(each: list[tuple[str, Tensor, Tensor]]) -> list[tuple[str, Tensor, Tensor]]:
    """Equal curves once, with all of their names."""
    found: list[tuple[str, Tensor, Tensor]] = []
    for name, top, y in each:
        for k, (names, _, other) in enumerate(found):
            if torch.allclose(y, other, atol=1e-9):
                found[k] = (f"{names}, {name}", top, y)
                break
        else:
            found.append((name, top, y))
    return found
