"""Pointers in numba-compiled code: to rows of arrays and to addresses in a job."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array, populate_array

from .jit import intrinsic


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


doubles, floats = _pointer_to(types.float64), _pointer_to(types.float32)
octets = _pointer_to(types.uint8)
ints, longs = _pointer_to(types.int32), _pointer_to(types.int64)


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
def empty(typingctx: Any, rows: Any, columns: Any, like: Any) -> Any:
    """A new array of ``rows`` by ``columns`` entries, of a dtype or as a pointer's."""
    kind = types.Array(like.dtype, 2, "C")

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shape = [
            context.cast(builder, arg, given, types.intp)
            for arg, given in zip(args[:2], signature.args[:2], strict=True)
        ]
        size = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
        width = builder.mul(shape[1], size)
        octets, word = ir.IntType(8).as_pointer(), ir.IntType(64)
        allocate = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(octets, [word, ir.IntType(32)]),
            "NRT_MemInfo_alloc_aligned",
        )
        info = builder.call(allocate, [builder.mul(shape[0], width), ir.IntType(32)(64)])
        with builder.if_then(cgutils.is_null(builder, info), likely=False):
            context.call_conv.return_user_exc(builder, MemoryError, ("no memory",))
        array = make_array(kind)(context, builder)
        data = context.nrt.meminfo_data(builder, info)
        populate_array(
            array,
            data=builder.bitcast(data, context.get_data_type(kind.dtype).as_pointer()),
            shape=cgutils.pack_array(builder, shape, ty=word),
            strides=cgutils.pack_array(builder, [width, size], ty=word),
            itemsize=size,
            meminfo=info,
        )
        return array._getvalue()

    return kind(rows, columns, like), code


@intrinsic
def keep(typingctx: Any, arrays: Any) -> Any:
    """Use the arrays, so that their memory is not free before: a pointer does not keep it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(arrays), code


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


@intrinsic
def call(typingctx: Any, address: Any, job: Any) -> Any:
    """Call the compiled function of a job at an address."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [args[1].type])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, job), code
