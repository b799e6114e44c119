"""J of Proposition 1 for a curvature given only by its products with vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import decisions, rowwise
from ..kernels.simplex import row_dot, tangent

Product = Callable[[Tensor], Tensor]
PROBES = 4


def scaling(product: Product, like: Tensor) -> Tensor:
    """s with s_i² ≈ 1/‖H_i‖; the norms of the rows of H from a few products with vectors of ±1.

    SHS is nearly as well conditioned as any diagonal scaling can make it. An entropy, with 1/y on
    the diagonal of H, needs this.
    """
    steps = torch.arange(1, like.shape[-1] + 1, dtype=torch.float64, device=like.device)
    squares = torch.zeros_like(like)
    for k in range(PROBES):
        signs = torch.where((steps * (2.399963 + k)).sin() >= 0, 1.0, -1.0).to(like)
        squares = squares + product(signs.expand(like.shape)).detach().square()
    size = (squares / PROBES).sqrt()
    info = torch.finfo(like.dtype)
    return torch.nan_to_num(size, nan=1.0).clamp(info.tiny, info.max).rsqrt()


def solve(product: Product, v: Tensor, support: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """J v, the solution w of H_SS w + τ1 = v_S, 1ᵀw = 0, w = 0 off S, up to rounding in every row.

    Also returns, per row, the least Rayleigh quotient of SHS over the search directions: +inf
    without a direction, not positive if H was found not to be positive definite.

    With w = s ∘ u the constraint is ⟨s, u⟩ = 0: conjugate gradients on that hyperplane.
    """
    with torch.no_grad():
        s = torch.where(support, scale, 0)
        q = s / rowwise.norm(s).clamp_min(torch.finfo(s.dtype).tiny)

        def projected(u: Tensor) -> Tensor:
            u = torch.where(support, u, 0)
            for _ in range(2):  # the second pass removes the rounding error of the first
                u = u - q * row_dot(q, u)
            return u

        v = s * torch.where(support, v.detach(), 0)
        r = projected(v)
        u, direction = torch.zeros_like(r), r
        rr = row_dot(r, r)
        target = row_dot(v, v) * torch.finfo(r.dtype).eps ** 2
        least = torch.full_like(rr, torch.inf)
        active = rr > target
        for k in range(4 * r.shape[-1] + 20):
            if decisions.due(k, r) and not decisions.read(active)[0]:
                break
            hd = projected(s * product(s * direction).detach())
            curvature = row_dot(direction, hd)
            quotient = curvature / torch.where(active, row_dot(direction, direction), 1)
            least = torch.where(active, torch.minimum(least, quotient), least)
            active = active & (curvature > 0)
            step = torch.where(active, rr / torch.where(active, curvature, 1), 0)
            u, r = u + step * direction, projected(r - step * hd)
            new = row_dot(r, r)
            ratio = torch.where(active, new / torch.where(active, rr, 1), 0)
            direction = torch.where(active, r + ratio * direction, direction)
            rr = torch.where(active, new, rr)
            active = active & (rr > target)
        return s * u, least.squeeze(-1)


def least_eigenvalue(product: Product, support: Tensor, scale: Tensor) -> Tensor:
    """An estimate from below of the least eigenvalue of H along {w : 1ᵀw = 0, w = 0 off S}, one per
    row; not positive if H was found not to be positive definite there.

    Power iteration for the largest eigenvalue of J approaches it from below, so half of the inverse
    is taken.
    """
    generator = torch.Generator(support.device).manual_seed(0)
    probe = torch.randn(
        support.shape[-1], generator=generator, device=support.device, dtype=scale.dtype
    )
    w = tangent(probe.expand(support.shape), support)
    norm, least = torch.zeros_like(w[..., 0]), torch.full_like(w[..., 0], torch.inf)
    for _ in range(6):
        w = w / rowwise.norm(w).clamp_min(torch.finfo(w.dtype).tiny)
        w, quotient = solve(product, w, support, scale)
        norm, least = rowwise.norm(w).squeeze(-1), torch.minimum(least, quotient)
    return torch.where(least > 0, 0.5 / norm, least)
