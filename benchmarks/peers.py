"""The mappings of regmax, of PyTorch and of other packages."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regmax
import regmax.functional

from .inputs import Case
from .plan import MAPPINGS
from .timing import Step

OMEGAS: dict[str, regmax.Regularizer] = {
    "softmax": regmax.regularizer("entropy"),
    "sparsemax": regmax.regularizer("gini"),
    "entmax15": regmax.regularizer("tsallis", alpha=1.5),
    "pnormmax": regmax.regularizer("pnorm", p=1.5),
    "fusedmax": regmax.regularizer("tv", lam=0.1),
    "oscarmax": regmax.regularizer("oscar", lam=0.01),
}
"""The regularizers of the mappings, by default; entmax, not among them, learns one α per row."""
Program = Callable[[Any, Any, int], Any]
"""Ω of a variable of d entries: ``program(cvxpy, y, d)``."""
REFERENCE = "torch softmax"
CHECKED = 64
"""Rows of an output that are compared with float64."""


@dataclass(frozen=True)
class Candidate:
    """``apply(x, alpha)`` computes the mapping."""

    family: str
    mapping: str
    apply: Callable[[Tensor, Tensor], Tensor]
    variant: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.family, self.mapping, self.variant)))

    def step(
        self, case: Case, *, name: str = "", per: float = 1, exact: Candidate | None = None
    ) -> Step:
        """The candidate on a case; its error is the distance to ``exact`` in float64."""
        leaves = tuple(
            t.detach().requires_grad_(self.mapping != "copy") for t in (case.x, case.alpha)
        )
        if exact is None and self.mapping in MAPPINGS:
            exact = regmax_candidate(self.mapping)
        error = functools.partial(_error, case=case, exact=exact) if exact else None
        return Step(name or self.name, self.apply, leaves, case.v, per, error)


def _error(step: Step, case: Case, exact: Candidate) -> float:
    assert step.y is not None
    head = case.head(CHECKED)
    with torch.no_grad():
        difference = step.y[:CHECKED].double() - exact.apply(head.x, head.alpha)
    return float(difference.abs().max())


def regmax_candidate(mapping: str) -> Candidate:
    """A mapping through the public function."""
    function = getattr(regmax.functional, mapping)
    if mapping == "entmax":
        return Candidate("regmax", mapping, lambda x, a: function(x, alpha=a))
    return Candidate("regmax", mapping, lambda x, a: function(x))


DOMAINS = {"u = 0.1": regmax.Simplex(upper=0.1), "k = 8": regmax.Simplex(8.0, upper=1.0)}


def on_domain(mapping: str, domain: regmax.Simplex, package: bool) -> Iterator[Candidate]:
    """A mapping on the simplex, on a domain, and by others where they have it."""
    if mapping == "soft top-k":
        omega = regmax.regularizer("fermi_dirac")
        plain, bounded = regmax.RegularizedMax(omega), regmax.RegularizedMax(omega, domain=domain)
        yield Candidate("regmax", "on the simplex", lambda x, a: plain(x))
        yield Candidate("regmax", "on the domain", lambda x, a: bounded(x))
        if domain.upper == 1:
            yield Candidate("torch", "60 bisections", lambda x, a: _bisected(x, domain.total))
        return
    function = getattr(regmax.functional, mapping)
    yield Candidate("regmax", "on the simplex", lambda x, a: function(x))
    yield Candidate("regmax", "on the domain", lambda x, a: function(x, domain=domain))
    if package and mapping == "sparsemax" and domain.upper == 1:
        budget_bisect: Any = importlib.import_module("entmax").budget_bisect
        yield Candidate("entmax", "budget_bisect", lambda x, a: budget_bisect(x, domain.total))


def _bisected(x: Tensor, k: Any) -> Tensor:
    """σ(x − τ) with Σ = k."""
    low, high = x.amin(-1, keepdim=True) - 20, x.amax(-1, keepdim=True) + 20
    for _ in range(60):
        tau = (low + high) / 2
        more = torch.sigmoid(x - tau).sum(-1, keepdim=True) > k
        low, high = torch.where(more, tau, low), torch.where(more, high, tau)
    return torch.sigmoid(x - (low + high) / 2)


def softmax() -> Candidate:
    """The reference of most ratios."""
    return Candidate("torch", "softmax", lambda x, a: torch.softmax(x, -1))


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
    """Its α is one number, so it has no entmax with one α per row."""
    apply: Any = importlib.import_module("adasplash").triton_entmax
    return [
        Candidate("adasplash", "sparsemax", lambda x, a: apply(x, alpha=2.0)),
        Candidate("adasplash", "entmax15", lambda x, a: apply(x, alpha=1.5)),
    ]


def _liger() -> list[Candidate]:
    package = "liger_kernel.transformers"
    sparsemax: Any = importlib.import_module(f"{package}.sparsemax").LigerSparsemax()
    softmax: Any = importlib.import_module(f"{package}.softmax").LigerSoftmax()
    return [
        Candidate("liger", "sparsemax", lambda x, a: sparsemax(x)),
        Candidate("liger", "softmax", lambda x, a: softmax(x)),
    ]


def _copy() -> list[Candidate]:
    """One read and one write: the bandwidth of the device."""
    return [Candidate("torch", "copy", lambda x, a: x.clone())]


OTHERS: dict[str, dict[str, Callable[[], list[Candidate]]]] = {
    "cpu": {"entmax": _entmax},
    "cuda": {"copy": _copy, "entmax": _entmax, "adasplash": _adasplash, "liger-kernel": _liger},
}


def candidates(device: str) -> tuple[list[Candidate], dict[str, Exception]]:
    """All candidates of a device, the reference first; and the packages that cannot be imported."""
    found = [softmax(), *map(regmax_candidate, MAPPINGS)]
    missing = {}
    for package, make in OTHERS[device].items():
        try:
            found += make()
        except Exception as error:  # whatever a package does when it is imported
            missing[package] = error
    return found, missing


def conic(program: Program, d: int, jobs: int | None = 1) -> Candidate:
    """cvxpylayers with its default solver, DIFFCP; the layer is made by the first call. ``jobs``:
    how many threads solve rows, None for the default; one is often faster on small problems."""
    given = {"n_jobs_forward": jobs, "n_jobs_backward": jobs} if jobs else {}

    @functools.cache
    def layer() -> Any:
        cp: Any = importlib.import_module("cvxpy")
        layers: Any = importlib.import_module("cvxpylayers.torch")
        x, y = cp.Parameter(d), cp.Variable(d)
        problem = cp.Problem(cp.Minimize(program(cp, y, d) - x @ y), [y >= 0, cp.sum(y) == 1])
        return layers.CvxpyLayer(problem, parameters=[x], variables=[y])

    variant = f"jobs={jobs}" if jobs else ""
    return Candidate("cvxpylayers", "", lambda x, a: layer()(x, solver_args=given)[0], variant)


def method(mapping: str, x: Tensor) -> str:
    """How regmax computes the mapping of x, in its own words."""
    lines = regmax.RegularizedMax(OMEGAS[mapping]).explain(x).splitlines()
    return next(s.removeprefix("forward:").strip() for s in lines if s.startswith("forward:"))
