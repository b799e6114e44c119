"""The first numbers of a job, which compiled functions and those who call them share.

The first of all, at 0, is a counter: every thread that runs a task takes rows from it until none is
left.
"""

from __future__ import annotations

ROWS, STEP = 1, 2
"""The positions in a job of the number of rows, and of how many to take at a time."""

LEAST = 0.05
"""With e' = y^a/a and a above this, e' is 0 at 0. Below, it is (y^a − 1)/a, as all entries may be
in the support, and powers would lose digits."""
COUNT = 35
"""The position of the result of a job of losses: the number of targets that count, or −1."""

TASK = "regmax_task"
"""The name of a task in its object file."""
STOPPED = 1 << 61
"""A task that finds no memory adds twice this to the counter: no thread takes rows any more."""
