"""Statistics of attention weights (density, groups, diversity of heads) and of hyperparameters over
training.

This chapter imports ``regmax.nn`` and the chapters below it.
"""

from .summary import AttentionSummary
from .trajectories import Trajectories
from .weights import density, group_count, groups, head_diversity, support_size

__all__ = [
    "AttentionSummary",
    "Trajectories",
    "density",
    "group_count",
    "groups",
    "head_diversity",
    "support_size",
]
