"""``do_rows`` as a C function for several threads (:mod:`regmax.kernels.cpu.threads`)."""

from __future__ import annotations

from typing import Any

from numba import carray

from regmax.kernels.cpu import memory
from regmax.kernels.cpu.jit import njit
from regmax.kernels.cpu.job import ROWS, STEP

from ._rows import do_rows, scratch

_ASKED, _NODES, _EDGES, _MASKED, _ARRAYS = 4, 5, 6, 7, 8
"""Their positions in a job, after the fields that all jobs have; addresses follow."""


@njit
def _reals(job: Any, k: int, shape: Any) -> Any:
    return carray(memory.doubles(job[_ARRAYS + k]), shape)


@njit
def _whole(job: Any, k: int, shape: Any) -> Any:
    return carray(memory.pointer(job[_ARRAYS + k], 0, job), shape)


def task(job: Any) -> None:
    count, d, m = job[ROWS], job[_NODES], job[_EDGES]
    s = scratch(d, m)
    arrays = (
        _reals(job, 0, (count, d)),
        _reals(job, 1, (count, d)),
        _reals(job, 2, count),
        carray(memory.octets(job[_ARRAYS + 3]), (count, d)),
        _reals(job, 4, m),
        (_whole(job, 5, m), _whole(job, 6, m)),
        (
            _whole(job, 7, d + 1),
            _whole(job, 8, 2 * m),
            _whole(job, 9, 2 * m),
            _reals(job, 10, 2 * m),
        ),
        _reals(job, 11, (count, d)),
        _whole(job, 12, (count, d)),
    )
    # ends: the job's counter only grows
    while True:
        first = memory.fetch_add(job, job[STEP])
        last = min(first + job[STEP], count)
        if first >= last:
            return
        do_rows(job[_ASKED], first, last, job[_MASKED] != 0, arrays, s)
