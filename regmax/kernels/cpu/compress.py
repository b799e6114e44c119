"""Packing: entries of a vector to a pointer, without those that a mask leaves out, and back.

AVX-512 has instructions for both, which LLVM uses. For AVX2, LLVM moves one number at a time; the
code here permutes a register instead, in the order that a table has for each mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from .jit import intrinsic
from .vectors import LANES, Vector, call, popcount, suffix

_INT, _BYTE, _INDEX = ir.IntType(64), ir.IntType(8), ir.IntType(32)
_WORDS = ir.VectorType(ir.FloatType(), 8)


def _permutes(context: Any) -> bool:
    """Whether code is made for AVX2 without AVX-512."""
    features = context.codegen()._customize_tm_features().split(",")
    return "+avx2" in features and "+avx512f" not in features


def _pieces(builder: Any, permutes: bool, element: Any, *vectors: Any) -> list[Any]:
    """The pieces that move at once of vectors of the type ``element``, or of masks of such: of 32
    bytes where they are permuted, else of 64, as LLVM 22 compresses more of them wrongly."""
    size = 4 if element in (ir.FloatType(), ir.IntType(32)) else 8
    count = min(LANES, (32 if permutes else 64) // size)

    def piece(v: Any, start: int) -> Any:
        index = ir.VectorType(_INDEX, count)
        lanes = list(range(start, start + count))
        return builder.shuffle_vector(v, v, ir.Constant(index, lanes))

    return [tuple(piece(v, start) for v in vectors) for start in range(0, LANES, count)]


def _joined(builder: Any, pieces: list[Any]) -> Any:
    """The vector of some pieces."""
    # ends: half as many pieces each time
    while len(pieces) > 1:
        count = 2 * pieces[0].type.count
        index = ir.Constant(ir.VectorType(_INDEX, count), list(range(count)))
        pairs = zip(pieces[::2], pieces[1::2], strict=True)
        pieces = [builder.shuffle_vector(a, b, index) for a, b in pairs]
    return pieces[0]


def _lanes_of(on: list[int]) -> list[int]:
    """The lanes in a mask, and then the others."""
    return sorted(range(len(on)), key=lambda k: not on[k])


def _ranks_of(on: list[int]) -> list[int]:
    """How many lanes before each are in a mask."""
    return [sum(on[:k]) % len(on) for k in range(len(on))]


def _row(bits: int, count: int, order: Callable[[list[int]], list[int]]) -> int:
    """A row of the table: which 4 of the 32 bytes come first, second, …; one byte for each."""
    lanes = order([bits >> k & 1 for k in range(count)])
    words = 8 // count
    first = [words * lane + k for lane in lanes for k in range(words)]
    return int.from_bytes(bytes(first), "little")


def _permuted(builder: Any, v: Any, m: Any, order: Callable[[list[int]], list[int]]) -> Any:
    """The numbers of a piece v in the order that the mask m has."""
    count = m.type.count
    kind, name = ir.ArrayType(_INT, 1 << count), f"regmax{order.__name__}_{count}"
    if name not in builder.module.globals:
        table = ir.GlobalVariable(builder.module, kind, name)
        table.linkage, table.global_constant = "linkonce_odr", True
        table.initializer = ir.Constant(
            kind, [_row(bits, count, order) for bits in range(1 << count)]
        )
    table = builder.module.globals[name]
    bits = builder.zext(builder.bitcast(m, ir.IntType(count)), _INT)
    row = builder.load(builder.gep(table, [_INT(0), bits]))
    index = builder.zext(builder.bitcast(row, ir.VectorType(_BYTE, 8)), ir.VectorType(_INDEX, 8))
    found = call(builder, "llvm.x86.avx2.permps", _WORDS, builder.bitcast(v, _WORDS), index)
    return builder.bitcast(found, v.type)


@intrinsic
def compress(typingctx: Any, array: Any, index: Any, v: Any, m: Any) -> Any:
    """Write the entries of v in m to a[i], a[i + 1], …; all up to a[i + 15] may be overwritten."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, i, v, m = args
        permutes = _permutes(context)
        for part, on in _pieces(builder, permutes, v.type.element, v, m):
            if permutes:
                packed = _permuted(builder, part, on, _lanes_of)
            else:
                name = f"llvm.experimental.vector.compress.{suffix(part.type)}"
                other = ir.Constant(part.type, ir.Undefined)
                packed = call(builder, name, part.type, part, on, other)
            at = builder.bitcast(builder.gep(a, [i]), part.type.as_pointer())
            builder.store(packed, at, align=1)
            i = builder.add(i, popcount(builder, on))
        return context.get_dummy_value()

    return types.void(array, types.intp, v, m), code


@intrinsic
def expand(typingctx: Any, array: Any, index: Any, m: Any) -> Any:
    """a[i], a[i + 1], … in the lanes of m, 0 elsewhere: the inverse of ``compress``; all up to
    a[i + 15] may be read."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, i, m = args
        kind = context.get_value_type(signature.return_type)
        found, permutes = [], _permutes(context)
        for (on,) in _pieces(builder, permutes, kind.element, m):
            part = ir.VectorType(kind.element, on.type.count)
            zero = ir.Constant(part, None)
            at = builder.gep(a, [i])
            if permutes:
                at = builder.bitcast(at, part.as_pointer())
                packed = builder.load(at, align=1, typ=part)
                v = builder.select(on, _permuted(builder, packed, on, _ranks_of), zero)
            else:
                name = f"llvm.masked.expandload.{suffix(part)}"
                v = call(builder, name, part, at, on, zero)
            found.append(v)
            i = builder.add(i, popcount(builder, on))
        return _joined(builder, found)

    return Vector(array.dtype)(array, types.intp, m), code
