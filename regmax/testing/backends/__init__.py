"""The validation backends of regmax, offered through the public hook."""

from __future__ import annotations

from ...regularizers.hooks import hookimpl
from .base import Answer, Backend, Task
from .conic import Cvxpy
from .cvxpylayers import CvxpyLayers
from .generic import Generic

__all__ = ["Answer", "Backend", "Cvxpy", "CvxpyLayers", "Generic", "Task"]


@hookimpl
def regmax_backends() -> list[type[Backend]]:
    return [Generic, CvxpyLayers, Cvxpy]
