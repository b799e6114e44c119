"""The command line: ``regmax list``, ``validate``, ``plot``, ``demo`` and ``new-plugin``.

Exit status: 0 all is well, 1 a verdict failed, 2 the command was used wrongly, 130 interrupted.

This chapter may import every other; none imports it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from . import demo, listing, new_plugin, plot, validate
from .common import UsageError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (default: the process's arguments) and return its status.

    Wrong arguments end as argparse ends them: a message on stderr and ``SystemExit(2)``.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        print(f"regmax {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `regmax list | head`: nobody reads on, which is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="regmax",
        description="Differentiable maps from scores to probabilities, from any strongly convex "
        "regularizer: what is installed, whether it is right, and what it looks like.",
    )
    parser.add_argument("--version", action="version", version=f"regmax {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (listing, validate, plot, demo, new_plugin):
        module.add_to(commands)
    return parser
