"""Links of a page to files of the repository, ``../README.md``, as addresses of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)(?=[)#])")


def addressed(text: str, page: Path, docs: Path, root: Path, url: str) -> str:
    """``text`` of ``page``, with the links that leave ``docs`` pointing to the repository."""

    def address(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found[1]))
        if target.is_relative_to(docs) or not target.exists():
            return found[1]
        return f"{url}/{target.relative_to(root).as_posix()}"

    return LINK.sub(address, text)


def read(app: Any, docname: str, source: list[str]) -> None:
    """Sphinx's event: the source of a page, before it is parsed."""
    docs = Path(app.srcdir)
    page = docs / f"{docname}.md"
    root, url = Path(app.config.sources_root), app.config.sources_url
    source[0] = addressed(source[0], page, docs, root, url)


def setup(app: Any) -> dict[str, Any]:
    app.add_config_value("sources_root", "", "env")
    app.add_config_value("sources_url", "", "env")
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "version": "1"}
