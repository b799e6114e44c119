"""An operation of PyTorch that is linear, as the matrices that it is of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .tape import Ref, Step, Unknown

WIDEST = 4096
"""Numbers of a tensor at most."""


def matrices(step: Step, values: Sequence[Tensor], refs: Sequence[Ref]) -> list[Tensor]:
    """The matrix by which the result, flat, depends on each of ``refs``, flat; or
    :class:`Unknown`."""
    unknown = Unknown(f"{step.op} has no translation")
    zeros = {
        ref.at: torch.zeros(values[ref.at].shape, dtype=torch.float64, device="cpu") for ref in refs
    }
    if sum(t.numel() for t in zeros.values()) > WIDEST:
        raise unknown

    def applied(given: dict[int, Tensor]) -> Tensor:
        def of(ref: Ref) -> Tensor:
            return given.get(ref.at, values[ref.at].detach())

        args, kwargs = tree_map_only(Ref, of, (step.args, step.kwargs))
        found: Tensor = step.op(*args, **kwargs)
        return found.double().flatten()

    try:
        found, total = [], applied(zeros)
        if bool(total.any()):
            raise unknown
        points = {
            at: torch.linspace(-2, 3, t.numel(), dtype=torch.float64, device="cpu").view_as(t)
            for at, t in zeros.items()
        }
        for at, zero in zeros.items():
            each = torch.eye(zero.numel(), dtype=torch.float64, device="cpu").view(-1, *zero.shape)
            images = [applied({**zeros, at: one}) for one in each]
            found.append(torch.stack(images, 1))
            total = total + found[-1] @ points[at].flatten()
        near = torch.allclose(total, applied(points), rtol=1e-12, atol=1e-12)
    except (RuntimeError, TypeError) as error:
        raise unknown from error
    if not near:
        raise unknown
    return found
