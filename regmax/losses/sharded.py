"""Fenchel–Young losses of DTensors.

Rows of logits are computed where they lie. Where the classes lie on several devices, each device
computes its part of

    L_Ω(x; t) = ⟨y − t, x⟩ + γ(Ω(t) − Ω(y)),        y = Π_Ω(x),

and the parts are added by one all-reduce. The gradient y − t needs none.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.transforms import may_look
from ..kernels.wrappers import is_dtensor
from ..mapping import sharded, shards
from ..mapping.rows import Rows
from ..mapping.sharded import Placed
from ..regularizers.regularizer import Regularizer, copied, per_row
from .targets import F64, checked, improper, is_index, omega_at, times


def loss(module: Any, input: Any, target: Any, mask: Any) -> Tensor:
    """The loss of logits in a DTensor: a DTensor, replicated, or placed as the targets are."""
    dim, settings = module.mapping._along(input), module.mapping.settings
    at, omega = sharded.placed("input", input, dim, module.omega, settings, _in_parts)
    own = _part(module, at, omega)
    is_index(target, input, at.dim)
    target, mask = _target(at, target), at.of("mask", mask)
    rows, mass, skip = own._each(at.part, at.dim, target, mask)
    dtype: torch.dtype = own._dtype(at.part, target)
    return proper(module, at, target, reduced(own, at, rows, mass, skip, dtype))


def linear(module: Any, hidden: Any, weight: Any, bias: Any, target: Any, mask: Any) -> Tensor:
    """The loss of a linear layer: rows of ``weight`` (classes) and of ``hidden`` may be sharded."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = next(t.device_mesh for t in (hidden, weight, bias) if is_dtensor(t))
    last = hidden.ndim - 1
    if last != 1 and module._by_row(hidden.shape[:-1].numel(), 1):
        raise ValueError(
            "hidden must have shape (rows, F) where it or weight is a DTensor and gamma or a "
            f"hyperparameter has one number for each row; got {tuple(hidden.shape)}"
        )

    def placements(name: str, t: Any) -> Any:
        if not is_dtensor(t):
            return [Replicate()] * mesh.ndim
        if t.device_mesh != mesh:
            raise TypeError(
                f"{name} must lie on the mesh of x, {mesh}; got a DTensor on {t.device_mesh}"
            )
        return t.placements

    def moved(t: Any, wanted: list[Any]) -> Any:
        """The part of t on this device; its gradient is summed over the devices that share it."""
        if t is None:
            return None
        if not is_dtensor(t):
            t = DTensor.from_local(t, mesh, run_check=False)
        pairs = zip(wanted, logits, strict=True)
        gradient = [Partial() if w.is_replicate() and p.is_shard() else w for w, p in pairs]
        return t.redistribute(placements=wanted).to_local(grad_placements=gradient)

    rows, classes = [], []
    for h, w in zip(placements("hidden", hidden), placements("weight", weight), strict=True):
        rows.append(h if type(h) is Shard and h.dim < last else Replicate())
        shared = type(w) is Shard and w.dim == 0 and rows[-1].is_replicate()
        classes.append(w if shared else Replicate())
    logits = [Shard(last) if c.is_shard() else r for r, c in zip(rows, classes, strict=True)]
    shape = (*hidden.shape[:-1], len(weight))
    at = Placed(mesh, shape, last, logits, False)
    at.part = moved(hidden, rows)
    inside, settings = at.regularizer(module.omega), module.mapping.settings
    if at.along is not None and not sharded.in_parts(inside, settings, _in_parts):
        warnings.warn(sharded.gathers("weight", module.omega, 0), stacklevel=4)
        classes, logits = [Replicate()] * mesh.ndim, rows
        at = Placed(mesh, shape, last, logits, False)
        at.part = moved(hidden, rows)
    h, own = at.part, _part(module, at, at.regularizer(module.omega))
    w, b = moved(weight, classes), moved(bias, classes)
    target, mask = _target(at, target), at.of("mask", mask)
    each = own._of_rows(h, w, b, target, mask)
    mass, skip, dtype = own._counted(h, w, b, target, shape[-1])
    if module.reduction == "none":
        each = each.view(h.shape[:-1])
    return proper(module, at, target, reduced(own, at, each, mass, skip, dtype))


def _in_parts(omega: Regularizer) -> bool:
    return shards.computes(omega) and omega.ignores_zeros


def _part(module: Any, at: Placed, omega: Regularizer) -> Any:
    """The loss with the parts of Ω, γ and the weights that belong to the logits of this device."""
    own = module._with(omega, at.of("gamma", module.gamma))
    own._buffers["weight"] = at.of("weight", module.weight, per_row=False)
    own.at = at if at.along is not None else None
    own.parts = True
    return own


def _target(at: Placed, target: Any) -> Any:
    """The targets of the logits of this device."""
    every = set(range(len(at.shape)))
    if target.is_floating_point():
        return at.of("target", target, exact=every)
    return at.of("target", target.unsqueeze(at.dim), exact=every - {at.dim}).squeeze(at.dim)


def reduced(
    module: Any,
    at: Placed,
    rows: Tensor,
    mass: Tensor | None,
    skip: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Losses of rows reduced over all devices."""
    if module.reduction == "none":
        each: Tensor = at.rows(rows).to(dtype)
        return each
    total, count = at.total(torch.stack(module._sums(rows, mass, skip))).unbind()
    whole: Tensor = total if module.reduction == "sum" else total / (count + (count == 0))
    return whole.to(dtype)


def proper(module: Any, at: Placed, target: Tensor, value: Any) -> Tensor:
    """``value``; where a wrong target made it NaN, all devices that have it raise what one process
    raises. Only then do they gather the targets, of which ``target`` is a part."""
    from torch.distributed.tensor import Replicate

    found: Tensor = value
    seen = value.detach().to_local()
    if not may_look(seen) or not bool(seen.isnan().any()):
        return found
    given = at.like_scores(target) if target.is_floating_point() else at.rows(target)
    shared = [module.reduction != "none" or p.is_shard(at.dim) for p in at.given]
    pairs = zip(shared, given.placements, strict=True)
    given = given.redistribute(placements=[Replicate() if s else p for s, p in pairs]).to_local()
    checked(given) if given.is_floating_point() else module._index(given, at.shape[at.dim])
    return found


def each(
    module: Any, logits: Tensor, dim: int, target: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``FenchelYoungLoss._each`` where this device has some of the classes of its rows."""
    at: Placed = module.at
    assert at.along is not None
    across, classes = at.along, at.shape[at.dim]
    dim = dim - logits.ndim
    rows = shards.prepare(module.omega, logits, module.gamma, dim, mask, across)
    y = shards.argmax(rows, across)
    raw = shards.padded(logits, dim, -torch.inf).movedim(dim, -1).double()
    assert rows.mask is not None
    on = rows.mask & (raw.detach() != -torch.inf)
    weight, own_weight = module._weight(raw, classes), None
    if weight is not None:
        own_weight = shards.padded(weight[at.first : at.first + at.size], -1, 0.0)
    skip = wrong = mass = None
    vertex = not target.is_floating_point()
    if vertex:
        index, skip, wrong = module._index(target, classes)
        mass = None if weight is None else weight[index]
        here = torch.arange(raw.shape[-1], device=raw.device) + at.first
        here = torch.where(here < at.first + logits.shape[dim], here, -1)
        counts = True if mass is None else mass.unsqueeze(-1) > 0  # else it may be masked
        given = ((index.unsqueeze(-1) == here) & counts).to(F64)
    else:
        given = shards.padded(target.to(F64).movedim(dim, -1), -1, 0.0)
        wrong = improper(given).any(-1)
        given = given if own_weight is None else given * own_weight
        mass = across.sums(given)[0]
        given = given / torch.where(mass > 0, mass, 1)
        mass = mass.squeeze(-1)
    a, spread, scale = 1.0, None, mass
    if module.label_smoothing:
        spread, a, scale = module._smoothed(on.to(F64), own_weight, mass, across.sums)
    outside = ((given > 0) & ~on).any(-1).to(F64)
    outside = outside if wrong is None else torch.where(wrong, torch.nan, outside)
    parts = _parts(rows, y, raw, given, a, spread, vertex, across, on)
    value, off = at.summed(torch.stack([parts, outside], -1)).unbind(-1)
    value = torch.where(off > 0, torch.inf, value)
    value = rows.restore_rows(value)
    value = times(scale, value if skip is None else torch.where(skip, 0, value))
    value = torch.where(off.isnan(), torch.nan, value)
    return value, mass if vertex else None, skip


def _parts(
    rows: Rows,
    y: Tensor,
    raw: Tensor,
    given: Tensor,
    a: Any,
    spread: Tensor | None,
    vertex: bool,
    across: shards.Shards,
    on: Tensor,
) -> Tensor:
    """What this device adds to the losses, (*batch)."""
    omega, gamma = rows.omega, shards.per_device(rows, across)
    with transforms.full_precision(raw.device.type):
        # Ω of the parts of a vertex: with and without its entry
        one = _alone(omega).value(torch.ones_like(given[..., :1]))
        none = omega_at(omega, torch.zeros_like(given[..., :1]), None) if omega.separable else one
        first = none + given.sum(-1) * (one - none)
        if not vertex:
            first = omega_at(omega, given, None)
        constant, t = first, given
        if spread is not None:
            t = a * given + (1 - a) * spread
            rest = none + spread.sum(-1) * (one - none)
            constant = a.squeeze(-1) * first + (1 - a).squeeze(-1) * rest
        # half of x − max x, as the whole may overflow; not rows.x, which clips very low scores
        half = torch.where(on & raw.detach().isfinite(), raw / 2 - rows.shift / 2, 0)
        found: Tensor = shards.maximum(rows, y, across) + per_row(gamma) * constant
        return found - 2 * (t * half).sum(-1)


def _alone(omega: Regularizer) -> Regularizer:
    """Ω whose sums are over the entries that it is given."""
    own: Regularizer = copied(omega)
    for name in ("row_sums", "row_max"):
        own.__dict__.pop(name, None)
    return own
