"""Promises of Ω's value and of its declared properties: ∇Ω, ∇²Ω, β, separability and others."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import simplex
from ..regularizers.cholesky import least_eigenvalue
from ..regularizers.regularizer import checked_value
from .backends.generic import definition
from .inputs import normal
from .promise import Broken, agree, searched, worst
from .search import Case
from .subject import Subject

EPS = torch.finfo(torch.float64).eps


def points(case: Case) -> list[Tensor]:
    """Points inside Δ, (rows, d): near the middle, peaked, next to a vertex."""
    z = case.x - case.x.amax(-1, keepdim=True)
    other = z + case.direction()
    near = [z.clamp_min(-4), other.clamp_min(-4), (4 * z).clamp_min(-12)]
    return [t.softmax(-1) for t in near]


@searched(masks=False)
def check_value(s: Subject, case: Case) -> None:
    """Ω(y) is one finite number per row, depends on that row only, and is differentiable in y."""
    look = s.where("value")
    for y in [*points(case), simplex.inward(points(case)[2].round(decimals=2))]:
        value = checked_value(s.omega, y)
        alone = torch.stack([s.omega.value(row.unsqueeze(0))[0] for row in y])
        deeper = s.omega.value(y.unsqueeze(0))
        if deeper.shape != (1, len(y)):
            raise Broken(
                f"value(y) of shape (1, {len(y)}) for y of shape {(1, *y.shape)}",
                f"shape {tuple(deeper.shape)}",
                look,
                y=y,
            )
        for other in (alone, deeper[0]):
            near = 1e-12 * (1 + worst(value))
            right = "value(y) of a row whatever its batch"
            agree(value, other, near, right, "that of the rows together", look, y=y)
        gradient = definition(s.omega).grad(y)
        if not bool(torch.isfinite(gradient).all()):
            raise Broken("a finite gradient of value", gradient, look, y=y)


@searched(masks=False)
def check_value_convex(s: Subject, case: Case) -> None:
    """Ω is strictly convex along Δ: Ω(½(y + t)) < ½(Ω(y) + Ω(t)), and wᵀ∇²Ω w > 0, Σw = 0."""
    if case.x.shape[-1] == 1:
        return
    look = f"{s.where('value')}, and the sign of its terms"
    first, second, peaked = points(case)
    for y, t in ((first, second), (first, peaked), (second, peaked)):
        with torch.no_grad():
            ends = (s.value(y) + s.value(t)) / 2
            excess = s.value((y + t) / 2) - ends
        noise = 16 * EPS * (1 + ends.abs())
        if bool((excess > noise).any()):
            i = int((excess - noise).argmax())
            raise Broken(
                f"Ω(½(y + t)) ≤ ½(Ω(y) + Ω(t)) = {ends[i].item()!r}",
                f"Ω(½(y + t)) = {(ends + excess)[i].item()!r}",
                look,
                y=y[i],
                t=t[i],
            )
    v = case.direction(4)
    for y in (first, second):
        h = s.hessian(y)
        for w in v - v.mean(-1, keepdim=True):
            hw = (h @ w.unsqueeze(-1)).squeeze(-1)
            quotient = simplex.row_dot(w, hw) / simplex.row_dot(w, w)
            least = 16 * EPS * h.abs().amax((-1, -2)).unsqueeze(-1)
            if bool((quotient <= least).any()):
                i = int(quotient.argmin())
                raise Broken(
                    "strict convexity: wᵀ∇²Ω(y)w > 0 for every w with Σw = 0",
                    f"wᵀ∇²Ω(y)w/‖w‖² = {quotient[i].item():.6g}",
                    look,
                    y=y[i],
                    w=w[i],
                )


@searched(lambda s: s.declares("grad"), masks=False)
def check_grad(s: Subject, case: Case) -> None:
    """grad(y) is the derivative of value(y)."""
    for y in points(case):
        with torch.no_grad():
            found, expected = s.smooth.grad(y), s.truth.grad(y)
        _same_shape(found, y, s.where("grad"))
        near = 1e-9 * (1 + expected.abs())
        agree(found, expected, near, "∇value(y) by autograd", "grad(y)", s.where("grad"), y=y)
        edge = s.smooth.grad(simplex.inward(torch.where(y < y.amax(-1, keepdim=True), 0, y)))
        if not bool(torch.isfinite(edge).all()):
            raise Broken(
                "a finite grad where y_i = ε², which stands for 0", edge, s.where("grad"), y=y
            )


@searched(lambda s: s.declares("curvature"), masks=False)
def check_curvature(s: Subject, case: Case) -> None:
    """curvature(y) is the second derivative of value(y), in each of its methods: matvec,
    plus_diagonal, jacobian and min_eigenvalue."""
    look = s.where("curvature")
    for y in points(case):
        with torch.no_grad():
            declared = s.smooth.curvature(y)
        h = s.hessian(y)
        size = 1 + h.abs().amax((-1, -2)).unsqueeze(-1)
        shift = y.square() + 1
        for v in case.direction(2):
            for method, found, matrix in (
                ("matvec", declared.matvec(v), h),
                (
                    "plus_diagonal(t).matvec",
                    declared.plus_diagonal(shift).matvec(v),
                    h + torch.diag_embed(shift),
                ),
            ):
                expected = (matrix @ v.unsqueeze(-1)).squeeze(-1)
                _same_shape(found, y, f"{look} ({method})")
                right, how = "∇²value(y) v by autograd", f"curvature(y).{method}(v)"
                agree(found, expected, 1e-8 * size, right, how, f"{look} ({method})", y=y, v=v)
            for support in _supports(y, case.seed):
                w = declared.jacobian(v, support)
                _same_shape(w, y, f"{look} (jacobian)")
                on, hw = support.to(v.dtype), declared.matvec(torch.where(support, w, 0))
                tau = simplex.row_dot(on, v - hw) / on.sum(-1, keepdim=True)
                residual = on * (v - hw - tau)
                scale = 1 + hw.abs().amax(-1, keepdim=True)
                if (
                    worst(residual / scale) > 1e-9
                    or worst(w.sum(-1)) > 1e-9 * (1 + worst(w))
                    or bool((w[~support] != 0).any())
                ):
                    raise Broken(
                        "w = Jv: H_SS w + τ1 = v_S, Σw = 0, w = 0 off S",
                        f"curvature(y).jacobian(v, support) = {w.tolist()}, "
                        f"v − Hw − τ1 = {residual.tolist()}",
                        f"{look} (jacobian)",
                        y=y,
                        v=v,
                        support=support,
                    )
        for support in _supports(y, case.seed):
            found, expected = declared.min_eigenvalue(support), _lowest(h, support)
            over = found - expected
            if bool((over > 1e-6 * (1 + expected.abs()) + 1e-13 * size.squeeze(-1)).any()):
                raise Broken(
                    f"min_eigenvalue(support) ≤ the least eigenvalue along Δ, {expected.tolist()}",
                    found,
                    f"{look} (min_eigenvalue)",
                    y=y,
                    support=support,
                )


def _same_shape(found: Tensor, y: Tensor, look: str) -> None:
    if not isinstance(found, Tensor) or found.shape != y.shape or found.dtype != y.dtype:
        what = f"{tuple(found.shape)}, {found.dtype}" if isinstance(found, Tensor) else repr(found)
        raise Broken(f"a tensor like y: {tuple(y.shape)}, {y.dtype}", what, look, y=y)


def _supports(y: Tensor, seed: int) -> list[Tensor]:
    full = torch.ones_like(y, dtype=torch.bool)
    part = normal(*y.shape, seed=seed) < 0.3
    part[:, 0] = True
    return [full, part]


def _lowest(h: Tensor, support: Tensor) -> Tensor:
    """The least eigenvalue along {w : Σw = 0, w = 0 off S}, +inf where S is one entry."""
    low = least_eigenvalue(h, support.to(h.dtype), support)
    return torch.where(support.sum(-1) > 1, low, torch.inf)


@searched(
    lambda s: s.declares("strong_convexity") and s.omega.strong_convexity is not None, masks=False
)
def check_strong_convexity(s: Subject, case: Case) -> None:
    """∇²Ω(y) ≥ β along Δ, with β the declared strong convexity; β > 0."""
    look = s.where("strong_convexity")
    declared = torch.as_tensor(s.omega.strong_convexity, dtype=torch.float64, device="cpu")
    beta = declared.reshape(-1)[0].item()
    if not beta > 0:
        raise Broken("strong_convexity > 0, or None", f"{beta!r}", look)
    z = case.x - case.x.amax(-1, keepdim=True)
    for y in [*points(case), (16 * z).clamp_min(-20).softmax(-1)]:
        h = s.hessian(simplex.inward(y))
        least = _lowest(h, torch.ones_like(y, dtype=torch.bool))
        noise = 1e-9 + 64 * EPS * h.abs().amax((-1, -2))
        if bool((least < beta * (1 - 1e-9) - noise).any()):
            i = int((least + noise).argmin())
            raise Broken(
                f"∇²Ω(y) ≥ strong_convexity = {beta!r} along Δ",
                f"an eigenvalue {least[i].item()!r}",
                look,
                y=y[i],
            )


@searched(lambda s: s.smooth.separable is True, masks=False)
def check_separable(s: Subject, case: Case) -> None:
    """separable = True: ∂²Ω/∂y_i∂y_j = 0 for i ≠ j."""
    for y in points(case):
        h = s.hessian(y)
        mixed = h - torch.diag_embed(h.diagonal(dim1=-2, dim2=-1))
        if worst(mixed) > 1e-9 * (1 + worst(h)):
            raise Broken(
                "∂²value/∂y_i∂y_j = 0 for i ≠ j, as separable = True says",
                mixed,
                f"{type(s.smooth).__name__}.separable",
                y=y,
            )


@searched(lambda s: s.omega.permutation_invariant or s.smooth.permutation_invariant, masks=False)
def check_permutation_invariant(s: Subject, case: Case) -> None:
    """permutation_invariant = True: Ω(Py) = Ω(y), and Π_Ω(Px) = PΠ_Ω(x)."""
    look = f"{type(s.smooth).__name__}.permutation_invariant"
    d = case.x.shape[-1]
    generator = torch.Generator().manual_seed(case.seed)
    for order in (
        torch.randperm(d, generator=generator, device="cpu"),
        torch.arange(d, device="cpu").flip(0),
    ):
        for y in points(case):
            with torch.no_grad():
                found, expected = s.smooth.value(y[:, order]), s.smooth.value(y)
            near = 1e-12 * (1 + expected.abs())
            agree(found, expected, near, "Ω(Py) = Ω(y)", "Ω(Py)", look, y=y, P=order)
        if not s.omega.permutation_invariant:
            continue
        y, turned = s.pi(case.x, case.gamma), s.pi(case.x[:, order], case.gamma)
        slack = s.slack(case.x, case.gamma, None)
        where = f"{look}, {s.where('closed_form')}"
        agree(turned, y[:, order], slack, "Π(Px) = PΠ(x)", "Π(Px)", where, P=order)


@searched(lambda s: s.smooth.ignores_zeros, masks=False)
def check_ignores_zeros(s: Subject, case: Case) -> None:
    """ignores_zeros = True: Ω(y) depends only on the positive entries of y, in any order."""
    generator = torch.Generator().manual_seed(case.seed)
    for y in points(case):
        for zeros in (0, 1, 7):
            longer = torch.cat([y, y.new_zeros(len(y), zeros)], -1)
            longer = longer[:, torch.randperm(longer.shape[-1], generator=generator, device="cpu")]
            with torch.no_grad():
                expected, found = s.smooth.value(y), s.smooth.value(longer)
                near = s.smooth.value(simplex.inward(longer))
            found = torch.where(torch.isfinite(found), found, near)
            right, how = "Ω of the positive entries alone", f"that with {zeros} zeros among them"
            look, near = f"{type(s.smooth).__name__}.ignores_zeros", 1e-12 * (1 + expected.abs())
            agree(found, expected, near, right, how, look, y=longer)


@searched(lambda s: s.omega.permutation_invariant and s.omega.exact, masks=False)
def check_order_preserved(s: Subject, case: Case) -> None:
    """x_i ≥ x_j ⇒ y_i ≥ y_j, for a permutation-invariant Ω."""
    y, slack = s.pi(case.x, case.gamma), s.slack(case.x, case.gamma, None)
    ordered = y.gather(-1, case.x.argsort(dim=-1, stable=True))
    rise = ordered.diff(dim=-1)
    if bool((rise < -slack).any()):
        raise Broken(
            "x_i ≥ x_j ⇒ y_i ≥ y_j",
            f"y = {y.tolist()}",
            f"{s.where('closed_form')}, {s.where('value')}",
        )
