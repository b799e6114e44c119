"""The Jacobian of Π_Ω at given scores, as an operator: :class:`Jacobian`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.transforms import outside_inference
from ..regularizers.errors import RegularizerError

NORMS = {"spectral": 2, "frobenius": "fro"}


class Jacobian:
    """J(x) = ∂Π_Ω/∂x as an operator, one symmetric positive semidefinite matrix per row.

    With H = ∇²Ω(y) on the support S of y = Π_Ω(x),

        J = (1/γ) (H⁻¹ − H⁻¹1 1ᵀH⁻¹ / 1ᵀH⁻¹1)       on S, 0 elsewhere,        J 1 = 0

    (Peters, Niculae & Martins 2019, Prop. 2). With a penalty λR, H becomes PHP and J becomes
    P J P with the averages P over the groups of y. Where Π_Ω has a kink, J is the element of the
    generalised Jacobian that backward uses.

    :meth:`regmax.RegularizedMax.jacobian` makes it. ``y`` is Π_Ω(x). ``J @ v`` is :meth:`matvec`. A
    product costs one backward pass of the layer. All results have x's dtype (float32 for half
    precision).
    """

    def __init__(
        self, x: Tensor, y: Tensor, dim: int, symmetric: bool, keep: bool, whole: bool = False
    ) -> None:
        """``whole``: entries that are 0 may move too, as on a domain known by its projection."""
        self._x, self.y, self._dim, self._symmetric, self._keep = x, y, dim, symmetric, keep
        self._whole = whole

    @property
    def shape(self) -> torch.Size:
        """(*batch, d, d), where *batch is x's shape without ``dim``."""
        rows = self.y.movedim(self._dim, -1).shape
        return torch.Size((*rows, rows[-1]))

    @outside_inference
    def matvec(self, v: Tensor) -> Tensor:
        """J v, for v that broadcasts to x; of x's shape.

        Raises RegularizerError for an Ω that only approximates (``exact`` is False): its J is not
        symmetric, and :meth:`dense` gives it.
        """
        if not self._symmetric:
            raise RegularizerError(
                "the Jacobian of an approximation is not symmetric, and backward gives products "
                "with its transpose alone: take it dense"
            )
        if not isinstance(v, Tensor):
            raise TypeError(f"v must be a torch.Tensor; got {type(v).__name__}")
        try:
            along = v.to(self.y.dtype).expand(self.y.shape)
        except RuntimeError:
            raise ValueError(
                f"v must broadcast to x: v has shape {tuple(v.shape)}, x {tuple(self.y.shape)}"
            ) from None
        return self._pulled(along)

    __matmul__ = matvec

    @outside_inference
    def dense(self) -> Tensor:
        """J entry by entry, (*batch, d, d): d products."""
        d = self.shape[-1]
        each = torch.arange(d, device=self.y.device)
        return self._block(each.expand(self.shape[:-1]))

    @outside_inference
    def norm(self, kind: str = "spectral") -> Tensor:
        """‖J‖₂ (``"spectral"``: the largest eigenvalue) or ‖J‖_F (``"frobenius"``), (*batch).

        ‖J‖₂ bounds how fast y moves with x in ‖·‖₂; it is at most 1/(γβ) if Ω is β-strongly convex
        on Δ. Computed from the block of J on the support: as many products as the largest support
        has entries. NaN where J is NaN; 0 for a row without participants.
        """
        if kind not in NORMS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, NORMS))}; got {kind!r}")
        support = (self.y.detach().movedim(self._dim, -1) != 0) | self._whole
        most = int(support.sum(-1).max()) if self._symmetric and support.numel() else self.shape[-1]
        order = support.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        block = self._block(order[..., : max(most, 1)])
        known = ~block.isnan().flatten(-2).any(-1)
        sound = torch.where(known[..., None, None], block, 0)
        norm: Tensor = torch.linalg.matrix_norm(sound, NORMS[kind])
        return torch.where(known, norm, torch.nan)

    def _block(self, at: Tensor) -> Tensor:
        """The rows and columns of J at the entries ``at`` (*batch, s), (*batch, s, s)."""
        rows = []
        for k in at.split(1, -1):
            one = torch.zeros_like(self.y).movedim(self._dim, -1).scatter(-1, k, 1)
            row = self._pulled(one.movedim(-1, self._dim)).movedim(self._dim, -1)
            rows.append(row.gather(-1, at))
        return torch.stack(rows, -2)

    def _pulled(self, v: Tensor) -> Tensor:
        """Jᵀ v, by backward; differentiable again if asked for."""
        with torch.enable_grad():
            (w,) = torch.autograd.grad(
                self.y, self._x, v, retain_graph=True, create_graph=self._keep
            )
        return torch.where(self.y.detach().isnan(), torch.nan, w)  # backward gives 0 there

    def __repr__(self) -> str:
        return f"Jacobian(of shape {tuple(self.shape)}, {self.y.dtype})"
