"""Figures of mappings, solver convergence, attention weights and attention heads. They need
matplotlib (extra ``plot``) and no display.

This chapter imports ``regmax.analysis``, ``regmax.nn`` and the chapters below them.
"""

from .heads import diversity_by_layer, head_densities, histograms, trajectories
from .heatmaps import attention, attentions
from .mappings import curves, example, mapping, overview, path
from .solvers import FLOOR, convergence
from .style import label, save
from .three_scores import simplex, surface

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
