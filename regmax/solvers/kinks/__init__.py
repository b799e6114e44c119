"""Answers on kinks of Ω: where they are (:mod:`.points`), a quadratic model of Ω that keeps them
(:mod:`.model`), and Newton's method with it (:mod:`.steps`)."""

from __future__ import annotations

from .points import near_kinks
from .steps import SHORT, Tied, multiplied

__all__ = ["SHORT", "Tied", "multiplied", "near_kinks"]
