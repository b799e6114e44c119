"""The conformance kit of domains: every promise of ``project`` and of what is declared beside
it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..domains import Domain, Projected
from ..nn.layer import RegularizedMax
from ..optimality.projected import projected
from ..regularizers.printing import brief
from ..regularizers.registry import instance, registry
from .harness import Check, ExpectedFailures, checks_of, run_checks
from .promise import Broken, Skipped, Tested, fixed, kinds_of

SIZES = (1e-3, 1.0, 30.0, 1e4)


class _Subject(Tested):
    """A domain, for rows of so many entries, with points of all sizes and some inside of D."""

    any_size = False

    def __init__(self, domain: Domain, entries: int = 5) -> None:
        if not (isinstance(domain, Domain) and domain.projects):
            raise TypeError(
                "domain must be a regmax.Domain of your own, by project(v, mask); got "
                f"{type(domain).__name__} {brief(domain)}"
            )
        self.given, self.entries = domain, entries
        self.label, self.look = repr(domain), f"{type(domain).__name__}.project"
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(12, entries, generator=generator, dtype=torch.float64, device="cpu")
        self.v = torch.cat([size * rows for size in SIZES])
        self.mask = (
            torch.rand(self.v.shape, generator=generator, dtype=torch.float64, device="cpu") < 0.7
        )
        self.mask[:, 0] = True

    def region(self, v: Tensor, on: Tensor | None = None) -> Projected:
        found: Projected = self.given.region(v, -1, on).detached()
        return found

    def project(self, v: Tensor, on: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.region(v, on).nearest(v)

    def raise_if(self, wrong: Tensor, expected: str, found: Tensor, **shown: Tensor) -> None:
        if bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())[:1]
            raise Broken(expected, found[at], None, **{k: t[at] for k, t in shown.items()})


@fixed()
def check_project(s: _Subject) -> None:
    """P(P(v)) = P(v), and ⟨v − P(v), u − P(v)⟩ ≤ 0 for all u in D: P(v) is the nearest point."""
    for on in (None, s.mask):
        for v in (s.v, s.v.float()):
            p = s.project(v, on)
            size = v.abs().amax(-1) + p.abs().amax(-1)
            slack = 64 * torch.finfo(v.dtype).eps * size
            off = (s.project(p, on) - p).abs().amax(-1)
            s.raise_if(off > slack, "P(P(v)) = P(v)", off, v=v, p=p)
            for i in range(2 * s.entries):  # points of D around p, and far from it
                near = v.clone()
                near[:, i % s.entries] += (0.3 if i < s.entries else -0.3) * size
                u = s.project(near, on)
                away = ((v - p) * (u - p)).sum(-1)
                s.raise_if(away > size * slack, "⟨v − P(v), u − P(v)⟩ ≤ 0 for u in D", away, v=v)


@fixed()
def check_project_mask(s: _Subject) -> None:
    """Masked entries are 0, and what they hold changes nothing; all taking part is no mask."""
    if s.entries > 1:
        raw = s.given.region(s.v, -1, s.mask).of.project(torch.where(s.mask, s.v, 0), s.mask)
        hidden = torch.where(s.mask, 0, raw).abs().amax(-1)
        s.raise_if(hidden > 0, "0 at masked entries", raw, v=s.v, mask=s.mask)
    all_on = s.project(s.v, torch.ones_like(s.mask))
    off = (all_on - s.project(s.v)).abs().amax(-1)
    s.raise_if(off > 1e-12 * (1 + s.v.abs().amax(-1)), "mask=None for a mask of True", off, v=s.v)


@fixed()
def check_project_jacobian(s: _Subject) -> None:
    """P' is symmetric, 0 ≤ P' ≤ I, and what differences of P say."""
    p, a = projected(s.region(s.v), s.v)
    off = (a - a.mT).abs().flatten(1).amax(-1)
    s.raise_if(off > 1e-8, "a symmetric Jacobian", off, v=s.v, jacobian=a)
    sizes = torch.linalg.eigvalsh(a)
    beyond = torch.maximum(-sizes[:, 0], sizes[:, -1] - 1)
    s.raise_if(beyond > 1e-8, "eigenvalues of the Jacobian in [0, 1]", sizes, v=s.v)
    way = torch.roll(s.v, 1, 0)
    way = way / way.norm(dim=-1, keepdim=True)
    step = 1e-6 * (1 + s.v.abs().amax(-1, keepdim=True))
    ends = [s.project(s.v + sign * step * way) for sign in (1, -1)]
    kink = (ends[0] + ends[1] - 2 * p).abs().amax(-1) > 1e-3 * step.squeeze(-1)
    moved = (ends[0] - ends[1]) / (2 * step)
    off = (moved - (a @ way.unsqueeze(-1)).squeeze(-1)).abs().amax(-1)
    s.raise_if((off > 1e-4) & ~kink, "the derivative of P by differences", off, v=s.v)


@fixed()
def check_declared(s: _Subject) -> None:
    """``fixed_total`` and ``permutation_invariant`` are true of the points P(v)."""
    p = s.project(s.v)
    total = p.sum(-1)
    if s.given.fixed_total:
        s.raise_if((total - total[0]).abs() > 1e-10 * (1 + total.abs()), "one sum", total, p=p)
    if s.given.permutation_invariant:
        turned = s.project(s.v.flip(-1)).flip(-1)
        off = (turned - p).abs().amax(-1)
        s.raise_if(off > 1e-10 * (1 + s.v.abs().amax(-1)), "P of permuted entries", off, v=s.v)


@fixed(lambda s: type(s.given).as_cvxpy is not Domain.as_cvxpy)
def check_as_cvxpy(s: _Subject) -> None:
    """A conic solver finds the same nearest points."""
    try:
        import cvxpy
    except ModuleNotFoundError as error:
        raise Skipped(str(error)) from error
    v = s.v[12:15]
    for row, p in zip(v, s.project(v), strict=True):
        y = cvxpy.Variable(len(row))
        goal = cvxpy.Minimize(cvxpy.sum_squares(y - row.numpy()))
        cvxpy.Problem(goal, s.given.as_cvxpy(y)).solve(solver="CLARABEL")
        found = torch.as_tensor(y.value, dtype=p.dtype, device=p.device)
        if not bool((found - p).abs().amax() <= 1e-5):
            raise Broken(f"P(v) = {p.tolist()}", found, f"{type(s.given).__name__}.as_cvxpy", v=row)


@fixed()
def check_mapping(s: _Subject) -> None:
    """Π of ½‖y‖² is P, with its error certified, and its derivative."""
    gini = instance(registry().get("regularizer", "gini"), "regularizer", "gini", {})
    layer = RegularizedMax(gini, domain=s.given, on_failure="ignore")
    v = s.v[12:36]
    found, (p, a) = layer.solve(v), projected(s.region(v), v)
    off = (found.y - p).norm(dim=-1)
    s.raise_if(~(found.error_bound <= 1e-8), "an error certified to 1e-8", found.error_bound, v=v)
    s.raise_if(off > found.error_bound + 1e-12, "argmax ⟨y, v⟩ − ½‖y‖² = P(v)", found.y, p=p)
    wrong = (layer.jacobian(v).detach() - a).abs().flatten(1).amax(-1)
    s.raise_if(wrong > 1e-7, "the derivative of P", wrong, v=v)


KINDS = kinds_of(globals())


def domain_checks(domain: Domain, entries: int = 5) -> list[Check]:
    """The checks of ``domain``, for rows of so many entries."""
    return checks_of(_Subject(domain, entries), KINDS)


def check_domain(
    domain: Domain, entries: int = 5, expected_failures: ExpectedFailures | None = None
) -> None:
    """Run every check of a domain of your own; one AssertionError lists all that failed.

    ``entries``: the size of the rows; tensors of the domain broadcast to one row.
    ``expected_failures``: {check name: reason}; a check named there must fail.
    """
    run_checks(_Subject(domain, entries), KINDS, expected_failures)
