"""The notebooks are listed, and kept without outputs. ``make docs`` runs them from the first cell
to the last, and fails where a cell does."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
NEEDED = {
    "attention-classifier": ("matplotlib", "sklearn"),
    "cross-checking": ("cvxpylayers",),
    "sparse-losses": ("matplotlib", "sklearn"),
    "your-own-omega": (),
}


def test_each_notebook_is_in_the_list():
    assert set(NAMES) == set(NEEDED)
    page = (FOLDER / "index.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"]({name}.ipynb)" in page
        assert f"<{name}.ipynb>`" in page


def test_the_extra_of_the_site_brings_what_notebooks_need():
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]

    def brought(extra):
        for item in extras[extra]:
            own = re.fullmatch(r"regmax\[(.*)\]", item)
            for inner in own[1].split(",") if own else ():
                yield from brought(inner)
            yield re.match(r"[\w-]+", item)[0].replace("scikit-learn", "sklearn")

    needed = {package for packages in NEEDED.values() for package in packages}
    assert needed <= set(brought("docs"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_has_no_outputs(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert set(book["metadata"]) == {"kernelspec", "language_info"}
