"""Who is measured: every mapping of regmax, torch.softmax, and other packages where installed."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regmax
import regmax.functional

from .inputs import Case

# regularizer and hyperparameters of each mapping; entmax learns one α per row
OMEGAS: dict[str, tuple[str, dict[str, float]]] = {
    "softmax": ("entropy", {}),
    "sparsemax": ("gini", {}),
    "entmax15": ("tsallis", {"alpha": 1.5}),
    "entmax": ("tsallis", {"alpha": 1.5}),
    "pnormmax": ("pnorm", {"p": 1.5}),
    "fusedmax": ("tv", {"lam": 0.1}),
    "oscarmax": ("oscar", {"lam": 0.01}),
}
REFERENCE = "torch softmax"
COPY = "torch copy"


@dataclass(frozen=True)
class Candidate:
    """Something that computes ``mapping``: ``apply(x, alpha)``, or of whatever its step has."""

    family: str
    mapping: str
    apply: Callable[..., Tensor]
    variant: str = ""
    differentiable: bool = True

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.family, self.mapping, self.variant)))

    def describe(self) -> dict[str, str]:
        """The keys by which rows of the results say who they are of."""
        return {
            "name": self.name,
            "family": self.family,
            "mapping": self.mapping,
            "variant": self.variant,
        }


class Step:
    """A candidate on tensors that get gradients, its output's being v: what a stopwatch runs."""

    def __init__(self, candidate: Candidate, leaves: Sequence[Tensor], v: Tensor | None) -> None:
        self.candidate, self.leaves, self.v = candidate, leaves, v
        self.y: Tensor | None = None

    @property
    def name(self) -> str:
        return self.candidate.name

    def forward(self) -> None:
        self.y = self.candidate.apply(*self.leaves)

    def backward(self) -> None:
        if self.candidate.differentiable and self.y is not None:
            self.y.backward(self.v)

    def reset(self) -> None:
        self.y = None
        for leaf in self.leaves:
            leaf.grad = None


class Task(Step):
    """A candidate on a case."""

    def __init__(self, candidate: Candidate, case: Case) -> None:
        learns = candidate.differentiable
        leaves = [t.detach().requires_grad_(learns) for t in (case.x, case.alpha)]
        super().__init__(candidate, leaves, case.v)


def regmax_candidate(mapping: str) -> Candidate:
    """A mapping through the public function, as anybody calls it."""
    function = getattr(regmax.functional, mapping)
    if mapping == "entmax":
        return Candidate("regmax", mapping, lambda x, a: function(x, alpha=a))
    hyper = {} if mapping == "entmax15" else OMEGAS[mapping][1]
    return Candidate("regmax", mapping, lambda x, a: function(x, **hyper))


def softmax() -> Candidate:
    """The reference of every ratio."""
    return Candidate("torch", "softmax", lambda x, a: torch.softmax(x, -1))


def copy() -> Candidate:
    """One read and one write: the bandwidth that can be had."""
    return Candidate("torch", "copy", lambda x, a: x.clone(), differentiable=False)


def _entmax() -> list[Candidate]:
    package: Any = importlib.import_module("entmax")
    return [
        Candidate("entmax", "sparsemax", lambda x, a: package.sparsemax(x, dim=-1)),
        Candidate("entmax", "sparsemax", lambda x, a: package.sparsemax(x, dim=-1, k=100), "k=100"),
        Candidate("entmax", "entmax15", lambda x, a: package.entmax15(x, dim=-1)),
        Candidate("entmax", "entmax15", lambda x, a: package.entmax15(x, dim=-1, k=100), "k=100"),
        Candidate("entmax", "entmax", lambda x, a: package.entmax_bisect(x, alpha=a, dim=-1)),
    ]


def _adasplash() -> list[Candidate]:
    """Its α is one number, so there is nothing to compare entmax with one α per row to."""
    package: Any = importlib.import_module("adasplash")
    importlib.import_module("triton")
    found = []
    for mapping, alpha in (("sparsemax", 2.0), ("entmax15", 1.5)):

        def default(x: Tensor, a: Tensor, alpha: float = alpha) -> Tensor:
            y: Tensor = package.triton_entmax(x, alpha=alpha)
            return y

        found.append(Candidate("adasplash", mapping, default, "default"))
        for steps in (1, 10):

            def fixed(x: Tensor, a: Tensor, alpha: float = alpha, steps: int = steps) -> Tensor:
                y: Tensor = package.triton_entmax(x, alpha=alpha, n_iter=steps)
                return y

            found.append(Candidate("adasplash", mapping, fixed, f"n_iter={steps}"))
    return found


def _liger() -> list[Candidate]:
    layer: Any = importlib.import_module("liger_kernel.transformers.sparsemax").LigerSparsemax()
    return [Candidate("liger", "sparsemax", lambda x, a: layer(x))]


PEERS: dict[str, dict[str, Callable[[], list[Candidate]]]] = {
    "cpu": {"entmax": _entmax},
    "cuda": {"entmax": _entmax, "adasplash": _adasplash, "liger-kernel": _liger},
}


def candidates(device: str, mappings: Sequence[str]) -> tuple[list[Candidate], dict[str, str]]:
    """All who can be measured on a device, the reference first; and who cannot, with the reason."""
    found = [softmax(), *([copy()] if device == "cuda" else [])]
    found += [regmax_candidate(mapping) for mapping in mappings]
    missing = {}
    for package, make in PEERS[device].items():
        try:
            found += make()
        except Exception as error:  # whatever a package does when it is imported
            missing[package] = reason(error)
    return found, missing


def cvxpylayer(mapping: str, d: int) -> Candidate:
    """The mapping as a convex program."""
    name, hyper = OMEGAS[mapping]
    return conic_layer(mapping, regmax.regularizer(name, **hyper).as_cvxpy, d)


def conic_layer(mapping: str, omega: Callable[[Any], Any], d: int) -> Candidate:
    """Ω as a convex program, with the solver that cvxpylayers takes by default."""
    cp: Any = importlib.import_module("cvxpy")
    layers: Any = importlib.import_module("cvxpylayers.torch")
    x, y = cp.Parameter(d), cp.Variable(d)
    problem = cp.Problem(cp.Minimize(omega(y) - x @ y), [y >= 0, cp.sum(y) == 1])
    layer = layers.CvxpyLayer(problem, parameters=[x], variables=[y])
    jobs = {"n_jobs_forward": 1, "n_jobs_backward": 1}  # faster than a pool on problems this small
    return Candidate("cvxpylayers", mapping, lambda x, a: layer(x, solver_args=jobs)[0])


def road(mapping: str, x: Tensor) -> str:
    """The path that regmax takes, in its own words."""
    name, hyper = OMEGAS[mapping]
    text = regmax.RegularizedMax(regmax.regularizer(name, **hyper)).explain(x)
    lines = [line for line in text.splitlines() if line.startswith("forward:")]
    return lines[0].removeprefix("forward:").strip() if lines else ""


def reason(error: Exception) -> str:
    """An error in one line."""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else ''}"[:200]
