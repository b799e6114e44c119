"""Promises of a penalty R, for Ω = base + λR: its prox, its subgradients, its groups.

On Δ, Σy is constant, so the prox and the subgradients of a Lovász extension matter only up to a
shift of each row. The checks use directions w with Σw = 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.simplex import tangent
from ..regularizers.penalty import Penalty
from .promise import Broken, agree, searched, worst
from .search import Case
from .subject import Subject
from .values import points

STEPS = (0.3, 0.02)


def _set_function(penalty: Penalty, sets: Tensor, on: Tensor) -> Tensor:
    """F(S) = R(1_S), for sets of participants, (*batch, d) of 0 and 1."""
    return penalty.value(torch.where(on, sets, 0), on)


@searched(lambda s: s.fuses)
def check_lovasz(s: Subject, case: Case) -> None:
    """lovasz = True: R(y) = Σ_k (y_[k] − y_[k+1]) F(S_k) for y ≥ 0, S_k the k largest entries and
    F(S) = R(1_S); and F(S) + F(T) ≥ F(S ∪ T) + F(S ∩ T)."""
    penalty, name = s.penalty, type(s.penalty).__name__
    on = case.participants()
    for y in points(case):
        y = torch.where(on, y, 0)
        order = y.argsort(-1, descending=True)
        ranks = order.argsort(-1)
        ordered = torch.cat([y.gather(-1, order), torch.zeros_like(y[..., :1])], -1)
        drops = ordered[..., :-1] - ordered[..., 1:]
        total = torch.zeros_like(y[..., 0])
        for k in range(y.shape[-1]):
            largest = (on & (ranks <= k)).to(y.dtype)
            total = total + drops[..., k] * _set_function(penalty, largest, on)
        value = penalty.value(y, on)
        near, right = 1e-10 * (1 + worst(value)), "Σ_k (y_[k] − y_[k+1]) R(1 on the k largest)"
        agree(value, total, near, right, "R(y)", f"{name}.lovasz, {name}.value", y=y)
    first, second = ((case.direction(8)[k::2] > 0) for k in (0, 1))
    parts = [first, second, first | second, first & second]
    f = [_set_function(penalty, part.to(case.x.dtype), on.expand_as(part)) for part in parts]
    low = f[0] + f[1] - f[2] - f[3]
    if bool((low < -1e-10 * (1 + f[2].abs())).any()):
        raise Broken(
            "F(S) + F(T) ≥ F(S ∪ T) + F(S ∩ T) with F(S) = R(1_S)",
            f"less by {(-low).max().item():.3g}",
            f"{name}.lovasz",
        )


@searched(lambda s: s.penalty is not None)
def check_prox(s: Subject, case: Case) -> None:
    """z = prox(v) minimises ½‖z − v‖² + step·R(z); for a Lovász extension, v − z ∈ step·∂R(z)."""
    penalty, name = s.penalty, type(s.penalty).__name__
    v, on = case.x, case.participants()
    for step in STEPS:
        z = penalty.prox(v, step, case.mask)
        if z.shape != v.shape or z.dtype != v.dtype:
            raise Broken(f"a tensor like v: {tuple(v.shape)}", f"{z!r}", f"{name}.prox")

        def objective(z: Tensor, step: float = step) -> Any:
            apart = torch.where(on, z - v, 0)
            return apart.square().sum(-1) / 2 + step * penalty.value(z, case.mask)

        moves = case.direction(3)
        for w in tangent(moves, on) if s.fuses else torch.where(on, moves, 0):
            for size in (1.0, 1e-2, 1e-4):
                # strong convexity: F(z + w) ≥ F(z) + ½‖w‖²
                rise = objective(z + size * w) - objective(z)
                least = (size * w).square().sum(-1) / 2
                noise = 1e-13 * (1 + objective(z).abs() + v.abs().amax(-1))
                if bool((rise < least - noise).any()):
                    raise Broken(
                        f"F(z + w) ≥ F(z) + ½‖w‖² with F(z) = ½‖z − v‖² + {step:g}·R(z)",
                        f"F(z + w) − F(z) = {rise.tolist()}, ½‖w‖² = {least.tolist()}",
                        f"{name}.prox",
                        z=z,
                        w=size * w,
                    )
        if not s.fuses:
            continue
        u = penalty.subgradient(z, v - z, step, case.mask)
        right, how = f"v − z ∈ {step:g}·∂R(z), up to a constant", "the nearest subgradient offered"
        near, look = 1e-9 * (1 + worst(v)), f"{name}.prox, {name}.subgradient"
        agree(tangent(u, on), tangent(v - z, on), near, right, how, look, z=z)


@searched(lambda s: s.fuses)
def check_subgradient(s: Subject, case: Case) -> None:
    """u = subgradient(y, near, step): step·R(t) ≥ step·R(y) + ⟨u, t − y⟩ for all t and ``near``."""
    penalty, name = s.penalty, type(s.penalty).__name__
    on = case.participants()
    for y in [*points(case), case.x, points(case)[0].round(decimals=1)]:
        for near in (case.direction(), torch.zeros_like(y)):
            for step in STEPS:
                u = penalty.subgradient(y, near, step, case.mask)
                for w in tangent(case.direction(4), on):
                    for size in (1.0, 1e-3):
                        t = y + size * w
                        at_y, at_t = (step * penalty.value(p, case.mask) for p in (y, t))
                        linear = torch.where(on, u * size * w, 0).sum(-1)
                        noise = 1e-13 * (1 + at_y.abs() + u.abs().amax(-1))
                        if bool((at_t < at_y + linear - noise).any()):
                            raise Broken(
                                f"{step:g}·R(t) ≥ {step:g}·R(y) + ⟨u, t − y⟩ = "
                                f"{(at_y + linear).tolist()}",
                                f"{step:g}·R(t) = {at_t.tolist()} with u = {u.tolist()}",
                                f"{name}.subgradient",
                                y=y,
                                near=near,
                                t=t,
                            )


@searched(lambda s: s.fuses)
def check_groups(s: Subject, case: Case) -> None:
    """groups(z) are ids in [0, d); entries of a group are equal; prox's Jacobian averages them."""
    penalty, name = s.penalty, type(s.penalty).__name__
    v, d, on = case.x, case.x.shape[-1], case.participants()
    for step in STEPS:
        z = penalty.prox(v, step, case.mask)
        ids = penalty.groups(z, case.mask)
        fits = ids.shape == z.shape and ids.dtype == torch.int64
        if not (fits and bool(((ids >= 0) & (ids < d)).all())):
            raise Broken(
                f"int64 ids in [0, {d}) of shape {tuple(z.shape)}",
                f"{ids.dtype}: {ids.tolist()}",
                f"{name}.groups",
                z=z,
            )
        together = (ids.unsqueeze(-1) == ids.unsqueeze(-2)) & on.unsqueeze(-1) & on.unsqueeze(-2)
        apart = z.unsqueeze(-1) != z.unsqueeze(-2)
        if bool((together & apart).any()):
            raise Broken(
                "equal entries, to the bit, in a group",
                f"z = {z.tolist()}, groups {ids.tolist()}",
                f"{name}.groups, {name}.prox",
            )
        for w in tangent(case.direction(2), on):
            found = tangent(penalty.average(w, z, case.mask), on)
            h = 1e-6
            ends = [penalty.prox(v + k * h * w, step, case.mask) for k in (-2, -1, 1, 2)]
            slopes = [(ends[3] - ends[0]) / (4 * h), (ends[2] - ends[1]) / (2 * h)]
            expected = tangent(slopes[1], on)
            # rows where the groups change at v have no derivative
            smooth = ((slopes[0] - slopes[1]).abs() < 1e-7).all(-1, keepdim=True)
            sides = (ends[2] - 2 * z + ends[1]) / h
            smooth = smooth & (torch.where(on, sides, 0).abs() < 1e-7).all(-1, keepdim=True)
            near = torch.where(smooth, 1e-6, torch.inf)
            right = "the derivative of prox along w"
            how, look = f"w's mean over the groups {ids.tolist()}", f"{name}.groups, {name}.average"
            agree(found, expected, near, right, how, look, z=z, w=w)


@searched(lambda s: s.fuses and s.omega.exact)
def check_fused_groups_equal(s: Subject, case: Case) -> None:
    """Entries that stay equal under small changes of the scores are equal bit for bit."""
    x, gamma, mask = case.x, case.gamma, case.mask
    y = s.pi(x, gamma, mask)
    fused = case.participants().unsqueeze(-1) & case.participants().unsqueeze(-2)
    for direction in case.direction(6):
        near = s.pi(x + 0.01 * gamma * direction, gamma, mask)
        fused = fused & ((near.unsqueeze(-1) - near.unsqueeze(-2)).abs() <= 1e-10)
    if bool((fused & (y.unsqueeze(-1) != y.unsqueeze(-2))).any()):
        i, j, k = (int(n) for n in (fused & (y.unsqueeze(-1) != y.unsqueeze(-2))).nonzero()[0])
        raise Broken(
            f"y_{j} = y_{k} to the bit in row {i}, which stay together around x",
            f"{y[i, j].item()!r} and {y[i, k].item()!r}",
            f"{s.name}.penalty.prox, {s.where('closed_form')}",
        )
