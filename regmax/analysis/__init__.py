"""What attention looks like, in numbers: how sparse, how fused, how different from head to head;
and what becomes of the hyperparameters that learn.

This chapter imports ``regmax.nn`` and what is below.
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
