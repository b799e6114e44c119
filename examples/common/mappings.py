"""Parse lists of mappings: ``softmax,entmax:alpha=1.3,gini + 0.1*tv``."""

from __future__ import annotations

import argparse
import re

import regmax
from regmax.cli.common import UsageError
from regmax.cli.names import named


def listed(text: str) -> list[str]:
    """The names in a comma-separated list; a ``key=value`` after a comma belongs to its name."""
    parts = re.split(r",(?!\s*\w+\s*=)", text)
    for part in parts:
        try:
            omega(part)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return [part.strip() for part in parts]


def omega(text: str) -> regmax.Regularizer:
    """The Ω of a mapping, a regularizer or an expression, with hyperparameters."""
    return named(text.strip())[1]
