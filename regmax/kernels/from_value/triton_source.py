"""The source of e's derivatives for Triton, from that for numba (:mod:`.source`).

A function of numba's source loops over entries; one of Triton's takes all of them at once, and
returns its results. A function of :mod:`math` becomes that of libdevice.
"""

from __future__ import annotations

import ast
from typing import ClassVar

from .translator import Translator, parsed

HEAD = """import triton
import triton.language as tl

from regmax.kernels.from_value.triton_rows import libdevice


"""


def translated(text: str) -> str:
    """A function of entries t, of pointers to the inputs, and of the distance between two inputs of
    an entry."""
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    *head, loop = function.body
    assert isinstance(loop, ast.For)
    lines, results = list(head), []
    for line in loop.body[1:]:  # the first is t = y[i]
        assert isinstance(line, ast.Assign)
        if isinstance(line.targets[0], ast.Subscript):
            results.append(f"0.0 * t + ({_written(line.value)}), ")
        else:
            lines.append(line)
    body = [*map(_written, lines), f"return ({''.join(results)})"]
    name = f"def {function.name}(t, numbers, vectors, stride):"
    return "\n".join([HEAD + "@triton.jit", name, *(f"    {line}" for line in body)]) + "\n"


def _written(node: ast.AST) -> str:
    return ast.unparse(_Triton().visit(node))


class _Triton(Translator):
    choice = "tl.where"
    tensors: ClassVar[dict[str, str]] = {"abs": "tl.abs", "max": "tl.maximum", "min": "tl.minimum"}

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        return ast.Assign(node.targets, parsed(self.tensor(self.visit(node.value))), lineno=1)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        at = node.slice
        if isinstance(at, ast.BinOp):  # k * stride + i; the pointers to vectors contain i
            at = at.left
        return parsed(f"tl.load({ast.unparse(node.value)} + {ast.unparse(at)})")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        return ast.UnaryOp(ast.Invert() if isinstance(node.op, ast.Not) else node.op, operand)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return parsed(f"float('{node.attr}')")  # np.inf, np.nan

    def function(self, name: str) -> str:
        return f"libdevice.{name}"

    def tensor(self, node: ast.expr) -> str:
        """A number, which Triton takes for float32, is one in float64."""
        text = ast.unparse(node)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return text if names - {"float"} else f"tl.full([1], {text}, tl.float64)"
