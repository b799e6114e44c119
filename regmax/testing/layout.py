"""Promises of the layer about shapes, strides, dtypes, batches, masks and hard inputs."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from .inputs import HardInput, hard_inputs, normal
from .promise import Broken, Case, exact, fixed, searched, show, worst
from .subject import Subject


def closed(s: Subject) -> str:
    """Where to look if an answer is wrong."""
    if not s.has_formula:
        return s.where("value")
    if s.penalty is None or s.omega.declares("closed_form"):
        return s.where("closed_form")
    return f"{s.name}.penalty.prox, {s.where('closed_form')}"


def off_simplex(y: Tensor, allowed: float | None = None) -> str | None:
    """Why a row of y (…, d) is not a point of Δ, or None: y ≥ 0, |Σy − 1| ≤ ``allowed``, without
    which it is 2 ulp √d."""
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


def spoilt_rows(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which rows have a participant that is NaN or +inf, and who takes part in the others."""
    on = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
    on = on & (x != -torch.inf)
    return (on & ~(x < torch.inf)).any(-1), on


@searched()
def check_simplex(s: Subject, case: Case) -> None:
    """y ≥ 0 and Σy = 1 within 2 ulp √d; y_i = 0 where masked."""
    for dtype in (torch.float64, torch.float32):
        y = s.pi(case.x.to(dtype), case.gamma, case.mask)
        wrong = off_simplex(y)
        if wrong is None and bool((y[~case.participants()] != 0).any()):
            wrong = "a masked entry that is not 0"
        if wrong is not None:
            raise Broken(
                "a point of the simplex: y ≥ 0, Σy = 1 within 2 ulp·√d, 0 where masked",
                f"{wrong}, in {dtype}: {y.tolist()}",
                closed(s),
            )


@searched(exact)
def check_shift_invariance(s: Subject, case: Case) -> None:
    """Π_Ω(x + c) = Π_Ω(x), bit for bit if x + c is exact."""
    x = (case.x * 2**20).round() / 2**20
    y = s.pi(x, case.gamma, case.mask)
    for shift in (1.0, -3.0, 1000.0):
        moved = s.pi(x + shift, case.gamma, case.mask)
        if not torch.equal(moved, y):
            raise Broken(
                f"Π(x + {shift:g}) = Π(x) = {show(y)}, x rounded to 20 bits",
                f"{show(moved)}",
                closed(s),
            )


@searched(exact)
def check_gamma_scaling(s: Subject, case: Case) -> None:
    """Π_Ω at x with γ is Π_Ω at x/γ with γ = 1; a tensor γ, one number per row, gives the same."""
    y = s.pi(case.x, case.gamma, case.mask)
    slack = s.slack(case.x, case.gamma, case.mask)
    per_row = torch.full_like(case.x[:, :1], case.gamma)
    with torch.no_grad():
        tensor = s.layer(per_row)(case.x, case.mask)
    for gamma in (1.0, 4.0):
        scaled = s.pi(case.x * gamma / case.gamma, gamma, case.mask)
        for found, what in ((scaled, f"Π of γ = {gamma:g} at {gamma:g}x/γ"), (tensor, "γ per row")):
            if bool(((found - y).abs() > slack).any()):
                raise Broken(f"{what} = Π(x) of γ = {case.gamma:g}: {y.tolist()}", found, closed(s))


@searched()
def check_batch_independence(s: Subject, case: Case) -> None:
    """A row's result is bit for bit independent of the other rows."""
    for dtype in (torch.float64, torch.float32):
        x = torch.cat([case.x, normal(5, case.x.shape[-1], seed=case.seed) * 3]).to(dtype)
        mask = None
        if case.mask is not None:
            mask = torch.cat([case.mask, torch.ones_like(x[:5], dtype=torch.bool)])
        y = s.pi(x, case.gamma, mask)
        alone = torch.cat(
            [
                s.pi(x[i : i + 1], case.gamma, None if mask is None else mask[i : i + 1])
                for i in range(len(case.x))
            ]
        )
        deeper = s.pi(x.unsqueeze(1), case.gamma, None if mask is None else mask.unsqueeze(1))
        for found, what in ((alone, "alone"), (deeper.squeeze(1)[: len(case.x)], "in 3-d")):
            if not torch.equal(found, y[: len(case.x)]):
                raise Broken(
                    f"each row as among the others, {show(y[: len(case.x)])}",
                    f"{what}: {show(found)}",
                    closed(s),
                )


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
    y = s.pi(x, case.gamma, mask)
    wide = torch.full((x.shape[0], 2 * x.shape[1]), 7.0, dtype=x.dtype, device="cpu")
    wide[:, ::2] = x
    views = {
        "transposed": x.t().contiguous().t(),
        "every other column": wide[:, ::2],
        "flipped twice": x.flip(-1).flip(-1),
        "a column view": torch.stack([x, x], -1)[..., 0],
    }
    slack = s.slack(x, case.gamma, mask)
    for what, view in views.items():
        found = s.pi(view, case.gamma, mask)
        if bool(((found - y).abs() > slack).any()):
            raise Broken(
                f"Π(x) = {y.tolist()} for any strides", f"{what}: {found.tolist()}", closed(s)
            )
    expanded = x[:1].expand(3, -1)
    found = s.pi(expanded, case.gamma, None if mask is None else mask[:1])
    if bool(((found - y[:1]).abs() > slack[:1]).any()):
        raise Broken(
            f"Π(x) = {y[:1].tolist()} in each row",
            f"expanded with stride 0: {found.tolist()}",
            closed(s),
        )


@searched()
def check_dim(s: Subject, case: Case) -> None:
    """Π_Ω along any dim equals Π_Ω along −1 of the scores with that dim moved to the end."""
    x, slack = case.x, s.slack(case.x, case.gamma, case.mask)
    y = s.pi(x, case.gamma, case.mask)
    for dim in (0, 1, -2):
        with torch.no_grad():
            mask = None
            if case.mask is not None:
                mask = case.mask.unsqueeze(1).movedim(-1, dim)
            moved = x.unsqueeze(1).movedim(-1, dim).contiguous()
            found = s.layer(case.gamma, dim)(moved, mask)
        if found.shape != moved.shape:
            raise Broken(
                f"shape {tuple(moved.shape)}", f"{tuple(found.shape)}, dim = {dim}", closed(s)
            )
        if bool(((found.movedim(dim, -1).squeeze(1) - y).abs() > slack).any()):
            raise Broken(
                f"Π(x) = {y.tolist()}", f"with dim = {dim}: {found.movedim(dim, -1)}", closed(s)
            )


@searched()
def check_dtype(s: Subject, case: Case) -> None:
    """float32 agrees with float64 up to rounding; float16 and bfloat16 compute in float32."""
    x32 = case.x.float()
    y32 = s.pi(x32, case.gamma, case.mask)
    y64 = s.pi(x32.double(), case.gamma, case.mask)
    if y32.dtype != torch.float32:
        raise Broken("float32 for float32 scores", f"{y32.dtype}", closed(s))
    slack = s.slack(x32.double(), case.gamma, case.mask, 1e-6)
    if bool(((y32.double() - y64).abs() > slack).any()):
        raise Broken(
            f"float32 as float64, {y64.tolist()}, within {slack.squeeze(-1).tolist()}",
            y32,
            f"{closed(s)}, in float32",
        )
    for dtype in (torch.float16, torch.bfloat16):
        x = case.x.to(dtype)
        found, expected = (s.pi(t, case.gamma, case.mask) for t in (x, x.float()))
        if not torch.equal(found, expected.to(dtype)):
            raise Broken(
                f"{dtype} as float32 rounded once: {expected.to(dtype).tolist()}",
                f"{found.dtype}: {found.tolist()}",
                closed(s),
            )


@searched(masks=False)
def check_mask(s: Subject, case: Case) -> None:
    """A masked row gives the answer of the shorter row of its participants. −inf masks. Values of
    masked entries do not matter. A row without participants gives zeros and zero gradients."""
    x, d = case.x, case.x.shape[-1]
    look = f"{closed(s)} (mask)"
    bits = normal(*x.shape, seed=50 + case.seed) < 0.4
    for mask in (bits, torch.arange(d, device="cpu").expand(x.shape) < 1):
        mask = mask | ~mask.any(-1, keepdim=True)
        y = s.pi(x, case.gamma, mask)
        if _ignores_zeros(s, y):
            for i in range(len(x)):
                short = s.pi(x[i : i + 1, mask[i]], case.gamma)[0]
                slack = s.slack(x[i : i + 1, mask[i]], case.gamma, None)[0]
                if not s.omega.exact:  # the origin depends on the maximum of the row
                    slack = slack + 1e-12
                if bool(((y[i][mask[i]] - short).abs() > slack).any()):
                    raise Broken(
                        f"the participants of row {i} as the shorter row, {short.tolist()}",
                        y[i][mask[i]],
                        look,
                        mask=mask,
                    )
        low = s.pi(x.masked_fill(~mask, -torch.inf), case.gamma)
        if not torch.equal(low, y):
            raise Broken(f"−inf as a mask, {y.tolist()}", low, look, mask=mask)
        for held in (torch.nan, torch.inf, 1e30):
            dirty = s.pi(x.masked_fill(~mask, held), case.gamma, mask)
            if not torch.equal(dirty, y):
                raise Broken(
                    f"{y.tolist()}, whatever a masked entry holds",
                    f"{dirty.tolist()} where it holds {held}",
                    look,
                    mask=mask,
                )
    gone = torch.zeros_like(x, dtype=torch.bool)
    several = torch.cat([x, x]).requires_grad_()
    y = s.layer(case.gamma)(several, torch.cat([gone, ~gone]))
    (g,) = torch.autograd.grad(y, several, torch.cat([case.direction()] * 2))
    for t, what in ((y, "y"), (g, "gradient")):
        if bool((t[: len(x)] != 0).any()):
            raise Broken(f"{what} = 0 in a row without participants", t, look)
    if bool(((y[len(x) :] - s.pi(x, case.gamma)).abs() > s.slack(x, case.gamma, None)).any()):
        raise Broken("other rows as alone", f"{y[len(x) :].tolist()}", look)


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
