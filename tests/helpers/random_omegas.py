"""Random convex Ω from a grammar, hard rows for each, and a verdict on every row.

    python tests/helpers/random_omegas.py [--count 200] [--solver auto] [--json FILE]

prints how many rows were certified and right, flagged, refused, or wrong in silence, by kind of
atom, and lists what was not certified. The truth is that of :mod:`omega_reference`.
"""

import argparse
import collections
import json
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import omega_reference as reference
import torch
from omega_atoms import (
    Barrier,
    BinaryEntropy,
    Entropy,
    EvenPower,
    Exponential,
    Huber,
    LogSumExp,
    Power,
    Quadratic,
    Ridge,
    Root,
    Softplus,
    SquaredNorm,
    Sum,
)

from regmax import RegularizedMax, RegularizerError

COUNT = 200
SIZES = (1, 2, 3, 8, 8, 33, 33, 64)
GAMMAS = (0.1, 1.0, 10.0)
ROWS = (
    "normal",
    "scale 1e-3",
    "scale 1e-1",
    "scale 10",
    "scale 1e3",
    "ties",
    "all equal",
    "one dominates",
    "ramp",
    "-inf",
)
LONG = reference.LONG


@dataclass(frozen=True)
class Made:
    """A random Ω with what is known of it."""

    seed: int
    d: int
    omega: Sum
    kinds: tuple[str, ...]

    @property
    def strict(self):
        return any(atom.strict for atom in self.omega.atoms)

    @property
    def smooth(self):
        return all(atom.smooth for atom in self.omega.atoms)

    @property
    def apart(self):
        return all(atom.apart for atom in self.omega.atoms)

    @property
    def steep(self):
        return any(atom.steep for atom in self.omega.atoms)

    def truth(self):
        atoms = list(self.omega.atoms)
        return reference.Convex(
            lambda y: sum(atom.slope(y) for atom in atoms),
            lambda y: sum(atom.bend(y) for atom in atoms),
            self.apart,
        )

    def __str__(self):
        return f"seed {self.seed}, d = {self.d}: {' + '.join(self.kinds)}"


def atom(kind, d, rng):
    """(name, atom) with random numbers inside."""
    weight = 10 ** rng.uniform(-2, 2)
    c = np.exp(rng.normal(size=d)) if rng.random() < 0.5 else np.ones(d)
    m = int(rng.integers(1, 6))
    maps = {"a": rng.normal(size=(m, d)) * 10 ** rng.uniform(-0.5, 0.5), "b": rng.normal(size=m)}
    if kind == "power<2":
        a = rng.choice([1.05, 1.2, 1.5, 1.9, rng.uniform(1.1, 2)])
        return f"y^{a:.3g}", Power(weight, a=a, c=c)
    if kind == "power>2":
        a = rng.choice([2.5, 3, 4, 10])
        return f"y^{a:.3g}", Power(weight, a=a, c=c)
    if kind == "root":
        a = rng.choice([0.1, 0.5, 0.7, 0.95])
        return f"-y^{a:.3g}", Root(weight, a=a, c=c)
    if kind == "entropy":
        return "entropy", Entropy(weight, c=c, q=np.ones(d))
    if kind == "prior":
        return "entropy to a prior", Entropy(weight, c=np.ones(d), q=rng.dirichlet(np.ones(d)))
    if kind == "binary":
        return "binary entropy", BinaryEntropy(weight)
    if kind == "barrier":
        e = rng.choice([1e-6, 1e-3, 0.1])
        return f"barrier {e:g}", Barrier(weight, e=e)
    if kind == "exponential":
        return "exp", Exponential(weight, s=rng.normal(size=d) * 3 + 0.1)
    if kind == "square":
        return "ridge", Ridge(weight, c=c, m=rng.normal(size=d) * rng.choice([0, 1]))
    if kind == "full":
        return "quadratic", Quadratic(weight, rng.normal(size=(2 * d + 1, d)) / d**0.5, True)
    if kind == "ill":
        b = np.linalg.qr(rng.normal(size=(d, d)))[0] * np.logspace(0, -3, d)
        return "quadratic, condition 1e6", Quadratic(weight, b.T, True)
    if kind == "low":
        rank = max(1, d // 3)
        return f"quadratic of rank {rank}", Quadratic(weight, rng.normal(size=(rank, d)), d == 1)
    if kind == "lse":
        return "LSE", LogSumExp(weight, **maps)
    if kind == "softplus":
        return "softplus", Softplus(weight, **maps)
    if kind == "huber":
        return "Huber of maps", Huber(weight, **maps, k=10 ** rng.uniform(-2, 0.5))
    if kind == "huber entries":
        return "Huber", Huber(weight, a=np.eye(d), b=-rng.random(d), k=10 ** rng.uniform(-2, 0))
    if kind == "even":
        return "even power", EvenPower(weight, **maps, n=rng.choice([4, 6]))
    p = rng.choice([1.2, 1.5, 2, 3, 4])
    return f"norm {p:g}", SquaredNorm(weight, p=p)


STRICT = ("power<2", "entropy", "prior", "square", "full", "ill", "barrier", "root", "norm")
VANISHING = ("power>2", "power>2", "exponential", "binary", "norm")
MERELY = ("low", "lse", "softplus", "huber", "huber entries", "even")


def make(seed):
    """The Ω of this seed: half rest on a strictly convex atom, an eighth are merely convex."""
    rng = np.random.default_rng(seed)
    d = int(SIZES[seed % len(SIZES)])
    plan = (seed // len(SIZES)) % 8
    kinds = [str(rng.choice(STRICT if plan < 5 else VANISHING if plan < 7 else MERELY))]
    pool = MERELY if plan == 7 else STRICT + VANISHING + MERELY
    kinds += [str(k) for k in rng.choice(pool, size=int(rng.integers(0, 4)))]
    made = [atom(kind, d, rng) for kind in kinds]
    return Made(seed, d, Sum([a for _, a in made]), tuple(name for name, _ in made))


def scores(made, short=False):
    """(x, gamma, kinds of rows): each kind of row with each γ, or with one of them."""
    rng = np.random.default_rng(10_000 + made.seed)
    d, rows, gammas, names = made.d, [], [], []
    for i, kind in enumerate(ROWS):
        for g in (GAMMAS[(i + made.seed) % 3],) if short else GAMMAS:
            x = rng.normal(size=d)
            if kind.startswith("scale"):
                x = x * float(kind.split()[1])
            elif kind == "ties":
                x = np.round(x)
            elif kind == "all equal":
                x = np.full(d, x[0])
            elif kind == "one dominates":
                x[int(rng.integers(d))] += 50
            elif kind == "ramp":
                x = np.linspace(1, -1, d)
            elif kind == "-inf":
                off = rng.random(d) < 0.4
                off[int(rng.integers(d))] = False
                x = np.where(off, -np.inf, x)
            rows.append(x)
            gammas.append(g)
            names.append(kind)
    return np.array(rows), np.array(gammas), names


@dataclass
class Row:
    """One verdict."""

    seed: int
    row: int
    kind: str
    gamma: float
    verdict: str
    error: float = 0.0
    bound: float = 0.0
    truth: float = 0.0
    reason: str = ""
    vjp: float | None = None


@dataclass
class Report:
    made: Made
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0


def judge(made, solver="auto", short=False, vjp=True, max_iter=2000, every=1):
    """Solve, find the truth, and give each row its verdict; ``every`` so many rows, if not all."""
    x, gamma, kinds = scores(made, short)
    take = slice(made.seed % every, None, every)
    x, gamma, kinds = x[take], gamma[take], kinds[take]
    report = Report(made)
    g = torch.tensor(gamma).unsqueeze(-1)
    xt = torch.tensor(x, requires_grad=vjp)
    layer = RegularizedMax(
        made.omega, gamma=g, on_failure="ignore", solver=solver, max_iter=max_iter
    )
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = layer.solve(xt)
    except Exception as error:
        verdict = "refused" if isinstance(error, RegularizerError) else "crashed"
        said = f"{type(error).__name__}: {error}"
        report.rows = [
            Row(made.seed, i, kinds[i], gamma[i], verdict, reason=said) for i in range(len(x))
        ]
        return report
    report.seconds = time.perf_counter() - start
    on = np.isfinite(x)
    z = scaled(x, gamma, on)
    f = made.truth()
    with np.errstate(over="ignore", under="ignore"):
        truth = reference.solve(f, z, on)
    y = found.y.detach().numpy()
    error = np.sqrt(((y - truth.y) ** 2).sum(-1)).astype(float)
    bound = found.error_bound.detach().numpy()
    loss = reference.gap(f, z, on, y).astype(float)
    ok = found.converged.numpy()
    size = 1 + np.abs(z).max(-1).astype(float)
    for i in range(len(x)):
        flat = not truth.bound[i] < 1e-9
        lies = error[i] > bound[i] + truth.bound[i]
        if not ok[i]:
            verdict = "flagged, and its bound is wrong" if lies and not flat else "flagged"
        elif flat:
            low = loss[i] <= size[i] * (2 * bound[i] + 1e-14)
            verdict = "certified, optimum flat" if low else "wrong in silence"
        else:
            verdict = "wrong in silence" if lies else "right"
        reason = "; ".join(str(w.message) for w in seen) or found.path
        report.rows.append(
            Row(
                made.seed, i, kinds[i], float(gamma[i]), verdict, float(error[i]),
                float(bound[i]), float(truth.bound[i]), reason,
            )
        )  # fmt: skip
    if vjp and made.smooth:
        _derivatives(report, made, f, truth, xt, found, z, gamma)
    return report


def scaled(x, gamma, on):
    """x/γ in extended precision, its largest entry 0."""
    wide = np.where(on, x, -1e300).astype(LONG)
    shifted = wide - wide.max(-1, keepdims=True)
    return np.where(on, shifted / gamma[:, None].astype(LONG), 0)


def _derivatives(report, made, f, truth, xt, found, z, gamma):
    """The VJP against the reference's, on rows that are right and not at a kink."""
    v = np.random.default_rng(made.seed).normal(size=z.shape)
    (got,) = torch.autograd.grad(found.y, xt, torch.tensor(v))
    there = reference.jacobian_product(f, truth.y, truth.on, v) / gamma[:, None]
    y = found.y.detach().numpy().astype(LONG)
    here = reference.jacobian_product(f, y, truth.on & (y > 0), v) / gamma[:, None]
    for i, row in enumerate(report.rows):
        if row.verdict != "right" or not truth.margin[i] > 1e-7:
            continue
        if not truth.regular[i] > 1e-9:
            continue
        off = np.linalg.norm(got[i].numpy() - there[i])
        spread = np.linalg.norm(here[i] - there[i])
        row.vjp = float(max(0, off - 4 * spread) / (1 + np.linalg.norm(there[i])))


def totals(reports):
    """{verdict: rows}, all verdicts that occur."""
    return dict(collections.Counter(row.verdict for r in reports for row in r.rows))


def wrong(reports):
    """The rows that must not be."""
    bad = ("wrong in silence", "flagged, and its bound is wrong", "crashed")
    return [row for r in reports for row in r.rows if row.verdict in bad]


VJP = 1e-6


def wrong_vjp(reports):
    return [row for r in reports for row in r.rows if row.vjp is not None and not row.vjp <= VJP]


def by_atom(reports):
    """{kind of atom: {verdict: rows}}."""
    table = collections.defaultdict(collections.Counter)
    for r in reports:
        for kind in {type(a).__name__ for a in r.made.omega.atoms}:
            table[kind].update(row.verdict for row in r.rows)
    return {kind: dict(counts) for kind, counts in sorted(table.items())}


def printed(reports):
    """The report as markdown."""
    every = [row for r in reports for row in r.rows]
    counts = totals(reports)
    verdicts = sorted(counts)
    right = [row.error for row in every if row.verdict == "right"]
    lines = [f"# {len(reports)} random Ω, {len(every)} rows", ""]
    lines += [f"- {name}: {n} ({100 * n / len(every):.2f} %)" for name, n in sorted(counts.items())]
    lines.append(f"- worst true error of a certified row: {max(right, default=0):.2g}")
    compared = [row.vjp for row in every if row.vjp is not None]
    lines.append(
        f"- VJPs compared: {len(compared)}, worst {max(compared, default=0):.2g}, "
        f"off by more than {VJP:g}: {len(wrong_vjp(reports))}"
    )
    lines.append(f"- solving took {sum(r.seconds for r in reports):.0f} s")
    lines += ["", "| atom | " + " | ".join(verdicts) + " |", "|---" * (len(verdicts) + 1) + "|"]
    for kind, some in by_atom(reports).items():
        lines.append(f"| {kind} | " + " | ".join(str(some.get(v, 0)) for v in verdicts) + " |")
    lines += ["", "Rows that are not right:", ""]
    for r in reports:
        for name in verdicts:
            some = [row for row in r.rows if row.verdict == name]
            if name == "right" or not some:
                continue
            traits = "strict" if r.made.strict else "merely convex"
            worst = max(some, key=lambda row: row.error - row.bound)
            lines.append(
                f"- {r.made} ({traits}): {name}, rows {[row.row for row in some]}; row {worst.row} "
                f"({worst.kind}, γ = {worst.gamma:g}): error {worst.error:.2g}, bound "
                f"{worst.bound:.2g}, truth to {worst.truth:.2g}; {worst.reason}"
            )
    for row in wrong_vjp(reports):
        lines.append(f"- seed {row.seed} row {row.row} ({row.kind}): VJP off by {row.vjp:.2g}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--short", action="store_true", help="one γ for each kind of row")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    reports = []
    for seed in range(arguments.first, arguments.first + arguments.count):
        reports.append(judge(make(seed), arguments.solver, arguments.short))
    print(printed(reports))
    if arguments.json:
        rows = [asdict(row) for r in reports for row in r.rows]
        arguments.json.write_text(json.dumps({"totals": totals(reports), "rows": rows}, indent=1))
    return 1 if wrong(reports) else 0


if __name__ == "__main__":
    raise SystemExit(main())
