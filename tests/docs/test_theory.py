"""The pages of theory say where things are, and there they are; each regularizer has its page."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import re
from pathlib import Path

import pytest

from regmax.regularizers.registry import registry

DOCS = Path(__file__).parents[2] / "docs"
THEORY = DOCS / "theory.md"
# [file](path) `name`, `name`
PLACE = re.compile(r"\]\((?P<file>\.\./[^)#]+)\)(?P<names>(?:,? `[^`]+`)*)")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
# by kind, what regmax's own distribution offers
OWN = {
    kind: [o.name for o in registry().offers(kind) if o.distribution.split()[0] == "regmax"]
    for kind in ("regularizer", "penalty")
}


def page(name: str) -> str:
    return (DOCS / "regularizers" / f"{name}.md").read_text(encoding="utf-8")


@functools.cache
def defined(file: Path) -> set[str]:
    """Functions, classes and methods, as ``name`` and ``Class.name``."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (item for item in node.body if isinstance(item, ast.FunctionDef))
            found |= {f"{node.name}.{item.name}" for item in inner}
    return found


def places() -> list[tuple[Path, str]]:
    """The files of the tables, and the names that are said to be in them."""
    found = []
    for row in THEORY.read_text(encoding="utf-8").splitlines():
        if row.startswith("|"):
            for match in PLACE.finditer(row):
                file = (DOCS / match["file"]).resolve()
                found += [(file, name) for name in re.findall("`([^`]+)`", match["names"])]
    return found


def test_the_tables_name_what_there_is():
    assert len(places()) > 100
    missing = [(file.name, name) for file, name in places() if not file.is_file()]
    assert missing == []
    assert [(file.name, name) for file, name in places() if name not in defined(file)] == []


@pytest.mark.parametrize(("paper", "last"), [("Niculae", 6), ("Peters", 46), ("Correia", 39)])
def test_each_numbered_equation_has_a_place(paper, last):
    """In the first cell of a row, as "eq. 1, 4 to 6", or in the paragraph "Equations …" below."""
    text = THEORY.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^### {paper}.*?(?=^### )", text, flags=re.DOTALL | re.MULTILINE)
    said = re.findall(r"^\| [^|]*eq\. ([^|]*)", section, flags=re.MULTILINE)
    said += re.findall(r"^Equations? .*?\n\n", section, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"(Lemma|Proposition|Prop\.|Cor\.) [\d.]+", "", " ".join(said))
    ranges = [(int(a), int(b or a)) for a, b in re.findall(r"(\d+)(?: to (\d+))?", plain)]
    assert {k for a, b in ranges for k in range(a, b + 1)} == set(range(1, last + 1))


@pytest.mark.parametrize("kind", ["regularizer", "penalty"])
def test_each_has_its_page_with_picture_and_arguments(kind):
    assert OWN[kind]
    for name in OWN[kind]:
        text = page(name)
        assert f'"{name}"' in text
        assert f"](../gallery/{name}.svg)" in text
        assert f"]({name}.md)" in page("index")
        for argument in list(inspect.signature(registry().get(kind, name).__init__).parameters)[1:]:
            assert f"{argument}=" in text, (name, argument)


def test_each_page_is_in_the_index():
    pages = {file.stem for file in (DOCS / "regularizers").glob("*.md")} - {"index"}
    (tree,) = re.findall(r"^```\{toctree\}\n(.*?)```$", page("index"), re.DOTALL | re.MULTILINE)
    assert {line for line in tree.splitlines() if line.isidentifier()} == pages
    assert pages == {*OWN["regularizer"], *OWN["penalty"]}


@pytest.mark.parametrize("name", OWN["regularizer"])
def test_each_mapping_is_named(name):
    mappings = registry().get("regularizer", name).mapping
    for mapping in (mappings,) if isinstance(mappings, str) else mappings:
        assert f"`{mapping}(" in page(name)
        assert f"`{mapping}`" in page("index")


def test_tables_of_how_to_choose_are_what_is_printed():
    namespace = {"__name__": "page"}
    printed, seen = "", 0
    for language, text in FENCE.findall((DOCS / "choosing.md").read_text(encoding="utf-8")):
        if language == "text":
            assert printed == text
            seen += 1
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, "choosing.md", "exec"), namespace)
            printed = out.getvalue()
    assert seen == 4
