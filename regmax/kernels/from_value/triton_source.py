"""The source of e's derivatives for Triton, from that for numba (:mod:`.source`).

A function of numba's source loops over entries; one of Triton's takes all of them at once, and
returns its results. A function of :mod:`math` becomes that of libdevice, and a choice a selection.
"""

from __future__ import annotations

import ast

HEAD = """import triton
import triton.language as tl

from regmax.kernels.from_value.triton_rows import libdevice


"""
_TENSORS = {"abs": "tl.abs", "max": "tl.maximum", "min": "tl.minimum"}


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
    return ast.unparse(_Translator().visit(node))


class _Translator(ast.NodeTransformer):
    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        return ast.Assign(node.targets, _parsed(_tensor(self.visit(node.value))), lineno=1)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        at = node.slice
        if isinstance(at, ast.BinOp):  # k * stride + i; the pointers to vectors contain i
            at = at.left
        return _parsed(f"tl.load({ast.unparse(node.value)} + {ast.unparse(at)})")

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Attribute):
            return self._called(f"libdevice.{node.func.attr}", node.args)
        assert isinstance(node.func, ast.Name)
        return self._called(_TENSORS[node.func.id], node.args)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._called("tl.where", [node.test, node.body, node.orelse])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left = _parsed(_tensor(self.visit(node.left)))
        return ast.Compare(left, node.ops, [self.visit(b) for b in node.comparators])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        a, b = map(self.visit, node.values)
        return ast.BinOp(a, ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), b)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        return ast.UnaryOp(ast.Invert() if isinstance(node.op, ast.Not) else node.op, operand)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.op, ast.Pow):
            return self._called("libdevice.pow", [node.left, node.right])
        return ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return _parsed(f"float('{node.attr}')")  # np.inf, np.nan

    def _called(self, name: str, args: list[ast.expr]) -> ast.expr:
        return _parsed(f"{name}({', '.join(map(_tensor, map(self.visit, args)))})")


def _tensor(node: ast.expr) -> str:
    """An expression; a number, which Triton takes for float32, as a tensor in float64."""
    text = ast.unparse(node)
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return text if names - {"float"} else f"tl.full([1], {text}, tl.float64)"


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
