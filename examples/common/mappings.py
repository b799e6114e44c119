"""Mappings by the names that people type: ``softmax,entmax:alpha=1.3,gini + 0.1*tv``."""

from __future__ import annotations

import argparse
import re

import regmax
from regmax.cli.common import UsageError
from regmax.cli.names import named
from regmax.regularizers.registry import registry


def listed(text: str) -> list[str]:
    """The names in a list with commas; ``key=value`` behind a comma goes with the name before."""
    parts = re.split(r",(?!\s*\w+\s*=)", text)
    for part in parts:
        try:
            omega(part)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return [part.strip() for part in parts]


def omega(text: str) -> regmax.Regularizer:
    """Ω of a mapping or regularizer by name, with hyperparameters, or of an expression."""
    return named(registry(), text.strip())[1]
