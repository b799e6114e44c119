"""What importing and compiling owe to the process around them: to its forks and its signals."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
COMPILING: Any = threading.RLock()
"""Held while something is compiled."""
PATIENCE = 60.0
"""Seconds that a fork waits for it."""
awaited = {"regmax", "numba", "llvmlite"}
"""How names of modules begin whose import a fork waits for: these, and plugins."""


def importing(*packages: str) -> list[str]:
    """The modules that are being imported, of those whose names begin so."""
    return [
        name
        for name, module in sys.modules.copy().items()
        if name.startswith(packages)
        and getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]


def undisturbed(work: Callable[[], T], *packages: str) -> T:
    """What ``work`` returns, from a thread of its own if this is the main thread. There alone a
    signal raises an exception, as Ctrl-C does, and that would leave numba half imported, or LLVM
    with half of a module. Now it ends the wait for ``work``, which goes on.

    It runs in this thread where no other can be started, and where one of ``packages`` is being
    imported, as it might wait for that.
    """
    if threading.current_thread() is not threading.main_thread() or importing(*packages):
        return work()
    found: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)
        done.set()

    try:
        threading.Thread(target=run, name="regmax-compiling").start()
    except RuntimeError:
        return work()
    done.wait()
    if errors:
        raise errors.pop()
    return found.pop()


def _locks() -> list[Any]:
    """The locks of those who compile, numba among them."""
    numba = sys.modules.get("numba.core.compiler_lock")
    lock = getattr(getattr(numba, "global_compiler_lock", None), "_lock", None)
    return [COMPILING] if lock is None else [COMPILING, lock]


_held: list[Any] = []


def _before() -> None:
    """Wait for other threads. In a child nobody would complete what they import or compile, nor
    release their locks."""
    for name in importing(*awaited):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for lock in _locks():
        if lock.acquire(timeout=PATIENCE):
            _held.append(lock)


def _after() -> None:
    held = _held.copy()
    _held.clear()
    for lock in held:
        lock.release()


def _in_child() -> None:
    for lock in _locks():
        if lock not in _held:  # another thread held it for too long
            lock._at_fork_reinit()
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
