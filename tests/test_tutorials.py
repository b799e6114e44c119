"""What the tutorials write passes the kit that they show."""

from __future__ import annotations

import pytest
from test_docs import blocks

from regmax.testing import check_regularizer, check_solver

pytest.importorskip("hypothesis")
pytestmark = pytest.mark.slow


def namespace(page: str) -> dict:
    """What the Python blocks of a page define."""
    found: dict = {"__name__": "page"}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), found)
    return found


@pytest.mark.parametrize("name", ["fast", "shared"])
def test_the_regularizers(name):
    page = namespace("docs/writing-a-regularizer.md")
    omega = {"fast": page["FastPrior"](page["prior"].detach()), "shared": page["shared"]}[name]
    check_regularizer(omega)


def test_the_solver():
    check_solver(namespace("docs/writing-a-solver.md")["ProjectedGradient"]())
