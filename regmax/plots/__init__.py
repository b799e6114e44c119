"""Figures of mappings, solver convergence, attention weights and attention heads. They need
matplotlib (extra ``plot``) and no display.

This chapter imports ``regmax.analysis``, ``regmax.nn`` and the chapters below them.
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
