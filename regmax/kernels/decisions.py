"""Decisions of a solve that depend on the numbers of tensors, with few synchronisations.

A branch such as ``if bool(wrong.any())`` waits for a GPU. Inside :func:`predicted` such a branch
takes the way that is likely, and the number that decides is kept on the device. The next
:func:`read` compares all of them. If one was predicted wrongly, everything is computed again, and
each decision is read where it is made. The result is that of the true decisions in either case.

On the CPU, and outside :func:`predicted`, each decision is read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

from . import transforms
from .base import held

T = TypeVar("T")
Memory = dict[Hashable, bool]
"""How the decisions of earlier solves went, by name."""
STEPS = 10
"""Iterations between two tests of whether all rows are done."""


class _Mispredicted(Exception):
    """A decision went another way than was predicted."""


class _Solve:
    """The decisions of one solve. ``pending``: whether they were predicted wrongly."""

    def __init__(self, memory: Memory, exact: bool) -> None:
        self.memory, self.exact = memory, exact
        self.pending: list[Tensor] = []


_SOLVE: ContextVar[_Solve | None] = ContextVar("regmax_solve", default=None)


def predicted(compute: Callable[[], T], memory: Memory) -> T:
    """``compute()`` with predicted decisions, or with those that are read if a prediction failed.

    ``compute`` is called twice then: it must begin with nothing that the first call computed.
    """
    for exact in (False, True):
        try:
            with held(_SOLVE, _Solve(memory, exact)):
                result = compute()
                read()
                return result
        except Exception:  # of a wrong prediction, or raised again by the second call
            if exact:
                raise
    raise AssertionError


def read(*flags: Tensor) -> list[bool]:
    """Whether each of the tensors is true somewhere: one synchronisation, which also tests the
    predictions made so far."""
    solve = _SOLVE.get()
    pending = [] if solve is None else solve.pending
    if not (flags or pending):
        return []
    if len(flags) == 1 and not pending:
        return [bool(flags[0].any())]
    some = torch.stack([flag.any() for flag in (*flags, *pending)]).tolist()
    pending.clear()
    if any(some[len(flags) :]):
        raise _Mispredicted
    return some[: len(flags)]


def all_of(done: Tensor) -> bool:
    """Whether ``done`` is true everywhere, read at once."""
    return not read(~done)[0]


def rare(name: str, flag: Tensor, harmless: bool = False) -> bool:
    """Whether ``flag`` is true somewhere. Predicted is no, unless it was true before: it is read
    from then on, or taken as true where this is ``harmless``."""
    solve = _SOLVE.get()
    if solve is None:
        return bool(flag.any())
    before = solve.memory.get(name, False)
    if before and harmless and not solve.exact:
        return True
    if solve.exact or before:
        (found,) = read(flag)
        solve.memory[name] = before or found
        return found
    solve.pending.append(flag.any())
    return False


def usual(name: Hashable, flag: Tensor) -> bool:
    """Whether ``flag`` is true somewhere. Predicted is the last decision of this name."""
    solve = _SOLVE.get()
    if solve is None:
        return bool(flag.any())
    if solve.exact or name not in solve.memory:
        (found,) = read(flag)
        solve.memory[name] = found
        return found
    expected = solve.memory[name]
    solve.pending.append(flag.any() != expected)
    return expected


def due(k: int, like: Tensor, every: int = STEPS) -> bool:
    """Whether iteration k = 1, 2, … tests if all rows are done: each on the CPU, the first three
    and then one in ``every`` where the test waits for the device of ``like``."""
    return k <= 3 or k % every == 0 or not transforms.waits(like)
