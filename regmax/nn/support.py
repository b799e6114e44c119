"""Attention where few weights are not 0: values and gradients of the support alone, on the CPU.

The forward pass keeps the columns of the support. Backward computes its scores, and Π_Ω of them:
Ω depends on the positive entries alone, so these are the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..kernels import asked, transforms

if TYPE_CHECKING:
    from ..kernels.cpu.sparse import Columns

SHARE = 8
"""One weight in so many may differ from 0: otherwise dense products take less time."""


def of(parts: Any, q: Tensor, k: Tensor, v: Tensor) -> Support | None:
    """The products of a call; None where the support does not tell all, or no kernel is there."""
    plan, omega = parts.plan, parts.omega
    grouped = 3 if plan.enable_gqa else 2
    if (
        not (q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64))
        or not (q.device.type == "cpu" and asked() and omega.ignores_zeros)
        or transforms.autocasting("cpu")
        or plan.dropout
        or plan.certify
        or not q.shape[:-grouped] == k.shape[:-grouped] == v.shape[:-grouped]
        or k.shape[:-1] != v.shape[:-1]
        or not (q.numel() and k.numel() and v.numel())
        # what a weight of 0 makes of NaN or inf is left to dense products
        or not bool(torch.isfinite(k.sum() + v.sum()))
    ):
        return None
    try:
        return Support(parts, k, v)
    except ModuleNotFoundError:  # numba
        return None


class Support:
    """The products of a call with keys and values (H, S, E)."""

    def __init__(self, parts: Any, k: Tensor, v: Tensor) -> None:
        from ..kernels.cpu import sparse

        self.sparse, self.parts = sparse, parts
        self.k, self.v = (t.detach().reshape(-1, *t.shape[-2:]).contiguous() for t in (k, v))

    def averages(self, weights: Tensor) -> tuple[Tensor, Columns] | None:
        """The averages of v, and where the weights are not 0; None where many are not."""
        rows = weights.detach().reshape(-1, weights.shape[-1])
        found = self.sparse.averages(rows, self.v, SHARE)
        return found and (found[0].view(*weights.shape[:-1], -1), found[1])

    def gradients(
        self, given: list[Any], wants: Any, g: Tensor, columns: Columns, dk: Tensor, dv: Tensor
    ) -> list[Any]:
        """The gradients of a chunk's tensors; those of k and v are added to dk and dv (H, S, E)."""
        q, _, _, mask, *rest = given
        scale, shape = self.parts.plan.scale, (*q.shape[:-1], columns.index.shape[1])
        if not shape[-1]:
            return [None] * len(given)
        rows = (q.detach() * scale).reshape(-1, q.shape[-1]).contiguous()
        g = g.reshape(-1, g.shape[-1]).contiguous()
        with torch.enable_grad():
            s = columns.dots(rows, self.k, -torch.inf).view(shape).requires_grad_()
            mask, *rest = leaves((mask, *rest), wants[3:])
            bias = None
            if isinstance(mask, Tensor) and mask.is_floating_point():
                bias = columns.of(mask.expand(*shape[:-1], self.k.shape[1]))
            weights = self.parts.weights(None, s, [bias, *rest])
        dweights = columns.dots(g, self.v, 0.0).view(shape)
        learnt = learning((s, mask, *rest))
        ds, *found = torch.autograd.grad(weights, learnt, dweights, allow_unused=True)
        y = weights.detach().reshape(len(rows), -1).contiguous()
        slopes = ds.reshape(len(rows), -1).contiguous()
        dq = columns.add_gradients(slopes, y, rows, g, self.k, dk, dv)
        return [(dq * scale).view(q.shape), None, None, *spread((mask, *rest), found)]


def leaves(tensors: Sequence[Any], wants: Sequence[bool]) -> list[Any]:
    """The tensors without their graph; those that are wanted require grad."""
    pairs = zip(tensors, wants, strict=True)
    return [t.detach().requires_grad_(w) if isinstance(t, Tensor) else t for t, w in pairs]


def learning(items: Sequence[Any]) -> list[Tensor]:
    return [t for t in items if isinstance(t, Tensor) and t.requires_grad]


def spread(items: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """The gradients of the items that require one, None for the others."""
    each = iter(found)
    return [next(each) if isinstance(t, Tensor) and t.requires_grad else None for t in items]
