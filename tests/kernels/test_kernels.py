"""Kernels in general: when they run, on which threads, what they keep, what replaces them."""

import ctypes
import os
import signal
import sys
import threading

import pytest
import torch
from processes import python

import regmax
from regmax import kernels, losses
from regmax.functional import entmax, entmax15, fusedmax, oscarmax, pnormmax, softmax, sparsemax
from regmax.kernels.cpu import threads
from regmax.mapping.methods.kernel import ProxThenBase, kernel_of

pytest.importorskip("numba", reason="the CPU kernels need numba")

MAPPINGS = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax 1.3": lambda x, **k: entmax(x, alpha=1.3, **k),
    "entmax 3": lambda x, **k: entmax(x, alpha=3.0, **k),
    "pnormmax": pnormmax,
    "fusedmax": fusedmax,
    "oscarmax": oscarmax,
}
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
each_backward = pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
SPLIT = (700, 65)  # enough entries for several threads
GRID = regmax.RegularizedMax(regmax.regularizer("gini") + regmax.penalty("grid_tv", shape=(5, 13)))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def both(mapping, x, v):
    leaf = x.clone().requires_grad_()
    y = mapping(leaf)
    (g,) = torch.autograd.grad(y, leaf, v)
    return y.detach(), g


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class TestThreads:
    def test_neither_threads_nor_slices_change_a_bit(self, two_threads, monkeypatch):
        """Any number of threads, with OpenMP or without it; one row in a slice."""
        x, v, dense = normal(*SPLIT), normal(*SPLIT, seed=1), normal(*SPLIT, seed=2).abs()
        calls = [m for m in MAPPINGS.values() if m is not softmax] + [lambda x: x * GRID(x)]
        of_sums = [softmax]  # which know the threads
        for target in (torch.arange(700) % 60, dense):
            of_sums += [lambda x, t=target: x * losses.Entmax15Loss()(x, t)]
        expected = [both(call, x, v) for call in (*calls, *of_sums)]

        def same():
            some = (*calls, *(of_sums if torch.get_num_threads() == 2 else ()))
            for call, pair in zip(some, expected, strict=False):
                assert all(map(torch.equal, both(call, x, v), pair))

        for n in (1, 3):
            torch.set_num_threads(n)
            same()
        torch.set_num_threads(2)
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_openmp", lambda: None)
            same()
        monkeypatch.setattr(threads, "SLICE", 1)
        monkeypatch.setattr(threads, "LARGEST", 50 * 65)
        for n in (1, 2):
            torch.set_num_threads(n)
            same()

    def test_openmp_is_found_where_pytorch_uses_it(self):
        if sys.platform != "linux" or "OpenMP" not in torch.__config__.parallel_info():
            pytest.skip("PyTorch does not use OpenMP here, or not in a way that is known")
        assert threads._openmp() is not None

    @each_backward
    def test_a_signal_is_heard_between_slices(self, backward, monkeypatch):
        x = normal(*SPLIT).requires_grad_()
        y, slices, run = sparsemax(x), [], threads._run

        def interrupted(*args):
            run(*args)
            slices.append(args[-2])
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(threads, "SLICE", 100 * 65)
        monkeypatch.setattr(threads, "_sizes", {})
        monkeypatch.setattr(threads, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            y.sum().backward() if backward else sparsemax(x)
        assert slices == [100]

    def test_a_signal_does_not_leave_a_thread_behind(self, two_threads, monkeypatch):
        """It would write to tensors that are freed."""
        ended = threading.Event()

        def task(address):
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGINT)
            threading.Event().wait(0.2)
            ended.set()

        monkeypatch.setattr(threads, "_openmp", lambda: None)
        with pytest.raises(KeyboardInterrupt):
            threads.over_rows(task, 0, (ctypes.c_int64 * 5)(0, 4, 0, 1 << 14, 0))
        assert ended.is_set()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_in_a_forked_child(self, two_threads):
        x = normal(*SPLIT)
        expected = sparsemax(x).numpy()  # the parent's threads exist
        child = os.fork()
        if child == 0:
            # PyTorch's own operations would wait for threads that did not survive
            same = sparsemax(x).numpy().tobytes() == expected.tobytes()
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


class TestWhatRuns:
    def test_without_numba(self):
        """Everything works, slower, and says so."""
        script = (
            "import sys; sys.modules['numba'] = None\n"
            "import torch, regmax\n"
            "from regmax.functional import sparsemax, fusedmax\n"
            "x = torch.tensor([[1.0, .5, -1.0]], requires_grad=True)\n"
            "sparsemax(x).sum().backward(); print(sparsemax(x).tolist(), fusedmax(x).tolist())\n"
            "print(regmax.RegularizedMax(regmax.regularizer('tsallis')).explain(x))\n"
        )
        run = python(script)
        assert "[[0.75, 0.25, 0.0]]" in run.stdout
        assert "in PyTorch" in run.stdout
        assert "numba is missing" in run.stdout

    def test_a_kernel_that_cannot_be_loaded_is_warned_of(self, monkeypatch):
        def broken(name):
            raise ImportError("undefined symbol")

        monkeypatch.setattr(kernels.base.importlib, "import_module", broken)
        lazy = kernels.Lazy(cpu="a_plugin._cpu")
        with pytest.warns(RuntimeWarning, match=r"a_plugin\._cpu .* undefined symbol"):
            assert lazy.get("cpu") is None
        assert lazy.get("cpu") is None  # once

    def test_a_subclass_that_redefines_omega_has_no_kernel_of_its_parent(self):
        gini = type(regmax.regularizer("gini"))

        class Double(gini):
            def value(self, y):
                return y.square().sum(-1)

        x = torch.zeros(1)
        assert kernel_of(regmax.regularizer("gini"), x) is not None
        assert kernel_of(Double(), x) is None

        class Same(gini):
            pass

        assert kernel_of(Same(), x) is not None

    def test_a_hand_made_penalty_on_gini_has_the_kernel_of_the_mapping(self):
        x, gini = torch.zeros(1), regmax.regularizer("gini")
        for name in ("tv", "oscar"):
            made = regmax.Penalized(gini, regmax.penalty(name), 0.1)
            mapping = regmax.regularizer(name)
            assert kernel_of(made, x) is kernel_of(mapping, x) is not None

            class Other(type(mapping.penalty)):
                def value(self, y, mask=None):
                    return 2 * super().value(y, mask)

            class Half(type(gini)):
                def value(self, y):
                    return y.square().sum(-1) / 4

            class Redefined(type(mapping)):
                def value(self, y):
                    return 2 * super().value(y)

            for omega in (
                regmax.Penalized(gini, Other(), 0.1),
                regmax.Penalized(Half(), regmax.penalty(name), 0.1),
                Redefined(),
            ):
                assert kernel_of(omega, x) is None
            other = regmax.Penalized(regmax.regularizer("entropy"), regmax.penalty(name), 0.1)
            assert isinstance(kernel_of(other, x), ProxThenBase)


@each_mapping
def test_nothing_is_saved_but_y(mapping):
    saved = []
    x = normal(4, 33).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = mapping(x)
    assert [t.data_ptr() for t in saved] == [y.data_ptr()]


@each_mapping
def test_large_results(mapping):
    """Fresh memory that is 0 is not written again."""
    x, v = normal(2, 1 << 22) * 4, normal(2, 1 << 22, seed=1)
    x[1, ::3] = -torch.inf
    y, g = both(mapping, x, v)
    few = x[:1].clone(), x[1:].clone()
    for k, row in enumerate(few):
        a, b = both(mapping, row, v[k : k + 1])
        assert torch.equal(a[0], y[k])
        assert torch.equal(b[0], g[k])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "features", "names"),
    [("x86-64", "+sse2", "sparsemax, entmax"), ("haswell", "", "pnormmax")],
)
def test_on_an_older_processor(cpu, features, names):
    """The vectors are LLVM's: without AVX-512, and without AVX, the results are as right.

    The kernels of a few mappings, as each is compiled again; the cache tells processors apart.
    """
    import platform

    if platform.machine() != "x86_64":
        pytest.skip("the older processors are those of x86-64")
    script = (
        "import torch, regmax; from regmax import kernels, functional\n"
        f"from regmax.functional import {names}\n"
        "g = torch.Generator().manual_seed(0)\n"
        f"for f in ({names},):\n"
        "    hyper = {'alpha': 1.3} if f is functional.entmax else {}\n"
        "    for d in (70, 300):\n"
        "        x = torch.randn(20, d, generator=g); v = torch.randn(20, d, generator=g)\n"
        "        def both():\n"
        "            t = x.clone().requires_grad_(); y = f(t, **hyper)\n"
        "            return y.detach(), torch.autograd.grad(y, t, v)[0]\n"
        "        found = both()\n"
        "        with kernels.reference(): right = both()\n"
        "        print(max((a - b).abs().max().item() for a, b in zip(found, right)))\n"
    )
    run = python(script, NUMBA_CPU_NAME=cpu, NUMBA_CPU_FEATURES=features)
    errors = [float(line) for line in run.stdout.split()]
    assert len(errors) == 2 * len(names.split())
    assert max(errors) < 1e-5


def test_a_kernel_that_is_imported_under_a_transform_outlives_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "regmax_gini._cpu", raising=False)
    lazy = kernels.Lazy(cpu="regmax_gini._cpu")
    torch.func.grad(lambda x: (x.sum(), lazy.get("cpu"))[0])(torch.ones(2))
    x, one = torch.zeros(1, 2), torch.ones(1, dtype=torch.float64)
    loss, _ = lazy.get("cpu").loss(x, torch.zeros(1, 1, dtype=torch.int64), one, ())
    assert loss.item() == 0.25
