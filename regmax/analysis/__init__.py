"""Numbers about a mapping (its path over a hyperparameter, tables over several), about attention
weights (density, groups, diversity of heads) and about hyperparameters over training.

This chapter imports ``regmax.nn`` and the chapters below it.
"""

from .hyperparameters import RegularizationPath, Sweep, path, sweep
from .trajectories import Trajectories
from .weights import (
    AttentionSummary,
    density,
    group_count,
    groups,
    head_diversity,
    support_size,
)

__all__ = [
    "AttentionSummary",
    "RegularizationPath",
    "Sweep",
    "Trajectories",
    "density",
    "group_count",
    "groups",
    "head_diversity",
    "path",
    "support_size",
    "sweep",
]
