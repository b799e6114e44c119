"""What a domain D is for the user, and a domain of the user's own."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..regularizers import printing
from ..regularizers.regularizer import Regularizer, as_written, replaced
from .projected import Projected


class Domain(nn.Module):
    """A closed convex set D of rows: what y of Π(x) = argmax_{y ∈ D} ⟨y, x⟩ − γΩ(y) lies in.

    A subclass defines :meth:`project`, in operations of PyTorch that can be differentiated.
    regmax solves, bounds errors and differentiates by it, in float64. Ω is finite and convex on D;
    entries may be negative if Ω takes them. Optional: ``arguments``, ``fixed_total``,
    ``permutation_invariant`` and :meth:`as_cvxpy`.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments of the constructor, which are attributes. A tensor among them is given in the
    dtype of the rows, and gets its gradient if it requires one."""
    across: int | None = None
    """The second dimension of the scores that a row has, if there is one."""
    permutation_invariant: ClassVar[bool] = False
    """Whether the entries of a point of D, permuted, are one too: with ``fixed_total``, Ω may have
    a penalty."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Initialise the nn.Module, so that an ``__init__`` need not call super()."""
        self = super().__new__(cls)
        if not torch.compiler.is_dynamo_compiling():  # which cannot trace this call in __new__
            nn.Module.__init__(self)
        return self

    def project(self, v: Tensor, mask: Tensor | None) -> Tensor:
        """P(v), the point of D nearest to v in ‖·‖₂, for rows (*batch, d), of the same shape and
        dtype. ``mask``, (*batch, d): the entries that take part; the others are 0. None: all."""
        raise NotImplementedError(f"{type(self).__name__} must define project(v, mask)")

    def as_cvxpy(self, y: Any) -> list[Any]:
        """D as constraints on the cvxpy variable ``y`` of one row: what ``crosscheck`` gives to a
        conic solver. Its tensors are the same for all rows."""
        raise NotImplementedError(
            f"{type(self).__name__} must define as_cvxpy(y) for conic solvers"
        )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the arguments."""
        given = {name: getattr(self, name) for name in self.arguments}
        return {name: item for name, item in given.items() if isinstance(item, Tensor)}

    def with_tensors(self, values: dict[str, Tensor]) -> Self:
        """A shallow copy in which the named tensors are replaced."""
        clone: Self = replaced(self, values)
        return clone

    @property
    def projects(self) -> bool:
        """Whether only :meth:`project` says what D is."""
        return type(self).region is Domain.region

    @property
    def plain(self) -> bool:
        """Whether D is the simplex {y ≥ 0, Σy = 1}, which kernels are made for."""
        return False

    @property
    def fixed_total(self) -> bool:
        """Whether Σy is fixed: in a domain of your own, ``fixed_total = True``."""
        return False

    def other(self, x: Tensor, dim: int) -> int | None:
        """``across`` of ``x``, which is not ``dim``, counted from the first dimension."""
        return None

    def prepared(
        self, omega: Regularizer, gamma: float | Tensor, x: Tensor, dim: int
    ) -> tuple[Regularizer, float | Tensor]:
        """Ω and γ for rows of this domain, from those laid out for rows along ``dim``."""
        return omega if self.fixed_total else as_written(omega), gamma

    def refused(self, region: Any, skip: Tensor | None) -> Tensor:
        """The rows without a point, (*batch, 1), but for those of ``skip``; ValueError where they
        can be seen."""
        return torch.zeros_like(region.like[..., :1], dtype=torch.bool)

    def region(self, x: Tensor, dim: int, on: Tensor | None) -> Any:
        """D, a :class:`Region`, for the rows of ``x`` along ``dim``, of which the entries ``on``,
        (*batch, d), take part."""
        return Projected(self, x.movedim(dim, -1), on).to(x.dtype)

    def __repr__(self) -> str:
        return printing.called(self, printing.arguments(self))
