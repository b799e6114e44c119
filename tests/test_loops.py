"""Every ``while`` of regmax and its plugins ends: the reason stands beside it.

A loop over the rows that a job hands out, ``while first < last`` with ``common.take`` at its end,
ends as the job's counter only grows (:mod:`regmax.kernels.cpu.threads`).
"""

import ast
from pathlib import Path

import pytest

import regmax

ROOT = Path(regmax.__file__).parent.parent
FILES = sorted(p for top in ("regmax/kernels", "plugins") for p in (ROOT / top).rglob("*.py"))
SERVICES = {
    "regmax/kernels/cpu/threads.py": "a thread of the pool waits for work as long as its process"
}
"""Loops that run as long as something else does, and why."""


def takes_rows(loop):
    last = ast.unparse(loop.body[-1])
    return last.endswith(" = common.take(job)") and ast.unparse(loop.test).count("<") == 1


def unexplained(path):
    lines = path.read_text().splitlines()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.While) and not takes_rows(node):
            near = lines[node.lineno - 4 : node.lineno]
            if not any("# ends: " in line for line in near):
                yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_loops_end(path):
    left = list(unexplained(path))
    name = str(path.relative_to(ROOT))
    assert not left or name in SERVICES, f"lines {left}: write why the loop ends, '# ends: …'"
    assert left or name not in SERVICES
