"""The exceptions and warnings of regmax."""

from __future__ import annotations


class RegularizerError(ValueError):
    """An Ω breaks its contract: not finite, the wrong shape, or not convex where it must be."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before every row reached its tolerance."""


class ConvergenceError(RuntimeError):
    """:class:`ConvergenceWarning` as an error, for ``on_failure="raise"``."""


class PluginWarning(UserWarning):
    """A plugin is at fault; the rest of regmax works without it."""


class PluginError(LookupError):
    """A name that no plugin provides, or that two distributions claim."""
