"""The type of 16 numbers, and the code that makes and calls LLVM's operations on it."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

LANES = 16


class Vector(types.Type):
    """16 numbers: float32, float64, int32, int64, or boolean (a mask)."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        bits = ir.IntType(1)
        element = bits if fe_type.dtype == types.boolean else dmm[fe_type.dtype].get_value_type()
        super().__init__(dmm, fe_type, ir.VectorType(element, LANES))


MASK = Vector(types.boolean)


def spread(builder: Any, value: Any) -> Any:
    """A vector with a number in every lane."""
    vector = ir.VectorType(value.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def call(builder: Any, name: str, result: Any, *args: Any, fastmath: Any = ()) -> Any:
    """The result of an intrinsic of LLVM."""
    kind = ir.FunctionType(result, [a.type for a in args])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, args, fastmath=fastmath)


def suffix(vector: Any) -> str:
    """What the name of an intrinsic has for the type of its vectors, such as v16f32."""
    element = vector.element
    names = {"float": "f32", "double": "f64"}
    return f"v{vector.count}{names.get(str(element), str(element))}"


def popcount(builder: Any, m: Any) -> Any:
    """How many lanes of a mask are set, as an int64."""
    packed = builder.bitcast(m, ir.IntType(m.type.count))
    return builder.ctpop(builder.zext(packed, ir.IntType(64)))
