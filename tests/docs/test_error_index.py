"""The error index names every message of regmax, and no other.

A message is a text given to an exception class or to ``warnings.warn``, or a reason: a text that a
function named in ``REASONS`` hands on to one. What a call fills in is "…" on either side.
"""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"

# functions whose texts become part of a message
REASONS = {
    "unsuitable",  # why a solver or a backend cannot take Ω
    "missing",  # what a backend needs
    "lacks_program",
    "not_recordable",
    "unsteady",  # what Ω breaks
    "mistaken_penalty",
    "_missing",
    "_not_lovasz",
    "contradicted",
    "_not_finite",
    "below_tangents",
    "_overstated",
    "_not_bent",
    "_jump",
    "_unsolved",
    "bounded_kinks",
    "_flat",
    "gathers",  # what happens to rows on several devices
    "run_checks",  # what its AssertionError lists
}
# what a user cannot meet
INTERNAL = {
    "Broken": "the parts of a failed check, which its report puts together",
    "Skipped": "why a check was skipped, which pytest shows",
    "Overrun": "stops a solver that goes on for ever; its check reports it",
}


def reduced(node: ast.expr, known: dict[str, ast.expr | None]) -> str:
    """The text of an expression, with … for what is not fixed."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(reduced(part, known) for part in parts)
        case ast.FormattedValue(value=ast.Name() as name, conversion=-1):
            return reduced(name, known)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return reduced(left, known) + reduced(right, known)
        case ast.Name(id=name) if (named := known.get(name)) is not None:
            return reduced(named, {})
    return "…"


def plain(text: str) -> str:
    """A message as it is compared: names of placeholders, spaces and backquotes do not count."""
    text = re.sub(r"‹[^›]*›", "…", text.replace("`", ""))
    return re.sub(r"(…\s*)*…", "…", " ".join(text.split()))


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module or function without those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from within(node)


def names(scope: ast.Module | ast.FunctionDef) -> dict[str, ast.expr | None]:
    """The texts that are given a name once; None: some other thing has the name."""
    found: dict[str, ast.expr | None] = {}
    for node in within(scope):
        if isinstance(node, ast.arg):
            found[node.arg] = None
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, text = node.targets[0].id, isinstance(node.value, ast.Constant | ast.JoinedStr)
            found[name] = node.value if text and name not in found else None
    return found


def kind_of(call: ast.Call) -> str:
    """The class of what is raised or warned, or ""."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = call.func.id if isinstance(call.func, ast.Name) else name
    if name == "warn":
        return ast.unparse(call.args[1]) if len(call.args) > 1 else "UserWarning"
    same_again = isinstance(call.func, ast.Call) and ast.unparse(call.func) == "type(error)"
    return "TypeError, ValueError" if same_again else name * name.endswith(("Error", *INTERNAL))


def texts(
    node: ast.AST, known: dict[str, ast.expr | None], function: str = ""
) -> Iterator[tuple[str, str]]:
    """(class, text) of every message below a node; the class of a reason is "reason"."""
    if isinstance(node, ast.FunctionDef):
        known, function = known | names(node), node.name
    if isinstance(node, ast.Call) and kind_of(node) and node.args:
        yield kind_of(node), reduced(node.args[0], known)
    if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "message":
        yield "reason", reduced(node.value, known)
    if function in REASONS:
        if isinstance(node, ast.Return) and node.value is not None:
            either = isinstance(node.value, ast.IfExp)
            for value in (node.value.body, node.value.orelse) if either else [node.value]:
                yield "reason", reduced(value, known)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "failures.append":
            yield "reason", reduced(node.args[0], known)
    for child in ast.iter_child_nodes(node):
        yield from texts(child, known, function)


@functools.cache
def messages() -> dict[str, set[str]]:
    """The classes that each message of the code comes with."""
    found: dict[str, set[str]] = defaultdict(set)
    for root in ("regmax", "plugins"):
        for path in sorted((ROOT / root).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for kind, text in texts(tree, names(tree)):
                if kind not in INTERNAL and re.search(r"\w", text):  # else it hands one on
                    found[plain(text)] |= set(kind.split(", "))
    return dict(found)


def entries() -> list[tuple[list[str], set[str]]]:
    """The messages and the classes of each entry of the page."""
    found = []
    page = PAGE.read_text(encoding="utf-8")
    for item in re.findall(r"^- (`.*(?:\n  .*)*)", page, re.MULTILINE):
        entry = " ".join(item.split())
        form = re.match(r"(?P<texts>`[^`]+`(?: · `[^`]+`)*) \((?P<kinds>[\w, ]+)\)\. \S", entry)
        assert form, f"an entry is: - `message` · `message` (Class, Class). Text; got {entry}"
        said = [plain(text) for text in re.findall(r"`([^`]+)`", form["texts"])]
        found.append((said, set(form["kinds"].split(", "))))
    return found


def test_every_message_has_an_entry_and_every_entry_a_message():
    code, page = messages(), [text for spans, _ in entries() for text in spans]
    assert len(code) > 150
    assert not sorted(set(code) - set(page)), "messages without an entry in docs/errors.md"
    assert not sorted(set(page) - set(code)), "entries of docs/errors.md without a message"
    assert len(set(page)) == len(page), "messages with two entries"


def test_entries_name_the_classes_that_are_raised():
    code = messages()
    for spans, kinds in entries():
        assert kinds == set().union(*(code[text] for text in spans)), spans
