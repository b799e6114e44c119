"""The page for users of the ``entmax`` package names all that it offers."""

import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "migrating-from-entmax.md"


def test_every_public_name_and_argument_is_on_the_page():
    entmax = pytest.importorskip("entmax")
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", PAGE.read_text("utf-8")))))
    names = [name for name in dir(entmax) if not name.startswith("_")]
    assert len(names) > 20
    assert [name for name in names if name not in words] == []
    callables = [item for name in names if callable(item := getattr(entmax, name))]
    arguments = {a for item in callables for a in inspect.signature(item).parameters} - {"X"}
    assert sorted(arguments - words) == []
