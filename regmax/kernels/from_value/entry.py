"""What is read from the value of Ω: a function of one entry, a quadratic form, and the rest,

    Ω(y; θ) = Σ_i e(y_i; p_i(θ)) + ½ yᵀH(θ)y + F(y; q(θ)).

The inputs p(θ), H(θ) and q(θ) stay in PyTorch, where autograd differentiates them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..rowwise import matvec
from .tape import Ref, Step, function

KINKED = {
    *("abs", "relu", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "amax", "where"),
    *("sign", "sgn", "masked_fill", "huber_loss", "softplus", "gt", "ge", "lt", "le", "eq", "ne"),
    *(
        "amin",
        "aminmax",
        "fmax",
        "fmin",
        "max",
        "min",
        "sort",
        "topk",
        "kthvalue",
        "median",
        "cummax",
    ),
    *("cummin", "threshold", "leaky_relu", "hardtanh", "prelu", "elu", "rrelu_with_noise"),
}
"""Operations whose derivatives may jump."""


class RowFunction:
    """F(y; q) of one row y; ``steps`` are its operations, and the shapes are those of q."""

    def __init__(self, steps: list[Step], result: Ref, given: dict[int, torch.Size]) -> None:
        self.steps, self.shapes = steps, list(given.values())
        self.call = function(steps, [0, *given], [result])

    def __call__(self, y: Tensor, *q: Tensor) -> Tensor:
        """F(y; q) for y of shape (1, d)."""
        found: Tensor = self.call(y, *q)[0]
        return found.reshape(())

    def parted(self, numbers: Tensor) -> list[Tensor]:
        """q, from its numbers one after another."""
        parts = numbers.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def rows(self, y: Tensor, numbers: Tensor) -> Tensor:
        """F of each row of y, (*batch, d). ``numbers`` are of one q, or of one for each row."""
        rows = y.reshape(-1, 1, y.shape[-1])
        if numbers.numel() == numbers.shape[-1]:
            q = self.parted(numbers.flatten())
            if len(rows) <= 8:
                found = torch.stack([self(row, *q) for row in rows])
            else:
                found = torch.vmap(lambda row: self(row, *q))(rows)
        else:
            each = numbers.expand(*y.shape[:-1], -1).reshape(len(rows), -1)
            found = torch.vmap(lambda row, own: self(row, *self.parted(own)))(rows, each)
        return found.view(y.shape[:-1])


class Entrywise:
    """e, p, H, F and q, as PyTorch computes them. ``outside``: the tensors that are not attributes
    of Ω, and ``given`` their places; ``coupled``: whether there is an H or an F; ``kinked``:
    whether derivatives of e may jump; ``steps``: the operations of e, with this
    ``result``, ``outer`` those of its inputs ``own``.
    """

    def __init__(
        self,
        steps: list[Step],
        result: Ref,
        outer: list[Step],
        inputs: list[Ref],
        form: Ref | None,
        tensors: int,
        outside: dict[int, Tensor],
        rest: RowFunction | None,
        q: list[Ref],
        d: int,
    ) -> None:
        self.coupled, self.rest = form is not None or rest is not None, rest
        self.kinked = any(step.name in KINKED for step in steps)
        self.outside: list[Any] = list(outside.values())
        self.steps, self.result, self.outer = steps, result, outer
        self.own, self.given = inputs, list(outside)
        self._formed, self._d = form is not None, d
        results = [*inputs, *([] if form is None else [form]), *q]
        self._count = len(inputs)
        self._entry = function(steps, range(len(inputs) + 1), [result])
        self._inputs = function(outer, [*range(1, tensors + 1), *outside], results)

    def __call__(self, y: Tensor, *inputs: Tensor) -> Tensor:
        """e(y_i; p_i) of each entry."""
        found: Tensor = self._entry(y, *inputs)[0]
        return found

    def inputs(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """p(θ): each is one number for all entries, one for each row, or one for each entry; and,
        if Ω is coupled, the d² numbers of H(θ) with those of q(θ) after them."""
        found: list[Tensor] = self._inputs(*tensors, *self.outside)
        if not self.coupled:
            return found
        own, form = found[: self._count], [t.double().flatten() for t in found[self._count :]]
        if not self._formed:
            form.insert(0, torch.zeros(self._d**2, dtype=torch.float64, device="cpu"))
        return [*own, form[0] if len(form) == 1 else torch.cat(form)]

    def coupling(self, y: Tensor, form: Tensor) -> Tensor:
        """½ yᵀHy + F(y; q) of each row, as numbers of its entries; ``form``: H and q."""
        d = y.shape[-1]
        matrix = form[..., : d * d].reshape(*form.shape[:-1], d, d)
        found: Tensor = matvec(matrix, y) * y / 2
        if self.rest is not None:
            found = found + self.rest.rows(y, form[..., d * d :]).unsqueeze(-1) / d
        return found
