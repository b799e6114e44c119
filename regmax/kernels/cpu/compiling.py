"""Object files of compiled functions, on disk: later processes load them without numba."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from llvmlite import binding as llvm

from .. import process
from ..folders import alone, folders, read, takes, write
from ..folders import module as module_in
from .job import TASK

PATIENCE = 2.0
"""Seconds until a line says that something is compiled."""
_KERNELS = Path(__file__).parent
LONGEST = 120.0
"""Seconds after which another process that compiles is given up."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_lock = process.COMPILING
_room = threading.Semaphore(CORES)
_others: dict[str, _Other] = {}
_WITHOUT_EFFECT = {
    *("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"),
    *("NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY"),
}
"""Settings of numba that change no code."""


def address_of(module: str, name: str, like: str | None) -> int:
    """The address of a compiled C function of a job, ``name(job, like)`` in a module; ``like`` is
    a dtype. Its object file depends on all sources in the module's folder and in this one."""
    return loaded(*_known(module, name, like), lambda: compiled(module, name, like))


def soon(module: str, name: str, like: str | None) -> None:
    """Start to compile a function of :func:`address_of` in another process, if it is not on disk
    and there is a core for it. Where that process fails, :func:`address_of` compiles it."""
    stem, text, places = _known(module, name, like)
    file = _file(stem, text)
    if not _has_room():
        return
    tops = "regmax", module.split(".")[0]
    packages = {
        each: list(found.__path__)
        for each, found in sys.modules.copy().items()
        if each.split(".")[0] in tops and hasattr(found, "__path__")
    }
    with _lock, contextlib.suppress(RuntimeError):  # no thread can be started
        if file not in _others and not _found(file, places):
            given = json.dumps((sys.path, packages, file, module, name, like), default=str)
            _others[file] = _Other(file, given.encode(), places)


def compiled(module: str, name: str, like: str | None) -> bytes:
    """The object file of a function, compiled now."""
    from . import jit

    return jit.task(getattr(imported(module), name), like)


def imported(module: str) -> ModuleType:
    """A module, or a file of one that is made of the value of Ω."""
    return module_in(Path(module)) if _is_file(module) else importlib.import_module(module)


def _known(module: str, name: str, like: str | None) -> tuple[str, str, list[Path]]:
    """The stem of the object file, what its content depends on, and where it may be. A module that
    is made of the value of Ω is a file."""
    if _is_file(module):
        path = Path(module)
        text = path.read_text("utf-8") + _digest(_KERNELS.parent / "from_value") + _digest(_KERNELS)
        return f"{path.stem}_{name}_{like}", text, [path.parent]
    home = folder_of(module)
    stem = f"{module}.{name}" + (f".{like}" if like else "")
    return stem, _digest(home) + _digest(_KERNELS), folders(home)


def version(*modules: str) -> str:
    """Stands for the sources in the folders of these modules, unless they are files."""
    return " ".join(_digest(folder_of(each)) for each in modules if not _is_file(each))


def _is_file(module: str) -> bool:
    return module.endswith(".py")


def folder_of(module: str) -> Path:
    """The folder of a module, which is not imported."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(name=module)
    return Path(found.origin).parent


def loaded(stem: str, text: str, places: Sequence[Path], make: Callable[[], bytes]) -> int:
    """The address of the function in an object file. It is made, and written to the first of
    ``places`` that takes it, if none of them has it for this ``text`` and this machine."""
    packages = "regmax", stem.split(".")[0]
    return process.undisturbed(lambda: _loaded(stem, text, places, make), *packages)


def _loaded(stem: str, text: str, places: Sequence[Path], make: Callable[[], bytes]) -> int:
    file = _file(stem, text)
    other = _others.get(file)
    if other is not None:
        with _told(stem, places):
            other.join()
    with _lock:
        _others.pop(file, None)
        code = _found(file, places) or (other and other.code)
        if not code:
            with _told(stem, places), alone(file, places, LONGEST):
                code = _found(file, places)  # if another process had the lock
                if code is None:
                    code = make()
                    _keep(file, code, places)
        return _linked(code)


class _Other(threading.Thread):
    """A process that compiles a function, without PyTorch, and ``code``, what came of it."""

    def __init__(self, file: str, given: bytes, places: Sequence[Path]) -> None:
        super().__init__(daemon=True, name=f"regmax-{file}")
        self.file, self.given, self.places = file, given, places
        self.code: bytes | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def run(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
        if sys.dont_write_bytecode:
            command.insert(1, "-B")
        try:
            with _room, alone(self.file, self.places, LONGEST):
                self.code = _found(self.file, self.places)
                if self.code is not None:
                    return
                with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as other:
                    self.process = other
                    try:
                        content, errors = other.communicate(self.given, timeout=LONGEST)
                    except BaseException:
                        other.kill()
                        raise
                self.code = _unsealed(self.file, content)
                if self.code is None:
                    raise RuntimeError(errors.decode(errors="replace"))
                _keep(self.file, self.code, self.places)
        except Exception as error:
            logging.getLogger("regmax").debug("no other process made %s: %s", self.file, error)


_PROGRAM = """
import json, os, signal, sys, types

signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for who waits, or waits no more
if hasattr(os, "nice"):
    os.nice(5)  # on a busy machine, who waits for another function comes first
sys.path[:], packages, file, *task = json.load(sys.stdin)
for name, folders in packages.items():  # without their own code, which imports PyTorch
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = folders

from regmax.kernels.cpu import compiling

sys.stdout.buffer.write(compiling.sealed(file, compiling.compiled(*task)))
"""


def _has_room() -> bool:
    """Whether another process has a core, and Python can be started."""
    program = Path(sys.executable or "").name
    return CORES > 1 and program.startswith("python") and not getattr(sys, "frozen", False)


def _end() -> None:
    """End the processes that nobody waits for any more."""
    for other in _others.values():
        if other.process is not None:
            other.process.kill()


def _in_child() -> None:
    """The threads of a process are not those of its fork."""
    global _room
    _room = threading.Semaphore(CORES)
    _others.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _file(stem: str, text: str) -> str:
    """The name of an object file."""
    stamp = hashlib.sha256("\0".join((text, *_machine())).encode()).hexdigest()[:24]
    return f"{stem}-{stamp}.o"


@functools.cache
def _machine() -> tuple[str, ...]:
    """What the code depends on besides its source."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    settings = sorted(
        f"{key}={value}"
        for key, value in os.environ.items()
        if key.startswith("NUMBA_") and key not in _WITHOUT_EFFECT
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


def sealed(file: str, code: bytes) -> bytes:
    """The content of a file of this name: a digest, and the code."""
    return hashlib.sha256(file.encode() + b"\0" + code).digest() + code


def _unsealed(file: str, content: bytes) -> bytes | None:
    """The code, or None if it is damaged or of another file."""
    code = content[32:]
    return code if sealed(file, code) == content else None


def _read(path: Path) -> bytes | None:
    """The object file, or None if there is none or it is damaged."""
    return _unsealed(path.name, read(path) or b"")


def _found(file: str, places: Sequence[Path]) -> bytes | None:
    """The object file, from the first folder that has it."""
    return next(filter(None, (_read(folder / file) for folder in places)), None)


def _keep(file: str, code: bytes, places: Sequence[Path]) -> None:
    """Write the object file to the first folder that takes it."""
    for folder in places:
        with contextlib.suppress(OSError):
            write(folder / file, sealed(file, code))
            return


class _Address(int):
    """Where a function is, as long as this object lives: its ``engine`` owns the code."""

    engine: Any


def _linked(code: bytes) -> int:
    """The address of the function in memory."""
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    found = _Address(engine.get_function_address(TASK))
    found.engine = engine
    return found


_said = False


@contextlib.contextmanager
def _told(what: str, places: Sequence[Path]) -> Iterator[None]:
    """Say once per process that a compilation takes long, and how often it happens. What is made of
    the value of Ω has no module, and regmax compile does not know it."""

    def say() -> None:
        global _said
        if _said:
            return
        _said = True
        often = "in every process, as no folder keeps it: let REGMAX_CACHE_DIR name one of yours"
        if any(map(takes, places)):
            known = "." in what
            often = f"once per installation{'; regmax compile does it beforehand' * known}"
        logging.getLogger("regmax").warning("compiling %s, %s", what, often)

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread can be started
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
