"""{l ≤ y ≤ u} with Σy = k, with Σy ≤ k, or without a sum, as a region."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.clipped import Entries, add, clip, clipped
from ..kernels.simplex import tangent
from .base import Face, Faced

EXACTLY, AT_MOST = "domain: ", "domain, at most: "


@dataclasses.dataclass(frozen=True, eq=False)
class Bounded(Faced):
    """``low``, ``high``: l and u of each entry, (*batch, d), both 0 where it does not take part;
    ``total``: k of each row, (*batch, 1), None without a sum; ``at_most``: Σy ≤ k."""

    low: Tensor
    high: Tensor
    total: Tensor | None = None
    at_most: bool = False

    @property
    def fixed_total(self) -> bool:  # type: ignore[override]
        return self.total is not None and not self.at_most

    @functools.cached_property
    def diameter(self) -> Tensor:  # type: ignore[override]
        box: Tensor = (self.high - self.low).norm(dim=-1)
        return box if self.total is None else torch.minimum(box, 2**0.5 * self.total.squeeze(-1))

    @property
    def tensors(self) -> dict[str, Tensor]:
        found = {"low": self.low, "high": self.high}
        return found if self.total is None else {**found, "total": self.total}

    @property
    def prefix(self) -> str:  # type: ignore[override]
        return AT_MOST if self.at_most else EXACTLY

    @staticmethod
    def named(tensors: dict[str, Tensor], x: Tensor) -> Bounded | None:
        """The domain of the rows x whose tensors, broadcasting to them, are among ``tensors``."""
        for kind in (EXACTLY, AT_MOST):
            if f"{kind}low" in tensors:
                low, high = (tensors[f"{kind}{name}"].expand(x.shape) for name in ("low", "high"))
                total = tensors.get(f"{kind}total")
                total = None if total is None else total.expand(*x.shape[:-1], 1)
                return Bounded(low, high, total, kind == AT_MOST)
        return None

    def as_cvxpy(self, y: Any, low: Any, high: Any, total: Any = None) -> list[Any]:
        """D as constraints on the cvxpy variable ``y`` of one row, of which l, u, k are given."""
        import cvxpy

        constraints = [y >= low, y <= high]
        if self.total is None:
            return constraints
        return [*constraints, cvxpy.sum(y) <= total if self.at_most else cvxpy.sum(y) == total]

    def conic(self, row: Tensor, entries: Tensor) -> dict[str, Tensor]:
        """The numbers of :meth:`as_cvxpy` for these ``entries`` of one row."""
        return {
            name: t[row].detach() if name == "total" else t[row].detach().gather(-1, entries)
            for name, t in self.tensors.items()
        }

    def below(self, highest: float) -> Bounded:
        """The part of the domain with y ≤ ``highest``."""
        if highest == math.inf:
            return self
        return dataclasses.replace(self, high=self.high.clamp_max(highest))

    def holding(self, t: Tensor) -> Bounded:
        """The y of D with y_i = 1 where t_i = 1; of t elsewhere nothing is asked."""
        held = t == 1
        low = torch.where(held, self.low.clamp_min(1), self.low)
        high = torch.where(held, self.high.clamp_max(1), self.high)
        return Bounded(low, high, self.total, self.at_most)

    def where(self, rows: Tensor, other: Bounded) -> Bounded:
        """This domain in the ``rows`` (*batch), and another one like it elsewhere."""
        on = rows.unsqueeze(-1)
        others = other.tensors
        return self.with_tensors(
            {name: torch.where(on, t, others[name]) for name, t in self.tensors.items()}
        )

    # -- points ----------------------------------------------------------------------------------

    def middle(self, like: Tensor, part: Tensor | None = None) -> Tensor:
        spread = self.high - self.low
        if self.total is None:
            return self.low + spread / 2
        room, sums = self.total - add(self.low), add(spread)
        part = torch.where(sums > 0, room / torch.where(sums > 0, sums, 1), 0)
        return self.low + spread * (part.clamp_max(0.5) if self.at_most else part.clamp_max(1))

    def answer(self, e: Entries, z: Tensor) -> Tensor:
        """argmax_{y ∈ D} ⟨y, z⟩ − Σ e(y_i)."""
        wide = self.to(torch.float64)
        bounds = wide.low, wide.high, wide.total, wide.at_most
        return clipped(e, z.double(), *bounds).to(z.dtype)

    def nearest(self, v: Tensor) -> Tensor:
        return self.answer(Entries(), v)

    def inside(self, y: Tensor) -> Tensor:
        y = clip(y, self.low, self.high)
        if self.total is None:
            return y
        # small entries keep their digits: the free ones are multiplied, above l
        free, k = self.face(y).free, self.total
        above = torch.where(free, y - self.low, 0)
        missing, sums = k - add(y), add(above)
        factor = 1 + missing / torch.where(sums > 0, sums, 1)
        moved = torch.where(free, torch.minimum(self.low + above * factor, self.high), y)
        wrong = self._wrong(y)
        usable = wrong & (factor > 0.5) & (factor < 2)
        y = torch.where(usable, moved, y)
        return torch.where(self._wrong(y) & wrong, self.nearest(y), y)

    def _wrong(self, y: Tensor) -> Tensor:
        assert self.total is not None
        return self.excess(y).unsqueeze(-1) > self._noise(y)

    def _noise(self, y: Tensor) -> Tensor:
        """Rounding of Σy."""
        assert self.total is not None
        ulps: float = 4 * torch.finfo(y.dtype).eps * y.shape[-1] ** 0.5
        return ulps * self.total

    def off(self, y: Tensor) -> Tensor:
        return torch.maximum(self.low - y, y - self.high).clamp_min(0)

    def excess(self, y: Tensor) -> Tensor:
        if self.total is None:
            return torch.zeros_like(y[..., 0])
        over = (add(y) - self.total).squeeze(-1)
        return over.clamp_min(0) if self.at_most else over.abs()

    def feasible(self, y: Tensor) -> Tensor:
        right: Tensor = (self.off(y) == 0).all(-1)
        if self.total is not None:
            right = right & ~self._wrong(y).squeeze(-1)
        return right

    @functools.cached_property
    def in_simplex(self) -> bool:
        """Whether D is a part of the simplex, in every row."""
        return self.total is not None and not self.at_most and bool((self.total == 1).all())

    # -- the optimality condition ------------------------------------------------------------------

    def rooms(self, y: Tensor) -> list[Tensor]:
        return [y - self.low, self.high - y]

    @property
    def fixed(self) -> Tensor:
        """The rows in which Σy is fixed, whatever y."""
        return torch.full_like(self.low[..., :1], self.fixed_total, dtype=torch.bool)

    def room(self, y: Tensor, rho: Tensor) -> Tensor:
        return torch.where(rho <= 0, y - self.low, self.high - y).clamp_min(0)

    def width(self, y: Tensor) -> Tensor:
        return self.high - self.low

    def sided(self, y: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        down, up = y - self.low, self.high - y
        push = torch.where(up < down, -rho, rho)
        return torch.minimum(down, up), torch.where(self.high > self.low, push, -torch.inf)

    def capped(self, y: Tensor) -> Tensor:
        return (self.high - y < y - self.low) | (self.low > 0)

    def spare(self, y: Tensor, tau: Tensor) -> float | Tensor:
        if not self.at_most:
            return 0.0
        assert self.total is not None
        short = self.total - add(y)
        return (tau * torch.where(short > self._noise(y), short, 0)).squeeze(-1)

    def settled(self, y: Tensor, free: Tensor) -> Tensor:
        near = torch.where(self.high - y < y - self.low, self.high, self.low)
        return torch.where(free, y, near)

    def multiplier(self, r: Tensor, y: Tensor, along: Tensor) -> Tensor:
        if self.total is None:
            return torch.zeros_like(along)
        down, up = y - self.low, self.high - y
        moves = self.high > self.low
        w = torch.where(moves, torch.minimum(down, up), 0)
        weight, low = add(w), (moves & (down <= up))
        # at a vertex, between the slopes of the entries at l and those at u
        under = torch.where(low, r, -torch.inf).amax(-1, keepdim=True)
        over = torch.where(moves & ~low, r, torch.inf).amin(-1, keepdim=True)
        corner = torch.where(
            over.isinf(), under, torch.where(under.isinf(), over, (under + over) / 2)
        )
        inner = weight > torch.finfo(y.dtype).eps * self.total
        tau = torch.where(inner, add(w * r) / torch.where(inner, weight, 1), corner)
        tau = torch.where(torch.isfinite(tau), tau, 0)
        return torch.where(self._tight(y), tau.clamp_min(0), 0) if self.at_most else tau

    def vertex(self, y: Tensor, rho: Tensor, rounding: Tensor) -> Tensor:
        down = (y <= self.low) & (rho + rounding < 0)
        up = (y >= self.high) & (rho - rounding > 0)
        return (down | up | (self.high <= self.low)).all(-1)

    # -- faces -----------------------------------------------------------------------------------

    def _free(self, y: Tensor) -> Tensor:
        return (y > self.low) & (y < self.high)

    def _tight(self, y: Tensor) -> Tensor:
        """The rows in which Σy is k, and must be or may not be more."""
        if self.total is None or not self.at_most:
            return torch.full_like(y[..., :1], self.total is not None, dtype=torch.bool)
        return add(y) >= self.total - self._noise(y)

    def face(self, y: Tensor) -> Face:
        return Face(self._free(y), self._tight(y))

    def movable(self, y: Tensor) -> Face:
        """The face of y; one free entry alone does not move where the sum is fixed."""
        free, fixed = self._free(y), self._tight(y)
        return Face(free & ((add(free) > 1) | ~fixed), fixed)

    def uniform(self, mask: Tensor | None) -> bool:
        """Whether the bounds of a row are the same for all entries that take part."""
        for t in (self.low, self.high):
            t = t.detach()
            least = t if mask is None else t.masked_fill(~mask, torch.inf)
            if bool((least.amin(-1) != t.amax(-1)).any()):
                return False
        return True

    def tangent(self, v: Tensor, face: Face) -> Tensor:
        assert face.fixed is not None
        return torch.where(face.fixed, tangent(v, face.free), torch.where(face.free, v, 0))

    def best(self, r: Tensor) -> Tensor:
        """A fractional knapsack: from l, the largest r_i first."""
        if self.total is None:
            return torch.where(r > 0, self.high, self.low)
        order = r.argsort(-1, descending=True)
        spread = (self.high - self.low).gather(-1, order)
        if self.at_most:
            spread = torch.where(r.gather(-1, order) > 0, spread, 0)
        used = torch.minimum(spread.cumsum(-1), (self.total - add(self.low)).clamp_min(0))
        taken = used - pad(used, (1, 0))[..., :-1]
        return self.low + torch.zeros_like(r).scatter(-1, order, taken)

    def most(self, r: Tensor, tau: Tensor) -> Tensor:
        return add(torch.where(self.high > 0, r, 0) * self.best(r))

    # -- what the bounds move --------------------------------------------------------------------

    def followed(self, y: Tensor) -> Tensor:
        """y with derivatives in the bounds: an entry at a bound moves with it, and the free ones
        share what is missing from the sum, by their room: ∇²Ω is not known next to a bound."""
        free, room = self._free(y), torch.minimum(*self.rooms(y)).detach()
        moved = torch.where(free, y, torch.where(self._capped(y), self.high, self.low))
        if self.total is not None:
            share = (self.total - add(moved)) / add(room).clamp_min(1e-300)
            moved = moved + room * (share - share.detach())
        return y + (moved - moved.detach())

    def _capped(self, y: Tensor) -> Tensor:
        return (y >= self.high) & (self.high > self.low)

    def products(self, q: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The gradients of the bounds, from q = v − H w with w = J v: τ, which q is on the free
        entries, for k, and q − τ on the bounds that hold."""
        free, room = self._free(y), torch.minimum(*self.rooms(y))
        tau = add(room * torch.where(free, q, 0)) / add(room).clamp_min(1e-300)
        tau = torch.where(self._tight(y), tau, 0)
        capped = self._capped(y)
        found = {
            "low": torch.where(free | capped, 0, q - tau),
            "high": torch.where(capped, q - tau, 0),
        }
        return found if self.total is None else {**found, "total": tau}
