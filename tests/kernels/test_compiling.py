"""Object files of compiled kernels: written once, loaded without numba, never used when wrong."""

from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from processes import python

from regmax import kernels
from regmax.cli import main
from regmax.cli.compiling import OTHERS
from regmax.functional import sparsemax

pytest.importorskip("numba", reason="the CPU kernels need numba")

from llvmlite import ir
from numba import types
from numba.core import cgutils

from regmax.kernels import folders
from regmax.kernels.cpu import compiling, jit, threads
from regmax_gini import _cpu

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, torch
from regmax.functional import sparsemax
x = torch.tensor([[1.0, 0.5, -1.0]], requires_grad=True)
y = sparsemax(x)
y.backward(torch.tensor([[1.0, 0.0, 0.0]]))
print(y.tolist(), x.grad.tolist(), "numba" in sys.modules)
"""
OWN = """
import sys, torch, regmax

class Own(regmax.Regularizer):
    def value(self, y):
        return y.square().sum(-1) / 2 + y.pow(3).sum(-1) / 6

x = torch.tensor([[1.0, 0.5, -1.0]], dtype=torch.float64, requires_grad=True)
regmax.FenchelYoungLoss(Own())(x, torch.tensor([1])).backward()
(regmax.RegularizedMax(Own())(x) ** 2).sum().backward()
print("sympy" in sys.modules)
"""
RIGHT = "[[0.75, 0.25, 0.0]] [[0.5, -0.5, 0.0]]"


def run(folder, script=SCRIPT):
    return python(script, REGMAX_CACHE_DIR=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Object files that a first process made."""
    folder = tmp_path_factory.mktemp("objects")
    assert run(folder).stdout == f"{RIGHT} True\n"
    return folder


class TestObjectFiles:
    def test_a_later_process_needs_no_numba(self, folder):
        assert len(list(folder.glob("regmax_gini._numba.*.o"))) == 2
        later = run(folder)
        assert later.stdout == f"{RIGHT} False\n"
        assert later.stderr == ""

    def test_a_damaged_file_is_made_again(self, folder):
        for path in folder.glob("*.o"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        assert run(folder).stdout == f"{RIGHT} True\n"
        assert run(folder).stdout == f"{RIGHT} False\n"

    def test_the_file_depends_on_the_source(self, folder, tmp_path):
        made = []

        def make():
            made.append(True)
            return next(folder.glob("*forward*.o")).read_bytes()[32:]

        for text in ("a", "a", "b"):
            assert compiling.loaded("name", text, [tmp_path], make) > 0
        assert len(made) == 2

    def test_a_file_of_another_name(self, folder, tmp_path):
        path = next(folder.glob("*.o"))
        content = path.read_bytes()
        folders.write(tmp_path / path.name, content)
        folders.write(tmp_path / "other.o", content)
        assert compiling._read(tmp_path / path.name)
        assert compiling._read(tmp_path / "other.o") is None

    @pytest.mark.parametrize("way", ["mode", "folder", "owner", "link", "pipe", "large", "none"])
    @pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners and modes here")
    def test_what_others_could_have_written(self, way, tmp_path, monkeypatch):
        path = tmp_path / "folder" / "file.o"
        folders.write(path, b"code")
        assert folders.read(path) == b"code"
        if way == "mode":
            path.chmod(0o664)
        elif way == "folder":
            path.parent.chmod(0o777)
            with pytest.raises(PermissionError):
                folders.write(path, b"code")
        elif way == "owner":
            if os.geteuid() == 0:
                os.chown(path, 12345, -1)
            else:
                monkeypatch.setattr(os, "geteuid", lambda: 12345)
        elif way == "link":
            path.rename(path.with_name("target"))
            path.symlink_to("target")
        elif way == "large":
            monkeypatch.setattr(folders, "LARGEST", 3)
        else:
            path.unlink()
            if way == "pipe":
                os.mkfifo(path)
        assert folders.read(path) is None

    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
    def test_nothing_is_left_of_a_file_that_was_not_completed(self, error, tmp_path, monkeypatch):
        def fail(*args):
            raise error

        monkeypatch.setattr(type(tmp_path), "replace", fail)
        with pytest.raises(type(error)):
            folders.write(tmp_path / "file.o", b"code")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_does_not_grow_without_bound(self, tmp_path, monkeypatch):
        monkeypatch.setattr(folders, "ROOM", 60)
        monkeypatch.setattr(folders, "VERSIONS", 2)
        stamps = [24 * digit for digit in "0123456789"]
        names = [f"a.b.forward-{each}.o" for each in stamps[:4]]
        names += [f"slopes_{each}-{each}.o" for each in stamps[4:]]
        names += [f"regmax-{k}.tmp" for k in range(2)]
        for k, name in enumerate([*names, "someone's", "module.cpython.pyc"]):
            (tmp_path / name).write_bytes(10 * b"c")
            os.utime(tmp_path / name, (k, k) if k < 11 else None)
        folders.write(tmp_path / f"own_{stamps[0]}.py", 10 * b"c")
        left = {path.name for path in tmp_path.iterdir()}
        # the file of now, the .tmp of now, and the latest
        assert left == {
            f"own_{stamps[0]}.py", names[11], *names[7:10], "someone's", "module.cpython.pyc"
        }  # fmt: skip
        (tmp_path / names[9]).unlink()
        monkeypatch.setattr(folders, "ROOM", 1000)
        for k, name in enumerate(names[:4]):
            (tmp_path / name).write_bytes(b"c")
            os.utime(tmp_path / name, (k + 100, k + 100))
        folders.write(tmp_path / names[7], b"c")
        assert [(tmp_path / name).exists() for name in names[:4]] == [False, False, True, True]

    def test_nowhere_to_keep_it(self, tmp_path, monkeypatch):
        file = tmp_path / "a file"
        file.touch()
        monkeypatch.setattr(compiling, "folders", lambda home: [file])
        monkeypatch.setattr(_cpu.KERNEL, "compiled", {})
        x = torch.tensor([[1.0, 0.5, -1.0]])
        assert sparsemax(x).tolist() == [[0.75, 0.25, 0.0]]


COUNTED = """
import torch
from regmax.functional import sparsemax
from regmax.kernels.cpu import compiling
compiling.CORES = GIVEN
PROGRAM
made, kept, compiled = [], KEPT, compiling.compiled

def counting(module, name, like):
    made.append(name)
    return kept[name] if kept else compiled(module, name, like)

compiling.compiled = counting
x = torch.tensor([[1.0, 0.5, -1.0]], requires_grad=True)
y = sparsemax(x)
y.backward(torch.tensor([[1.0, 0.0, 0.0]]))
print(y.tolist(), x.grad.tolist(), *made)
"""


def counted(folder, cores, program="", kept=None, first="", flags=(), **env):
    """What a script prints that is a file of its own, without a guard of its main part. Its own
    compilations give ``kept``, the code of an earlier one."""
    script = folder / "script.py"
    text = COUNTED.replace("GIVEN", str(cores)).replace("PROGRAM", program)
    script.write_text(first + text.replace("KEPT", repr(kept or {})))
    env = {**os.environ, "REGMAX_CACHE_DIR": str(folder / "cache"), **env}
    command = [sys.executable, *flags, str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert "Traceback" not in found.stderr
    return found.stdout


@pytest.fixture
def kept(folder):
    names = ("forward", "backward")
    return {n: next(folder.glob(f"*.{n}.float32*.o")).read_bytes()[32:] for n in names}


class TestAnotherProcess:
    def test_it_compiles_the_backward_pass(self, tmp_path):
        assert counted(tmp_path, 2) == f"{RIGHT} forward\n"
        assert len(list((tmp_path / "cache").glob("*.o"))) == 2
        assert counted(tmp_path, 2) == f"{RIGHT}\n"

    def test_not_on_one_core(self, tmp_path, kept):
        assert counted(tmp_path, 1, kept=kept) == f"{RIGHT} forward backward\n"

    def test_its_code_is_used_where_no_file_can_be_written(self, tmp_path, kept):
        (tmp_path / "cache").touch()
        assert counted(tmp_path, 2, kept=kept) == f"{RIGHT} forward\n"

    @pytest.mark.parametrize("program", ["print('x' * 100)", "import time; time.sleep(60)"])
    def test_where_it_fails_this_process_compiles(self, tmp_path, program, kept):
        given = f"compiling._PROGRAM, compiling.LONGEST = {program!r}, 1.0"
        assert counted(tmp_path, 2, given, kept) == f"{RIGHT} forward backward\n"

    def test_processes_that_begin_together_make_each_file_once(self, tmp_path):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            printed = list(pool.map(lambda _: counted(tmp_path, 1), range(2)))
        assert all(each.startswith(RIGHT) for each in printed)
        assert sorted(" ".join(each[len(RIGHT) :] for each in printed).split()) == [
            "backward", "forward"
        ]  # fmt: skip

    def test_a_lock_that_is_not_released_is_waited_for_no_longer_than_it_says(self, tmp_path):
        with folders.alone("name", [tmp_path], 0), folders.alone("name", [tmp_path], 0.2):
            pass
        assert not list(tmp_path.iterdir())

    def test_each_file_is_made_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr(compiling, "folders", lambda home: [tmp_path])
        monkeypatch.setattr(compiling, "CORES", 2)
        dots = "regmax.kernels.cpu.sparse_dots", "forward", "float32"
        for _ in range(2):
            compiling.soon(*dots)
        (other,) = (o for o in compiling._others.values() if str(o.places[0]) == str(tmp_path))
        monkeypatch.setattr(jit, "task", None)
        assert compiling.address_of(*dots) > 0
        assert other.process.returncode == 0
        assert other not in compiling._others.values()
        compiling.soon(*dots)
        assert other.file not in compiling._others

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_fork_does_not_wait_for_it(self):
        script = """
        import os, threading
        from regmax.kernels.cpu import compiling
        compiling._others["file"] = threading.Thread()
        compiling._lock.acquire()
        if os.fork() == 0:
            print(compiling._others, compiling._lock.acquire(blocking=False), flush=True)
            os._exit(0)
        os.wait()
        compiling._others.clear()
        """
        assert python(script).stdout == "{} True\n"

    def test_it_runs_nothing_that_this_process_does_not(self, tmp_path):
        """A folder of PYTHONPATH, with -E or -I."""
        for name in ("json", "types", "numba"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit")
        given = {"first": f"import sys; sys.path[:0] = {sys.path!r}\n", "flags": ["-I"]}
        assert counted(tmp_path, 2, **given, PYTHONPATH=str(tmp_path)) == f"{RIGHT} forward\n"


DISTURBED = """
import os, signal, sys, threading, time, torch
from regmax.functional import sparsemax
from regmax.kernels.cpu import compiling
begun, compiled = threading.Event(), compiling.compiled
x = torch.tensor([[1.0, 0.5, -1.0]])

def slowly(*task):
    PROGRAM
    return compiled(*task)

compiling.compiled, compiling.CORES = slowly, 1
"""
INTERRUPTED = """
try:
    sparsemax(x)
except KeyboardInterrupt:
    print("numba" in sys.modules, sparsemax(x).tolist())
"""
FORKED = """
thread = threading.Thread(target=sparsemax, args=(x,))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    import numba
    print(sparsemax(x).tolist(), numba.njit(lambda a: a + 1)(1), flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join()
"""
IMPORTING = """
import os, signal, sys, threading, time, regmax
sys.path.insert(0, FOLDER)
thread = threading.Thread(target=__import__, args=("regmax_late",))
thread.start()
while "regmax_late" not in sys.modules:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    signal.alarm(60)
    import regmax_late
    print(regmax_late.END, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


class TestUndisturbed:
    def test_by_an_interruption(self, tmp_path):
        """Ctrl-C while this process compiles: it is heard at once, and leaves nothing half done."""
        kill = "os.kill(os.getpid(), signal.SIGINT) if 'numba' not in sys.modules else 0"
        script = DISTURBED.replace("PROGRAM", f"{kill}; time.sleep(0.5)") + INTERRUPTED
        assert run(tmp_path, script).stdout == "False [[0.75, 0.25, 0.0]]\n"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_by_a_fork(self, tmp_path):
        """Another thread compiles meanwhile, whose locks the child would wait for."""
        program = "import numba.core.compiler_lock as l\n"
        program += "    with l.global_compiler_lock: begun.set(); time.sleep(0.3)"
        script = DISTURBED.replace("PROGRAM", program) + FORKED
        assert run(tmp_path, script).stdout == "[[0.75, 0.25, 0.0]] 2\n"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_an_import_by_a_fork(self, tmp_path):
        (tmp_path / "regmax_late.py").write_text("import time\ntime.sleep(1)\nEND = 1\n")
        assert run(tmp_path, IMPORTING.replace("FOLDER", repr(str(tmp_path)))).stdout == "1\n"


WITHOUT = """
import os, pwd, subprocess, threading, torch

def fail(error):
    def raised(*args, **kwargs):
        raise error
    return raised

PROGRAM
import regmax

class Own(regmax.Regularizer):
    def value(self, y):
        return y.square().sum(-1) / 2

torch.set_num_threads(2)
x = torch.tensor([[1.0, 0.5, -1.0]])
print(regmax.functional.sparsemax(x).tolist(), regmax.RegularizedMax(Own())(x.double()).tolist())
print(regmax.functional.sparsemax(x.expand(20000, 3))[-1].tolist())
"""


@pytest.mark.parametrize(
    "program",
    [
        "os.environ.pop('HOME'); pwd.getpwuid = fail(KeyError())",
        "threading.Thread.start = fail(RuntimeError()); subprocess.Popen = fail(BlockingIOError())",
    ],
    ids=["home", "threads"],
)
def test_without(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    found = run("" if "HOME" in program else tmp_path, WITHOUT.replace("PROGRAM", program))
    assert found.stdout == "[[0.75, 0.25, 0.0]] [[0.75, 0.25, 0.0]]\n[0.75, 0.25, 0.0]\n"


AFTERWARDS = """
import torch, numba, numpy as np
from regmax.functional import sparsemax
sparsemax(torch.tensor([[1.0, 0.5, -1.0]]))

@numba.njit
def solved(a, b):
    return np.linalg.solve(a, b).sum(), len(str(a.shape[0]) + "!"), np.sort(b)[0]

print(solved(np.eye(3), np.arange(3.0)))
"""


def test_numba_is_whole_for_others(tmp_path):
    assert run(tmp_path, AFTERWARDS).stdout == "(3.0, 2, 0.0)\n"


NOWHERE = "in every process, as no folder keeps it: let REGMAX_CACHE_DIR name one of yours"


@pytest.mark.parametrize(
    ("name", "kept", "often"),
    [
        ("a.b", True, "once per installation; regmax compile does it beforehand"),
        ("own", True, "once per installation"),
        ("a.b", False, NOWHERE),
    ],
)
def test_a_long_compilation_says_so_once(name, kept, often, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "PATIENCE", 0.0)
    monkeypatch.setattr(compiling, "_said", False)
    (tmp_path / "file").touch()
    for _ in range(2):
        with compiling._told(name, [tmp_path / "file", *[tmp_path / "made"] * kept]):
            threading_wait()
    assert [record.getMessage() for record in caplog.records] == [f"compiling {name}, {often}"]


def test_a_separable_regularizer_does_not_wait_for_sympy():
    """torch.broadcast_shapes and torch.autograd.grad with weights import it, for half a second."""
    assert python(OWN).stdout == "False\n"


def threading_wait():
    """Let the timer of 0 s run."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(10)


def test_a_short_one_says_nothing(caplog):
    with compiling._told("short", []):
        pass
    assert not caplog.records


def test_without_memory_for_the_work_space():
    """The task stops all threads, and the caller hears of it."""

    def task(address):
        job = (ctypes.c_int64 * 5).from_address(address)
        job[0] += 2 * threads.STOPPED

    job = (ctypes.c_int64 * 5)(0, 4, 0, 8, 0)
    with pytest.raises(MemoryError, match="work space"):
        threads.over_rows(task, 0, job)


UNTESTED = """
import sys, warnings
from importlib import metadata
version = metadata.version
metadata.version = lambda name: "NUMBA" if name == "numba" else version(name)
sys.modules.update(BROKEN)
import torch
from regmax.functional import entmax15, sparsemax
import regmax
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    x = torch.tensor([[1.0, 0.5, -1.0]])
    print(sparsemax(x).tolist(), entmax15(x).sum().round(decimals=5).item())
    print("numba" in str(regmax.RegularizedMax(regmax.regularizer("gini")).explain(x)))
for each in found:
    print(each.message)
"""


@pytest.mark.parametrize("broken", [{}, {"numba.core.compiler_machinery": None}])
def test_a_version_of_numba_that_is_not_tested_is_tried(broken, tmp_path):
    """Without a part of it PyTorch computes, and one warning says so."""
    script = UNTESTED.replace("BROKEN", str(broken)).replace("NUMBA", "99.0")
    answer, way, *said = run(tmp_path, script).stdout.splitlines()
    assert (answer, way) == ("[[0.75, 0.25, 0.0]] 1.0", str(not broken))
    warning = "numba 99.0 cannot compile the kernels, and PyTorch operations are"
    assert [text.startswith(warning) for text in said] == [True] * len(broken)


def test_a_function_that_llvm_does_not_know_is_an_error():
    @jit.intrinsic
    def unknown(typingctx):
        def code(context, builder, signature, args):
            kind = ir.FunctionType(ir.DoubleType(), [])
            name = "llvm.experimental.unknown.f64"
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])

        return types.float64(), code

    def task(job):
        job[0] = int(unknown())

    with pytest.raises(RuntimeError, match=r"no llvm\.experimental\.unknown"):
        jit.task(task, None)


def test_what_needs_the_runtime_library_of_numba_is_refused():
    def task(job):
        found = [1.0]
        found.append(job[0])
        job[1] = len(found)

    with pytest.raises(NotImplementedError, match="lists, strings or Python objects"):
        jit.task(task, None)


def test_the_command_compiles_beforehand(tmp_path, capsys):
    script = "from regmax.cli import main; raise SystemExit(main(['compile', 'sparsemax']))"
    lines = run(tmp_path, script).stdout.splitlines()
    assert [(line.split()[0], line.split()[-2]) for line in lines] == [("sparsemax", "numba")]
    of_sparsemax, of_losses = 4, 4
    assert len(list(tmp_path.glob("*.o"))) == of_sparsemax + of_losses
    assert run(tmp_path).stdout == f"{RIGHT} False\n"


def test_the_command_knows_all_functions_of_the_core():
    """Whose module is not a plugin's; those of the losses belong to the kernels of mappings."""
    root, found = Path(kernels.__file__).parent, {}
    for path in [*root.glob("cpu/*.py"), *root.glob("from_value/*.py")]:
        names = re.findall(r"^def (\w+)\(job: Any, like: Any\) -> None", path.read_text(), re.M)
        if names and path.stem != "loss_rows":
            found[f"{path.parent.name}.{path.stem}"] = set(names)
    assert {module: set(names.split()) for module, (_, names) in OTHERS.items()} == found


def test_the_command_refuses_unknown_names(capsys):
    assert main(["compile", "sparsemx"]) == 2
    assert "sparsemax" in capsys.readouterr().err
