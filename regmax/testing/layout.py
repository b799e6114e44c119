"""Promises of the layer about shapes, strides, dtypes, batches, masks and hard inputs."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from .inputs import HardInput, hard_inputs, normal, spoilt_rows
from .promise import Broken, fixed, searched, worst
from .search import Case, show
from .subject import Subject, exact, layer_of


def closed(s: Subject) -> str:
    """Where to look if an answer is wrong."""
    if not s.has_formula:
        return s.where("value")
    if s.penalty is None or s.omega.declares("closed_form"):
        return s.where("closed_form")
    return f"{s.name}.penalty.prox, {s.where('closed_form')}"


def off_simplex(y: Tensor, on: Tensor | None = None, allowed: float | None = None) -> str | None:
    """Why a row of y (…, d) is not a point of Δ, or None: y ≥ 0, |Σy − 1| ≤ ``allowed``, without
    which it is 2 ulp √d, and 0 where not ``on``."""
    flat = y.detach().reshape(-1, y.shape[-1])
    if not bool(torch.isfinite(flat).all()):
        return "an entry that is not finite"
    if bool((flat < 0).any()):
        return f"a negative entry, {float(flat.min())!r}"
    if allowed is None:
        allowed = 2 * torch.finfo(y.dtype).eps * math.sqrt(y.shape[-1])
    for row in flat.tolist():
        total = math.fsum(row)
        if abs(total - 1) > allowed:
            return f"a row that sums to {total!r}"
    if on is not None and bool((y[~on] != 0).any()):
        return "a masked entry that is not 0"
    return None


def broken_rows(x: Tensor, mask: Tensor | None, y: Tensor) -> str | None:
    """What y, an answer to the scores x, breaks, or None: like x, NaN in spoilt rows, zeros in
    empty rows and where masked, other rows on Δ."""
    if y.shape != x.shape or y.dtype != x.dtype:
        return f"{tuple(y.shape)}, {y.dtype}, not {tuple(x.shape)}, {x.dtype}"
    spoilt, on = spoilt_rows(x, mask)
    if not bool(y[spoilt].isnan().all()):
        return "a number in a row with NaN or +inf"
    if bool((y[~on & ~spoilt.unsqueeze(-1)] != 0).any()):
        return "a masked entry that is not 0"
    return off_simplex(y[on.any(-1) & ~spoilt])


@searched()
def check_simplex(s: Subject, case: Case) -> None:
    """y ≥ 0 and Σy = 1 within 2 ulp √d; y_i = 0 where masked."""
    for dtype in (torch.float64, torch.float32):
        y = s.pi(case.x.to(dtype), case.gamma, case.mask)
        wrong = off_simplex(y, case.participants())
        if wrong is not None:
            raise Broken(
                "a point of the simplex: y ≥ 0, Σy = 1 within 2 ulp·√d, 0 where masked",
                f"{wrong}, in {dtype}: {y.tolist()}",
                closed(s),
            )


def same(s: Subject, y: Tensor, answers: dict[str, Tensor], slack: Tensor | None = None) -> None:
    """Each of ``answers``, named by how it was computed, is y within ``slack``, or to the bit."""
    for how, found in answers.items():
        if found.shape == y.shape and found.dtype == y.dtype:
            off = (found - y).abs() > slack if slack is not None else found != y
            if not bool((off | found.isnan()).any()):
                continue
        text = f"{how}: {show(found)} of shape {tuple(found.shape)}, {found.dtype}"
        raise Broken(f"Π(x) = {show(y)}", text, closed(s))


@searched(exact)
def check_shift_invariance(s: Subject, case: Case) -> None:
    """Π_Ω(x + c) = Π_Ω(x), bit for bit if x + c is exact."""
    x = (case.x * 2**20).round() / 2**20
    shifted = {
        f"Π(x + {c:g}), x rounded to 20 bits": s.pi(x + c, case.gamma, case.mask)
        for c in (1.0, -3.0, 1000.0)
    }
    same(s, s.pi(x, case.gamma, case.mask), shifted)


@searched(exact)
def check_gamma_scaling(s: Subject, case: Case) -> None:
    """Π_Ω at x with γ is Π_Ω at x/γ with γ = 1; a tensor γ, one number per row, gives the same."""
    with torch.no_grad():
        per_row = s.layer(torch.full_like(case.x[:, :1], case.gamma))(case.x, case.mask)
    scaled = {
        f"Π of γ = {gamma:g} at {gamma:g}x/γ": s.pi(case.x * gamma / case.gamma, gamma, case.mask)
        for gamma in (1.0, 4.0)
    }
    y, slack = s.pi(case.x, case.gamma, case.mask), s.slack(case.x, case.gamma, case.mask)
    same(s, y, {"γ per row": per_row, **scaled}, slack)


@searched()
def check_batch_independence(s: Subject, case: Case) -> None:
    """A row's result is bit for bit independent of the other rows."""
    n = len(case.x)
    others = normal(5, case.x.shape[-1], seed=case.seed) * 3
    mask = None
    if case.mask is not None:
        mask = torch.cat([case.mask, torch.ones_like(others, dtype=torch.bool)])
    for dtype in (torch.float64, torch.float32):
        x = torch.cat([case.x, others]).to(dtype)
        parts = [(x[[i]], None if mask is None else mask[[i]]) for i in range(n)]
        alone = torch.cat([s.pi(row, case.gamma, on) for row, on in parts])
        deeper = s.pi(x.unsqueeze(1), case.gamma, None if mask is None else mask.unsqueeze(1))
        answers = {"each row alone": alone, "in 3-d": deeper.squeeze(1)[:n]}
        same(s, s.pi(x, case.gamma, mask)[:n], answers)


@searched()
def check_deterministic(s: Subject, case: Case) -> None:
    """The same scores give the same bits, forward and backward."""

    def run() -> tuple[Tensor, Tensor]:
        x = case.x.clone().requires_grad_()
        y = s.layer(case.gamma)(x, case.mask)
        (g,) = torch.autograd.grad(y, x, case.direction())
        return y.detach(), g

    (y, g), (again, g_again) = run(), run()
    for first, second, what in ((y, again, "y"), (g, g_again, "the gradient")):
        if not torch.equal(first, second):
            raise Broken(
                f"{what} as the first time: {show(first)}",
                f"the second time: {show(second)}",
                f"{closed(s)}, {s.where('curvature')}",
            )


@searched()
def check_strides(s: Subject, case: Case) -> None:
    """Strides do not matter: the scores may be transposed, sliced, flipped or expanded."""
    x, mask = case.x, case.mask
    wide = torch.full((x.shape[0], 2 * x.shape[1]), 7.0, dtype=x.dtype, device="cpu")
    wide[:, ::2] = x
    views = {
        "transposed": x.t().contiguous().t(),
        "every other column": wide[:, ::2],
        "flipped twice": x.flip(-1).flip(-1),
        "a column view": torch.stack([x, x], -1)[..., 0],
    }
    y, slack = s.pi(x, case.gamma, mask), s.slack(x, case.gamma, mask)
    same(s, y, {how: s.pi(view, case.gamma, mask) for how, view in views.items()}, slack)
    expanded = s.pi(x[:1].expand(3, -1), case.gamma, None if mask is None else mask[:1])
    same(s, y[:1].expand(3, -1), {"the first row, expanded with stride 0": expanded}, slack[:1])


@searched()
def check_dim(s: Subject, case: Case) -> None:
    """Π_Ω along any dim equals Π_Ω along −1 of the scores with that dim moved to the end."""
    answers = {}
    for dim in (0, 1, -2):
        x, mask = (
            None if t is None else t.unsqueeze(1).movedim(-1, dim) for t in (case.x, case.mask)
        )
        assert x is not None
        inside = {k: t for k, t in s.omega.per_row_tensors(entries=True).items() if t.ndim}
        omega = s.omega.with_tensors(
            {k: t.view(1, 1, -1).movedim(-1, dim) for k, t in inside.items()}
        )
        with torch.no_grad():
            found = layer_of(omega, case.gamma, dim)(x.contiguous(), mask)
        answers[f"dim = {dim}"] = found.movedim(dim, -1).squeeze(1)
    y, slack = s.pi(case.x, case.gamma, case.mask), s.slack(case.x, case.gamma, case.mask)
    same(s, y, answers, slack)


@searched()
def check_dtype(s: Subject, case: Case) -> None:
    """float32 agrees with float64 up to rounding; float16 and bfloat16 compute in float32."""
    x32 = case.x.float()
    y32 = s.pi(x32, case.gamma, case.mask)
    y64 = s.pi(x32.double(), case.gamma, case.mask)
    if y32.dtype != torch.float32:
        raise Broken("float32 for float32 scores", f"{y32.dtype}", closed(s))
    slack = s.slack(x32.double(), case.gamma, case.mask, 1e-6)
    same(s, y64, {"in float32": y32.double()}, slack)
    for dtype in (torch.float16, torch.bfloat16):
        x = case.x.to(dtype)
        rounded = s.pi(x.float(), case.gamma, case.mask).to(dtype)
        same(s, rounded, {f"{dtype}, not float32 rounded once": s.pi(x, case.gamma, case.mask)})


@searched(masks=False)
def check_mask(s: Subject, case: Case) -> None:
    """A masked row gives the answer of the shorter row of its participants. −inf masks. Values of
    masked entries do not matter. A row without participants gives zeros and zero gradients."""
    x, d = case.x, case.x.shape[-1]
    bits = normal(*x.shape, seed=50 + case.seed) < 0.4
    for mask in (bits, torch.arange(d, device="cpu").expand(x.shape) < 1):
        mask = mask | ~mask.any(-1, keepdim=True)
        y = s.pi(x, case.gamma, mask)
        for i in range(len(x) if _ignores_zeros(s, y) else 0):
            part = x[[i]][:, mask[i]]
            slack = s.slack(part, case.gamma, None)
            if not s.omega.exact:  # the origin depends on the maximum of the row
                slack = slack + 1e-12
            how = f"the participants {mask[i].tolist()} of row {i} as a row of their own"
            same(s, y[[i]][:, mask[i]], {how: s.pi(part, case.gamma)}, slack)
        answers = {f"−inf where {show(~mask)}": s.pi(x.masked_fill(~mask, -torch.inf), case.gamma)}
        for held in (torch.nan, torch.inf, 1e30):
            dirty = x.masked_fill(~mask, held)
            answers[f"{held} where {show(~mask)}"] = s.pi(dirty, case.gamma, mask)
        same(s, y, answers)
    gone = torch.zeros_like(x, dtype=torch.bool)
    several = torch.cat([x, x]).requires_grad_()
    y = s.layer(case.gamma)(several, torch.cat([gone, ~gone]))
    (g,) = torch.autograd.grad(y, several, torch.cat([case.direction()] * 2))
    for t, what in ((y, "y"), (g, "gradient")):
        if bool((t[: len(x)] != 0).any()):
            raise Broken(f"{what} = 0 in a row without participants", t, f"{closed(s)} (mask)")
    beside = {"beside rows without participants": y[len(x) :].detach()}
    same(s, s.pi(x, case.gamma), beside, s.slack(x, case.gamma, None))


def _ignores_zeros(s: Subject, y: Tensor) -> bool:
    """Whether Ω accepts rows of any size and does not depend on entries that are 0."""
    if not s.any_size:
        return False
    shorter = torch.full_like(y[:, :1], 0.5).expand(-1, 2)
    longer = torch.cat([shorter[:, :1], torch.zeros_like(y), shorter[:, :1]], -1)
    mask = longer > 0
    return worst(s.value(longer, mask) - s.value(shorter)) < 1e-12


@fixed()
def check_hard_inputs(s: Subject) -> None:
    """Hard inputs: rows lie on Δ, gradients are finite, and only spoilt rows are NaN."""
    for case, dtype in itertools.product(hard_inputs(), (torch.float64, torch.float32)):
        x, mask = case.make(dtype)
        if not (s.any_size or x.shape[-1] in s.sizes):
            continue
        if not s.has_formula and (x.shape[-1] > 10 or dtype == torch.float32):
            continue  # a solver would take minutes
        _hard(s, case, x, mask)


def _hard(s: Subject, case: HardInput, x: Tensor, mask: Tensor | None) -> None:
    look = f"{closed(s)}, on regmax.testing.hard_inputs() {case.name!r} in {x.dtype}"
    leaf = x.detach().requires_grad_()
    y = s.layer()(leaf, mask)
    wrong = broken_rows(x, mask, y)
    if wrong is not None:
        raise Broken(
            "points of Δ, 0 where masked, NaN in a row with NaN or +inf",
            f"{wrong}: {show(y)}",
            look,
            x=x,
        )
    (g,) = torch.autograd.grad(y, leaf, normal(*x.shape).to(x), materialize_grads=True)
    spoilt, on = spoilt_rows(x, mask)
    if not bool(torch.isfinite(g[~spoilt]).all()) or bool((g[~on.any(-1)] != 0).any()):
        raise Broken(
            "a gradient that is finite, and 0 in a row without participants", show(g), look, x=x
        )
    lowest = x == torch.finfo(x.dtype).min
    if bool(lowest.any()):
        # as a masked entry, or (with a penalty on neighbours) as a very low score
        expected = [s.pi(x, mask=~lowest), s.pi(x.masked_fill(lowest, -1e6))]
        allowed = 1e-9 if x.dtype == torch.float64 else 1e-4
        if all(worst(y - other) > allowed for other in expected):
            raise Broken(
                f"finfo.min as a score that is out of reach: {show(expected[1])}",
                show(y),
                look,
                x=x,
            )
    if bool(spoilt.any()):
        keep = (~spoilt).nonzero().squeeze(-1)
        alone = s.layer()(x[keep], None if mask is None else mask.expand(x.shape)[keep])
        if worst(alone - y[keep]) > 0:
            raise Broken(f"rows beside it as alone: {show(alone)}", f"{show(y[keep])}", look, x=x)
