"""``LinearFenchelYoungLoss``: the loss of a linear layer of classes, without its logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels import transforms
from ..kernels.transforms import outside_inference
from ..kernels.wrappers import dense, is_dtensor
from ..mapping.rows import computed_in, refuse_hidden_at
from ..nn import chunks, gradients
from ..regularizers.printing import unusual
from ..regularizers.regularizer import Regularizer
from . import sharded
from .loss import FenchelYoungLoss, taken

LOGITS = 1 << 23
"""About how many logits are held at a time."""
SPARSE = 8
"""A gradient is kept if at most one logit in so many has one that is not 0."""


class LinearFenchelYoungLoss(FenchelYoungLoss):
    """L_Ω(h Wᵀ + b; t) of the outputs h of a model and the linear layer of its classes.

    It is :class:`regmax.FenchelYoungLoss` of ``torch.nn.functional.linear(h, W, b)``. The logits
    are computed for some rows at a time, once, and not kept. Their gradient is Π_Ω(x) − t (Blondel,
    Martins & Niculae 2020). For a sparse mapping it is kept where it is not 0, and backward
    multiplies these numbers alone with W and h. Where many are not 0, or γ or Ω learns, forward
    multiplies it with W and h; with reduction "none", backward computes the logits again.

    Parameters
    ----------
    omega, gamma: as for :class:`regmax.FenchelYoungLoss`.
    soft_cap: c > 0: the logits are c tanh((h Wᵀ + b)/c). None: as they are.
    chunk: how many rows are computed at a time. By default as many as have 8 million logits.
    options: further arguments of :class:`regmax.FenchelYoungLoss` except ``dim``.

    ``forward(hidden, weight, target, bias=None, mask=None)``, in the order of
    ``torch.nn.functional.linear_cross_entropy``: ``hidden`` (…, F), ``weight`` (C, F), ``target``
    (…) indices or (…, C) distributions, ``bias`` (C,) or None, and ``mask`` (True = takes part)
    that broadcasts to the logits (…, C). The result is that of ``FenchelYoungLoss``, with
    reduction "none" of shape (…). All logits are computed at once under transforms and in a
    graph, for a target that requires grad, for second derivatives, and where γ, a hyperparameter or
    a tensor of Ω has one number, or one row, for each row.
    """

    def __init__(
        self,
        omega: Regularizer,
        gamma: float | Tensor = 1.0,
        *,
        soft_cap: float | None = None,
        chunk: int | None = None,
        **options: Any,
    ) -> None:
        if "dim" in options:
            raise TypeError("dim is no argument of LinearFenchelYoungLoss: classes are rows of W")
        super().__init__(omega, gamma, **options)
        number = isinstance(soft_cap, int | float) and not isinstance(soft_cap, bool)
        if soft_cap is not None and not (number and soft_cap > 0):
            raise ValueError(f"soft_cap must be a number > 0 or None; got {soft_cap!r}")
        chunks.check(chunk)
        self.soft_cap, self.chunk = soft_cap, chunk

    @outside_inference
    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The loss: a number, or one number per target with reduction "none"."""
        if any(map(is_dtensor, (hidden, weight, bias))) and not transforms.transforming():
            _check_shapes(hidden, weight, bias, target, mask)
            given = (self, hidden, weight, bias, target, mask)
            if torch.compiler.is_dynamo_compiling():
                from . import dynamo  # loads the compiler

                outside: Tensor = dynamo.outside(sharded.linear, *given)
                return outside
            return sharded.linear(*given)
        hidden = dense("hidden", hidden)
        _check_shapes(hidden, weight, bias, target, mask)
        batch, classes = hidden.shape[:-1], len(weight)
        mass, skip, dtype = self._counted(hidden, weight, bias, target, classes)
        each = self._of_rows(hidden, weight, bias, target, mask)
        loss = self._reduced(each, mass, skip)
        loss = loss.view(batch) if self.reduction == "none" else loss
        return loss.to(dtype)

    def _counted(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, classes: int
    ) -> tuple[Tensor | None, Tensor | None, torch.dtype]:
        """The weights and the ignored of the rows, and the dtype of the loss."""
        few = hidden.reshape(-1, hidden.shape[-1])[:1].detach()
        like = F.linear(few, weight.detach(), _detached(bias))
        mass = skip = None
        if not target.is_floating_point():
            index, skip, _ = self._index(target.reshape(-1), classes)
            own = self._weight(like, classes)
            mass = None if own is None else taken(own, index)
        return mass, skip, self._dtype(like, target)

    def _of_rows(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """The losses of the rows, (rows,), not reduced."""
        batch, classes = hidden.shape[:-1], len(weight)
        rows = hidden.reshape(-1, hidden.shape[-1])
        indices = not target.is_floating_point()
        target = target.reshape(-1) if indices else target.reshape(len(rows), classes)
        if mask is not None and mask.shape[:-1].numel() > 1:
            mask = mask.expand(*batch, classes).reshape(len(rows), classes)
        given = (rows, weight, bias, target, mask, self.gamma, *self.omega.tensors().values())
        whole = self._by_row(len(rows), self._step(classes))
        if whole or transforms.under_transform(given) or gradients.learns(target):
            return self._losses(F.linear(rows, weight, bias), target, mask)
        refuse_hidden_at(self.omega, weight.new_empty(()).expand(1, classes), None)
        return gradients.apply(_Chunks(self, hidden.device.type), *given)

    def _losses(self, logits: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        """The losses of some rows, not reduced, float64."""
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        with transforms.full_precision(logits.device.type):
            return self._each(logits, 1, target, mask)[0]

    def _step(self, classes: int) -> int:
        """How many rows are computed at a time."""
        if self.at is not None:  # the same on all devices that share a row
            classes = -(-self.at.shape[-1] // self.at.along.size)
        return self.chunk or max(LOGITS // max(classes, 1), 1)

    def _kept(self, found: Any) -> Any:
        """The entries of a gradient, or None: on all devices that share a row, or on none."""
        if self.at is None:
            return found
        lost = self.at.part.new_full((), float(found is None))
        return found if self.at.along.reduced(lost, "max") == 0 else None

    def _by_row(self, rows: int, step: int) -> bool:
        """Whether γ or a tensor of Ω has one number, or one row, for each row, or would seem to
        have them for a chunk."""
        numbers = (self.gamma, *self.omega.per_row_tensors(True).values())
        if any(isinstance(t, Tensor) and t.shape[:-1].numel() > 1 for t in numbers):
            return True
        counts, tensors = {rows, step, rows % step} - {0, 1}, self.omega.tensors(fixed=True)
        return any(t.ndim >= 2 and t.shape[-2] in counts for t in tensors.values())

    def __repr__(self) -> str:
        own = unusual(soft_cap=(self.soft_cap, None), chunk=(self.chunk, None))
        return f"{', '.join([super().__repr__()[:-1], *own])})"


def _detached(t: Any) -> Any:
    return t.detach() if isinstance(t, Tensor) else t


class _Chunks(gradients.Operation):
    """The losses of rows, chunk by chunk, of hidden, weight, bias, target, mask, γ and the tensors
    of Ω. Forward keeps each chunk's gradient in the logits where few of its numbers are not 0, and
    else adds its products to ``sums`` if the losses are reduced: their factor is then one number,
    which backward knows. Backward computes the other chunks again."""

    def __init__(self, loss: LinearFenchelYoungLoss, device: str) -> None:
        self.loss, self.device = loss, device
        self.dtype = transforms.autocasting(device) and torch.get_autocast_dtype(device)
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.sums: _Sums | None = None
        self.left: Iterable[int] = ()

    def forward(self, grad: bool, *given: Any) -> tuple[Tensor, Sequence[Any]]:
        hidden, weight, *_ = given
        step, few = self.loss._step(len(weight)), not any(map(gradients.learns, given[5:]))
        values, left = [hidden.new_empty(0, dtype=torch.float64)], []
        for i in range(0, len(hidden), step):
            rows = slice(i, i + step)
            value, d, more = self._chunk(rows, given, grad)
            values.append(value)
            if d is None:
                left.append(i)
                continue
            found = self.loss._kept(_entries(d, i)) if few else None
            few = found is not None  # where a chunk has many, the next ones have
            if found is not None:
                self.kept.append(found)
            elif self.loss.reduction == "none":
                grad = False
                left.append(i)
            else:
                self.sums = self.sums or _Sums(given, [*map(gradients.learns, given)])
                self.sums.add(rows, d, more)
            del d  # before the next one
        self.left = left
        return torch.cat(values), ()

    def _chunk(
        self, rows: slice, given: Any, grad: bool, g: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, list[Any]]:
        """The losses of some rows, and the gradients of the logits and of what learns after the
        mask."""
        hidden, weight, bias, target, mask, *numbers = given
        logits = self._logits(hidden[rows].detach(), weight.detach(), _detached(bias))
        with torch.set_grad_enabled(grad):
            logits.requires_grad_(grad)
            each = self.loss._losses(logits, target[rows], _of_rows(mask, rows))
        if not grad:
            return each.detach(), None, []
        inputs = [logits, *filter(gradients.learns, numbers)]
        g = torch.ones_like(each) if g is None else g[rows]
        d, *more = torch.autograd.grad(each, inputs, g, allow_unused=True)
        return each.detach(), d, more

    def _logits(self, *given: Any) -> Tensor:
        with torch.autocast(self.device, self.dtype or None, bool(self.dtype)):
            return F.linear(*given)

    def backward(
        self, wants: Sequence[bool], g: Tensor, kept: Sequence[Any], *given: Any
    ) -> list[Any]:
        hidden, weight, *_ = given
        step, left, sums = self.loss._step(len(weight)), self.left, self.sums
        if sums is None:
            sums = _Sums(given, wants)
        else:
            sums.scale(g[0])
            self.sums, self.left = None, range(0, len(hidden), step)  # sums are given away
        if self.kept:
            sums.add_sparse(self.kept, g)
        for i in left:
            rows = slice(i, i + step)
            _, d, more = self._chunk(rows, given, True, g)
            assert d is not None
            sums.add(rows, d, more)
            del d
        return sums.totals(wants)

    def recorded(self, *given: Any) -> Tensor:
        hidden, weight, bias, target, mask, gamma, *tensors = given
        omega = self.loss.omega
        omega = omega.with_tensors(dict(zip(omega.tensors(), tensors, strict=True)))
        logits = self._logits(hidden, weight, bias)
        return self.loss._with(omega, gamma)._losses(logits, target, mask)


class _Sums:
    """The gradients of hidden, weight, bias and what learns in Ω: D W, Dᵀ h, Dᵀ 1, … for the
    gradient D of the logits."""

    def __init__(self, given: Any, wants: Sequence[bool]) -> None:
        hidden, weight, *_ = given
        wide = computed_in(weight.dtype)
        self.h, self.w = hidden.detach().to(wide), weight.detach().to(wide)
        self.sums: list[Any] = [
            torch.zeros_like(t, dtype=wide) if want else None
            for t, want in zip(given[:3], wants, strict=False)
        ]
        self.learned = [torch.zeros_like(t) for t in given[5:] if gradients.learns(t)]

    def add(self, rows: slice, d: Tensor, learned: list[Any]) -> None:
        """Add the products of the gradient of some rows."""
        d, (hidden, weight, bias) = d.to(self.w.dtype), self.sums
        if hidden is not None:
            hidden[rows] += d @ self.w
        if weight is not None:
            weight.addmm_(d.T, self.h[rows])
        if bias is not None:
            bias += d.sum(0)
        for total, t in zip(self.learned, learned, strict=True):
            total += 0 if t is None else t

    def add_sparse(self, kept: list[tuple[Tensor, Tensor]], g: Tensor) -> None:
        """Add those of the gradients that are kept, times g for each row."""
        (rows, columns), values = (torch.cat(t, -1) for t in zip(*kept, strict=True))
        values = values.to(self.w.dtype) * g[rows].to(self.w.dtype)
        shape = (len(self.h), len(self.w))
        hidden, weight, bias = self.sums
        if hidden is not None:
            hidden.addmm_(_sparse(rows, columns, values, shape), self.w)
        if weight is not None:
            weight.addmm_(_sparse(columns, rows, values, shape[::-1]), self.h)
        if bias is not None:
            bias.index_add_(0, columns, values)

    def scale(self, g: Tensor) -> None:
        for t in (*self.sums, *self.learned):
            if t is not None:
                t *= g.to(t.dtype)

    def totals(self, wants: Sequence[bool]) -> list[Any]:
        """The gradients of all inputs."""
        learned = iter(self.learned)
        return [*self.sums, None, None, *(next(learned) if w else None for w in wants[5:])]


def _of_rows(mask: Tensor | None, rows: slice) -> Tensor | None:
    return mask if mask is None or mask.ndim < 2 or len(mask) == 1 else mask[rows]


def _entries(d: Tensor, first: int) -> tuple[Tensor, Tensor] | None:
    """Where a gradient is not 0, (2, n), its rows counted from ``first``, and its numbers there;
    None where that is often."""
    if int(torch.count_nonzero(d)) * SPARSE > d.numel():
        return None
    at = d.nonzero().T
    values = d[at[0], at[1]]
    at[0] += first
    return at, values


def _sparse(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    at = torch.stack([rows, columns])
    return torch.sparse_coo_tensor(at, values, shape, check_invariants=False, device=values.device)


def _check_shapes(hidden: Any, weight: Any, bias: Any, target: Any, mask: Any) -> None:
    given = {"hidden": hidden, "weight": weight, "bias": bias, "target": target, "mask": mask}
    for name, t in given.items():
        if not isinstance(t, Tensor) and not (t is None and name in ("bias", "mask")):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(t).__name__}")
    if hidden.ndim < 1 or weight.ndim != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            "hidden and weight must have shapes (..., F) and (C, F) with the same F; got "
            f"{tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    batch = hidden.shape[:-1]
    wanted = (*batch, len(weight)) if target.is_floating_point() else tuple(batch)
    if tuple(target.shape) != wanted:
        kind = "distributions" if target.is_floating_point() else "indices"
        raise ValueError(
            f"target of {kind} ({target.dtype}) must have shape {wanted} for hidden of shape "
            f"{tuple(hidden.shape)} and {len(weight)} classes; got {tuple(target.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape {(len(weight),)}; got {tuple(bias.shape)}")
    if mask is not None:
        try:
            mask.expand(*batch, len(weight))
        except RuntimeError:
            raise ValueError(
                f"mask must broadcast to the logits, {(*batch, len(weight))}; got "
                f"{tuple(mask.shape)}"
            ) from None
