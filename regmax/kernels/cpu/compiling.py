"""Object files of compiled functions, on disk: later processes load them without numba."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from llvmlite import binding as llvm

from ..folders import folders
from .threads import TASK

PATIENCE = 2.0
"""Seconds until a line says that something is compiled."""
_KERNELS = Path(__file__).parent
_lock = threading.RLock()
_engines: list[Any] = []


def address_of(module: str, name: str, like: str | None) -> int:
    """The address of a compiled C function of a job, ``name(job, like)`` in a module; ``like`` is
    a dtype. Its object file depends on all sources in the module's folder and in this one."""

    def make() -> bytes:
        from . import jit

        return jit.task(getattr(importlib.import_module(module), name), like)

    home = folder_of(module)
    stem = f"{module}.{name}" + (f".{like}" if like else "")
    return loaded(stem, _digest(home) + _digest(_KERNELS), folders(home), make)


def folder_of(module: str) -> Path:
    """The folder of a module, which is not imported."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(name=module)
    return Path(found.origin).parent


def loaded(stem: str, text: str, places: Sequence[Path], make: Callable[[], bytes]) -> int:
    """The address of the function in an object file. It is made, and written to the first of
    ``places`` that takes it, if none of them has it for this ``text`` and this machine."""
    stamp = hashlib.sha256("\0".join((text, *_machine())).encode()).hexdigest()[:24]
    name = f"{stem}-{stamp}.o"
    with _lock:
        code = next(filter(None, (_read(folder / name) for folder in places)), None)
        if code is None:
            with _told(stem):
                code = make()
            for folder in places:
                with contextlib.suppress(OSError):
                    _write(folder / name, code)
                    break
        return _linked(code)


@functools.cache
def _machine() -> tuple[str, ...]:
    """What the code depends on besides its source."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    settings = sorted(
        f"{key}={value}"
        for key, value in os.environ.items()
        if key.startswith("NUMBA_") and key != "NUMBA_CACHE_DIR"
    )
    features = llvm.get_host_cpu_features().flatten()
    versions = (metadata.version(name) for name in ("numba", "llvmlite"))
    return *versions, llvm.get_process_triple(), llvm.get_host_cpu_name(), features, *settings


@functools.cache
def _digest(folder: Path) -> str:
    """A digest of the Python files in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _read(path: Path) -> bytes | None:
    """The object file, or None if there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(hashlib.sha256(code).digest() + code)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def _linked(code: bytes) -> int:
    """The address of the function in memory."""
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)  # owns the code
    return int(engine.get_function_address(TASK))


_said = False


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say once per process that compilation takes long, and happens once."""

    def say() -> None:
        global _said
        if not _said:
            _said = True
            logging.getLogger("regmax").warning(
                "compiling %s, once per installation; regmax compile does it beforehand",
                what,
            )

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
