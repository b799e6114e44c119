"""Adversarial plugins: solvers, penalties and Ω that lie, drawn with scores and hyperparameters;
each row of each answer is right, flagged, refused by name, or a finding.
"""

import inspect
import re
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import lying_plugins as lying
import numpy as np
import torch
from bad_omegas import everywhere
from lying_plugins import BASES, OMEGA_LIES, PENALTIES, PENALTY_LIES, SOLVER_LIES
from posed import LONG, Kinks, Smooth, pose

from regmax import ConvergenceError, ConvergenceWarning, PluginError, RegularizedMax, Status

REFUSALS = (ValueError, TypeError, PluginError, NotImplementedError, ConvergenceError)
NAMES = re.compile(
    r"Lying|lying|GroupNorms|MaxNorm|Distance|WeightedSum|Hubers|Norm|Weighted|Quartic|Quadratic|"
    r"Entropies|Tsallis|strong_convexity|entries|group_norms|max_norm|prox\b"
)
CERTIFIES = "certify" in inspect.signature(RegularizedMax.__init__).parameters
GOOD = ("right", "flagged", "refused")


@dataclass(frozen=True)
class Case:
    """One plugin with its lie, on ``rows`` rows of ``d`` scores; tensors by ``seed``."""

    kind: str
    lie: str
    base: str
    penalty: str | None
    d: int
    rows: int
    dtype: str
    scale: float
    gamma: float
    lam: float
    masked: bool
    certify: bool
    seed: int

    @property
    def numbers(self):
        """What is inside Ω and the penalty."""
        rng = np.random.default_rng(self.seed)
        d = self.d
        ids = rng.integers(0, max(1, d // 2), size=d)
        parts = [np.flatnonzero(ids == k).tolist() for k in range(d)]
        parts = [p for p in parts if p]
        return {
            "d": d,
            "c": 1 + rng.exponential(size=d) * rng.choice([0.3, 3]),
            "b": rng.normal(size=(d, d)),
            "parts": parts,
            "weights": [float(w) for w in 0.5 + rng.random(len(parts))],
            "ordered": np.sort(rng.random(d))[::-1],
            "at": rng.dirichlet(np.ones(d)) * 0.9,
            "k": float(rng.choice([0.05, 0.3])),
            "weights_of": rng.random(d) * 2,
        }

    @property
    def known(self):
        """Whether an answer can be right, and is that of F."""
        return self.lie not in lying.NEVER and self.lie not in lying.ELSEWHERE

    def scores(self):
        """(rows, d) in the case's dtype, the mask or None, another batch of that shape, and the
        truth of each row, (Row, participants), where it is known."""
        rng = np.random.default_rng(self.seed + 1)
        x = rng.normal(size=(self.rows, self.d)) * self.scale
        if self.rows > 1 and rng.random() < 0.3:
            x[0] = np.round(x[0] * 2) / 2
        mask = None
        if self.masked:
            mask = rng.random(x.shape) < 0.7
            mask[:, int(rng.integers(self.d))] = True
        truths = []
        for i in range(self.rows if self.known else 0):
            on = np.ones(self.d, bool) if mask is None else mask[i]
            row = truth_of(self, on, rng)
            x[i, on] = row.x
            truths.append((row, on))
        dtype = getattr(torch, self.dtype)
        another = torch.tensor(np.flip(x).copy(), dtype=dtype)
        mask = None if mask is None else torch.tensor(mask)
        return torch.tensor(x, dtype=dtype), mask, another, truths


def draw(seed, only=None, lie=None):
    """The case of this seed."""
    rng = np.random.default_rng(seed)
    kinds = only or ("solver", "penalty", "omega", "omega")
    kind = str(rng.choice(kinds))
    lies = {"solver": SOLVER_LIES, "penalty": PENALTY_LIES, "omega": OMEGA_LIES}[kind]
    names = [name for name in lies if lie is None or lie in name]
    lie = str(rng.choice(names))
    base = str(rng.choice(list(BASES)))
    penalty = None
    d = int(rng.integers(2, 8))
    if kind == "penalty":
        penalty = str(rng.choice(list(PENALTIES)))
    elif kind == "solver" and rng.random() < 0.15:
        penalty = str(rng.choice(["tv", "group norms"]))
    elif lie == "permutation_invariant" or (
        kind == "omega" and lie.partition(":")[0] != "value" and rng.random() < 0.15
    ):
        penalty = "tv"
    if penalty is not None and PENALTIES[penalty].needs_invariant:
        base = str(rng.choice(["gini", "entropy", "tsallis"]))
    if lie in lying.ELSEWHERE:
        d = 3
    return Case(
        kind=kind,
        lie=lie,
        base=base,
        penalty=penalty,
        d=d,
        rows=int(rng.integers(2, 6)),
        dtype=str(rng.choice(["float64", "float64", "float32"])),
        scale=float(rng.choice([0.3, 1, 4])),
        gamma=float(rng.choice([0.5, 1, 2, 0.3])),
        lam=float(rng.choice([0.03, 0.3, 1])),
        masked=bool(rng.random() < 0.25) and lie not in lying.ELSEWHERE,
        certify=bool(rng.random() < 0.5),
        seed=seed,
    )


# -- making and truth -----------------------------------------------------------------------------


def made(case, leaves):
    """(layer, names of what the gradient may be asked for)."""
    n, base = case.numbers, BASES[case.base]
    b = torch.tensor(n["b"], dtype=leaves["c"].dtype)
    omega = base.make(leaves["c"], b)
    solver = "auto"
    if case.kind == "omega":
        omega = lying.lying_omega(omega, case.lie)
    if case.kind == "solver":
        solver = lying.LyingSolver(case.lie)
    if case.penalty is not None:
        penalty = PENALTIES[case.penalty].make(n)
        if case.kind == "penalty":
            penalty = lying.lying_penalty(penalty, case.lie)
        omega = omega + leaves["lam"] * penalty
    more = {"certify": case.certify} if CERTIFIES else {}
    return RegularizedMax(omega, gamma=leaves["gamma"], solver=solver, max_iter=40, **more)


def truth_of(case, on, rng):
    """A Row of the participants ``on``."""
    n, base = case.numbers, BASES[case.base]
    c = torch.tensor(n["c"]).to(getattr(torch, case.dtype)).double().numpy().astype(LONG)
    b = torch.tensor(n["b"]).to(getattr(torch, case.dtype)).double().numpy().astype(LONG)
    f = base.smooth(c[on], b[:, on])
    k = lying.SCALED.get(case.lie, 1.0)
    slope, bend, beta = f.slope, f.bend, f.beta * k
    if k != 1:
        slope, bend = (lambda y: k * f.slope(y)), (lambda y: k * f.bend(y))
    kinks = Kinks()
    if case.penalty is not None:
        lam = number(case.lam, case.dtype) * (1.5 if case.lie == "value: 1.5 times" else 1)
        kinks, more = PENALTIES[case.penalty].kinks(n, lam, on)
        if more is not None:
            s0, b0 = slope, bend
            slope, bend = (lambda y: s0(y) + more[0](y)), (lambda y: b0(y) + more[1](y))
    smooth = Smooth(slope, bend, beta, f.steep)
    row = pose(smooth, kinks, int(on.sum()), rng, case.dtype, number(case.gamma, case.dtype))
    if case.penalty in ("weighted l1", "hubers"):
        row.pull = more[0](row.y)
    if case.penalty == "hubers" and len(row.y) > 1:
        t = np.abs(np.abs(row.y - n["at"][on]) - n["k"])
        row.margin = min(row.margin, float(t.min()))
    return row


def number(value, dtype):
    """As a tensor of the dtype holds it."""
    return torch.tensor(value, dtype=getattr(torch, dtype)).double().item()


# -- the judge ------------------------------------------------------------------------------------


def judge(case):
    """[(outcome, where, text)], where: the row and the call."""
    x, mask, another, known = case.scores()
    n = case.numbers
    dtype = x.dtype
    leaves = {
        "x": x,
        "gamma": torch.tensor(case.gamma, dtype=dtype),
        "c": torch.tensor(n["c"]).to(dtype),
        "lam": torch.tensor(case.lam, dtype=dtype),
    }
    leaves = {k: t.clone().requires_grad_() for k, t in leaves.items()}
    torch.manual_seed(case.seed)
    try:
        layer = made(case, leaves)
    except REFUSALS as error:
        return [(refusal(error), i, f"making: {error}") for i in range(case.rows)]
    found = []
    certifies = CERTIFIES and case.certify
    truths = Truths(case, x, known)
    statuses = None
    for call in ("solve", "call"):
        if call == "call" and case.lie.startswith("closed_form") and not certifies:
            continue  # believed, until it is asked to certify
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                if case.lie == "stale":
                    layer(another, mask)
                    seen.clear()
                given = leaves["x"].view_as(leaves["x"])
                if call == "solve":
                    answer = layer.solve(given, mask)
                    y, bound = answer.y, answer.error_bound.detach().double().numpy()
                    statuses = answer.status.tolist()
                else:
                    y = layer(given, mask)
                    bound = None
            except Exception as error:
                text = f"{call}: {type(error).__name__}: {error}"
                found += [(refusal(error), i, text) for i in range(case.rows)]
                continue
        said = " ".join(str(w.message) for w in seen if w.category is ConvergenceWarning)
        if not isinstance(y, torch.Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            found += [("wrong", i, f"{call}: not a tensor like x: {y!r}") for i in range(case.rows)]
            continue
        gradients = backward(case, leaves, y)
        for i in range(case.rows):
            flagged = statuses is not None and statuses[i] != Status.CONVERGED
            flagged = flagged and (call == "solve" or bool(said))
            if call == "solve" and not flagged and not truths.possible:
                found.append(("wrong", i, "solve: CONVERGED, where nothing can be right"))
                continue
            if flagged:
                found.append(("flagged", i, ""))
                continue
            allowed = None if bound is None else bound[i]
            outcome, text = truths.verdict(i, y.detach(), allowed, gradients)
            if outcome == "wrong" and "nan" in text and "gradient is NaN" in said:
                outcome = "flagged"  # at a kink, and said so
            found.append((outcome, i, f"{call}: {text}"))
        if call == "solve" and case.known:
            for i in range(case.rows):
                if statuses[i] == Status.CONVERGED:
                    text = truths.wrong_max(i, layer, answer, leaves)
                    if text:
                        found.append(("wrong", i, f"max: {text}"))
    return found


def refusal(error):
    """Refused by name, or by the plugin's own code, which the traceback shows; else a crash."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [name for name in frames if "regmax" in name or "lying" in name]
    ours = [name for name in ours if Path(name).name != "products.py"]  # between a user and PyTorch
    own = bool(ours) and Path(ours[-1]).name == "lying_plugins.py"
    if own or (isinstance(error, REFUSALS) and NAMES.search(str(error))):
        return "refused"
    return "refused without a name" if isinstance(error, REFUSALS) else "crashed"


def direction(case):
    generator = torch.Generator().manual_seed(case.seed + 2)
    return torch.randn(case.rows, case.d, generator=generator, dtype=torch.float64)


def backward(case, leaves, y):
    """Per row {leaf: gradient of ⟨v, y⟩ in float64}, or the error."""
    v = direction(case).to(y.dtype)
    names = ["x", "gamma"]
    if case.penalty is not None:
        names.append("lam")
    if BASES[case.base].moves is not None:
        names.append("c")
    rows = []
    for i in range(case.rows):
        only = torch.zeros_like(v)
        only[i] = v[i]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got = torch.autograd.grad(
                    y,
                    [leaves[k] for k in names],
                    only,
                    retain_graph=True,
                    allow_unused=True,
                    materialize_grads=True,
                )
        except Exception as error:
            rows.append(error)
            continue
        rows.append({k: g.double() for k, g in zip(names, got, strict=True)})
    return rows


class Truths:
    """What answers are compared with."""

    def __init__(self, case, x, known):
        self.case, self.x, self.known = case, x, known
        self.possible = case.lie not in lying.NEVER
        self.eps = torch.finfo(x.dtype).eps

    def verdict(self, i, y, bound, gradients):
        case, ours = self.case, y[i].double()
        if not self.possible:
            return "wrong", f"nothing can be right: {ours.tolist()}"
        if case.lie in lying.ELSEWHERE:
            return self.looked(i, ours)
        truth, on = self.known[i]
        expected = np.zeros(case.d, LONG)
        expected[on] = truth.y
        z = np.abs(self.x[i].double().numpy()[on] / case.gamma)
        spread = 1 + 2 * z.max() + (case.lam * case.d if case.penalty else 0)
        slack = 4 * self.eps * spread + truth.bound
        error = float(np.sqrt(((ours.numpy() - expected) ** 2).sum()))
        tol = 1e-8 if case.dtype == "float64" else 1e-3
        allowed = (tol if bound is None else bound) + slack
        if not error <= allowed:
            what = f"y = {ours.tolist()}, truth {np.asarray(expected, float).tolist()}"
            return "wrong", f"off by {error:.2g}, bound {bound}; {what}"
        small = 1e-6 if case.dtype == "float64" else 1e-2
        if not (np.asarray(ours)[~on] == 0).all():
            return "wrong", f"masked entries: {ours.tolist()}"
        if not (ours >= 0).all() or abs(ours.sum() - 1) > 8 * self.eps * case.d**0.5:
            return "wrong", f"off the simplex: {ours.tolist()}"
        if not truth.margin > small:
            return "right", ""
        none = (expected == 0) & on & (ours.numpy() != 0)
        if none.any():
            return "wrong", f"zeros: y = {ours.tolist()}, truth {expected.astype(float).tolist()}"
        return self.derived(i, truth, on, gradients[i], error + slack)

    def looked(self, i, ours):
        """Against the best point of the triangle."""
        case = self.case
        n = case.numbers
        right = BASES[case.base].make(torch.tensor(n["c"]), torch.tensor(n["b"]))
        omega = lying.lying_omega(right, case.lie)
        z = self.x[i].double() / case.gamma
        best, where = everywhere(omega, z)
        mine = (ours @ z - omega.value(ours.clamp_min(1e-31))).item()
        low = best - mine
        size = 1e-9 if case.dtype == "float64" else 1e-5
        if low <= size * (1 + abs(best)):
            return "right", ""
        return "wrong", f"worse by {low:.2g}: {ours.tolist()}, not {where.tolist()}"

    def derived(self, i, truth, on, got, off):
        if isinstance(got, Exception):
            return refusal(got), f"backward: {type(got).__name__}: {got}"
        case = self.case
        v = direction(case).to(self.x.dtype).double().numpy()[i][on]
        x = self.x[i].double().numpy()[on]
        gamma, lam = number(case.gamma, case.dtype), number(case.lam, case.dtype)
        w = truth.product(v)
        k = float(np.linalg.norm(w))
        expected = {"x": w / gamma, "gamma": -(w @ (x - x.max())) / gamma**2}
        if case.penalty is not None:
            expected["lam"] = -(w @ np.asarray(truth.pull, float)) / lam
        moves = BASES[case.base].moves
        if moves is not None:
            scale = lying.SCALED.get(case.lie, 1.0)
            with np.errstate(all="ignore"):
                expected["c"] = -scale * np.where(w == 0, 0, w * np.asarray(moves(truth.y), float))
        bend = np.diag(truth.bend).astype(float)
        curved = 1 + 1 / max(float(truth.margin), 1e-6) if truth.margin < np.inf else 1.0
        for name, right in expected.items():
            have = got[name].numpy()
            if name in ("x", "c"):
                have = have[on] if name == "c" else have[i][on]
            size = 1 + k + float(np.abs(right).max() if np.ndim(right) else abs(right))
            tol = 1e-5 * size + off * curved * size * 10
            if case.dtype == "float32":
                tol += 1e-4 * size * (1 + float(np.abs(x).max()))
            if not np.abs(have - right).max() <= tol:
                return "wrong", (
                    f"gradient in {name}: {np.asarray(have).tolist()}, truth "
                    f"{np.asarray(right).tolist()} (margin {truth.margin:.2g}, {bend.max():.2g})"
                )
        return "right", ""

    def wrong_max(self, i, layer, answer, leaves):
        truth, on = self.known[i]
        if case_scaled(self.case):
            return None
        case = self.case
        n = case.numbers
        dtype = self.x.dtype
        right = BASES[case.base].make(
            torch.tensor(n["c"]).to(dtype).double()[on],
            torch.tensor(n["b"]).to(dtype).double()[:, on],
        )
        y = torch.tensor(np.maximum(truth.y, 1e-300).astype(float))
        x = self.x[i].double()[torch.tensor(on)]
        total = right.value(y).item()
        if case.penalty is not None:
            if case.masked or case.lie.startswith("value"):
                return None
            total += number(case.lam, case.dtype) * PENALTIES[case.penalty].make(n).value(y).item()
        expected = (y @ x).item() - number(case.gamma, case.dtype) * total
        if answer.value.shape != self.x.shape[:1]:
            return f"a value of shape {tuple(answer.value.shape)}"
        got = answer.value[i].item()
        tol = (1e-7 if case.dtype == "float64" else 1e-3) * (1 + abs(expected) + x.abs().max())
        if abs(got - expected) <= tol:
            return None
        return f"value {got}, truth {expected}"


def case_scaled(case):
    return case.lie in lying.SCALED or case.lie.startswith("value")


def check_plugin(seed):
    """For the fuzzer: no row of the case of this seed is wrong in silence."""
    case = draw(seed)
    bad = [(o, i, t) for o, i, t in judge(case) if o not in GOOD]
    assert not bad, f"{case}: {bad[0]}"
