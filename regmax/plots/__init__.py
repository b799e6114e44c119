"""Pictures: what a mapping does to scores, and how solvers get to it; where attention goes, and
what becomes of its heads. Needs matplotlib (extra ``plot``); no display.

This chapter imports ``regmax.analysis``, ``regmax.nn`` and what is below.
"""

from .descents import FLOOR, convergence
from .heads import diversity_by_layer, head_densities, histograms, trajectories
from .heatmaps import attention, attentions
from .mappings import example, mapping
from .overviews import overview
from .paths import path
from .style import save
from .subjects import label
from .surfaces import surface
from .triangles import simplex
from .twoscores import curves

__all__ = [
    "FLOOR",
    "attention",
    "attentions",
    "convergence",
    "curves",
    "diversity_by_layer",
    "example",
    "head_densities",
    "histograms",
    "label",
    "mapping",
    "overview",
    "path",
    "save",
    "simplex",
    "surface",
    "trajectories",
]
