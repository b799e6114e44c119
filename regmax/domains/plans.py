"""Plans {Y ≥ 0, Y1 = a, Yᵀ1 = b} as a region.

A plan (n, m) is one row of n·m entries here, so that all that is said of a row of scores, such as
its certificate, is said of a plan. It has sums Y1 = a and Yᵀ1 = b in place of one sum, and the
threshold of an entry is α_i + v_j.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from ..kernels.clipped import Entries
from ..regularizers.cholesky import Inverse
from ..regularizers.curvature import Curvature, Diagonal
from . import semidual
from .base import Face, Faced

FAR = 1e8
"""Scores of this size outweigh what the projection of a plan adds to them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plans(Faced):
    """``rows``: a, (*batch, n); ``columns``: b, (*batch, m), of the same total; ``on``: the entries
    that take part, (*batch, n·m), None for all."""

    rows: Tensor
    columns: Tensor
    on: Tensor | None = None
    fixed_total = True
    prefix = "plans "

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape[-1], self.columns.shape[-1]

    @property
    def total(self) -> Tensor:
        """What all entries add up to, (*batch, 1)."""
        return self.rows.sum(-1, keepdim=True)

    @functools.cached_property
    def high(self) -> Tensor:
        """The largest that an entry can be."""
        high = torch.minimum(self.rows.unsqueeze(-1), self.columns.unsqueeze(-2)).flatten(-2)
        return high if self.on is None else torch.where(self.on, high, 0)

    @functools.cached_property
    def low(self) -> Tensor:
        return torch.zeros_like(self.high)

    @functools.cached_property
    def diameter(self) -> Tensor:  # type: ignore[override]
        longest: Tensor = 2**0.5 * self.rows.norm(dim=-1)
        return longest

    @functools.cached_property
    def in_simplex(self) -> bool:
        """Whether each row of a plan lies in the simplex, where Ω is β-strongly convex."""
        return bool((self.rows == 1).all())

    @property
    def fixed(self) -> Tensor:
        return torch.ones_like(self.total, dtype=torch.bool)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"rows": self.rows, "columns": self.columns}

    def below(self, highest: float) -> Plans:
        """The same: where Ω is finite up to ``highest`` alone, its inverse is at most that."""
        return self

    def as_cvxpy(self, y: Any, rows: Any, columns: Any, high: Any) -> list[Any]:
        """D as constraints on the cvxpy variable ``y`` of one plan, of which a and b are given."""
        import cvxpy

        plan = cvxpy.reshape(y, self.shape, order="C")
        sums = [cvxpy.sum(plan, axis=1) == rows, cvxpy.sum(plan, axis=0) == columns]
        return [y >= 0, *sums] if self.on is None else [y >= 0, y <= high, *sums]

    def conic(self, row: Tensor, entries: Tensor) -> dict[str, Tensor]:
        """The numbers of :meth:`as_cvxpy` for one plan."""
        given = {**self.tensors, "high": self.high}
        return {name: t[row].detach() for name, t in given.items()}

    # -- points ------------------------------------------------------------------------------------

    def matrix(self, y: Tensor) -> Tensor:
        """Plans as matrices, (B, n, m)."""
        return y.reshape(-1, *self.shape)

    def given(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z as matrices (B, n, m), −∞ where an entry is 0 and 0 at the largest of a row, with a
        (B, n) and b (B, m), in float64."""
        a, b = (t.double().expand(*z.shape[:-1], -1) for t in (self.rows, self.columns))
        z = z.double() if self.on is None else z.double().masked_fill(~self.on, -torch.inf)
        z = self.matrix(z)
        a, b = (t.reshape(len(z), -1).contiguous() for t in (a, b))
        return z - z.amax(-1, keepdim=True), a, b

    def solved(self, e: Entries, z: Tensor) -> semidual.Plan:
        """The plans argmax ⟨y, z⟩ − Σ e(y_i), as matrices."""
        z, a, b = self.given(z)
        with torch.no_grad():
            return semidual.solve(e, z, a.unsqueeze(-1), b)

    def answer(self, e: Entries, z: Tensor) -> Tensor:
        """argmax_{y ∈ D} ⟨y, z⟩ − Σ e(y_i)."""
        return self.solved(e, z).y.reshape(z.shape).to(z.dtype)

    def short(self, plan: semidual.Plan) -> str | None:
        """Why there is no plan in the first one whose sums are not right, (B,), or None.

        v falls without end at columns S that get too much: the rows R without an entry outside of
        S add up to more than S.
        """
        if self.on is None:
            return None
        i = int(plan.error.argmax())
        on, v = self.matrix(self.on.expand(self.high.shape))[i], plan.v[i]
        a, b = self.rows.expand(*self.high.shape[:-1], -1), self.columns
        a = a.reshape(len(plan.y), -1)[i]
        b = b.expand(*self.high.shape[:-1], -1).reshape(len(plan.y), -1)[i]
        for level in v:
            few = v <= level
            rows = ~(on & ~few).any(-1)
            if bool(a[rows].sum() > b[few].sum() * (1 + 1e-9)):
                return (
                    f"rows {rows.nonzero().flatten().tolist()} add up to {a[rows].sum():g}, and "
                    f"the columns {few.nonzero().flatten().tolist()}, in which alone they take "
                    f"part, to {b[few].sum():g}"
                )
        return None

    def nearest(self, v: Tensor) -> Tensor:
        return self.answer(Entries(), v)

    def middle(self, like: Tensor, part: Tensor | None = None) -> Tensor:
        if self.on is None:
            y = self.rows.unsqueeze(-1) * self.columns.unsqueeze(-2) / self.total.unsqueeze(-1)
            return y.flatten(-2).to(like.dtype).expand(like.shape)
        return self.nearest(torch.zeros_like(like))

    def inside(self, y: Tensor) -> Tensor:
        y = y.clamp_min(0) if self.on is None else torch.where(self.on, y.clamp_min(0), 0)
        y = self.balanced(y)
        wrong = self._wrong(y).unsqueeze(-1)
        return torch.where(wrong, self.nearest(y), y) if bool(wrong.any()) else y

    def balanced(self, y: Tensor) -> Tensor:
        """y with the right sums of rows and columns, where its own are nearly so."""
        wrong = self._wrong(y)
        if not bool(wrong.any()):
            return y
        near = self.matrix(y)
        for _ in range(2):  # entries are multiplied, so that small ones keep their digits
            missing = self._missing(near.reshape(y.shape))
            a, b = (t.reshape(len(near), -1) for t in missing)
            part = near / near.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
            v = semidual.Laplacian(near).solve(b - (part * a.unsqueeze(-1)).sum(-2))
            size = near.sum(-1).clamp_min(torch.finfo(y.dtype).tiny)
            alpha = a / size - (part * v.unsqueeze(-2)).sum(-1)
            near = near * (1 + (alpha.unsqueeze(-1) + v.unsqueeze(-2)).clamp(-0.5, 1))
        near = near.reshape(y.shape)
        better = wrong & (self.excess(near) < self.excess(y))
        return torch.where(better.unsqueeze(-1), near, y)

    def _missing(self, y: Tensor) -> tuple[Tensor, Tensor]:
        plan = y.unflatten(-1, self.shape)
        return self.rows - plan.sum(-1), self.columns - plan.sum(-2)

    def excess(self, y: Tensor) -> Tensor:
        # what is missing moves along the entries of y > 0, from column to row to column
        a, b = self._missing(y)
        return a.abs().sum(-1) + b.abs().sum(-1)

    def _wrong(self, y: Tensor) -> Tensor:
        # not as small as rounding: y changes less by what is wrong than by what puts it right
        small: float = max(64 * torch.finfo(y.dtype).eps, 1e-11)
        each = zip(self._missing(y), (self.rows, self.columns), strict=True)
        a, b = (t.abs().amax(-1) / most.amax(-1) for t, most in each)
        return torch.maximum(a, b) > small

    def feasible(self, y: Tensor) -> Tensor:
        right: Tensor = (self.off(y) == 0).all(-1) & ~self._wrong(y)
        return right

    # -- the optimality condition ------------------------------------------------------------------

    def room(self, y: Tensor, rho: Tensor) -> Tensor:
        return torch.where(rho <= 0, y, self.high - y).clamp_min(0)

    def width(self, y: Tensor) -> Tensor:
        return self.high

    def sided(self, y: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        return y, rho if self.on is None else torch.where(self.on, rho, -torch.inf)

    def multiplier(self, r: Tensor, y: Tensor, along: Tensor) -> Tensor:
        """α_i + v_j = r where y is large, and ≥ r elsewhere if there are such numbers."""
        with torch.no_grad():
            exact = torch.where(y > torch.finfo(y.dtype).eps ** 2, y, 0)  # others are lifted
            slopes = torch.nan_to_num(r)
            if self.on is not None:
                slopes = torch.where(self.on, slopes, -torch.inf)
            alpha, v = semidual.multipliers(self.matrix(exact), self.matrix(slopes))
            return (alpha.unsqueeze(-1) + v.unsqueeze(-2)).reshape(y.shape)

    def vertex(self, y: Tensor, rho: Tensor, rounding: Tensor) -> Tensor:
        return torch.zeros_like(y[..., 0], dtype=torch.bool)

    def best(self, r: Tensor) -> Tensor:
        size = r.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(r.dtype).tiny)
        return self.nearest(r * (FAR / size))

    def most(self, r: Tensor, tau: Tensor) -> Tensor:
        """An upper bound, from α_i + v_j = ``tau``."""
        beyond = r - tau if self.on is None else torch.where(self.on, r - tau, -torch.inf)
        rows = (beyond.unflatten(-1, self.shape).amax(-1) * self.rows).sum(-1, keepdim=True)
        found: Tensor = rows + (self.middle(r) * tau).sum(-1, keepdim=True)
        return found

    # -- faces -------------------------------------------------------------------------------------

    movable = Faced.face

    def tangent(self, v: Tensor, face: Face) -> Tensor:
        return self.jacobian(Diagonal(torch.ones_like(v)), v, face)

    def jacobian(self, curvature: Curvature, v: Tensor, face: Face) -> Tensor:
        """w = s(v − α_i − v_j) with s = 1/H: rows and columns of w add up to 0."""
        h = curvature.matvec(torch.ones_like(v))
        info = torch.finfo(h.dtype)
        s = torch.where(face.free, 1 / torch.where(face.free, h, 1).clamp(info.tiny, info.max), 0)
        s, plan = self.matrix(s), self.matrix(v)
        _, q = semidual.potentials(s, plan)
        # relative to the entry of the largest s of a row, which may cancel
        left, most = plan - q.unsqueeze(-2), s.detach().argmax(-1, keepdim=True)
        left = left - left.gather(-1, most)
        part = s / s.sum(-1, keepdim=True).clamp_min(info.tiny)
        return (s * (left - (part * left).sum(-1, keepdim=True))).reshape(v.shape)

    def inverse(self, curvature: Curvature, face: Face) -> Inverse:
        def least() -> Tensor:
            h = curvature.matvec(torch.ones_like(self.high))
            return torch.where(face.free, h, torch.inf).amin(-1)

        return Inverse(lambda v: self.jacobian(curvature, v, face), least)

    def followed(self, y: Tensor) -> Tensor:
        """y with derivatives in the sums: what is added to rows and columns where y is not 0."""
        free = self.matrix(torch.where(self.face(y).free, y, 0).detach())
        a, b = (t - t.detach() for t in (self.rows, self.columns))
        a, b = (t.expand(*y.shape[:-1], -1).reshape(len(free), -1) for t in (a, b))
        size = free.sum(-1).clamp_min(torch.finfo(y.dtype).tiny)
        v = semidual.Laplacian(free).solve(b - (free * (a / size).unsqueeze(-1)).sum(-2))
        alpha = (a - (free * v.unsqueeze(-2)).sum(-1)) / size
        return y + (free * (alpha.unsqueeze(-1) + v.unsqueeze(-2))).reshape(y.shape)

    def products(self, q: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The gradients of a and b: α and v with q = α_i + v_j where y is not 0, by its weight."""
        free = self.matrix(torch.where(self.face(y).free, y, 0)).to(q.dtype)
        alpha, v = semidual.potentials(free, torch.where(free > 0, self.matrix(q), 0))
        return {
            "rows": alpha.reshape(*q.shape[:-1], -1),
            "columns": v.reshape(*q.shape[:-1], -1),
        }
