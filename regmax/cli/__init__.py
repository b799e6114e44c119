"""The command line: ``regmax list``, ``validate``, ``plot``, ``demo``, ``compile`` and
``new-plugin``.

Exit status: 0 success, 1 a check failed, 2 wrong usage, 130 interrupted.

This chapter may import all others; none imports it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from ..regularizers.errors import clipped
from ..regularizers.registry import suggestion
from . import compiling, demo, listing, new_plugin, plot, validate
from .common import UsageError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (default: the process's arguments) and return its status.

    For wrong arguments argparse writes a message to stderr and raises ``SystemExit(2)``.
    """
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown or arguments.command is None:
        _refuse(parser, arguments.command, unknown)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        print(f"regmax {arguments.command}: {clipped(str(error), 4000)}", file=sys.stderr)
        return 2
    except SystemExit as error:  # no code of regmax raises it: a plugin's does
        reason = f"the code of a plugin raised SystemExit({clipped(repr(error.code))})"
        print(f"regmax {arguments.command}: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as in `regmax list | head`: no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the choice that was meant, in messages of a bounded length."""

    def error(self, message: str) -> NoReturn:
        super().error(clipped(message, 1000))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = list(action.choices or ())
        if choices and value not in choices:
            like = suggestion(str(value), map(str, choices))
            named = ", ".join(map(str, choices))
            raise argparse.ArgumentError(
                action, f"unknown choice {value!r}{like}; accepted: {named}"
            )


def _refuse(parser: argparse.ArgumentParser, command: str | None, unknown: Sequence[str]) -> None:
    """Exit with the usage of the command and the option that was meant."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    own: argparse.ArgumentParser = commands.choices[command] if command else parser
    if not unknown:
        own.error(f"no COMMAND; accepted: {', '.join(commands.choices)}")
    word = unknown[0].partition("=")[0]
    what = "option" if word.startswith("-") else "argument"
    own.error(f"unknown {what} {word!r}{suggestion(word, own._option_string_actions)}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="regmax",
        description="Differentiable mappings from scores to probabilities, from any strongly "
        "convex regularizer: list, cross-check and draw them.",
    )
    parser.add_argument("--version", action="version", version=f"regmax {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (listing, validate, plot, demo, compiling, new_plugin):
        module.add_to(commands)
    return parser
