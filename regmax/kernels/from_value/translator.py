"""Source for one entry as source for many entries at once: a choice becomes a selection."""

from __future__ import annotations

import ast
from typing import Any, ClassVar

from .tape import Unknown


class Translator(ast.NodeTransformer):
    """Expressions of numbers as expressions of many entries. ``choice``: the function that selects
    by a condition; ``tensors``: the functions for abs, max and min."""

    choice: ClassVar[str]
    tensors: ClassVar[dict[str, str]]

    def function(self, name: str) -> str:
        """The one of :mod:`math`, or ``pow``, for many entries."""
        raise NotImplementedError

    def tensor(self, node: ast.expr) -> str:
        """An argument, as many entries."""
        raise NotImplementedError

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Attribute):
            return self.called(self.function(node.func.attr), node.args)
        assert isinstance(node.func, ast.Name)
        return self.called(self.tensors[node.func.id], node.args)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self.called(self.choice, [node.test, node.body, node.orelse])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left = parsed(self.tensor(self.visit(node.left)))
        return ast.Compare(left, node.ops, [self.visit(b) for b in node.comparators])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        a, b = map(self.visit, node.values)
        return ast.BinOp(a, ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), b)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.op, ast.Pow):
            return self.called(self.function("pow"), [node.left, node.right])
        return ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))

    def called(self, name: str, args: list[ast.expr]) -> ast.expr:
        """A call of a function with these arguments."""
        return parsed(f"{name}({', '.join(map(self.tensor, map(self.visit, args)))})")


class Lanes(Translator):
    """Expressions of sixteen entries (:mod:`regmax.kernels.cpu.simd`). ``broad``: the names of
    vectors; the others are of numbers."""

    choice = "simd.select"
    tensors: ClassVar[dict[str, str]] = {
        "abs": "elementary.absolute", "max": "simd.larger", "min": "simd.smaller",
    }  # fmt: skip
    _functions: ClassVar[dict[str, str]] = {
        "sqrt": "simd.sqrt", "log": "elementary.any_log", "exp": "elementary.any_exp",
        "log1p": "elementary.any_log1p", "pow": "elementary.power",
    }  # fmt: skip

    def __init__(self, broad: set[str]) -> None:
        self.broad = broad

    def written(self, text: str) -> tuple[str, bool]:
        """An expression, and whether it is a vector."""
        node = parsed(text)
        return ast.unparse(self.visit(node)), self.is_vector(node)

    def function(self, name: str) -> str:
        if name not in self._functions:
            raise Unknown(f"{name} is not written for sixteen entries")
        return self._functions[name]

    def tensor(self, node: ast.expr) -> str:
        text = ast.unparse(node)
        return text if self.is_vector(node) else f"simd.spread(t, {text})"

    def is_vector(self, node: ast.AST) -> bool:
        """Whether it is a vector."""
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return not self.broad.isdisjoint(names)

    def visit(self, node: ast.AST) -> Any:
        return super().visit(node) if self.is_vector(node) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            raise Unknown("a negation is not written for sixteen entries")
        return ast.BinOp(self.visit(node.operand), ast.Mult(), ast.Constant(-1.0))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        if self.is_vector(node.test):
            return super().visit_IfExp(node)
        a, b = (self.tensor(self.visit(branch)) for branch in (node.body, node.orelse))
        return parsed(f"({a} if {ast.unparse(node.test)} else {b})")


def parsed(text: str) -> ast.expr:
    """The tree of an expression."""
    return ast.parse(text, mode="eval").body
