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
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import binding as llvm
from numba import types
from numba.core import compiler, cpu, typing
from numba.core import typed_passes as typed
from numba.core import untyped_passes as untyped
from numba.core.base import OverloadSelector
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.typing.typeof import typeof_impl
from numba.extending import models, register_model

from .job import STOPPED, TASK


class Function:
    """A function that compiled functions call; in Python it can be called too."""

    def __init__(self, function: Callable[..., Any], fastmath: Any = False) -> None:
        functools.update_wrapper(self, function)
        self.function, self.signature = function, inspect.signature(function)
        self.fastmath = fastmath

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def typed(self, context: Any, kinds: tuple[Any, ...]) -> Any:
        """The signature of a call, and what the target knows its code by."""
        kinds = tuple(map(types.unliteral, kinds))
        return context.unit.compiled(self.function, kinds, self.fastmath)


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


def njit(function: Callable[..., Any] | None = None, *, fastmath: Any = False) -> Any:
    """Mark a function that compiled functions call; ``fastmath``: flags of LLVM."""
    if function is None:
        return functools.partial(Function, fastmath=fastmath)
    return Function(function)


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


class _Typing(typing.Context):
    """numba's types of operations, each found once."""

    def refresh(self) -> None:
        for registry in list(self._registries):
            self.install_registry(registry)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if not isinstance(func, types.Function) or kws:
            return super().resolve_function_type(func, args, kws)
        key = func, args
        if key not in self.resolved:
            self.resolved[key] = super().resolve_function_type(func, args, kws)
        return self.resolved[key]


class _Target(cpu.CPUContext):
    """numba's target with definitions of its own."""

    def refresh(self) -> None:
        for registry in list(self._registries):
            self.install_registry(registry)

    def define(self, key: Any, kinds: Any, code: Any) -> None:
        self._defns[key] = OverloadSelector()
        self._defns[key].append(code, kinds)


class _Definitions(dict[Any, Any]):
    """Definitions, before those of numba."""

    def __init__(self, rest: Any) -> None:
        self.rest = rest

    def __missing__(self, key: Any) -> Any:
        return self.rest[key]


class _Library(JITCodeLibrary):
    """Modules of several functions, optimised together."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def add_ir_module(self, ir_module: Any) -> None:
        self.add_llvm_module(llvm.parse_assembly(str(ir_module)))

    def object(self, entry: str) -> bytes:
        """The object file of a function that is given as source of LLVM; all others are part of
        it."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        for text in (_MEMORY, entry):
            self._final_module.link_in(llvm.parse_assembly(text))
        module = self._final_module
        for each in (*module.functions, *module.global_variables):
            if not each.is_declaration:
                each.linkage = "external" if each.name == TASK else "internal"
        self._optimize_final_module()
        missing = [
            each.name
            for each in module.functions
            if each.is_declaration and each.name.startswith(("NRT_", "numba_", "Py", "_Py"))
        ]
        if missing:
            raise NotImplementedError(
                f"{self.name} needs {', '.join(missing)} of numba's runtime library: compiled "
                "kernels cannot use lists, strings or Python objects"
            )
        code = bytes(self._codegen._tm.emit_object(module))
        for each in module.functions:
            # what LLVM does not know stays a name, and to link it would end the process
            if each.name.startswith("llvm.") and each.name.encode() in code:
                raise RuntimeError(f"this version of LLVM has no {each.name}")
        return code


_MEMORY = """
declare ptr @malloc(i64)
declare void @free(ptr)

define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %whole = add i64 %size, 128
  %info = call ptr @malloc(i64 %whole)
  %none = icmp eq ptr %info, null
  br i1 %none, label %end, label %some
some:
  store i64 1, ptr %info
  %start = ptrtoint ptr %info to i64
  %after = add i64 %start, 127
  %address = and i64 %after, -64
  %at = getelementptr i8, ptr %info, i64 24
  store i64 %address, ptr %at
  br label %end
end:
  ret ptr %info
}

define void @NRT_MemInfo_call_dtor(ptr %info) {
  call void @free(ptr %info)
  ret void
}
"""


class _Manager(PassManager):
    """Passes whose result is not analysed again after each of them."""

    _ENFORCING = False


class _Passes(compiler.CompilerBase):
    """The passes that such functions need."""

    def define_pipelines(self) -> list[Any]:
        manager = _Manager("regmax")
        for each in (
            untyped.TranslateByteCode,
            untyped.FixupArgs,
            untyped.IRProcessing,
            untyped.RewriteSemanticConstants,
            untyped.GenericRewrites,
            untyped.ReconstructSSA,
            typed.NopythonTypeInference,
            typed.PreLowerStripPhis,
            typed.IRLegalization,
            typed.NativeLowering,
            typed.NoPythonBackend,
        ):
            manager.add_pass(each, each.__name__)
        manager.finalize()
        return [manager]


class _Unit:
    """A function and those that it calls."""

    def __init__(self, name: str) -> None:
        target, context = cpu_target.target_context, cpu_target.typing_context
        target.refresh()
        self.target, self.typing = copy.copy(target), copy.copy(context)
        self.target.__class__, self.typing.__class__ = _Target, _Typing
        self.target.typing_context = self.typing
        self.target._defns = _Definitions(target._defns)
        self.typing.resolved, self.typing.unit = {}, self
        self.library = _Library(self.target.codegen(), name)
        self.known: dict[Any, Any] = {}
        self.flags = compiler.Flags()
        self.flags.nrt = self.flags.no_compile = True
        self.flags.no_cpython_wrapper = self.flags.no_cfunc_wrapper = True
        self.flags.error_model = "numpy"

    def compiled(
        self, function: Callable[..., Any], kinds: tuple[Any, ...], fastmath: Any = False
    ) -> Any:
        """The signature of a function, and its name."""
        key = function, kinds
        if key not in self.known:
            flags = self.flags.copy()
            flags.fastmath = cpu.FastMathOptions(fastmath)
            found = compiler.compile_extra(
                *(self.typing, self.target, function, kinds, None, flags, {}),
                library=self.library,
                pipeline_class=_Passes,
            ).fndesc
            name = found.llvm_func_name
            self.target.insert_user_function(name, found)
            self.known[key] = typing.signature(found.restype, *kinds), name
        return self.known[key]


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
    with global_compiler_lock, _without_collector():
        with contextlib.suppress(Exception), _part_of_numba():  # it may need more
            return _compiled(function, kinds, given, stops)
        return _compiled(function, kinds, given, stops)


def _compiled(
    function: Callable[..., Any], kinds: tuple[Any, ...], given: int, stops: bool
) -> bytes:
    unit = _Unit(f"{function.__module__}.{function.__qualname__}")
    _, name = unit.compiled(function, kinds)
    words = ["i64" if kind == types.int64 else "ptr" for kind in kinds]
    args = [f"%a{k}" if k < given else "null" for k in range(len(kinds))]
    pairs = [f"{word} {arg}" for word, arg in zip(words, args, strict=True)]
    return unit.library.object(
        _ENTRY.format(
            name=name,
            types=", ".join(words),
            taken=", ".join(pairs[:given]),
            passed=", ".join(pairs),
            failed=f"atomicrmw add ptr %a0, i64 {2 * STOPPED} monotonic" if stops else "",
        )
    )


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


_ENTRY = """
declare i32 @"{name}"(ptr, ptr, {types})

define void @regmax_task({taken}) {{
  %result = alloca ptr
  %error = alloca ptr
  %status = call i32 @"{name}"(ptr %result, ptr %error, {passed})
  %bad = icmp ne i32 %status, -2
  %wrong = icmp ne i32 %status, 0
  %failed = and i1 %bad, %wrong
  br i1 %failed, label %stop, label %end
stop:
  {failed}
  br label %end
end:
  ret void
}}
"""
"""A C function around numba's, which returns 0 or −2 for success."""
