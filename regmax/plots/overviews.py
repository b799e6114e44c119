"""All figures of one Ω in one."""

from __future__ import annotations

from typing import Any

from ..analysis.paths import varied
from ..regularizers.regularizer import Regularizer
from .paths import path
from .style import INK, blank, formula, styled
from .subjects import label, takes
from .surfaces import surface
from .triangles import simplex
from .twoscores import curves

WIDTH = 9.6


@styled
def overview(omega: Regularizer, gamma: float = 1.0, name: str = "") -> Any:
    """A figure with :func:`curves` at two scores, :func:`surface` and :func:`simplex` at three, and
    the :func:`path` over γ and each hyperparameter.

    An Ω for one number of entries has only the parts for that number, and the path. ``name``: the
    name of Π_Ω in the figure.
    """
    parts = {}
    if takes(omega, 2):
        parts["curves"] = 3.0
    if takes(omega, 3):
        parts["three"] = 3.5
    parts["path"] = 2.9 * -(-len(varied(omega, None)) // 3)
    figure = blank(WIDTH, sum(parts.values()) + 0.5)
    places = figure.subfigures(len(parts), 1, squeeze=False, height_ratios=list(parts.values()))
    for part, place in zip(parts, places[:, 0], strict=True):
        if part == "curves":
            curves(omega, gamma, place)
        elif part == "three":
            left, right = place.subfigures(1, 2, width_ratios=(1, 1.9))
            surface(omega, gamma, left)
            simplex(omega, gamma, right)
        else:
            path(omega, gamma=gamma, figure=place)
    figure.suptitle(formula(f"{name or label(omega)}, γ={gamma:g}"), fontsize=14, color=INK)
    return figure
