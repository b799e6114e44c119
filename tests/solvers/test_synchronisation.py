"""Solvers rarely wait for a device: counted on the CPU, as if reading a number of it would wait."""

from collections import Counter

import pytest
import torch
from mapping_checks import normal
from omegas import Power, omega_of
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import regmax
from regmax import RegularizedMax, Regularizer
from regmax.kernels import reference, transforms

F64 = torch.float64
ONCE = 10
"""Synchronisations of a forward besides one for ten iterations: setting up, the first three
iterations, the polish and the certificate. Backward has five."""
READS = {
    "aten._local_scalar_dense.default",
    "aten.is_nonzero.default",
    "aten.nonzero.default",
    "aten.equal.default",
    "aten.masked_select.default",
    "aten._unique2.default",
    "aten.lift_fresh.default",  # a list or a number copied to the device
    "aten.repeat_interleave.Tensor",
    "aten._linalg_check_errors.default",
    "aten._linalg_eigh.default",  # these two test for errors
    "aten.cholesky_inverse.default",
}


class Reads(TorchDispatchMode):
    """Counts the operations that wait for a device, by name."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if name.startswith(("aten.index.", "aten.index_put")):
            where = [t for t in args[1] if isinstance(t, torch.Tensor)]
            if any(t.dtype == torch.bool for t in where):
                self.found[name] += 1
        elif name in READS:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class Lists(TorchFunctionMode):
    """Counts copies to the host that the dispatcher does not see on the CPU."""

    def __init__(self, found):
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu):
            self.found[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def entropy(y):
    return (y * y.log()).sum(-1)


def coupled(y):
    """A quadratic form and cubes."""
    steps = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    q = (steps[:, None] - steps).abs().neg().exp() + 0.1 * torch.eye(len(steps), dtype=y.dtype)
    return 0.5 * ((y @ q) * y).sum(-1) + (y**3).sum(-1) / 6


def chain(y):
    """Couples neighbours, with a slope that is infinite at 0."""
    jumps = y.diff(dim=-1) ** 2 * (1 + y[..., 1:])
    return entropy(y) + 0.5 * jumps.sum(-1)


CASES = {
    "power": (lambda: Power(1.5), ("newton", "fista", "interior")),
    "learned power": (lambda: Power(torch.tensor(1.5, requires_grad=True)), ("newton",)),
    "steep power": (lambda: Power(1.2), ("newton", "interior")),
    "entropy": (lambda: omega_of(entropy), ("newton", "interior")),
    "coupled": (lambda: omega_of(coupled), ("newton", "fista", "interior")),
    "chain": (lambda: omega_of(chain), ("newton", "interior")),
    "penalty": (lambda: Power(2.0) + 0.1 * regmax.penalty("tv"), ("fista",)),
    "proximal": (lambda: regmax.regularizer("gini") + 0.1 * Ridge(), ("proximal",)),
}
PAIRS = [(name, solver) for name, (_, solvers) in CASES.items() for solver in solvers]


class Ridge(regmax.Penalty):
    """½‖y‖², by its prox."""

    def value(self, y, mask=None):
        return y.square().sum(-1) / 2

    def prox(self, v, step, mask=None):
        return v / (1 + step)


@pytest.fixture
def waits(monkeypatch):
    """As on a GPU: every number that is read is waited for."""
    monkeypatch.setattr(transforms, "waits", lambda t: True)


@pytest.mark.parametrize(("name", "solver"), PAIRS)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_solves_synchronise_once_in_ten_iterations(waits, name, solver, backward):
    x = normal(32, 24).requires_grad_(backward)
    with reference():
        layer = RegularizedMax(CASES[name][0](), solver=solver, on_failure="raise")
        iterations = int(layer.solve(x).iterations.max())
        layer(x)  # learns which decisions are usual
        with Reads() as reads, Lists(reads.found):
            y = layer(x)
            if backward:
                y.square().sum().backward()
    assert reads.found.total() <= ONCE + 5 * backward + iterations / 10, reads.found


@pytest.mark.parametrize(("name", "solver"), PAIRS)
def test_answers_are_those_of_each_decision_read(monkeypatch, name, solver):
    x = normal(32, 24)
    with reference():
        layer = RegularizedMax(CASES[name][0](), solver=solver, on_failure="raise")
        read = layer.solve(x)
        monkeypatch.setattr(transforms, "waits", lambda t: True)
        layer(x)
        predicted = layer.solve(x)
    assert torch.allclose(predicted.y, read.y, rtol=0, atol=2e-8)
    assert predicted.converged.all()


@pytest.mark.parametrize(("name", "solver"), PAIRS)
def test_rows_are_independent(waits, name, solver):
    x = normal(9, 24)
    with reference():
        layer = RegularizedMax(CASES[name][0](), solver=solver, on_failure="raise")
        together = layer(x)
        for k in (0, 8):
            alone = layer(x[k : k + 1])[0]
            assert torch.allclose(alone, together[k], rtol=0, atol=1e-14)


class Bad(Regularizer):
    def __init__(self, kind):
        self.kind = kind

    def value(self, y):
        square = y.square().sum(-1) / 2
        if self.kind == "concave":
            return -square
        if self.kind == "infinite":
            return square / 0.0
        if self.kind == "mixed rows":
            return square * (1 + y.reshape(-1, y.shape[-1])[:, 0].max())
        return square + (3 * (y[..., 0] - 0.4).abs() if self.kind == "kink" else 0)

    @property
    def strong_convexity(self):
        return 2.0 if self.kind == "strong_convexity" else None


@pytest.mark.parametrize("solver", ["newton", "interior", "fista"])
@pytest.mark.parametrize("kind", ["concave", "infinite", "mixed rows", "kink", "strong_convexity"])
def test_nothing_goes_unreported(monkeypatch, kind, solver):
    x, layer = normal(6, 5), RegularizedMax(Bad(kind), solver=solver, on_failure="raise")

    def said():
        with reference(), pytest.raises(Exception, match=r"Bad|rows") as error:
            layer(x)
        return type(error.value)

    read = said()
    monkeypatch.setattr(transforms, "waits", lambda t: True)
    assert [said(), said()] == [read, read]


def test_predictions_of_another_omega_are_noticed(waits):
    """A hyperparameter that is changed in place makes the slope at 0 infinite."""
    x, alpha = normal(32, 24), torch.tensor(1.5, dtype=F64)
    with reference():
        layer = RegularizedMax(Power(alpha), solver="newton", on_failure="raise")
        layer(x)
        alpha.fill_(0.7)
        y = layer(x)
    assert torch.allclose(y, regmax.functional.entmax(x, alpha=0.7), rtol=0, atol=1e-8)
