"""The hooks that a plugin may implement. Each returns a list of classes, in any order."""

from __future__ import annotations

import pluggy

hookspec = pluggy.HookspecMarker("regmax")
hookimpl = pluggy.HookimplMarker("regmax")


@hookspec
def regmax_regularizers() -> list[type]:  # type: ignore[empty-body]
    """Subclasses of :class:`regmax.Regularizer`, each with a ``name`` and a ``mapping``."""


@hookspec
def regmax_penalties() -> list[type]:  # type: ignore[empty-body]
    """Subclasses of :class:`regmax.Penalty`, each with a ``name``."""


@hookspec
def regmax_solvers() -> list[type]:  # type: ignore[empty-body]
    """Subclasses of :class:`regmax.solvers.Solver`, each with a ``name``."""


@hookspec
def regmax_backends() -> list[type]:  # type: ignore[empty-body]
    """Subclasses of :class:`regmax.testing.backends.Backend`, each with a ``name``."""
