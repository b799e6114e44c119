"""The object file of a function with all that it calls, by one pass of LLVM. It needs nothing of
numba's runtime library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding as llvm
from llvmlite.binding import newpassmanagers
from numba.core.codegen import JITCodeLibrary

from .job import STOPPED, TASK


class _Passes:
    """numba's generator of code, and the passes that it makes."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen
        self.made: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def _module_pass_manager(self, **kinds: Any) -> Any:
        found = self._codegen._module_pass_manager(**kinds)
        self.made.append(found[0])
        return found


class Library(JITCodeLibrary):
    """Modules of several functions, optimised together."""

    _codegen: Any

    def _optimize_final_module(self) -> None:
        """As numba does. Then the passes are freed, which keep memory for each function: llvmlite's
        class of them inherits a method that does not."""
        codegen, passes = self._codegen, _Passes(self._codegen)
        self._codegen = passes
        try:
            super()._optimize_final_module()
        finally:
            self._codegen = codegen
            for each in passes.made:
                newpassmanagers.NewPassManager._dispose(each)
                each.detach()

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def add_ir_module(self, ir_module: Any) -> None:
        self.add_llvm_module(llvm.parse_assembly(str(ir_module)))

    def object(self, name: str, words: Sequence[str], given: int, stops: bool) -> bytes:
        """The object file of ``regmax_task``, which calls the function of this name with the first
        ``given`` arguments, and null for the others; ``words`` are their types. If it ``stops``, an
        error stops the job that is its first argument."""
        args = [f"%a{k}" if k < given else "null" for k in range(len(words))]
        pairs = [f"{word} {arg}" for word, arg in zip(words, args, strict=True)]
        entry = _ENTRY.format(
            name=name,
            types=", ".join(words),
            taken=", ".join(pairs[:given]),
            passed=", ".join(pairs),
            failed=f"atomicrmw add ptr %a0, i64 {2 * STOPPED} monotonic" if stops else "",
        )
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
