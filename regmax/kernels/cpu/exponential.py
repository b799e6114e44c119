"""Softmax of long rows of float32: e(y) = y log y − y. PyTorch sums a row in float32 one after
another, which loses digits; here 64 terms are summed in float32, and these sums in float64."""

from __future__ import annotations

from . import mapping, powers

forward, backward = mapping.functions(powers.EXP, theta=1.0)
