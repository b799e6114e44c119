"""J of Proposition 1 for a curvature that is known by its products alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import rowwise
from ..kernels.simplex import row_dot

Product = Callable[[Tensor], Tensor]
PROBES = 4


def scaling(product: Product, like: Tensor) -> Tensor:
    """s with s_i² ≈ 1/‖H_i‖, the rows of H by a few products with vectors of ±1.

    SHS is nearly as well conditioned as a diagonal scaling makes it: near an entropy H has 1/y on
    its diagonal.
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
    """J v, the solution w of H_SS w + τ1 = v_S, 1ᵀw = 0, w = 0 off S, every row to its own last
    bits; and the least Rayleigh quotient of SHS met on the way, one per row (+inf where
    there was none; not positive where H is not positive definite).

    With w = s ∘ u the constraint is ⟨s, u⟩ = 0: conjugate gradients on that hyperplane.
    """
    with torch.no_grad():
        s = torch.where(support, scale, 0)
        q = s / rowwise.norm(s).clamp_min(torch.finfo(s.dtype).tiny)

        def projected(u: Tensor) -> Tensor:
            u = torch.where(support, u, 0)
            for _ in range(2):  # the second takes away what rounding left
                u = u - q * row_dot(q, u)
            return u

        v = s * torch.where(support, v.detach(), 0)
        r = projected(v)
        u, direction = torch.zeros_like(r), r
        rr = row_dot(r, r)
        target = row_dot(v, v) * torch.finfo(r.dtype).eps ** 2
        least = torch.full_like(rr, torch.inf)
        active = rr > target
        for _ in range(4 * r.shape[-1] + 20):
            if not bool(active.any()):
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
