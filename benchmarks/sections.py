"""One function per section of the page; its docstring is the title and the note."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import regmax.functional

from . import first, inputs, learning, memory, own, page, peers, plans
from .plan import MAPPINGS, plan
from .timing import CpuWatch, CudaWatch, Figure, Step, busy, interleave

Cases = Iterable[tuple[str, list[Step]]]
"""Label and steps of each case."""


class Bench:
    """One run: the plan, the candidates, the stopwatch, and what failed."""

    def __init__(self, device: str, threads: int, quick: bool) -> None:
        self.device, self.threads, self.plan = device, threads, plan(device, quick)
        self.watch = CudaWatch() if device == "cuda" else CpuWatch()
        self.left_out: list[tuple[str, str]] = []
        self.candidates, missing = peers.candidates(device)
        self.has_entmax = "entmax" not in missing
        for package, error in missing.items():
            self.leave_out(package, error)

    def leave_out(self, what: str, error: Exception) -> None:
        reason = (str(error).strip().splitlines() or [""])[0]
        self.left_out.append((what, f"{type(error).__name__}: {reason}"[:200]))

    @property
    def failed(self) -> bool:
        """Whether a candidate of regmax failed."""
        return any(what.startswith("regmax") for what, _ in self.left_out)

    def case(self, kind: str, rows: int, d: int, dtype: str = "float32") -> inputs.Case:
        return inputs.case(kind, rows, d, getattr(torch, dtype), self.device)

    def warm(self, label: str, steps: Iterable[Step]) -> Iterator[tuple[Step, float | None]]:
        """Run each step once; yield those that can run, with their error."""
        for step in steps:
            try:
                step.forward()
                step.backward()
                error = step.error(step) if step.error else None
            except Exception as failure:
                self.leave_out(f"{step.name}, {label}", failure)
                continue
            finally:
                step.reset()
            yield step, error

    def times(self, cases: Cases) -> tuple[dict[str, dict[str, Figure]], dict[str, float]]:
        """By step and case, its times, those of a case taken by turns; and the errors of steps."""
        figures: dict[str, dict[str, Figure]] = {}
        errors: dict[str, float] = {}
        p = self.plan
        memory.keep()
        for label, steps in cases:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other packages: the table has their errors
                ready = list(self.warm(label, steps))
                times = interleave([s for s, _ in ready], self.watch, p.budget, p.rounds, p.least)
            for step, error in ready:
                figures.setdefault(step.name, {})[label] = times[step.name]
                if error is not None:
                    errors[step.name] = max(error, errors.get(step.name, 0.0))
        return figures, errors

    def table(self, cases: Cases, reference: str = peers.REFERENCE, forward: bool = True) -> str:
        """Time the steps of each case."""
        return self.ratios(*self.times(cases), reference, forward)

    def ratios(
        self,
        figures: Mapping[str, Mapping[str, Figure]],
        errors: Mapping[str, float],
        reference: str,
        forward: bool = True,
    ) -> str:
        spreads = [f.spread for found in figures.values() for f in found.values()]
        text = page.ratios(figures, errors, reference, forward)
        return f"{text}\n\nTypical spread: {statistics.median(spreads):.0%}."

    def compare(
        self, candidates: Sequence[peers.Candidate], cases: Iterable[tuple[str, inputs.Case]]
    ) -> str:
        """Time mappings over torch.softmax."""
        return self.table((label, [c.step(case) for c in candidates]) for label, case in cases)


def _label(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def mappings(bench: Bench) -> str:
    """Mappings

    Over `torch.softmax`. A case: rows × scores in a row, and the input. Targets for the mean and
    the worst case: 1 and 2 for sparsemax and entmax15, 2 and 4 for entmax and pnormmax, 3 and 6
    for fusedmax, 6 and 12 for oscarmax. On CUDA: 2 for fusedmax and oscarmax, 1.1 for the others.
    """
    p = bench.plan
    cases = (
        (f"{n} × {d}, {inputs.label(kind)}, {dtype}", bench.case(kind, n, d, dtype))
        for dtype, (n, d) in itertools.product(p.dtypes, p.shapes)
        for kind in ("normal", "normal4")
    )
    return bench.compare(bench.candidates, cases)


def _defaults(bench: Bench) -> list[peers.Candidate]:
    return [c for c in bench.candidates if not c.variant and c.mapping != "copy"]


def sizes(bench: Bench) -> str:
    """Length of a row

    Over `torch.softmax`, N(0, 1), the same number of scores in all for each d.
    """
    p = bench.plan
    cases = ((f"d = {d:,}", bench.case("normal", p.elements // d, d)) for d in p.sizes)
    return bench.compare(_defaults(bench), cases)


def rows(bench: Bench) -> str:
    """Number of rows

    Over `torch.softmax`, N(0, 1), rows × scores in a row.
    """
    d = bench.plan.row_d
    cases = ((f"{n} × {d}", bench.case("normal", n, d)) for n in bench.plan.row_counts)
    return bench.compare(_defaults(bench), cases)


def kinds(bench: Bench) -> str:
    """Inputs

    Over `torch.softmax` on the same input, random and adversarial: 512 × 2048 on the CPU, 16384 ×
    2048 on CUDA.
    """
    shape = bench.plan.input_shape
    cases = ((inputs.label(kind), bench.case(kind, *shape)) for kind in inputs.KINDS)
    return bench.compare([peers.softmax(), *map(peers.regmax_candidate, MAPPINGS)], cases)


def long_rows(bench: Bench) -> str:
    """fusedmax on long rows

    Time per score, the same number of scores in all; over short rows. Target: at most 2.
    """
    total, fusedmax = bench.plan.elements, peers.regmax_candidate("fusedmax")

    def step(kind: str, d: int) -> Step:
        return fusedmax.step(bench.case(kind, total // d, d), name=f"d = {d:,}", per=total)

    short, long = bench.plan.long_rows
    kinds = ("normal", "sawtooth", "ramp", "parabola")
    cases = ((inputs.label(kind), [step(kind, short), step(kind, long)]) for kind in kinds)
    return bench.table(cases, f"d = {short:,}")


def calls(bench: Bench) -> str:
    """Compiled and transformed calls

    256 × 512, one training step: the gradient of ⟨v, y⟩ in x, over the eager call. `torch.compile`
    has `fullgraph=True`. `torch.func.jvp` computes Jv: the same vector, because J is symmetric.
    """
    case = bench.case("normal", *bench.plan.calls)
    return bench.table(((m, _calls(bench, m, case)) for m in peers.OMEGAS), "eager", forward=False)


def _calls(bench: Bench, mapping: str, case: inputs.Case) -> list[Step]:
    y: Callable[[Tensor], Tensor] = getattr(regmax.functional, mapping)
    v, wide = case.v, case.head(len(case.x))

    def loss(x: Tensor) -> Tensor:
        return (y(x) * v).sum()

    def jvp(x: Tensor) -> Tensor:
        found: Tensor = torch.func.jvp(y, (x,), (v,))[1]
        return found

    def error(step: Step) -> float:
        found, exact = step.leaves[0].grad, torch.func.jvp(y, (wide.x,), (wide.v,))[1]
        found = step.y if found is None else found
        assert found is not None
        return float((found.double() - exact).abs().max())

    torch._dynamo.reset()
    compiled: Any = torch.compile(loss, fullgraph=True, backend=bench.plan.compiler)
    x, leaf = case.x, case.x.detach().requires_grad_()
    return [
        Step("eager", loss, (leaf,), error=error),
        Step("regmax, torch.compile", compiled, (leaf,), error=error),
        Step("regmax, torch.func.grad", torch.func.grad(loss), (x,), error=error),
        Step("regmax, torch.func.jvp", jvp, (x,), error=error),
    ]


def conic(bench: Bench) -> str:
    """Mappings beside cvxpylayers

    Time per row, float64, N(0, 1), over regmax on the same rows. cvxpylayers solves one row after
    the other.
    """
    p, (few, many) = bench.plan, bench.plan.conic_rows
    small, large = (bench.case("normal", n, p.conic_d, "float64") for n in (few, many))
    reference = f"regmax, {few} × {p.conic_d}"

    def steps(mapping: str) -> list[Step]:
        ours, omega = peers.regmax_candidate(mapping), peers.OMEGAS[mapping]
        theirs = peers.conic(lambda cp, y, d: omega.as_cvxpy(y), p.conic_d)
        return [
            ours.step(small, name=reference, per=few),
            ours.step(large, name=f"regmax, {many} × {p.conic_d}", per=many),
            theirs.step(small, name=f"cvxpylayers, {few} × {p.conic_d}", per=few, exact=ours),
        ]

    return bench.table(((mapping, steps(mapping)) for mapping in peers.OMEGAS), reference)


def own_omega(bench: Bench) -> str:
    """An Ω by its value alone

    A class with `value` and nothing else. Q = AAᵀ/d + 0.1·I with A from N(0, 1). A case: Ω, rows ×
    scores in a row, float64, N(0, 1). By hand: the kernels of entmax15, sparsemax and softmax.
    cvxpylayers has its default settings (DIFFCP), and one thread with jobs=1. It solves 16 of 1,024
    rows, and its times are scaled to all. Target there: 300 times as long at least, 100 for Q.
    """
    return bench.table(_own(bench, bench.plan.own), "regmax by value")


def _own(bench: Bench, shapes: Sequence[tuple[int, int]]) -> Cases:
    """Every Ω that cvxpylayers can take on these shapes, the others on the largest of all."""
    for label, omega in own.OWN.items():
        for n, d in shapes:
            if omega.program or (n, d) == bench.plan.own[-1]:
                case = bench.case("normal", n, d, "float64")
                yield f"{label}, {n} × {d}", list(omega.steps(case, bench.plan.own_scores))


def own_loss(bench: Bench) -> str:
    """A loss of an Ω by its value

    A training step: `FenchelYoungLoss` of ½‖y‖² + Σy³/6, its mean over rows of logits and its
    gradient, over `torch.nn.CrossEntropyLoss`. Rows × classes, float64, N(0, 1).
    """
    return bench.table(_own_losses(bench), learning.CROSS_ENTROPY)


def _own_losses(bench: Bench) -> Cases:
    (n, d), omega = bench.plan.own_loss, own.OWN[own.SEPARABLE]
    x = bench.case("normal", n, d, "float64").x
    yield f"loss, {n} × {d}", learning.own_losses(omega.make(d), x)


def own_busy(bench: Bench) -> str:
    """An Ω by its value beside a busy process

    The small sizes and the loss, first alone, and then while another process multiplies 1,500 ×
    1,500 matrices on all cores: over the time alone.
    """
    found: dict[str, dict[str, Figure]] = {}
    for name in ("alone", "beside a busy process"):
        with contextlib.nullcontext() if name == "alone" else busy(bench.plan.busy):
            cases = itertools.chain(_own(bench, bench.plan.own[:-1]), _own_losses(bench))
            figures, _ = bench.times(cases)
        found[name] = {f"{k}, {case}": f for k, of in figures.items() for case, f in of.items()}
    return bench.ratios(found, {}, "alone")


def own_sizes(bench: Bench) -> str:
    """An Ω by its value, by the length of a row

    Time per row over `torch.softmax`, float64, N(0, 1). Errors are certified bounds on ‖y − y*‖.
    """

    def cases() -> Iterator[tuple[str, list[Step]]]:
        for d in bench.plan.own_sizes:
            steps = []
            for label, omega in own.OWN.items():
                n = omega.rows(bench.plan.own_elements, d)
                case = bench.case("normal", n, d, "float64")
                step = omega.candidate(d).step(case, name=f"regmax {label}", per=n)
                step.error = omega.certified
                steps.append(step)
            yield f"d = {d:,}", [peers.softmax().step(case, per=n), *steps]

    return bench.table(cases())


def composed(bench: Bench) -> str:
    """Compositions

    base + λ·penalty over the base alone, 1024 × 64, N(0, 1).
    """
    case = bench.case("normal", *bench.plan.own[-1])
    pairs = own.composed(case.x.shape[1])
    cases = ((name, [c.step(case, exact=c) for c in pair]) for name, pair in pairs.items())
    return bench.table(cases, "base alone")


def domains(bench: Bench) -> str:
    """Domains

    The mapping on {0 ≤ y ≤ u, Σ y = k} over that on the simplex, N(0, 1): weights up to 0.1, and
    k-subsets, k = 8 and u = 1, rows × scores in a row. `budget_bisect` of entmax computes the
    k-subsets of sparsemax; soft top-k is fermi_dirac. Target: 1.6, and a twentieth of the others.
    """

    def cases() -> Iterator[tuple[str, list[Step]]]:
        names = "sparsemax", "entmax15", "softmax", "soft top-k"
        each = itertools.product(bench.plan.domains, names)
        for (n, d), mapping in each:
            case = bench.case("normal", n, d)
            for label, domain in peers.DOMAINS.items():
                plain, *others = peers.on_domain(mapping, domain, bench.has_entmax)
                steps = [c.step(case, exact=others[0]) for c in others]
                yield f"{mapping}, {label}, {n} × {d}", [plain.step(case), *steps]

    return bench.table(cases(), "regmax on the simplex")


def losses(bench: Bench) -> str:
    """Losses

    Over `torch.nn.CrossEntropyLoss`: the mean over rows of logits and its gradient. A case: rows ×
    classes, and the logits. Errors are of the gradients. Target for the most classes: at most 1.
    """

    def cases() -> Iterator[tuple[str, list[Step]]]:
        most = bench.plan.losses[-1]
        for shape, kind in itertools.product(bench.plan.losses, ("normal", "normal4")):
            x = bench.case(kind, *shape).x
            steps = learning.losses(x, package=bench.has_entmax and shape == most)
            yield "{} × {}, {}".format(*shape, inputs.label(kind)), steps
        x = bench.case("normal", *most).x
        yield "{} × {}, label smoothing 0.1".format(*most), learning.losses(x, 0.1)
        yield "{} × {}, distributions".format(*most), learning.losses(x, soft=True)

    return bench.table(cases(), learning.CROSS_ENTROPY)


def attention(bench: Bench) -> str:
    """Attention

    `regmax.nn.attention` over `scaled_dot_product_attention` (SDPA) with its math backend, which
    keeps the weights as regmax does. A case: sequences × heads × length × width, N(0, 1). entmax
    learns one α per head.
    """
    cases = (
        (_label(shape) + suffix, learning.heads(shape, bool(suffix), bench.device))
        for shape in bench.plan.attention
        for suffix in ("", ", causal")
    )
    return bench.table(cases, learning.SDPA)


def long_attention(bench: Bench) -> str:
    """Long sequences

    Causal attention over SDPA by default, N(0, 1): sequences × heads × length × width. regmax takes
    chunks of queries; on the CPU the backward pass of a sparse mapping takes the support alone.
    """
    shape = bench.plan.long_attention
    steps = learning.heads(shape, True, bench.device, long=True)
    return bench.table([(_label(shape), steps)], learning.SDPA_DEFAULT)


def linear_loss(bench: Bench) -> str:
    """Large vocabularies

    `LinearFenchelYoungLoss`, a training step, over the logits and their cross-entropy: rows ×
    features × classes.
    """
    shape = bench.plan.linear_loss
    steps = learning.linear_losses(shape, bench.device)
    return bench.table([(_label(shape), steps)], learning.TWO_STEPS)


def transport(bench: Bench) -> str:
    """Doubly stochastic matrices

    Plans × rows × columns, float64, over twenty steps of Sinkhorn's algorithm on logarithms. The
    error is that of the sums. POT solves one problem at a time, forward, to 1e-9.
    """

    def cases() -> Cases:
        for count, n in bench.plan.plans:
            for scale in (1.0, 3.0, 10.0):
                x = bench.case("normal", count * n, n, "float64").x.detach().view(count, n, n)
                yield f"{count} × {n} × {n}, N(0, {scale:g}²)", plans.steps(scale * x)

    return bench.table(cases(), plans.SINKHORN)


def first_calls(bench: Bench) -> str:
    """First calls

    Forward and backward, each in a fresh process after `import torch`. The cache holds compiled
    kernels.
    """
    p, lines = bench.plan, []
    x = bench.case("normal", *p.first).x
    for mapping in p.first_of:
        try:
            found = first.first(bench.device, bench.threads, mapping, *p.first)
        except Exception as error:
            bench.leave_out(f"regmax {mapping}, first call", error)
            continue
        lines.append([mapping, *map(page.seconds, found), peers.method(mapping, x)])
    return page.table(["{} × {}".format(*p.first), *first.HEAD, "method"], lines)


def peaks(bench: Bench) -> str:
    """Peak memory

    Forward; forward and backward. In units of the input's size, beyond the input; the input is q
    for attention, W for large vocabularies. The output and the gradient count, so a mapping needs
    at least 1 and 2, a loss 0 and 1, attention 1 and 4.
    """
    found: dict[str, dict[str, str]] = {}

    def cases() -> Cases:
        p, device = bench.plan, bench.device
        (n, d), most = p.memory, p.losses[-1]
        candidates = [c for c in bench.candidates if c.mapping != "copy"]
        x = bench.case("normal", *most).x
        for kind in ("normal", "equal"):
            case = bench.case(kind, n, d)
            yield f"{n} × {d}, {inputs.label(kind)}", [c.step(case) for c in candidates]
        yield "{} × {} logits".format(*most), learning.losses(x, package=bench.has_entmax)
        yield "long sequences, causal", learning.heads(p.long_attention, True, device, long=True)
        yield "large vocabularies", learning.linear_losses(p.linear_loss, device)

    labels = []
    for label, steps in cases():
        labels.append(label)
        for step, _ in bench.warm(label, steps):
            figures = memory.peak(step, bench.device)
            found.setdefault(step.name, {})[label] = "{:.2f}, {:.2f}".format(*figures)
    lines = [[name, *(cells.get(k, "–") for k in labels)] for name, cells in found.items()]
    return page.table(["", *labels], lines)


# in the order of the page
SECTIONS: dict[str, Callable[[Bench], str]] = {
    section.__name__.replace("_", "-"): section
    for section in (
        *(mappings, sizes, rows, kinds, long_rows, calls, conic, own_omega, own_sizes, own_loss),
        *(own_busy, composed, domains, transport, losses, linear_loss, attention, long_attention),
        *(first_calls, peaks),
    )
}
CPU_ONLY = ("conic", "own-omega", "own-sizes", "own-loss", "own-busy", "composed", "domains")
