"""The documentation site: Markdown pages (MyST), and an API reference from the docstrings."""

from __future__ import annotations

import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import regmax  # noqa: E402

METADATA = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "regmax"
author = METADATA["authors"][0]["name"]
copyright = author
release = regmax.__version__
version = ".".join(release.split(".")[:2])

extensions = [
    "docstrings",
    "scripts",
    "sources",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_ext", "figures", "experiments", "**.ipynb_checkpoints"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_enable_extensions = ["amsmath", "attrs_inline", "deflist", "dollarmath"]
myst_heading_anchors = 4
# The notebooks have no outputs in the repository: the build executes them.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # a machine of one busy core, where every kernel is compiled first
nb_merge_streams = True
nitpicky = True
# Others' names, and ours that are nobody's to call, stay text: a build needs no network.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|collections|numpy|pathlib|typing|Tensor|dict)\b.*"),
    (r"py:.*", r"regmax\.regularizers\.autodiff\..*"),
    (r"py:.*", r"regmax\.optimality\.condition\..*"),
    (r"py:.*", r"regmax\.domains\.(base|bounded|plans|projected)\b.*"),
    (r"py:.*", r"regmax\.nn\.beam\.State"),
    (r"py:.*", r"regmax\.testing\.(subject|promise|search|harness|solver_bench)\b.*"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"

sources_root = str(HERE.parent)
sources_url = METADATA["urls"]["Source"] + "/blob/main"

# MathJax comes with the site. This one file draws its own letters: no network and no fonts.
mathjax = find_spec("sphinx-mathjax-offline").submodule_search_locations[0]
mathjax_path = "tex-svg.js"

html_theme = "furo"
html_title = f"regmax {version}"
html_static_path = ["_static", f"{mathjax}/static/mathjax/{mathjax_path}"]
html_css_files = ["regmax.css"]
html_theme_options = {
    "source_repository": METADATA["urls"]["Source"],
    "source_branch": "main",
    "source_directory": "docs/",
}
