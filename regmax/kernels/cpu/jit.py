"""Compilation: numba's front end, and one pass of LLVM over a function with all that it calls.

numba's ``njit`` optimises every function by itself, generates its machine code and a wrapper for
Python, and then does the same with its caller, of which it is a part. Here no function but the
outermost has code of its own, and its object file needs nothing of numba.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from numba import types
from numba.core import compiler, cpu, errors, ir, typing
from numba.core.base import OverloadSelector
from numba.core.bytecode import ByteCode, FunctionIdentity
from numba.core.callconv import create_error_model
from numba.core.compiler_lock import global_compiler_lock
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.interpreter import Interpreter
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.postproc import PostProcessor
from numba.core.registry import cpu_target
from numba.core.rewrites import rewrite_registry
from numba.core.runtime import rtsys
from numba.core.ssa import reconstruct_ssa
from numba.core.targetconfig import ConfigStack
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import PreLowerStripPhis, type_inference_stage
from numba.core.typing.typeof import typeof_impl
from numba.extending import models, register_model

from .library import Library


class Function:
    """A function that compiled functions call; in Python it can be called too."""

    def __init__(
        self, function: Callable[..., Any], fastmath: Any = False, apart: bool = False
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.signature = function, inspect.signature(function)
        self.fastmath, self.apart = fastmath, apart

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def typed(self, context: Any, kinds: tuple[Any, ...]) -> Any:
        """The signature of a call, and what the target knows its code by."""
        kinds = tuple(map(types.unliteral, kinds))
        return context.unit.compiled(self.function, kinds, self.fastmath, self.apart)


class Intrinsic(Function):
    """Code that is made for LLVM: ``function(context, *types)`` returns a signature and a function
    of (context, builder, signature, arguments)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        _, *rest = self.signature.parameters.values()
        self.signature = self.signature.replace(parameters=rest)

    def typed(self, context: Any, kinds: tuple[Any, ...]) -> Any:
        signature, code = self.function(context, *kinds)
        context.unit.target.define(code, signature.args, code)
        return signature, code


def njit(
    function: Callable[..., Any] | None = None, *, fastmath: Any = False, apart: bool = False
) -> Any:
    """Mark a function that compiled functions call; ``fastmath``: flags of LLVM. One that is
    ``apart`` is called, instead of being a part of its caller: then LLVM optimises it once, and not
    again with each caller. It is for rare cases."""
    if function is None:
        return functools.partial(Function, fastmath=fastmath, apart=apart)
    return Function(function, fastmath, apart)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Mark a function that makes code. See :class:`Intrinsic`."""
    return Intrinsic(function)


class _Type(types.Callable, types.Opaque):
    """The type of a :class:`Function`."""

    def __init__(self, function: Function) -> None:
        self.function = function
        super().__init__(
            f"function {function.function.__module__}.{function.function.__qualname__}"
        )
        self.keys: dict[Any, Any] = {}

    @property
    def key(self) -> Function:
        return self.function

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        bound = self.function.signature.bind(*args, **kws)
        bound.apply_defaults()
        found, key = self.function.typed(context, bound.args)
        self.keys[found.args] = key
        return found.replace(pysig=self.function.signature)

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        return [], True

    def get_impl_key(self, signature: Any) -> Any:
        return self.keys[signature.args]


register_model(_Type)(models.OpaqueModel)
typeof_impl.register(Function)(lambda value, context: _Type(value))
typeof_impl.register(Intrinsic)(lambda value, context: _Type(value))


def _extreme(sign: Callable[..., Any]) -> Intrinsic:
    """The one of some numbers for which ``sign`` holds beside those before it."""

    @intrinsic
    def found(context: Any, *kinds: Any) -> Any:
        kind = context.unify_types(*kinds)

        def code(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            compare = target.get_function(sign, typing.signature(types.boolean, kind, kind))
            first, *rest = (
                target.cast(builder, arg, given, kind)
                for arg, given in zip(args, signature.args, strict=True)
            )
            for arg in rest:
                first = builder.select(compare(builder, (arg, first)), arg, first)
            return first

        return kind(*kinds), code

    return found


@intrinsic
def _whole(context: Any, x: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return target.cast(builder, args[0], x, signature.return_type)

    return (x if isinstance(x, types.Integer) else types.intp)(x), code


_OWN = {min: _extreme(operator.lt), max: _extreme(operator.gt), int: _whole}
"""Functions for which numba would compile code for each of the types."""


class _Operation(types.Function):
    """An operation of numba, whose types are found once."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return super().get_call_type(context, args, kws)
        key = self, args
        if key not in context.resolved:
            context.resolved[key] = self._found(context, args)
        return context.resolved[key]

    def _found(self, context: Any, args: Any) -> Any:
        own, kinds = _OWN.get(self.typing_key), [types.unliteral(arg) for arg in args]
        if own is None or not all(isinstance(k, types.Number | types.Boolean) for k in kinds):
            return super().get_call_type(context, args, {})
        found, self._impl_keys[found.args] = own.typed(context, kinds)
        return found


register_model(_Operation)(models.OpaqueModel)


def _refresh(context: Any) -> None:
    for registry in list(context._registries):
        context.install_registry(registry)


class _Typing(typing.Context):
    """numba's types of values and of operations, each found once."""

    refresh = _refresh

    def resolve_value_type(self, val: Any) -> Any:
        if id(val) not in self.values:
            found = super().resolve_value_type(val)
            if type(found) is types.Function:
                found = _Operation(found.templates)
            self.values[id(val)] = val, found  # val lives as long as its id counts
        return self.values[id(val)][1]


class _Target(cpu.CPUContext):
    """numba's target with definitions of its own."""

    refresh = _refresh

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        key = fn, sig
        if key not in self.found:
            self.found[key] = super().get_function(fn, sig, _firstcall)
        return self.found[key]

    def get_abi_sizeof(self, ty: Any) -> int:
        if ty not in self.sizes:
            self.sizes[ty] = super().get_abi_sizeof(ty)
        return self.sizes[ty]

    def counted(self, kind: Any) -> bool:
        """Whether references to values of this type are counted."""
        if kind not in self.counts:
            self.counts[kind] = self.data_model_manager[kind].contains_nrt_meminfo()
        return bool(self.counts[kind])

    def define(self, key: Any, kinds: Any, code: Any) -> None:
        self._defns[key] = OverloadSelector()
        self._defns[key].append(code, kinds)


class _Definitions(dict[Any, Any]):
    """Definitions, before those of numba."""

    def __init__(self, rest: Any) -> None:
        self.rest = rest

    def __missing__(self, key: Any) -> Any:
        return self.rest[key]


class _Lower(Lower):
    """Without what numba does at the end of each variable, where references are not counted."""

    apart = False

    def setup_function(self, fndesc: Any) -> None:
        super().setup_function(fndesc)
        if self.apart:
            self.function.attributes.add("noinline")

    def incref(self, typ: Any, val: Any) -> None:
        if self.context.counted(typ):
            super().incref(typ, val)

    def decref(self, typ: Any, val: Any) -> None:
        if self.context.counted(typ):
            super().decref(typ, val)

    def delvar(self, name: str) -> None:
        if self.context.counted(self.typeof(name)):
            super().delvar(name)


class _Unit:
    """A function and those that it calls."""

    def __init__(self, name: str) -> None:
        target, context = cpu_target.target_context, cpu_target.typing_context
        target.refresh()
        self.target, self.typing = copy.copy(target), copy.copy(context)
        self.target.__class__, self.typing.__class__ = _Target, _Typing
        self.target.typing_context = self.typing
        self.target.found, self.target.sizes, self.target.counts = {}, {}, {}
        self.target._defns = _Definitions(target._defns)
        self.typing.resolved, self.typing.values, self.typing.unit = {}, {}, self
        self.library = Library(self.target.codegen(), name)
        self.known: dict[Any, Any] = {}
        self.flags = compiler.Flags()
        self.flags.nrt, self.flags.error_model = True, "numpy"

    def compiled(
        self,
        function: Callable[..., Any],
        kinds: tuple[Any, ...],
        fastmath: Any = False,
        apart: bool = False,
    ) -> Any:
        """The signature of a function, and its name."""
        key = function, kinds, apart
        if key not in self.known:
            flags = self.flags.copy()
            flags.fastmath = cpu.FastMathOptions(fastmath)
            with ConfigStack().enter(flags):
                found = self._lowered(function, kinds, flags, apart)
            name = found.llvm_func_name
            self.target._defns[name] = OverloadSelector()  # not in numba's, which keeps it for ever
            self.target.insert_user_function(name, found)
            self.known[key] = typing.signature(found.restype, *kinds), name
        return self.known[key]

    def _lowered(
        self, function: Callable[..., Any], kinds: tuple[Any, ...], flags: Any, apart: bool
    ) -> Any:
        """Add a function to the library: bytecode, single assignment, types, and source of LLVM;
        returns its description. These are the passes of ``njit`` that such functions need."""
        identity = FunctionIdentity.from_function(function)
        source = Interpreter(identity).interpret(ByteCode(identity))
        state = SimpleNamespace(func_ir=source, typingctx=self.typing, typemap=None, calltypes=None)
        for rewrite in (each(state) for each in rewrite_registry.rewrites["before-inference"]):
            for k in source.blocks:
                while rewrite.match(source, source.blocks[k], None, None):  # ends: it is gone then
                    source.blocks[k] = rewrite.apply()
        source.blocks = canonicalize_cfg(source.blocks)
        source = reconstruct_ssa(source)
        source._definitions = build_definitions(source.blocks)
        typed = type_inference_stage(self.typing, self.target, source, kinds, None)
        types_of, result, calls, _ = typed
        source = PreLowerStripPhis()._strip_phi_nodes(source)
        source._definitions = build_definitions(source.blocks)
        if any(map(self.target.counted, types_of.values())):
            PostProcessor(source).run(emit_dels=True)
        model = create_error_model(flags.error_model, self.target)
        target = self.target.subtarget(
            enable_nrt=True, fastmath=flags.fastmath, error_model=model, found={}
        )
        found = PythonFunctionDescriptor.from_specialized_function(
            *(source, types_of, result, calls, target.mangler, flags.forceinline, flags.noalias),
            abi_tags=[flags.get_mangle_string()],
        )
        with target.push_code_library(self.library):
            lower = _Lower(target, self.library, found, source)
            lower.apart = apart
            lower.lower()
        return found


def task(function: Callable[..., Any], like: str | None) -> bytes:
    """The object file of ``regmax_task(job)``: ``function(job, like)``, or ``function(job)``. Only
    the type of ``like`` is used, a pointer to numbers of this name; no value is passed."""
    kinds = [types.CPointer(types.int64)]
    if like:
        kinds.append(types.CPointer(getattr(types, like)))
    return _object(function, tuple(kinds), 1, True)


def function(function: Callable[..., Any], kinds: tuple[Any, ...]) -> bytes:
    """The object file of ``regmax_task(…)``, a function of such arguments without result."""
    return _object(function, kinds, len(kinds), False)


def _object(function: Callable[..., Any], kinds: tuple[Any, ...], given: int, stops: bool) -> bytes:
    with global_compiler_lock, _without_collector(), _without_colours():
        with contextlib.suppress(Exception), _part_of_numba():  # it may need more
            return _compiled(function, kinds, given, stops)
        return _compiled(function, kinds, given, stops)


def _compiled(
    function: Callable[..., Any], kinds: tuple[Any, ...], given: int, stops: bool
) -> bytes:
    unit = _Unit(f"{function.__module__}.{function.__qualname__}")
    _, name = unit.compiled(function, kinds)
    words = ["i64" if kind == types.int64 else "ptr" for kind in kinds]
    return unit.library.object(name, words, given, stops)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Without the search for cyclic garbage, which is a fifth of the time and finds little."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Plain:
    """A scheme of colours that has none."""

    def __getattr__(self, name: str) -> Any:
        return str


@contextlib.contextmanager
def _without_colours(module: Any = errors, place: Any = ir.Loc) -> Iterator[None]:
    """Without colours in messages, and without relative paths, which a deleted folder has not."""
    before = getattr(module, "_termcolor_inst", None), getattr(place, "_get_path", None)
    module._termcolor_inst, place._get_path = _Plain(), lambda self: self.filename
    try:
        yield
    finally:
        module._termcolor_inst, place._get_path = before


@contextlib.contextmanager
def _part_of_numba() -> Iterator[None]:
    """numba as far as kernels need it: numbers, tuples, ranges and arrays. The rest, such as linear
    algebra, random numbers and strings, takes .4 s to load."""

    def code() -> None:
        from numba.core import optional  # noqa: F401
        from numba.cpython import iterators, mathimpl, numbers, rangeobj, tupleobj  # noqa: F401
        from numba.np import arrayobj, npyimpl  # noqa: F401

        rtsys.initialize(target)
        target.install_registry(mathimpl.registry)
        target.install_registry(npyimpl.registry)

    def kinds() -> None:
        from numba.core.typing import mathdecl, npydecl

        context.install_registry(mathdecl.registry)
        context.install_registry(npydecl.registry)

    target, context = cpu_target.target_context, cpu_target.typing_context
    target.load_additional_registries, context.load_additional_registries = code, kinds
    try:
        yield
    finally:
        del target.load_additional_registries, context.load_additional_registries
