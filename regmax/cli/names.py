"""What NAME means on the command line: a regularizer by name, with hyperparameters, as an
expression, or of a file."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import domains
from ..domains import Domain
from ..regularizers import serialize
from ..regularizers.errors import PluginError, clipped, told
from ..regularizers.operand import Operand
from ..regularizers.penalty import Penalty
from ..regularizers.registry import Registry, instance, required, suggestion
from ..regularizers.regularizer import Regularizer
from . import scores
from .common import UsageError, note

HELP = (
    "a regularizer or a mapping, or an expression: tv, fusedmax, 'tv(lam=0.5)' (in short "
    "tv:lam=0.5), 'tsallis(alpha=1.5) + 0.1*tv'; a class or an object of a file: mine.py:Elastic, "
    "'mine.py:Elastic(mu=2) + 0.1*tv'; an argument in a file: 'owl(weights=\"w.npy\")'"
)


def add_names(parser: Any, more: str) -> None:
    """Add NAMEs to a command; ``more``: how many there may be."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{HELP} ({more})")


def add_scores(parser: Any, default: str) -> None:
    """Add ``--scores`` to a command; ``default``: what it takes else."""
    parser.add_argument(
        "--scores",
        type=Path,
        metavar="FILE",
        help=f"your own scores, .npy, .pt or .csv, of shape (..., d) (default: {default})",
    )


def add_domain(parser: Any) -> None:
    """Add ``--gamma`` and ``--domain`` to a command."""
    parser.add_argument("--gamma", type=float, default=1.0, help="γ > 0 (default: 1)")
    parser.add_argument(
        "--domain",
        metavar="D",
        help="what the weights are in: 'Simplex(total=2, upper=0.6)', 'AtMost(1.5)', "
        "'Box(lower=0, upper=1)' (default: the simplex)",
    )


def domain(text: str | None) -> Domain | None:
    """What ``--domain`` means."""
    if text is None:
        return None
    try:
        return domains.given(serialize.read(text, domains.NAMED))
    except Exception as error:  # a plugin's name may be in the text
        accepted = "Simplex(total, lower, upper), AtMost(total, upper) or Box(lower, upper)"
        why = "" if isinstance(error, PluginError) else f": {told(error)}"
        raise UsageError(f"--domain must be {accepted}; got {clipped(text, 80)!r}{why}") from error


def with_defaults(found: Registry) -> list[str]:
    """The names of regularizers without required arguments. A note shows how to type the others."""
    names = []
    for name, cls in found.names("regularizer").items():
        try:
            needed = required(cls)
        except Exception as error:  # a plugin's code may raise anything
            note(f"left out: {name}: {told(error)}")
            continue
        if needed:
            call = f"{name}({', '.join(f'{key}=...' for key in needed)})"
            note(f"left out: {name} has no default for {', '.join(needed)}; name it: '{call}'")
        else:
            names.append(name)
    return names


def chosen(found: Registry, texts: list[str]) -> list[tuple[str, Regularizer | Exception]]:
    """The regularizers that ``texts`` mean; without any, all with their defaults, or what their
    constructors raise."""
    if texts:
        return list(map(named, texts))
    made: list[tuple[str, Regularizer | Exception]] = []
    for name in with_defaults(found):
        try:
            made.append((name, instance(found.get("regularizer", name), "regularizer", name, {})))
        except Exception as error:  # a plugin's code may raise anything
            made.append((name, error))
    return made


def named(text: str) -> tuple[str, Regularizer]:
    """The regularizer that ``text`` means; :class:`UsageError` says why there is none.

    The grammar is that of :mod:`regmax.regularizers.serialize`, with names of mappings too. In an
    expression a bare name of both a regularizer and a penalty, as ``tv``, means the penalty;
    ``tv()`` and ``tv(lam=0.5)`` mean the regularizer. ``tv:lam=0.5`` is short for the latter.
    After ``FILE.py:`` the names of that file come first. A string that names a .npy, .pt or .csv
    file is the tensor in it.
    """
    file, of_file, rest = (f"{text}:" if text.endswith(".py") else text).partition(".py:")
    rest = rest if of_file else text
    own: dict[str, Any] = {}
    held = "none"
    try:
        own = _of_file(Path(f"{file}.py")) if of_file else {}
        held = ", ".join(key for key, item in own.items() if _is_offered(item)) or held
        if of_file and not rest:
            raise UsageError(f"{text}: which of its regularizers? {file}.py has {held}")
        name, colon, tail = rest.partition(":")
        if set("+*()/ ") & set(name.strip()) or (of_file and not colon):
            made = _read(rest, own)
        else:  # names need not be names of Python
            offered = functools.partial(serialize.offered, "regularizer", name)
            made = _read(f"call({tail})", {**own, "call": own.get(name, offered)})
    except UsageError:
        raise
    except Exception as error:  # a plugin's code may raise anything
        reason = told(error)
        if of_file and isinstance(error, PluginError):
            like = suggestion(rest.partition("(")[0], own)
            reason = f"{reason.rstrip('.')}; {file}.py has {held}{like}"
        raise UsageError(f"{clipped(text, 80)}: {reason}") from error
    if isinstance(made, Penalty):
        raise UsageError(
            f"{clipped(text, 80)}: that is a penalty, not a regularizer; add it to one, as in "
            "gini + 0.1*tv"
        )
    if not isinstance(made, Regularizer):
        raise UsageError(f"{clipped(text, 80)}: that is {type(made).__name__}, not a regularizer")
    return text, made


def _of_file(path: Path) -> dict[str, Any]:
    """What a Python file defines, by name; a class makes its objects by keyword."""
    public = {k: v for k, v in vars(_run(path.resolve(), path)).items() if not k.startswith("_")}
    return {
        name: _Made(item, name) if isinstance(item, type) and issubclass(item, Operand) else item
        for name, item in public.items()
        if not isinstance(item, ModuleType)
    }


@functools.cache
def _run(path: Path, given: Path) -> ModuleType:
    """The module of a file, which is run once, as ``python FILE`` does: beside its neighbours."""
    if not path.is_file():
        raise UsageError(f"{given}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class _Made:
    """Makes the objects of a file's class, by keyword."""

    cls: type[Any]
    name: str

    def __call__(self, *given: Any, **hyper: Any) -> Any:
        serialize.refuse_unnamed(self.name, given)
        kind = "penalty" if issubclass(self.cls, Penalty) else "regularizer"
        return instance(self.cls, kind, self.name, hyper)


def _is_offered(item: Any) -> bool:
    """Whether a name of a file can be a NAME: not a class that it imports from regmax."""
    imported = isinstance(item, _Made) and item.cls.__module__.startswith("regmax.")
    return isinstance(item, _Made | Operand) and not imported


def _read(text: str, own: dict[str, Any]) -> Any:
    """The value of an expression with the names of a file and tensors of files."""
    names = serialize.known() | own
    files = any(suffix in text for suffix in scores.SUFFIXES)
    if own or files:
        try:
            tree = ast.parse(text.strip(), mode="eval")
            text = ast.unparse(_Files(own, names).visit(tree))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # the reader says what is wrong
    return serialize.read(text, names)


class _Files(ast.NodeTransformer):
    """Puts ``Name()`` for a file's class alone, and a name in ``names`` for a file's tensor."""

    def __init__(self, own: dict[str, Any], names: dict[str, Any]) -> None:
        self.own, self.names = own, names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(item) for item in node.args]
        node.keywords = [self.visit(item) for item in node.keywords]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Call(node, [], []) if isinstance(self.own.get(node.id), _Made) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str) or Path(node.value).suffix not in scores.SUFFIXES:
            return node
        key = f"_file{len(self.names)}"
        self.names[key] = scores.tensor(Path(node.value))
        return ast.Name(key)
