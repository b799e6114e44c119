"""The measurements, one function for each section of the page; each returns rows of figures."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from . import attention_steps, child, loss_steps, own, peers
from .inputs import Case, case
from .peers import Candidate, Step, Task
from .plan import CPU_ONLY, Plan
from .timing import Watch, interleave

Row = dict[str, Any]
CHECKED = 64
"""Rows of an output that are compared with float64."""


class Bench:
    """One run: the plan, the candidates, the stopwatch, and what went wrong."""

    def __init__(
        self, device: str, plan: Plan, watch: Watch, threads: int, say: Callable[[str], None]
    ) -> None:
        self.device, self.plan, self.watch = device, plan, watch
        self.threads, self.say = threads, say
        self.candidates, missing = peers.candidates(device, plan.mappings)
        self.left_out = [{"what": what, "reason": why} for what, why in missing.items()]
        self.regmax = [c for c in self.candidates if c.family == "regmax"]
        self.failed = False

    def case(self, kind: str, rows: int, d: int, dtype: str = "float32") -> Case:
        return case(kind, rows, d, getattr(torch, dtype), self.device)

    def leave_out(self, what: str, error: Exception, *, ours: bool) -> None:
        self.left_out.append({"what": what, "reason": peers.reason(error)})
        self.failed = self.failed or ours

    def measure(
        self,
        case: Case,
        candidates: Sequence[Candidate],
        exact: Callable[[str], Candidate] = peers.regmax_candidate,
    ) -> list[Row]:
        """Warm everybody up, look at what each returns, then time all by turns.

        ``exact``: from a mapping to what computes it in float64, to measure errors against.
        """
        references: dict[str, torch.Tensor] = {}
        tasks = [Task(candidate, case) for candidate in candidates]
        facts = functools.partial(self._facts, case=case, exact=exact, references=references)
        return self.time(case.describe(), tasks, facts)

    def time(self, where: Row, steps: Sequence[Step], facts: Callable[[Step], Row]) -> list[Row]:
        """A row of figures for each step of the case ``where``; ``facts`` sees it after a pass."""
        label = f"{where['rows']} × {where['d']} {where['dtype']} {where['input']}"
        warm: list[Step] = []
        seen: dict[str, Row] = {}
        for step in steps:
            self.say(f"{label}: {step.name}")
            try:
                step.forward()
                step.backward()
                seen[step.name] = facts(step)
            except Exception as error:  # another's limits are not ours; ours fail the run
                ours = step.candidate.family == "regmax"
                self.leave_out(f"{step.name}, {label}", error, ours=ours)
                continue
            finally:
                step.reset()
            warm.append(step)
        self.say(f"{label}: rounds")
        p = self.plan
        times = interleave(warm, self.watch, budget=p.budget, rounds=p.rounds, at_least=p.at_least)
        return [
            {
                **where,
                **step.candidate.describe(),
                **seen[step.name],
                **dataclasses.asdict(times[step.name]),
            }
            for step in warm
        ]

    def _facts(
        self,
        task: Step,
        case: Case,
        exact: Callable[[str], Candidate],
        references: dict[str, torch.Tensor],
    ) -> Row:
        """The share of exact zeros, and the distance to the same map in float64."""
        assert task.y is not None
        mapping, y = task.candidate.mapping, task.y.detach()
        zeros = float((y == 0).sum()) / y.numel()
        if mapping == "copy":
            return {"zeros": zeros, "error": 0.0}
        head = case.head(CHECKED)
        if mapping not in references:
            with torch.no_grad():
                references[mapping] = exact(mapping).apply(head.x, head.alpha)
        error = (y[:CHECKED].double() - references[mapping]).abs().max()
        return {"zeros": zeros, "error": float(error)}


def main(bench: Bench) -> list[Row]:
    """Everybody, on the shapes and inputs that the bars are about."""
    p = bench.plan
    return [
        row
        for dtype in p.dtypes
        for rows, d in p.shapes
        for kind in p.main_inputs
        for row in bench.measure(bench.case(kind, rows, d, dtype), bench.candidates)
    ]


def size(bench: Bench) -> list[Row]:
    """Short rows to long ones, the number of scores kept."""
    p = bench.plan
    cases = (bench.case("normal", p.elements // d, d) for d in p.sizes)
    return [row for c in cases for row in bench.measure(c, _defaults(bench))]


def rows(bench: Bench) -> list[Row]:
    """One row to many; on the CPU, the cost of a call itself is at the left."""
    p = bench.plan
    cases = (bench.case("normal", n, p.row_d) for n in p.row_counts)
    return [row for c in cases for row in bench.measure(c, _defaults(bench))]


def _defaults(bench: Bench) -> list[Candidate]:
    """Everybody as they come: no variants of a peer but its default."""
    return [c for c in bench.candidates if c.variant in ("", "default") and c.mapping != "copy"]


def inputs(bench: Bench) -> list[Row]:
    """Random and adversarial scores, regmax against torch.softmax."""
    p = bench.plan
    ours = [peers.softmax(), *bench.regmax]
    cases = (bench.case(kind, *p.input_shape) for kind in p.inputs)
    return [row for c in cases for row in bench.measure(c, ours)]


def linear(bench: Bench) -> list[Row]:
    """fusedmax on short and on long rows, the number of scores kept."""
    p = bench.plan
    fused = [c for c in bench.regmax if c.mapping == "fusedmax"]
    cases = (bench.case(kind, p.elements // d, d) for kind in p.linear_inputs for d in p.linear)
    return [row for c in cases for row in bench.measure(c, fused)]


def memory(bench: Bench) -> list[Row]:
    """Peak memory beyond the scores, in units of the scores' own size."""
    rows, d = bench.plan.memory
    names = [c.name for c in bench.candidates if c.mapping != "copy"]
    bench.say("")
    try:
        return child.memory(bench.device, bench.threads, ("normal", "equal"), rows, d, names)
    except child.Failed as error:
        bench.leave_out("memory", error, ours=error.ours)
        return []


def conic(bench: Bench) -> list[Row]:
    """Each mapping beside the same problem in cvxpylayers, on the CPU in float64."""
    p = bench.plan
    few, many = (case("normal", n, p.conic_d, torch.float64) for n in (p.conic_rows, p.conic_many))
    found: list[Row] = []
    for candidate in bench.regmax:
        if candidate.mapping == "entmax":  # its α per row is no convex program
            continue
        with _quiet():
            try:
                conic = peers.cvxpylayer(candidate.mapping, p.conic_d)
            except Exception as error:
                bench.leave_out(f"cvxpylayers {candidate.mapping}", error, ours=False)
                if isinstance(error, ImportError):
                    break
                continue
            found += bench.measure(few, [candidate, conic])
        found += bench.measure(many, [candidate])
    return found


def generic(bench: Bench) -> list[Row]:
    """Ω by its value alone: beside its closed form, where it has one, and beside cvxpylayers."""
    p = bench.plan
    (n, d), found = p.own, list[Row]()
    few, many = (case("normal", count, d, torch.float64) for count in (p.own_few, n))
    for name, omega in own.OWN.items():
        ours, exact = own.own_candidate(name, d), functools.partial(_exact, name, d)
        closed = [peers.regmax_candidate(omega.closed)] if omega.closed else []
        found += _certified(bench, many, name, [ours, *closed])
        with _quiet():
            try:
                conic = [own.own_conic(name, d)]
            except Exception as error:
                bench.leave_out(f"cvxpylayers {name}", error, ours=False)
                conic = []
            found += bench.measure(few, [ours, *conic], exact)
    return found


def generic_size(bench: Bench) -> list[Row]:
    """The same on short rows and on long ones, the number of scores kept."""
    p = bench.plan
    found: list[Row] = []
    for d in p.own_sizes:
        scores = case("normal", max(1, p.own_elements // d), d, torch.float64)
        for name, omega in own.OWN.items():
            if d <= own.DENSE or omega.separable:
                found += _certified(bench, scores, name, [own.own_candidate(name, d)])
            else:
                found += _alone(bench, scores, name)
    return found


def _exact(name: str, d: int, mapping: str) -> Candidate:
    """For an Ω by its value, and for its closed form, alike."""
    return own.reference(name, d)


def _certified(bench: Bench, case: Case, name: str, candidates: list[Candidate]) -> list[Row]:
    """The figures, with the certificate in the row of the generic solver."""
    rows = bench.measure(case, candidates, functools.partial(_exact, name, case.x.shape[-1]))
    return [row | own.certified(name, case) if row["mapping"] == name else row for row in rows]


def _alone(bench: Bench, case: Case, name: str) -> list[Row]:
    """In a process that can be stopped, and on fewer rows."""
    n, d = case.x.shape
    n = max(1, n // bench.plan.own_fewer)
    bench.say(f"{n} × {d} {name}")
    try:
        found = child.generic(bench.threads, name, n, d, bench.plan.own_limit)
    except child.Failed as error:
        bench.leave_out(f"{own.OWN[name].label}, {n} × {d}", error, ours=error.ours)
        return []
    return [found]


def composed(bench: Bench) -> list[Row]:
    """A base with a penalty, beside the same two steps put together by hand."""
    n, d = bench.plan.own
    scores = bench.case("normal", n, d)
    found: list[Row] = []
    for name in own.COMPOSED:
        candidates = own.composed_candidates(name, d)
        found += bench.measure(scores, candidates, {name: candidates[0]}.__getitem__)
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Solvers warn about approximations and inaccuracies of theirs; their error is in the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def losses(bench: Bench) -> list[Row]:
    """Every loss beside cross-entropy; on the most classes also smoothed, and its peak memory."""
    p = bench.plan
    most = p.losses[-1]
    theirs = any(candidate.family == "entmax" for candidate in bench.candidates)
    cases = [(shape, kind, 0.0) for shape in p.losses for kind in p.main_inputs]
    found: list[Row] = []
    for shape, kind, smoothing in [*cases, (most, p.main_inputs[0], p.smoothing)]:
        given = loss_steps.batch(bench.case(kind, *shape), smoothing)
        steps = loss_steps.steps(given, package=theirs and shape == most and not smoothing)
        facts = functools.partial(loss_steps.facts, given=given, checked=CHECKED)
        found += bench.time(given.describe(), steps, facts)
    bench.say("memory")
    try:
        peaks = child.losses(bench.device, bench.threads, *most, theirs)
    except child.Failed as error:
        bench.leave_out("memory of losses", error, ours=error.ours)
        return found
    return [row | {"memory": peaks[row["name"]]} if row["name"] in peaks else row for row in found]


def attention(bench: Bench) -> list[Row]:
    """Every mapping inside attention, beside PyTorch's own."""
    found: list[Row] = []
    for shape, causal in itertools.product(bench.plan.attention, (False, True)):
        given = attention_steps.heads(shape, causal, bench.device)
        facts = functools.partial(attention_steps.facts, given=given)
        found += bench.time(given.describe(), attention_steps.steps(given), facts)
    return found


def first(bench: Bench) -> list[Row]:
    """First calls in fresh processes: an empty cache of compiled kernels, then a full one."""
    found: list[Row] = []
    for mapping in bench.plan.isolated:
        bench.say(mapping)
        try:
            found.append(child.first(bench.device, bench.threads, mapping, *bench.plan.first))
        except child.Failed as error:
            bench.leave_out(f"first call of {mapping}", error, ours=error.ours)
    return found


ALL: dict[str, Callable[[Bench], list[Row]]] = {
    "main": main,
    "size": size,
    "rows": rows,
    "inputs": inputs,
    "linear": linear,
    "memory": memory,
    "conic": conic,
    "generic": generic,
    "generic-size": generic_size,
    "composed": composed,
    "losses": losses,
    "attention": attention,
    "first": first,
}


def run(bench: Bench, names: Sequence[str], begin: Callable[[str], None]) -> dict[str, list[Row]]:
    """The sections asked for, in the order of the page."""
    found = {}
    for name, section in ALL.items():
        if name in names and not (name in CPU_ONLY and bench.device != "cpu"):
            begin(name)
            found[name] = section(bench)
    return found


def roads(bench: Bench) -> dict[str, str]:
    """Which path each mapping takes on this machine."""
    x = bench.case("normal", 8, 64).x
    found = {}
    for mapping in bench.plan.mappings:
        with suppress(Exception):  # the sections report what fails
            found[mapping] = peers.road(mapping, x)
    return found
