"""Sparsemax on the CPU: e(y) = y²/2."""

from __future__ import annotations

from regmax.kernels.cpu import mapping, powers

forward, backward = mapping.functions(powers.LINEAR, theta=2.0)
