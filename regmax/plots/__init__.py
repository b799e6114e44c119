"""Pictures: what a mapping does to scores, and how solvers get to it; where attention goes, and
what becomes of its heads. Needs matplotlib (extra ``plot``); no display."""

from .descents import FLOOR, convergence
from .heads import diversity_by_layer, head_densities, histograms, trajectories
from .heatmaps import attention, attentions
from .mappings import example, mapping

__all__ = [
    "FLOOR",
    "attention",
    "attentions",
    "convergence",
    "diversity_by_layer",
    "example",
    "head_densities",
    "histograms",
    "mapping",
    "trajectories",
]
