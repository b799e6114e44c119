"""The validation backends that regmax ships, offered through the same hook as anybody's."""

from __future__ import annotations

from ..hooks import hookimpl
from .base import Answer, Backend, Task
from .cvxpy_road import Cvxpy
from .cvxpylayers_roads import CvxpyLayers
from .generic import Generic

__all__ = ["Answer", "Backend", "Cvxpy", "CvxpyLayers", "Generic", "Task"]


@hookimpl
def regmax_backends() -> list[type[Backend]]:
    return [Generic, CvxpyLayers, Cvxpy]
