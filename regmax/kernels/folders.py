"""Where compiled and generated code is kept. A file counts only if nobody but this user and root
could have written it, and a folder does not grow without bound."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

LARGEST = 1 << 26
"""The bytes of the largest file that is read."""
ROOM, MANY, VERSIONS = 1 << 28, 2048, 8
"""The bytes and the files that a folder keeps, and those of one function: for several machines or
environments, not for all versions of its source."""
_DAY = 86400.0
_POLL = 0.05
"""Seconds between two looks at a lock."""
_OURS = re.compile(r"(?:(.+)-[0-9a-f]{24}\.o|.+_[0-9a-f]{24}\.py|regmax-.+\.tmp)")


def user_folder() -> Path:
    """$REGMAX_CACHE_DIR, or ~/.cache/regmax. Raises FileNotFoundError without a home."""
    given = os.environ.get("REGMAX_CACHE_DIR")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "regmax"
    home = os.path.expanduser("~")  # noqa: PTH111  which raises nothing
    if not os.path.isabs(home):  # noqa: PTH117
        raise FileNotFoundError
    return Path(home) / ".cache" / "regmax"


def folders(home: Path) -> list[Path]:
    """Where the object files of a folder's modules may be: beside them, so that they serve every
    user of an installation, or where the user may write."""
    given = [os.environ[k] for k in ("REGMAX_CACHE_DIR", "NUMBA_CACHE_DIR") if os.environ.get(k)]
    if given:
        return [Path(given[0])]
    found = [home / "__pycache__"]
    with contextlib.suppress(FileNotFoundError):
        found.append(user_folder())
    return found


def _own(found: os.stat_result) -> bool:
    """Whether nobody but this user and root can write to it."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _made(folder: Path) -> None:
    """Make a folder, or raise OSError if others can write to it."""
    folder.mkdir(0o755, parents=True, exist_ok=True)
    if not _own(folder.stat()):
        raise PermissionError(folder)


def takes(folder: Path) -> bool:
    """Whether a file can be kept in a folder."""
    try:
        _made(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)
    except OSError:
        return False
    return True


def read(path: Path) -> bytes | None:
    """The content of a file; None if there is none, or others could have written it."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        if not _own(path.parent.stat()):
            return None
        handle = os.open(path, flags)
        try:
            found = os.fstat(handle)
            if not (stat.S_ISREG(found.st_mode) and _own(found) and found.st_size <= LARGEST):
                return None
            if time.time() - found.st_mtime > _DAY:
                with contextlib.suppress(OSError):
                    os.utime(path)  # it is in use
            with open(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)
    except OSError:
        return None


def write(path: Path, content: bytes) -> None:
    """Write a file at once, and remove the files of its folder that were not used for longest."""
    _made(path.parent)
    handle, temporary = tempfile.mkstemp(".tmp", "regmax-", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    with contextlib.suppress(OSError):
        _tidy(path.parent)


@contextlib.contextmanager
def alone(name: str, places: Sequence[Path], seconds: float) -> Iterator[None]:
    """While no other process is here with this name: what it makes can be read afterwards. Where no
    folder takes a lock, or after some seconds, it goes on without one."""
    handle = path = None
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        places = ()
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    for folder in places:
        with contextlib.suppress(OSError):
            _made(folder)
            path = folder / f"regmax-{name}.tmp"
            handle = os.open(path, flags, 0o600)
            break
    if handle is None or path is None:
        yield
        return
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:  # ends: time goes on
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # who waits for it, or comes now, reads what was made
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # also of a fork
        os.close(handle)


def _tidy(folder: Path) -> None:
    """Remove what is too old. Other processes may do so at the same time."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if match := _OURS.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    found.append((about.st_mtime, about.st_size, match[1], entry))
    found.sort(key=lambda each: each[0], reverse=True)
    old, room, versions = time.time() - _DAY, ROOM, Counter[str]()
    for k, (used, size, function, entry) in enumerate(found):
        room -= size
        spare = room < 0 or k >= MANY
        if entry.name.endswith(".tmp"):  # which another process writes, or did not complete
            spare = used < old
        elif function is not None:
            versions[function] += 1
            spare = spare or versions[function] > VERSIONS
        if spare:
            with contextlib.suppress(OSError):
                Path(entry.path).unlink()


def module(path: Path) -> ModuleType:
    """The module in a file, of which no bytecode is kept."""
    spec = importlib.util.spec_from_file_location(f"regmax_{path.stem}", path)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # Triton reads the source of its functions
    exec(compile(path.read_bytes(), path, "exec"), found.__dict__)
    return found
