"""The promise of a kernel: it computes what its reference implementation computes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import reference
from ..mapping import function
from ..mapping.methods.base import Method
from ..mapping.methods.kernel import bare, kernel_of, kernel_of_rows, loss
from ..regularizers.penalty import Penalized
from .derivatives import mapped, parameters
from .promise import Broken, Case, searched, worst
from .subject import Subject


def _offers(s: Subject) -> bool:
    row = torch.zeros(1, 1, dtype=torch.float64, device="cpu")
    return kernel_of_rows(bare(s.omega, 1.0)[0], row) is not None


@searched(_offers)
def check_kernel(s: Subject, case: Case) -> None:
    """Π_Ω(x), Jv and the gradients of the hyperparameters equal those of the reference
    implementation."""
    look = s.where("kernel")
    for dtype, eps, close in ((torch.float64, 2e-15, 1e-9), (torch.float32, 2e-7, 2e-3)):
        x = case.x.to(dtype)
        with torch.no_grad():
            y = s.layer(case.gamma)(x, case.mask)
            with reference():
                expected = s.layer(case.gamma)(x, case.mask)
            slack = s.slack(x.double(), case.gamma, case.mask, eps)
        if bool(((y - expected).abs() > slack).any()) or bool(
            (y.isnan() != expected.isnan()).any()
        ):
            raise Broken(
                f"the closed form in PyTorch: {expected.tolist()}",
                f"{y.tolist()} by the kernel, in {dtype}",
                look,
            )
        _check_loss(s, case, x, y, close, look)
        v = case.direction().to(dtype)
        if isinstance(s.omega, Penalized):
            names, found, right = _composed(s, case, x, v)
        else:
            names = ("x", *(s.omega.hyperparameters or ()))
            found, right = _gradients(s, case, y, v)
            with torch.enable_grad():  # by an operator of PyTorch, where the kernel has one
                leaf = x.clone().requires_grad_()
                (through,) = torch.autograd.grad(s.layer(case.gamma)(leaf, case.mask), leaf, v)
            names, found, right = (*names, "x"), [*found, through], [*right, right[0]]
        for name, a, b in zip(names, found, right, strict=True):
            if a is None or b is None:
                continue
            size = 1 + worst(b) + worst(found[0] if found[0] is not None else b)
            if worst(a - b) > close * size:
                raise Broken(
                    f"the gradient of {name} by PyTorch operations: {b.tolist()}",
                    f"{a.tolist()} by the kernel's backward, in {dtype}",
                    look,
                    y=y,
                )


def _check_loss(s: Subject, case: Case, x: Tensor, y: Tensor, close: float, look: str) -> None:
    """The losses of a vertex and of half of it with half of the uniform distribution, and their
    gradients, where the kernel computes them."""
    kernel = kernel_of(s.omega, x)
    if kernel is None or case.mask is not None:
        return
    rows, k = x.reshape(-1, x.shape[-1]), x.reshape(-1, x.shape[-1]).argmin(-1, keepdim=True)
    p = y.reshape(rows.shape).double()
    vertex = torch.zeros_like(p).scatter(-1, k, 1)
    part = p.clamp_min(1e-300) if s.omega.ignores_zeros else p
    for name, target, t in (
        ("e_k", k, vertex),
        ("t", (vertex + 1 / p.shape[-1]).to(x.dtype), (vertex + 1 / p.shape[-1]) / 2),
    ):
        found = loss(kernel, s.omega, rows, target, case.gamma)
        if found is None:
            continue
        mass = 1.0 if target is k else 2.0
        change = (p - t) * (rows.double() - rows.double().amax(-1, keepdim=True)).clamp_min(-1e300)
        right = change.sum(-1) + case.gamma * (s.omega.value(t) - s.omega.value(part))
        right, g, size = mass * right, mass * (p - t), 1 + worst(right) + worst(change)
        if worst(found[0] - right) > close * size or worst(found[1] - g) > close:
            raise Broken(
                f"losses {right.tolist()} by Ω's value, with the gradients y − {name}",
                f"{found[0].tolist()} by the kernel, with {found[1].tolist()}",
                look,
                y=y,
            )


def _gradients(
    s: Subject, case: Case, y: Tensor, v: Tensor
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The gradients of x and θ at y, by the kernel and by PyTorch operations."""
    kernel = kernel_of(s.omega, y)
    assert kernel is not None
    theta = [
        torch.as_tensor(getattr(s.omega, name), dtype=y.dtype, device=y.device).requires_grad_()
        for name in s.omega.hyperparameters or ()
    ]
    own, wants = Method(kernel, s.omega, (case.gamma, *(None for _ in theta))), [True] * len(theta)
    with torch.no_grad():
        gx, dtheta = function.gradients(own, y, case.mask, v, theta, wants)
    with torch.enable_grad():
        hx, dright = own.differentiable(y, case.mask, v, theta, wants)
    return [gx, *dtheta], [hx.detach(), *(None if t is None else t.detach() for t in dright)]


def _composed(
    s: Subject, case: Case, x: Tensor, v: Tensor
) -> tuple[tuple[str, ...], list[Tensor | None], list[Tensor | None]]:
    """The gradients of x, γ and the hyperparameters, by kernels and by PyTorch operations."""

    def gradients() -> list[Tensor | None]:
        leaves = {k: t.to(x.dtype) for k, t in {"x": x, **parameters(s, case)}.items()}
        leaves = {k: t.detach().clone().requires_grad_() for k, t in leaves.items()}
        inside = {k: t for k, t in leaves.items() if k != "x"}
        with torch.enable_grad():
            y = mapped(s, leaves["x"], case.mask, inside)
        return list(torch.autograd.grad(y, list(leaves.values()), v, materialize_grads=True))

    found = gradients()
    with reference():
        right = gradients()
    return ("x", *parameters(s, case)), found, right
