"""Promises about other ways to compute the same: by a kernel, and from parts of rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import reference
from ..losses.loss import FenchelYoungLoss
from ..mapping import shards
from ..mapping.methods.kernel import bare, kernel_of
from .derivatives import mapped, parameters
from .promise import agree, searched, worst
from .search import Case
from .subject import Subject


def _offers(s: Subject) -> bool:
    row = torch.zeros(1, 1, dtype=torch.float64, device="cpu")
    return kernel_of(bare(s.omega, 1.0)[0], row) is not None


@searched(_offers)
def check_kernel(s: Subject, case: Case) -> None:
    """Π_Ω(x), Jv, the gradients of the hyperparameters and the losses equal those of the reference
    implementation."""
    look = s.where("kernel")
    for dtype, eps, close in ((torch.float64, 2e-15, 1e-9), (torch.float32, 2e-7, 2e-3)):
        x, v = case.x.to(dtype), case.direction().to(dtype)
        with torch.no_grad():
            y = s.layer(case.gamma)(x, case.mask)
            with reference():
                expected = s.layer(case.gamma)(x, case.mask)
            slack = s.slack(x.double(), case.gamma, case.mask, eps)
        by = f"that of the kernel, in {dtype}"
        agree(y, expected, slack, "the closed form in PyTorch", by, look)
        found = _gradients(s, case, x, v)
        with reference():
            right = _gradients(s, case, x, v)
        for name, g in right.items():
            size = 1 + worst(g) + worst(found["x"])
            agree(found[name], g, close * size, f"{name} by PyTorch operations", by, look, y=y)


def _gradients(s: Subject, case: Case, x: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Jv where x alone requires a gradient and where hyperparameters do too, with theirs; the
    losses of a vertex, and of half of it with half of the uniform distribution, with theirs."""
    found: dict[str, Tensor] = {}
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (found["x"],) = torch.autograd.grad(s.layer(case.gamma)(leaf, case.mask), leaf, v)
        leaves = {k: t.to(x.dtype).requires_grad_() for k, t in parameters(s, case).items()}
        y = mapped(s, leaf, case.mask, leaves)
        got = torch.autograd.grad(y, [leaf, *leaves.values()], v, materialize_grads=True)
        found |= {f"the gradient of {k}": g for k, g in zip(("x", *leaves), got, strict=True)}
        on = case.participants()
        k = torch.where(on, x, torch.inf).argmin(-1)
        vertex = torch.zeros_like(x).scatter(-1, k.unsqueeze(-1), 1)
        t = (vertex + on / on.sum(-1, keepdim=True).to(x.dtype)) / 2
        loss = FenchelYoungLoss(s.omega, case.gamma, dim=-1, reduction="none")
        for target in (k, t):
            value = loss(leaf, target, case.mask)
            (g,) = torch.autograd.grad(value.sum(), leaf)
            what = "the loss of e_k" if target is k else "the loss of ½(e_k + 1/d)"
            found |= {what: value.detach(), f"the gradient of {what}": g}
    return found


class _Halves(shards.Shards):
    """Two devices: the first halves of n rows, and below them the second halves."""

    def __init__(self, n: int) -> None:
        self.size, self._n = 2, n

    def reduced(self, t: Tensor, how: str) -> Tensor:
        at = max(i for i, size in enumerate(t.shape) if size == 2 * self._n)
        both = t.unflatten(at, (2, self._n))
        whole = both.sum(at, keepdim=True) if how == "sum" else both.amax(at, keepdim=True)
        found: Tensor = whole.expand(both.shape).flatten(at, at + 1)
        return found


def _in_parts(s: Subject, case: Case, v: Tensor) -> list[Tensor]:
    """y and Jv/γ, computed from the halves of each row."""
    n, d = case.x.shape

    def halves(t: Tensor, value: float) -> Tensor:
        return torch.cat(pad(t, (0, d % 2), value=value).chunk(2, -1))

    x = halves(case.x, -torch.inf).requires_grad_()
    mask = None if case.mask is None else halves(case.mask, 0)
    y = shards.mapping(s.omega, x, case.gamma, -1, mask, _Halves(n))
    (gx,) = torch.autograd.grad(y, x, halves(v, 0))
    return [torch.cat(t.detach().chunk(2), -1)[:, :d] for t in (y, gx)]


@searched(lambda s: shards.computes(s.omega), costly=True)
def check_sharded_form(s: Subject, case: Case) -> None:
    """Π_Ω(x) and Jv of rows in two parts, which add their sums, are those of whole rows."""
    look, v = s.where("sharded_form"), case.direction()
    x = case.x.detach().clone().requires_grad_()
    expected = s.layer(case.gamma)(x, case.mask)
    (gx,) = torch.autograd.grad(expected, x, v)
    y, own = _in_parts(s, case, v)
    slack = s.slack(case.x, case.gamma, case.mask)
    agree(y, expected, slack + 1e-12, "Π(x) of whole rows", "Π(x) of two parts", look)
    near = 1e-9 * (1 + worst(gx))
    agree(own, gx, near, "Jv of whole rows", "Jv of two parts", look, y=y)
