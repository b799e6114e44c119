"""Object files of compiled kernels: written once, loaded without numba, never used when wrong."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from regmax.cli import main
from regmax.functional import sparsemax

pytest.importorskip("numba", reason="the CPU kernels need numba")

from llvmlite import ir
from numba import types
from numba.core import cgutils

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


def run(folder, script=SCRIPT, **more):
    environment = {**os.environ, "REGMAX_CACHE_DIR": str(folder), **more}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


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

    def test_settings_of_numba_make_another_file(self, folder):
        before = len(list(folder.glob("*.o")))
        assert run(folder, NUMBA_OPT="1").stdout == f"{RIGHT} True\n"
        assert len(list(folder.glob("*.o"))) == before + 2

    def test_the_file_depends_on_the_source(self, folder, tmp_path):
        made = []

        def make():
            made.append(True)
            return next(folder.glob("*forward*.o")).read_bytes()[32:]

        for text in ("a", "a", "b"):
            assert compiling.loaded("name", text, [tmp_path], make) > 0
        assert len(made) == 2

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
from regmax.kernels.cpu import compiling, jit
compiling.CORES = GIVEN
PROGRAM
made, task = [], jit.task
jit.task = lambda function, like: made.append(function.__name__) or task(function, like)
x = torch.tensor([[1.0, 0.5, -1.0]], requires_grad=True)
y = sparsemax(x)
y.backward(torch.tensor([[1.0, 0.0, 0.0]]))
print(y.tolist(), x.grad.tolist(), *made)
"""


def counted(folder, cores, program=""):
    """What a script prints that is a file of its own, without a guard of its main part."""
    script = folder / "script.py"
    script.write_text(COUNTED.replace("GIVEN", str(cores)).replace("PROGRAM", program))
    environment = {**os.environ, "REGMAX_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "Traceback" not in found.stderr
    return found.stdout


class TestAnotherProcess:
    def test_it_compiles_the_backward_pass(self, tmp_path):
        assert counted(tmp_path, 2) == f"{RIGHT} forward\n"
        assert len(list((tmp_path / "cache").glob("*.o"))) == 2
        assert counted(tmp_path, 2) == f"{RIGHT}\n"

    def test_not_on_one_core(self, tmp_path):
        assert counted(tmp_path, 1) == f"{RIGHT} forward backward\n"

    def test_its_code_is_used_where_no_file_can_be_written(self, tmp_path):
        (tmp_path / "cache").touch()
        assert counted(tmp_path, 2) == f"{RIGHT} forward\n"

    @pytest.mark.parametrize(
        "program",
        [
            "raise SystemExit(1)",
            "import os; os.kill(os.getpid(), 9)",
            "print('x' * 100)",
            "import time; time.sleep(60)",
        ],
    )
    def test_where_it_fails_this_process_compiles(self, tmp_path, program):
        given = f"compiling._PROGRAM, compiling.LONGEST = {program!r}, 5.0"
        assert counted(tmp_path, 2, given) == f"{RIGHT} forward backward\n"

    def test_where_there_is_no_such_program(self, tmp_path):
        given = "import sys; sys.executable = '/nowhere/python'"
        assert counted(tmp_path, 2, given) == f"{RIGHT} forward backward\n"

    def test_each_file_is_made_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr(compiling, "folders", lambda home: [tmp_path])
        monkeypatch.setattr(compiling, "CORES", 2)
        packing = "regmax.kernels.cpu.packing", "forward", "float32"
        for _ in range(2):
            compiling.soon(*packing)
        (other,) = (o for o in compiling._others.values() if str(o.places[0]) == str(tmp_path))
        monkeypatch.setattr(jit, "task", None)
        assert compiling.address_of(*packing) > 0
        assert other.process.returncode == 0
        assert other not in compiling._others.values()
        compiling.soon(*packing)
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
        found = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
        )
        assert found.stdout == "{} True\n"


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


def test_a_long_compilation_says_so_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "PATIENCE", 0.0)
    monkeypatch.setattr(compiling, "_said", False)
    for name in ("first", "second"):
        with compiling._told(name, [tmp_path]):
            threading_wait()
    assert [record.getMessage() for record in caplog.records] == [
        "compiling first, once per installation; regmax compile does it beforehand"
    ]


def test_a_separable_regularizer_does_not_wait_for_sympy():
    """torch.broadcast_shapes and torch.autograd.grad with weights import it, for half a second."""
    run = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


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
metadata.version = lambda name: "99.0" if name == "numba" else version(name)
if BROKEN:
    sys.modules["numba.core.compiler_machinery"] = None
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


def test_a_version_of_numba_that_is_not_tested_is_tried(tmp_path):
    lines = run(tmp_path, UNTESTED.replace("BROKEN", "False")).stdout.splitlines()
    assert lines == ["[[0.75, 0.25, 0.0]] 1.0", "True"]


def test_without_an_internal_of_numba_pytorch_computes_and_one_warning_says_so(tmp_path):
    lines = run(tmp_path, UNTESTED.replace("BROKEN", "True")).stdout.splitlines()
    assert lines[:2] == ["[[0.75, 0.25, 0.0]] 1.0", "False"]
    assert len(lines) == 3
    assert lines[2].startswith("numba 99.0 cannot compile the kernels, and PyTorch operations are")


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


def test_arrays_of_numpy_need_nothing_of_numba():
    def task(job):
        a = np.empty(job[1])
        for i in range(job[1]):
            a[i] = i
        job[2] = int(a.sum())

    job = (ctypes.c_int64 * 3)(0, 5, 0)
    address = compiling._linked(jit.task(task, None))
    ctypes.CFUNCTYPE(None, ctypes.c_size_t)(address)(ctypes.addressof(job))
    assert job[2] == 10


def test_the_command_compiles_beforehand(tmp_path, capsys):
    script = (
        "from regmax.cli import main; raise SystemExit(main(['compile', 'sparsemax', 'softmax']))"
    )
    lines = run(tmp_path, script).stdout.splitlines()
    assert [(line.split()[0], line.split()[-2]) for line in lines] == [
        ("sparsemax", "numba"),
        ("softmax", "PyTorch"),
    ]
    of_sparsemax, of_softmax, of_losses = 4, 2, 4
    assert len(list(tmp_path.glob("*.o"))) == of_sparsemax + of_softmax + of_losses
    assert run(tmp_path).stdout == f"{RIGHT} False\n"


def test_the_command_refuses_unknown_names(capsys):
    assert main(["compile", "sparsemx"]) == 2
    assert "sparsemax" in capsys.readouterr().err
