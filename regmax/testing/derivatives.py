"""Promises of derivatives: first and second derivatives of Π_Ω in the scores, γ and every
hyperparameter, in backward and forward mode and under torch.func.

Finite differences have fourth order: f'(0) ≈ (f(−2h) − 8f(−h) + 8f(h) − f(2h)) / 12h. They use rows
whose support and groups do not change nearby.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .inputs import normal
from .layout import closed
from .promise import Broken, Case, exact, searched, worst
from .subject import Subject, layer_of

CENTRAL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))
FORWARD = ((0, -25 / 12), (1, 4.0), (2, -3.0), (3, 4 / 3), (4, -1 / 4))
STEP = 5e-4
MARGIN = 2e-2
STEEP = 0.25


def slope_at(s: Subject) -> str:
    """Where to look if a Jacobian is wrong."""
    return f"{s.where('curvature')}, {s.where('grad')}"


# -- in the scores ---------------------------------------------------------------------------------


def pattern(s: Subject, y: Tensor) -> Tensor:
    """The support of each row, and its ties with a Lovász penalty. Π_Ω is smooth where it is
    constant."""
    bits = [y > 0]
    if s.fuses:
        bits.append((y.unsqueeze(-1) == y.unsqueeze(-2)).flatten(-2))
    return torch.cat(bits, -1)


def smooth_rows(s: Subject, case: Case) -> Case | None:
    """The rows near which support and groups are constant and y changes little, or None.
    Differences are inaccurate for steep mappings, such as 10-entmax."""
    x, n = case.x, len(case.x)
    moves = torch.cat([torch.zeros_like(x).unsqueeze(0), case.direction(6).clamp(-1, 1)])
    near = (x + MARGIN * case.gamma * moves).reshape(-1, x.shape[-1])
    mask = None if case.mask is None else case.mask.repeat(7, 1)
    y = s.pi(near, case.gamma, mask)
    seen, y = pattern(s, y).reshape(7, n, -1), y.reshape(7, n, -1)
    keep = ((seen == seen[0]).all(-1) & ((y - y[0]).abs() <= STEEP).all(-1)).all(0)
    return case.rows(keep) if bool(keep.any()) else None


def jacobian(s: Subject, case: Case) -> Tensor:
    """∂y_k/∂x_j by backward, (rows, d, d): d copies of each row, one per unit vector."""

    def backward() -> Tensor:
        n, d = case.x.shape
        x = case.x.repeat_interleave(d, 0).requires_grad_()
        mask = None if case.mask is None else case.mask.repeat_interleave(d, 0)
        y = s.layer(case.gamma)(x, mask)
        (rows,) = torch.autograd.grad(y, x, torch.eye(d, dtype=x.dtype, device="cpu").repeat(n, 1))
        return rows.reshape(n, d, d)

    j: Tensor = s.remember("jacobian", backward, case.x, case.gamma, case.mask)
    return j


def rough(s: Subject, case: Case) -> float:
    """The possible relative error of differences."""
    if s.has_formula:
        return 1e-6
    bound = s.bound(s.pi(case.x, case.gamma, case.mask), case.x, case.gamma, case.mask)
    return 1e-6 + 8 * min(worst(bound), 1e-7) / STEP


@searched(exact)
def check_jacobian_symmetric(s: Subject, case: Case) -> None:
    """J = Jᵀ: J is the Hessian of max_Ω."""
    j = jacobian(s, case)
    _expect_jacobian(s, worst(j - j.mT) <= 1e-9 * (1 + worst(j)), "J = Jᵀ", j)


@searched(exact)
def check_jacobian_psd(s: Subject, case: Case) -> None:
    """J ⪰ 0: max_Ω is convex."""
    j = jacobian(s, case)
    least = torch.linalg.eigvalsh((j + j.mT) / 2) if bool(torch.isfinite(j).all()) else j
    fine = bool((least >= -1e-9 * (1 + worst(j))).all())
    _expect_jacobian(s, fine, f"no negative eigenvalue; they are {least.tolist()}", j)


@searched(exact)
def check_jacobian_rows_sum_to_zero(s: Subject, case: Case) -> None:
    """J1 = 0, since Π_Ω(x + c) = Π_Ω(x), and 1ᵀJ = 0, since Σy = 1."""
    j = jacobian(s, case)
    off = max(worst(j.sum(-1)), worst(j.sum(-2)))
    _expect_jacobian(s, off <= 1e-9 * (1 + worst(j)), "J1 = 0 and 1ᵀJ = 0", j)


@searched(exact)
def check_jacobian_support(s: Subject, case: Case) -> None:
    """J_kj = 0 exactly where y_k = 0 or y_j = 0."""
    j = jacobian(s, case)
    zero = s.pi(case.x, case.gamma, case.mask) == 0
    off = zero.unsqueeze(-1) | zero.unsqueeze(-2)
    _expect_jacobian(s, bool((j[off] == 0).all()), "0 off the support of y", j)


def _expect_jacobian(s: Subject, holds: bool, expected: str, j: Tensor) -> None:
    if not holds:
        raise Broken(expected, f"J = ∂y/∂x = {j.tolist()}", slope_at(s))


@searched()
def check_jacobian_finite_differences(s: Subject, case: Case) -> None:
    """Backward gives the derivative of y."""
    kept = smooth_rows(s, case)
    if kept is None:
        return
    found, columns = jacobian(s, kept), []
    for move in torch.eye(kept.x.shape[-1], dtype=kept.x.dtype, device="cpu"):

        def f(t: float, move: Tensor = move) -> Tensor:
            return s.pi(kept.x + t * move, kept.gamma, kept.mask)

        columns.append(slope(f, STEP * kept.gamma))
    expected = torch.stack(columns, -1)
    if worst(found - expected) > rough(s, kept) * (1 + worst(expected)) / min(kept.gamma, 1.0):
        raise Broken(
            f"∂y/∂x by differences: {expected.tolist()}",
            f"by backward: {found.tolist()}, off by {worst(found - expected):.3g}",
            slope_at(s),
        )


@searched(exact)
def check_vjp_is_jvp(s: Subject, case: Case) -> None:
    """Forward mode and backward have the same Jacobian: ⟨v, Ju⟩ = ⟨Jᵀv, u⟩."""
    u = case.direction()
    layer = s.layer(case.gamma)
    expected = (jacobian(s, case) @ u.unsqueeze(-1)).squeeze(-1)
    allowed = 1e-9 * (1 + worst(expected))
    by_func = torch.func.jvp(lambda x: layer(x, case.mask), (case.x,), (u,))[1]
    with forward_ad.dual_level():
        dual = layer(forward_ad.make_dual(case.x, u), case.mask)
        by_dual = forward_ad.unpack_dual(dual).tangent
    for found, what in ((by_func, "torch.func.jvp"), (by_dual, "torch.autograd.forward_ad")):
        if found is None or worst(found - expected) > allowed:
            raise Broken(
                f"Ju of the J that backward has: {expected.tolist()}",
                f"{what}: {'none' if found is None else found.tolist()}",
                f"{slope_at(s)}, {s.where('closed_form')}",
                u=u,
            )


@searched(exact, costly=True)
def check_transforms(s: Subject, case: Case) -> None:
    """torch.func.vmap, jacrev and jacfwd of the mapping agree with plain calls."""
    layer = s.layer(case.gamma)
    y, j = s.pi(case.x, case.gamma, case.mask), jacobian(s, case)
    slack = s.slack(case.x, case.gamma, case.mask)
    args = (case.x,) if case.mask is None else (case.x, case.mask)

    def expect(found: Tensor, expected: Tensor, allowed: Tensor | float, what: str) -> None:
        if not bool(((found - expected).abs() <= allowed).all()):
            raise Broken(
                f"{what} as without it: {expected.tolist()}", found, f"{closed(s)}, {slope_at(s)}"
            )

    expect(torch.func.vmap(layer)(*args), y, slack, "torch.func.vmap")
    allowed = 1e-9 * (1 + worst(j))
    for name in ("jacrev", "jacfwd"):
        transform = getattr(torch.func, name)(layer)
        one = transform(*(t[0] for t in args))
        expect(one, j[0], allowed, f"torch.func.{name}")
        expect(torch.func.vmap(transform)(*args), j, allowed, f"torch.func.vmap of {name}")


# -- in γ and the hyperparameters ------------------------------------------------------------------

Values = dict[str, Tensor]


def parameters(s: Subject, case: Case) -> Values:
    """γ, the hyperparameters and the floating tensors of Ω, by dotted name, in float64."""
    found: Values = {"gamma": torch.tensor(case.gamma, dtype=torch.float64, device="cpu")}
    for prefix, name, owner in s.omega.declared():
        item = torch.as_tensor(getattr(owner, name), dtype=torch.float64, device=case.x.device)
        found[prefix + name] = item.detach().clone()
    for key, item in s.omega.tensors(fixed=True).items():
        if key not in found and item.dtype.is_floating_point:
            found[key] = item.detach().double().clone()
    return found


def mapped(s: Subject, x: Tensor, mask: Tensor | None, values: Values) -> Tensor:
    """Π_Ω(x) with these values."""
    inside = {key: t for key, t in values.items() if key != "gamma"}
    omega = s.omega.with_tensors(inside)
    y: Tensor = layer_of(omega, values["gamma"])(x, mask)
    return y


def along(values: Values, key: str, t: float, direction: Tensor) -> Values:
    return {**values, key: values[key] + t * direction}


def directions(values: Values, seed: int) -> Values:
    """One direction for each value: 1 for a number, random for a tensor."""
    return {
        key: torch.ones_like(t) if t.ndim == 0 else normal(*t.shape, seed=seed)
        for key, t in values.items()
    }


def stencil(f: Callable[[float], Tensor], h: float) -> tuple[tuple[float, float], ...]:
    """(offset, weight) pairs for f'(0): central differences, or one-sided if f has a boundary."""
    for pairs in (CENTRAL, FORWARD, tuple((-k, -c) for k, c in FORWARD)):
        try:
            if all(bool(torch.isfinite(f(k * h)).all()) for k, _ in pairs):
                return tuple((k * h, c / h) for k, c in pairs)
        except (ValueError, ArithmeticError):
            continue
    raise Broken("finite values at some side of the hyperparameter", "none", "the hyperparameter")


def slope(f: Callable[[float], Tensor], h: float) -> Tensor:
    """f'(0) by differences."""
    return torch.stack([c * f(t) for t, c in stencil(f, h)]).sum(0)


def steady(s: Subject, case: Case, f: Callable[[float], Tensor], h: float) -> Tensor:
    """Which rows have constant support and groups over the stencil, (rows, 1)."""
    with torch.no_grad():
        here = pattern(s, f(0.0))
        seen = [pattern(s, f(k)) for k, _ in stencil(f, 2 * h)]
    return torch.stack([(p == here).all(-1) for p in seen]).all(0).unsqueeze(-1)


@searched(costly=True)
def check_hyperparameter_gradients(s: Subject, case: Case) -> None:
    """The gradients of γ and of every hyperparameter are the derivatives of ⟨v, y⟩."""
    kept = smooth_rows(s, case)
    if kept is None:
        return
    values, h = parameters(s, kept), STEP / 2
    for key, direction in directions(values, kept.seed).items():

        @functools.cache
        def f(t: float, key: str = key, direction: Tensor = direction) -> Tensor:
            with torch.no_grad():
                return mapped(s, kept.x, kept.mask, along(values, key, t, direction))

        v = torch.where(steady(s, kept, f, h), kept.direction(), 0)
        expected = float((v * slope(f, h)).sum())
        leaf = values[key].clone().requires_grad_()
        y = mapped(s, kept.x, kept.mask, {**values, key: leaf})
        found = _scalar_gradient((v * y).sum(), leaf, direction)
        if not abs(found - expected) <= rough(s, kept) * (1 + abs(expected)) * 10:
            raise Broken(
                f"∂⟨v, y⟩/∂{key} by differences: {expected!r}",
                f"by backward: {found!r}",
                f"{s.where('grad')} and {s.where('value')} as functions of {key}",
                v=v,
                **({} if direction.ndim == 0 else {"direction": direction}),
            )


def _scalar_gradient(total: Tensor, leaf: Tensor, direction: Tensor) -> float:
    if not total.requires_grad:
        return 0.0
    (g,) = torch.autograd.grad(total, leaf, allow_unused=True, materialize_grads=True)
    return float((g * direction).sum())


@searched(lambda s: any(True for _ in s.omega.declared()))
def check_hyperparameters_per_row(s: Subject, case: Case) -> None:
    """A hyperparameter with one entry per row gives each row the answer for its number."""
    slack = s.slack(case.x, case.gamma, case.mask)
    n = len(case.x)
    for prefix, plain, owner in s.omega.declared():
        name = prefix + plain
        number = torch.as_tensor(getattr(owner, plain), dtype=torch.float64, device="cpu").detach()
        holds = owner.ranges[plain][1] if plain in owner.ranges else torch.isfinite
        spreads = [
            number.reshape(-1)[0] * torch.linspace(1, end, n, device="cpu").double().unsqueeze(-1)
            for end in (0.95, 1.05, 1.0)
        ]
        per_row = next((t for t in spreads if bool(holds(t).all())), spreads[-1])

        def answer(value: Tensor, rows: Case, name: str = name) -> Tensor:
            omega = s.omega.with_tensors({name: value})
            with torch.no_grad():
                y: Tensor = layer_of(omega, rows.gamma)(rows.x, rows.mask)
            return y

        found = answer(per_row, case)
        alone = [
            answer(per_row[i, 0], case.rows(torch.tensor([i], device="cpu"))) for i in range(n)
        ]
        if bool(((found - torch.cat(alone)).abs() > slack + 1e-12).any()):
            raise Broken(
                f"{torch.cat(alone).tolist()}, with one {name} after the other",
                f"{found.tolist()} with {name} of shape {tuple(per_row.shape)}",
                f"{s.name}, where it uses {name}",
                **{name: per_row},
            )


@searched(costly=True)
def check_double_backward(s: Subject, case: Case) -> None:
    """Second derivatives in x, γ and the hyperparameters are correct, and finite where y_i = 0."""
    values = parameters(s, case)
    _second(s, case, values, torch.ones_like(case.x[:, :1], dtype=torch.bool))  # finite at kinks
    kept = smooth_rows(s, case)
    if kept is None:
        return
    h = STEP / 2
    toward = {**directions(values, kept.seed), "x": kept.direction(2)[1]}
    values = {**values, "x": kept.x}
    steps = {key: h * (kept.gamma if key == "x" else 1.0) for key in values}

    @functools.cache
    def moved(key: str, t: float) -> Tensor:
        with torch.no_grad():
            at = along(values, key, t, toward[key])
            return mapped(s, at.pop("x"), kept.mask, at)

    keep = torch.stack(
        [steady(s, kept, functools.partial(moved, key), steps[key]) for key in values]
    ).all(0)
    found = _second(s, kept, values, keep)
    for key in values:
        expected = sum(
            c * float(_first(s, kept, along(values, key, t, toward[key]), keep)[0].detach())
            for t, c in stencil(functools.partial(moved, key), steps[key])
        )
        got = float((found[key] * toward[key]).sum())
        if not abs(got - expected) <= 20 * rough(s, kept) * (1 + abs(expected)):
            raise Broken(
                f"the derivative along {key} of ⟨w, ∇⟨v, y⟩⟩ by differences: {expected!r}",
                f"by double backward: {got!r}",
                f"{slope_at(s)}: differentiable by autograd?",
            )


def _first(s: Subject, case: Case, values: Values, keep: Tensor) -> tuple[Tensor, Values]:
    """⟨w, ∇⟨v, y⟩⟩ over x, γ and the hyperparameters, and the leaves of these."""
    leaves = {"x": case.x, **values}
    leaves = {key: t.detach().clone().requires_grad_() for key, t in leaves.items()}
    y = mapped(s, leaves["x"], case.mask, {k: t for k, t in leaves.items() if k != "x"})
    total = (torch.where(keep, case.direction(), 0) * y).sum()
    gradients = torch.autograd.grad(
        total, list(leaves.values()), create_graph=True, materialize_grads=True
    )
    terms = [(g * normal(*g.shape, seed=7 + i + case.seed)).sum() for i, g in enumerate(gradients)]
    return torch.stack(terms).sum(), leaves


def _second(s: Subject, case: Case, values: Values, keep: Tensor) -> Values:
    """The derivatives of ⟨w, ∇⟨v, y⟩⟩."""
    total, leaves = _first(s, case, values, keep)
    if not total.requires_grad:
        return {key: torch.zeros_like(t) for key, t in leaves.items()}
    found = torch.autograd.grad(
        total, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    for key, g in zip(leaves, found, strict=True):
        if not bool(torch.isfinite(g).all()):
            raise Broken(
                "finite second derivatives, where y_i = 0 too",
                f"{g.tolist()} for {key}",
                slope_at(s),
            )
    return dict(zip(leaves, found, strict=True))
