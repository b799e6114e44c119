"""Vectors of 16 numbers in numba-compiled code, as LLVM's portable vector types.

Numba leaves vectorisation to LLVM, which does not vectorise a maximum of floats, a selection, or a
short loop. Here the vectors are explicit; LLVM splits them into machine registers (one of AVX-512,
two of AVX2, four of SSE or NEON).

    v = load(a, i)                       a[i : i + 16] of a pointer of ``memory``
    v + w, v - 1.0, v * w, v / w, v > w  lane by lane; numbers are spread over the lanes
    store(a, i, v), compress(a, i, v, m), total(v), largest(v), select(m, v, w), count(m), …

``select``, ``larger``, ``smaller``, ``count``, ``spread``, ``wide`` and ``narrow`` take numbers
too: one text computes a row, whose numbers are numbers, and sixteen rows, whose numbers are lanes
of vectors. ``summed``, ``highest`` and ``one`` make either of a vector.

Exponentials and logarithms are in :mod:`regmax.kernels.cpu.elementary`.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from . import vectors
from .compress import compress as compress
from .compress import expand as expand
from .jit import intrinsic
from .vectors import LANES as LANES
from .vectors import MASK, Vector

_FLAGS = ("contract",)  # a·b + c as one operation; sums keep their order, but in ``total``


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """a[i : i + 16], a a pointer."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        at = builder.gep(args[0], [args[1]])
        at = builder.bitcast(at, kind.as_pointer())
        return builder.load(at, align=1, typ=kind)

    return Vector(array.dtype)(array, types.intp), code


@intrinsic
def store(typingctx: Any, array: Any, index: Any, v: Any) -> Any:
    """a[i : i + 16] = v."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.gep(args[0], [args[1]])
        at = builder.bitcast(at, args[2].type.as_pointer())
        builder.store(args[2], at, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, v), code


@intrinsic
def gather(typingctx: Any, array: Any, index: Any) -> Any:
    """a[index], number by number."""
    result = Vector(array.dtype)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = ir.Constant(context.get_value_type(result), ir.Undefined)
        for k in range(LANES):
            lane = ir.Constant(ir.IntType(32), k)
            place = builder.gep(args[0], [builder.extract_element(args[1], lane)])
            found = builder.insert_element(found, builder.load(place), lane)
        return found

    return result(array, index), code


@intrinsic
def load_part(typingctx: Any, array: Any, index: Any, m: Any, fill: Any) -> Any:
    """a[i : i + 16] in the lanes of m, ``fill`` elsewhere; only the lanes of m are read."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, i, m, fill = args
        kind = context.get_value_type(signature.return_type)
        at = builder.bitcast(builder.gep(a, [i]), kind.as_pointer())
        other = vectors.spread(builder, context.cast(builder, fill, signature.args[3], array.dtype))
        name = f"llvm.masked.load.{vectors.suffix(kind)}.p0"
        return vectors.call(builder, name, kind, at, ir.IntType(32)(1), m, other)

    return Vector(array.dtype)(array, types.intp, m, fill), code


@intrinsic
def store_part(typingctx: Any, array: Any, index: Any, m: Any, v: Any) -> Any:
    """a[i : i + 16] = v in the lanes of m; other entries are not written."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, i, m, v = args
        at = builder.bitcast(builder.gep(a, [i]), v.type.as_pointer())
        name = f"llvm.masked.store.{vectors.suffix(v.type)}.p0"
        vectors.call(builder, name, ir.VoidType(), v, at, ir.IntType(32)(1), m)
        return context.get_dummy_value()

    return types.void(array, types.intp, m, v), code


@intrinsic
def lanes(typingctx: Any) -> Any:
    """0, 1, …, 15 of int32."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), list(range(LANES)))

    return Vector(types.int32)(), code


@intrinsic
def first(typingctx: Any, n: Any) -> Any:
    """The mask of the first n lanes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(32), LANES)
        iota = ir.Constant(kind, list(range(LANES)))
        number = builder.trunc(context.cast(builder, args[0], n, types.int64), ir.IntType(32))
        return builder.icmp_signed("<", iota, vectors.spread(builder, number))

    return MASK(n), code


@intrinsic
def spread(typingctx: Any, like: Any, value: Any) -> Any:
    """A vector of ``like``'s type with ``value`` in every lane, or that value if ``like`` is a
    number."""
    if not isinstance(like, Vector):
        return types.float64(like, value), lambda *given: _number(*given)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(value, Vector):
            return args[1]
        return vectors.spread(
            builder, context.cast(builder, args[1], signature.args[1], like.dtype)
        )

    return like(like, value), code


def _number(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The last argument as a number."""
    return context.cast(builder, args[-1], signature.args[-1], types.float64)


def _vectors(context: Any, builder: Any, kinds: Any, args: Any) -> list[Any]:
    """Two operands as vectors; one of them may be a number. As numbers if both are."""
    like = next((kind for kind in kinds if isinstance(kind, Vector)), None)
    if like is None:
        each = zip(args, kinds, strict=True)
        return [context.cast(builder, arg, kind, types.float64) for arg, kind in each]
    return [
        arg
        if isinstance(kind, Vector)
        else vectors.spread(builder, context.cast(builder, arg, kind, like.dtype))
        for arg, kind in zip(args, kinds, strict=True)
    ]


def _lanewise(make: Any, result: Any = None) -> Any:
    """An intrinsic of two operands, vectors or numbers; ``make(builder, a, b)``."""

    @intrinsic
    def operation(typingctx: Any, a: Any, b: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return make(builder, *_vectors(context, builder, signature.args, args))

        found = next((kind for kind in (a, b) if isinstance(kind, Vector)), None)
        if found is None:
            return (types.boolean if result is MASK else types.float64)(a, b), code
        return (result or found)(a, b), code

    return operation


def _float(name: str) -> Any:
    return lambda builder, a, b: getattr(builder, name)(a, b, flags=_FLAGS)


def _compared(sign: str) -> Any:
    return lambda builder, a, b: builder.fcmp_ordered(sign, a, b)


not_below = _lanewise(lambda builder, a, b: builder.fcmp_unordered(">=", a, b), MASK)
differ = _lanewise(lambda builder, a, b: builder.icmp_unsigned("!=", a, b), MASK)
add_int = _lanewise(lambda builder, a, b: builder.add(a, b))
sub_int = _lanewise(lambda builder, a, b: builder.sub(a, b))
shift_left = _lanewise(lambda builder, a, b: builder.shl(a, b))
shift_right = _lanewise(lambda builder, a, b: builder.ashr(a, b))
larger = _lanewise(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))
smaller = _lanewise(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))


def _operator(sign: Any, make: Any, result: Any = None) -> None:
    """``sign`` of vectors, and of a vector and a number or a truth value; without a function for
    each of the types, as ``overload`` would compile."""

    class Template(AbstractTemplate):
        key = sign

        def generic(self, args: Any, kws: Any) -> Any:
            found = [a for a in args if isinstance(a, Vector)]
            return signature(result or found[0], *map(types.unliteral, args)) if found else None

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return make(builder, *_vectors(context, builder, signature.args, args))

    infer_global(sign)(Template)
    for kind in (Vector, types.Number, types.Boolean):
        lower_builtin(sign, Vector, kind)(code)
        lower_builtin(sign, kind, Vector)(code)


for _sign, _make, *_result in (
    (operator.add, _float("fadd")),
    (operator.sub, _float("fsub")),
    (operator.mul, _float("fmul")),
    (operator.truediv, _float("fdiv")),
    (operator.gt, _compared(">"), MASK),
    (operator.ge, _compared(">="), MASK),
    (operator.lt, _compared("<"), MASK),
    (operator.le, _compared("<="), MASK),
    (operator.ne, lambda builder, a, b: builder.fcmp_unordered("!=", a, b), MASK),
    (operator.eq, _compared("=="), MASK),
    (operator.and_, lambda builder, a, b: builder.and_(a, b)),
    (operator.or_, lambda builder, a, b: builder.or_(a, b)),
):
    _operator(_sign, _make, *_result)


@intrinsic
def select(typingctx: Any, m: Any, a: Any, b: Any) -> Any:
    """a where m, else b; b may be a number, m and a if the other is one."""
    numbers = not (isinstance(m, Vector) or isinstance(a, Vector))

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        m, v, w = args
        if numbers:
            v, w = (
                context.cast(builder, arg, kind, types.float64) for arg, kind in ((v, a), (w, b))
            )
        elif not isinstance(b, Vector):
            w = vectors.spread(builder, context.cast(builder, w, b, a.dtype))
        return builder.select(m, v, w)

    return (types.float64 if numbers else a)(m, a, b), code


@intrinsic
def total(typingctx: Any, v: Any) -> Any:
    """The sum of the 16 numbers, in some order."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _total(builder, args[0])

    return v.dtype(v), code


def _total(builder: Any, v: Any) -> Any:
    name = f"llvm.vector.reduce.fadd.{vectors.suffix(v.type)}"
    zero = ir.Constant(v.type.element, -0.0)
    return vectors.call(builder, name, v.type.element, zero, v, fastmath=("reassoc",))


@intrinsic
def largest(typingctx: Any, v: Any) -> Any:
    """The largest of the 16 numbers, of which none may be NaN."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _largest(builder, args[0])

    return v.dtype(v), code


def _largest(builder: Any, v: Any) -> Any:
    name = f"llvm.vector.reduce.fmax.{vectors.suffix(v.type)}"
    return vectors.call(builder, name, v.type.element, v, fastmath=("nnan", "nsz"))


def _of_row(reduced: Any) -> Any:
    """An intrinsic of a vector and a number: what ``reduced(builder, v)`` makes of it; of vectors,
    the first."""

    @intrinsic
    def found(typingctx: Any, v: Any, like: Any) -> Any:
        if isinstance(like, Vector):
            return v(v, like), lambda context, builder, signature, args: args[0]

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.cast(builder, reduced(builder, args[0]), v.dtype, types.float64)

        return types.float64(v, like), code

    return found


@intrinsic
def is_number(typingctx: Any, v: Any) -> Any:
    """Whether v is a number, so that it is of a row."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.IntType(1)(not isinstance(v, Vector))

    return types.boolean(v), code


summed, highest = _of_row(_total), _of_row(_largest)
one = _of_row(lambda builder, v: builder.extract_element(v, ir.IntType(32)(0)))


@intrinsic
def count(typingctx: Any, m: Any) -> Any:
    """How many lanes of a mask are set."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(m, Vector):
            return vectors.popcount(builder, args[0])
        return builder.zext(args[0], ir.IntType(64))

    return types.int64(m), code


@intrinsic
def sqrt(typingctx: Any, v: Any) -> Any:
    """√v."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return vectors.call(
            builder, f"llvm.sqrt.{vectors.suffix(args[0].type)}", args[0].type, args[0]
        )

    return v(v), code


def _converted(target: types.Type, make: Any) -> Any:
    @intrinsic
    def conversion(typingctx: Any, v: Any) -> Any:
        if not isinstance(v, Vector):
            return types.float64(v), lambda *given: _number(*given)
        result = Vector(target)

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = context.get_value_type(result)
            return args[0] if args[0].type == kind else make(builder, args[0], kind)

        return result(v), code

    return conversion


wide = _converted(types.float64, lambda builder, v, kind: builder.fpext(v, kind))
narrow = _converted(types.float32, lambda builder, v, kind: builder.fptrunc(v, kind))
as_bits = _converted(types.int64, lambda builder, v, kind: builder.bitcast(v, kind))
to_float = _converted(types.float64, lambda builder, v, kind: builder.sitofp(v, kind))
from_bits = _converted(types.float64, lambda builder, v, kind: builder.bitcast(v, kind))


@intrinsic
def like(typingctx: Any, a: Any, v: Any) -> Any:
    """v, of float64, converted to the type of a."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return args[1] if args[1].type == kind else builder.fptrunc(args[1], kind)

    return a(a, v), code


@intrinsic
def resolution(typingctx: Any, array: Any) -> Any:
    """eps of a pointer's dtype."""
    return _constant(array, float(np.finfo(str(array.dtype)).eps))


@intrinsic
def greatest(typingctx: Any, array: Any) -> Any:
    """The largest finite number of a pointer's dtype."""
    return _constant(array, float(np.finfo(str(array.dtype)).max))


def _constant(array: Any, value: float) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.float64, value)

    return types.float64(array), code


as_bits32 = _converted(types.int32, lambda builder, v, kind: builder.bitcast(v, kind))
to_float32 = _converted(types.float32, lambda builder, v, kind: builder.sitofp(v, kind))
from_bits32 = _converted(types.float32, lambda builder, v, kind: builder.bitcast(v, kind))


def _halves(which: int) -> Any:
    def make(builder: Any, v: Any, kind: Any) -> Any:
        both = builder.bitcast(v, ir.VectorType(kind.element, 2 * LANES))
        places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(which, 2 * LANES, 2)))
        return builder.shuffle_vector(both, ir.Constant(both.type, ir.Undefined), places)

    return _converted(types.float32, make)


first_half, second_half = _halves(0), _halves(1)
"""The first and the second number of float32 in the memory of each of float64."""
