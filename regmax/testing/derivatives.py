"""Promises of derivatives: first and second derivatives of Π_Ω in the scores, γ and every
hyperparameter, in backward and forward mode and under torch.func.

Differences, by :func:`torch.autograd.gradcheck`, are of rows whose support and groups do not change
nearby.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck

from .inputs import normal
from .layout import closed
from .promise import Broken, agree, searched, worst
from .search import Case
from .subject import Subject, exact, layer_of

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

    return s.remember("jacobian", backward, case.x, case.gamma, case.mask)


@searched(exact)
def check_jacobian(s: Subject, case: Case) -> None:
    """J = ∂y/∂x is symmetric and positive semidefinite, as the Hessian of max_Ω; J1 = 0, since
    Π_Ω(x + c) = Π_Ω(x); and J_kj = 0 exactly where y_k = 0 or y_j = 0."""
    j = jacobian(s, case)
    noise = 1e-9 * (1 + worst(j))
    zero = s.pi(case.x, case.gamma, case.mask) == 0
    off = zero.unsqueeze(-1) | zero.unsqueeze(-2)
    least = torch.linalg.eigvalsh(torch.nan_to_num(j + j.mT) / 2)
    for holds, expected in (
        (worst(j - j.mT) <= noise, "J = Jᵀ"),
        (bool((least >= -noise).all()), f"no negative eigenvalue; they are {least.tolist()}"),
        (max(worst(j.sum(-1)), worst(j.sum(-2))) <= noise, "J1 = 0 and 1ᵀJ = 0"),
        (bool((j[off] == 0).all()), "0 off the support of y"),
    ):
        if not holds:
            raise Broken(expected, f"J = ∂y/∂x = {j.tolist()}", slope_at(s))


@searched()
def check_jacobian_finite_differences(s: Subject, case: Case) -> None:
    """Backward and forward mode give the derivative of y."""
    kept = smooth_rows(s, case)
    if kept is None:
        return
    layer = s.layer(kept.gamma)

    def f(t: Tensor) -> Tensor:
        return blend(layer(kept.x + t, kept.mask))

    with differences(s, kept, "∂y/∂x", slope_at(s)) as settings:
        t = torch.zeros_like(kept.x[0]).requires_grad_()
        gradcheck(f, t, check_forward_ad=s.omega.exact, **settings)


def blend(y: Tensor) -> Tensor:
    """The rows of y in one, (d,), with weights 1, ½, ⅓, …: an error in each shows, by one pass for
    all."""
    rank = torch.arange(1, len(y) + 1, dtype=y.dtype, device="cpu")
    return (y / rank.unsqueeze(-1)).sum(0)


@contextlib.contextmanager
def differences(s: Subject, case: Case, what: str, look: str) -> Iterator[dict[str, Any]]:
    """The step and the tolerances of differences of answers with this bound on their error; around
    what compares them with ``what``."""
    step, error = 1e-5, 1e-6
    if not s.has_formula:
        bound = s.bound(s.pi(case.x, case.gamma, case.mask), case.x, case.gamma, case.mask)
        noise = min(worst(bound), 1e-7)
        step = 1e-5 if noise <= 1e-12 else 1e-4
        error += 4 * noise / step
    size = (1 + worst(jacobian(s, case))) / min(case.gamma, 1.0)
    try:
        yield {"eps": step, "atol": error * size, "rtol": error, "check_undefined_grad": False}
    except GradcheckError as found:
        raise Broken(f"{what} by differences", f"{found}", look) from found


@searched(exact, costly=True)
def check_transforms(s: Subject, case: Case) -> None:
    """torch.func.vmap, jacrev and jacfwd of the mapping agree with plain calls."""
    layer = s.layer(case.gamma)
    y, j = s.pi(case.x, case.gamma, case.mask), jacobian(s, case)
    slack = s.slack(case.x, case.gamma, case.mask)
    args = (case.x,) if case.mask is None else (case.x, case.mask)

    look, near = f"{closed(s)}, {slope_at(s)}", 1e-9 * (1 + worst(j))
    agree(torch.func.vmap(layer)(*args), y, slack, "Π(x)", "that of torch.func.vmap", look)
    for name in ("jacrev", "jacfwd"):
        transform = getattr(torch.func, name)(layer)
        one, many = transform(*(t[0] for t in args)), torch.func.vmap(transform)(*args)
        agree(one, j[0], near, "J", f"that of torch.func.{name}", look)
        agree(many, j, near, "J", f"that of torch.func.vmap of {name}", look)


# -- in γ and the hyperparameters ------------------------------------------------------------------


def parameters(s: Subject, case: Case) -> dict[str, Any]:
    """γ, the hyperparameters and the floating tensors of Ω, by dotted name, in float64."""
    found: dict[str, Any] = {"gamma": torch.tensor(case.gamma, dtype=torch.float64, device="cpu")}
    for prefix, name, owner in s.omega.declared():
        item = torch.as_tensor(getattr(owner, name), dtype=torch.float64, device=case.x.device)
        found[prefix + name] = item.detach().clone()
    for key, item in s.omega.tensors(fixed=True).items():
        if key not in found and item.dtype.is_floating_point:
            found[key] = item.detach().double().clone()
    return found


def mapped(s: Subject, x: Tensor, mask: Tensor | None, values: dict[str, Any]) -> Tensor:
    """Π_Ω(x) with these values."""
    inside = {key: t for key, t in values.items() if key != "gamma"}
    omega = s.omega.with_tensors(inside)
    y: Tensor = layer_of(omega, values["gamma"])(x, mask)
    return y


def inside(s: Subject, case: Case) -> dict[str, Any]:
    """The values, each moved a little where it is at an end of its range."""
    values = parameters(s, case)
    for prefix, name, owner in s.omega.declared():
        t, holds = values[prefix + name], owner.ranges.get(name, ("", torch.isfinite))[1]
        near = (t, t - 1e-3, t + 1e-3)
        fits = (u for u in near if all(bool(holds(u + h).all()) for h in (-5e-4, 5e-4)))
        values[prefix + name] = next(fits, t)
    return values


@searched(costly=True)
def check_hyperparameter_gradients(s: Subject, case: Case) -> None:
    """The gradients of γ and of every hyperparameter are the derivatives of y."""
    kept = smooth_rows(s, case)
    if kept is None:
        return
    values = inside(s, kept)
    for key, t in values.items():

        def f(t: Tensor, key: str = key) -> Tensor:
            return blend(mapped(s, kept.x, kept.mask, {**values, key: t}))

        look = f"{s.where('grad')} and {s.where('value')} as functions of {key}"
        with differences(s, kept, f"∂y/∂{key}", look) as settings:
            gradcheck(f, t.clone().requires_grad_(), **settings)


@searched(lambda s: any(True for _ in s.omega.declared()))
def check_hyperparameters_per_row(s: Subject, case: Case) -> None:
    """A hyperparameter with one entry per row gives each row the answer for its number."""
    slack, values = s.slack(case.x, case.gamma, case.mask), parameters(s, case)
    gamma, n = case.gamma, len(case.x)
    for prefix, plain, owner in s.omega.declared():
        name = prefix + plain
        number, holds = values[name], owner.ranges.get(plain, ("", torch.isfinite))[1]
        spreads = [
            number.reshape(-1)[0] * torch.linspace(1, end, n, device="cpu").double().unsqueeze(-1)
            for end in (0.95, 1.05, 1.0)
        ]
        per_row = next((t for t in spreads if bool(holds(t).all())), spreads[-1])
        with torch.no_grad():
            found = mapped(s, case.x, case.mask, {"gamma": gamma, name: per_row})
            alone = [
                mapped(s, row.x, row.mask, {"gamma": gamma, name: per_row[i, 0]})
                for i, row in enumerate(case.rows([i]) for i in range(n))
            ]
        right, how = f"Π(x) with one {name} after the other", f"that with {name} for each row"
        look = f"{s.name}, where it uses {name}"
        agree(found, torch.cat(alone), slack + 1e-12, right, how, look, **{name: per_row})


@searched(costly=True)
def check_double_backward(s: Subject, case: Case) -> None:
    """Second derivatives in x, γ and the hyperparameters are correct, and finite where y_i = 0."""
    _finite_second(s, case)
    kept = smooth_rows(s, case)
    if kept is None:
        return
    values = {"x": kept.x, **inside(s, kept)}

    def f(*leaves: Tensor) -> Tensor:
        at = dict(zip(values, leaves, strict=True))
        return mapped(s, at.pop("x"), kept.mask, at)

    look = f"{slope_at(s)}: differentiable by autograd?"
    with differences(s, kept, f"∂²⟨v, y⟩ in {', '.join(values)}", look) as settings:
        leaves = [t.clone().requires_grad_() for t in values.values()]
        gradgradcheck(f, leaves, kept.direction(), fast_mode=True, **settings)


def _finite_second(s: Subject, case: Case) -> None:
    leaves = {"x": case.x, **parameters(s, case)}
    leaves = {key: t.detach().clone().requires_grad_() for key, t in leaves.items()}
    y = mapped(s, leaves["x"], case.mask, {k: t for k, t in leaves.items() if k != "x"})
    each, v = list(leaves.values()), case.direction()
    first = torch.autograd.grad(y, each, v, create_graph=True, materialize_grads=True)
    total = torch.stack([(g * normal(*g.shape, seed=7 + i)).sum() for i, g in enumerate(first)])
    if not total.requires_grad:
        return
    second = torch.autograd.grad(total.sum(), each, materialize_grads=True)
    for key, g in zip(leaves, second, strict=True):
        if not bool(torch.isfinite(g).all()):
            raise Broken(
                "finite second derivatives, where y_i = 0 too",
                f"{g.tolist()} for {key}",
                slope_at(s),
            )
