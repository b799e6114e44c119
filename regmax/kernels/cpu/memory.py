"""Pointers in numba-compiled code: to rows of arrays and to addresses in a job."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def pointer(typingctx: Any, address: Any, offset: Any, like: Any) -> Any:
    """The address plus ``offset`` entries, as a pointer of ``like``'s type."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        start = builder.inttoptr(args[0], kind)
        return builder.gep(start, [args[1]])

    return like(types.int64, types.int64, like), code


def _pointer_to(kind: types.Type) -> Any:
    """An intrinsic: an address as a pointer to numbers of this kind."""

    @intrinsic
    def pointer(typingctx: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), code

    return pointer


doubles, octets = _pointer_to(types.float64), _pointer_to(types.uint8)


@intrinsic
def fetch_add(typingctx: Any, counter: Any, step: Any) -> Any:
    """Return counter[0] and add step to it, as one atomic operation."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], args[1], "monotonic")

    return types.int64(counter, types.int64), code


@intrinsic
def row(typingctx: Any, array: Any, r: Any) -> Any:
    """A pointer to a[r, 0] of a two-dimensional array: unlike a[r], free of reference counts."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, args[0])
        strides = cgutils.unpack_tuple(builder, view.strides, kind.ndim)
        offset = builder.mul(strides[0], args[1])
        return cgutils.pointer_add(builder, view.data, offset, view.data.type)

    return types.CPointer(array.dtype)(array, types.intp), code


@intrinsic
def size(typingctx: Any, pointer: Any) -> Any:
    """The bytes of one entry."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, pointer.dtype.bitwidth // 8)

    return types.int64(pointer), code


@intrinsic
def address_of(typingctx: Any, pointer: Any) -> Any:
    """A pointer as an integer."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.int64(pointer), code
