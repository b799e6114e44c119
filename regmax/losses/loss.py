"""``FenchelYoungLoss``: the loss of any Ω as a module, with cross-entropy's conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from .. import domains
from ..domains import Domain
from ..kernels import transforms
from ..kernels.simplex import row_sums
from ..kernels.transforms import may_look, outside_inference
from ..kernels.wrappers import dense, is_dtensor
from ..mapping.rows import HALF, computed_in
from ..nn import gradients
from ..nn.layer import RegularizedMax
from ..regularizers import arguments
from ..regularizers.arguments import first
from ..regularizers.printing import called, show, unusual
from ..regularizers.regularizer import Regularizer, copied
from ..solvers import Solver
from . import fenchel_young, sharded
from .by_kernel import reduced
from .targets import Target, checked, divided, improper, is_index, taking_part, times

Reduction = Literal["mean", "sum", "none"]


class Probabilities(RegularizedMax):
    """The probabilities of classes, along dimension 1, or 0 for 1-d logits."""

    def _along(self, x: Any) -> int:
        return 0 if self.dim == 1 and isinstance(x, Tensor) and x.ndim == 1 else self.dim


class FenchelYoungLoss(nn.Module):
    """L_Ω(x; t) = max_Ω(x) + γΩ(t) − ⟨t, x⟩ ≥ 0, which is 0 only if Π_Ω(x) = t.

    Its gradient in the logits x is Π_Ω(x) − t, which the forward pass already computes. For the
    negative entropy, L_Ω is the cross-entropy. For a sparse mapping, L_Ω has a margin: the loss and
    its gradient are exactly 0 if the target's logit exceeds the others by enough (Blondel, Martins
    & Niculae 2020; for entmax Peters et al. 2019, Eq. 11 and 12).

    Parameters
    ----------
    omega: a :class:`regmax.Regularizer`.
    gamma: γ > 0, a float or a tensor. γ and every tensor inside Ω get their gradients.
    dim: the dimension of the classes: 1, as in ``torch.nn.CrossEntropyLoss`` (0 for 1-d logits).
    weight: a factor for each class, (C,).
    ignore_index: rows with this index as target do not count, whatever they hold.
    reduction: "mean" (weighted by the targets that count; 0 without any), "sum", or "none".
    label_smoothing: ε in [0, 1]. The loss is (1 − ε) L_Ω(x; t) plus ε times the mean of L_Ω(x; e_c)
        over the participants, as in cross-entropy.
    domain: a :class:`regmax.Simplex`, :class:`regmax.AtMost` or :class:`regmax.Box`. A target is
        then a point of it, such as a multi-hot vector, of the shape of ``input``, bool, integer or
        floating; or the index of one class of those that are chosen, and then
        L = max_D(x) − max_{y ∈ D, y_c = 1}(x). ``weight`` is for indices, and there is no
        ``label_smoothing``.
    solver, tol, max_iter, on_failure, certify: as for :class:`regmax.RegularizedMax`.

    ``forward(input, target, mask=None)``: ``input`` holds floating logits of any shape. ``target``
    holds indices, of the shape of ``input`` without ``dim``, or distributions, floating and
    nonnegative, of the shape of ``input``. With distributions the loss differs from cross-entropy
    by the constant γΩ(t). ``mask`` (True = takes part) broadcasts to the logits; −inf counts as
    masked. A masked target has loss +inf, and a row without participants has loss 0, both without
    gradient. The loss has cross-entropy's dtype, float32 under autocast. It is summed in float64
    and rounded once.

    ``loss.mapping(input)`` gives the probabilities, along the same dimension as ``forward``.
    """

    weight: Tensor | None
    at: Any = None  # where the classes are, if they lie on several devices
    parts = False  # whether this is a device's part: a wrong target is NaN, and all devices raise
    hyperparameters: ClassVar[tuple[str, ...] | None] = None

    def __init__(
        self,
        omega: Regularizer,
        gamma: float | Tensor = 1.0,
        *,
        dim: int = 1,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        solver: str | Solver = "auto",
        tol: float | None = None,
        max_iter: int = 2000,
        on_failure: Literal["warn", "raise", "ignore"] = "warn",
        domain: Domain | None = None,
        certify: bool = False,
    ) -> None:
        super().__init__()
        settings: Any = {"tol": tol, "max_iter": max_iter, "on_failure": on_failure}
        settings |= {"certify": certify, "domain": domain}
        self.mapping = Probabilities(omega, gamma, dim, solver, **settings)
        if weight is not None and (
            not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim != 1
        ):
            raise TypeError(
                f"weight must be a floating tensor of shape (C,) or None; got {_kind(weight)}"
            )
        if weight is not None and not is_dtensor(weight):
            weight = dense("weight", weight)
        if weight is not None and may_look(weight) and not bool((weight >= 0).all()):
            raise ValueError(f"weight must be >= 0; got {weight.min().item():g}")
        if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
            raise TypeError(f"ignore_index must be an int; got {ignore_index!r}")
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f'reduction must be "mean", "sum" or "none"; got {reduction!r}')
        number = isinstance(label_smoothing, int | float) and not isinstance(label_smoothing, bool)
        if not number or not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be a number in [0, 1]; got {label_smoothing!r}")
        if self.mapping.domain is not None and label_smoothing:
            raise ValueError(
                f"a loss with a domain takes no label_smoothing; got {label_smoothing!r}"
            )
        self.register_buffer("weight", weight)
        self.dim, self.ignore_index, self.reduction = dim, ignore_index, reduction
        self.label_smoothing = float(label_smoothing)

    @property
    def omega(self) -> Regularizer:
        """Ω."""
        return self.mapping.omega

    @property
    def gamma(self) -> float | Tensor:
        """γ."""
        return self.mapping.gamma

    @outside_inference
    def forward(self, input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of logits: a number, or one number per target with reduction "none"."""
        if mask is None and self.mapping.domain is None:
            task = reduced(self, input, target, FenchelYoungLoss)
            found = None if task is None else gradients.apply(task, input)
            if found is not None:
                return found
        return self._general(input, target, mask)

    def _general(self, input: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        """The loss of what :func:`regmax.losses.by_kernel.reduced` does not take."""
        domain = self.mapping.domain
        if domain is None and is_dtensor(input) and not transforms.transforming():
            if torch.compiler.is_dynamo_compiling():
                from . import dynamo  # loads the compiler

                outside: Tensor = dynamo.outside(sharded.loss, self, input, target, mask)
                return outside
            return sharded.loss(self, input, target, mask)
        logits, dim = arguments.scores(dense("input", input), self.mapping._along(input), "input")
        target = dense("target", target, logits)
        with transforms.full_precision(logits.device.type):
            loss = self._reduced(*self._each(logits, dim, target, mask))
        return loss.to(self._dtype(logits, target))

    def _each(
        self, logits: Tensor, dim: int, target: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The losses of the rows, the weights that the mean divides by, and the ignored rows."""
        if self.at is not None:
            return sharded.each(self, logits, dim, target, mask)
        mask = arguments.expanded(mask, logits)
        x = logits.movedim(dim, -1)
        on = None if mask is None else mask.movedim(dim, -1)
        weight = self._weight(x, x.shape[-1])
        index = skip = wrong = given = mass = None
        domain = self.mapping.domain
        if not is_index(target, logits, dim, domain is not None):
            given = target.movedim(dim, -1)
        if given is None:
            index, skip, wrong = self._index(target, x.shape[-1])
            mass = None if weight is None else taken(weight, index)
        elif domain is not None:
            if weight is not None:
                raise ValueError(
                    "a loss with a domain takes weight for targets of indices alone; got "
                    f"{target.dtype}, {tuple(target.shape)}"
                )
        else:
            given = given if given.dtype in HALF else given.to(computed_in(x.dtype))
            wrong = improper(given).any(-1) if self.parts else None
            given = given if self.parts else checked(given)
            given = given if weight is None else given * weight
            if self.label_smoothing > 0:
                given, mass = divided(given.to(computed_in(x.dtype)))
        k = None if index is None else index.unsqueeze(-1)
        t, scale = Target(k, given, skip=skip), mass
        if self.label_smoothing > 0 and weight is None and given is None:
            t = Target(k, epsilon=self.label_smoothing, skip=skip)
        elif self.label_smoothing > 0:
            part = taking_part(x, on, computed_in(x.dtype))
            if k is not None and mass is not None:  # a class of weight 0 may be masked
                k = torch.where(mass.unsqueeze(-1) == 0, part.argmax(-1, keepdim=True), k)
            spread, share, scale = self._smoothed(part, weight, mass, row_sums)
            t = Target(k, given, spread, share, skip=skip)
        rows = times(scale, self._rows(logits, dim, mask, t))
        if wrong is not None:
            rows = torch.where(wrong, torch.nan, rows)
        return rows, mass if given is None else None, skip

    def _rows(self, x: Tensor, dim: int, mask: Tensor | None, target: Target) -> Tensor:
        """L of each row, also under torch.compile."""
        settings, domain = self.mapping.settings, self.mapping.domain
        if not torch.compiler.is_dynamo_compiling():
            given = dim, mask, target, settings, domain
            return fenchel_young.losses(self.omega, x, self.gamma, *given)
        from . import dynamo  # loads the compiler

        text, inside = dynamo.text_of(self.omega, settings, domain)
        if not text:
            outside: Tensor = dynamo.outside(self._rows, x, dim, mask, target)
            return outside
        recorded = x, self.gamma, dim, mask, domains.told(domain), *target
        return dynamo.losses(text, *recorded, *inside)

    def _with(self, omega: Regularizer, gamma: Any) -> Self:
        """The same loss of another Ω and γ, in the place of this one's."""
        own: Self = copied(self)
        mapping = copied(self.mapping)
        own._modules["mapping"] = mapping
        mapping._modules["omega"] = omega
        for store in (mapping._parameters, mapping._buffers):
            store.pop("gamma", None)
        mapping.__dict__["gamma"] = gamma
        return own

    def _dtype(self, logits: Tensor, target: Tensor) -> torch.dtype:
        """Cross-entropy's dtype: float32 under autocast; distributions may widen it."""
        dtype = logits.dtype
        if dtype in HALF and transforms.autocasting(logits.device.type):
            dtype = torch.float32
        if target.is_floating_point():
            dtype = torch.promote_types(dtype, target.dtype)
        return dtype

    def _weight(self, x: Tensor, classes: int) -> Tensor | None:
        weight = dense("weight", self.weight, x)
        if weight is not None and weight.shape[0] != classes:
            raise ValueError(
                f"weight must have one number for each class: it has {weight.shape[0]}, and "
                f"input {classes} classes along dim={self.dim}"
            )
        return None if weight is None else weight.to(x.device, computed_in(x.dtype))

    def _index(self, target: Tensor, classes: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Valid indices, the ignored rows, and the rows out of range if these cannot raise here."""
        if may_look(target) and target.numel():
            low, high = (end.item() for end in target.aminmax())
            if 0 <= low <= high < classes and not low <= self.ignore_index <= high:
                return target.long(), None, None
        skip = target == self.ignore_index
        index = target.long().masked_fill(skip, 0)
        wrong = (index < 0) | (index >= classes)
        if self.parts or not may_look(target):
            return index.masked_fill(wrong, 0), skip, wrong
        if bool(wrong.any()):
            at = first(wrong)
            raise ValueError(
                f"target must hold indices in [0, {classes - 1}] or ignore_index="
                f"{self.ignore_index}; got {target[at].item()}{f' at index {at}' if at else ''}"
            )
        return index, skip if bool(skip.any()) else None, None

    def _smoothed(
        self,
        part: Tensor,
        weight: Tensor | None,
        mass: Tensor | None,
        sums: Callable[..., Any],
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """s and a of label smoothing, and the factor of the loss, None for 1. ``part``: 1 where an
        entry takes part; ``sums``: those over rows."""
        epsilon, spread = self.label_smoothing, part if weight is None else part * weight
        count, total = sums(part, spread)
        own = (1 - epsilon) * (1 if mass is None else mass.unsqueeze(-1))
        scale = own + epsilon * total / count.clamp_min(1)
        share = own / torch.where(scale > 0, scale, 1)
        plain = mass is None and weight is None
        spread = spread / torch.where(total > 0, total, 1)
        return spread, share, None if plain else scale.squeeze(-1)

    def _sums(
        self, rows: Tensor, mass: Tensor | None, skip: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sum of the losses, and what the mean divides it by."""
        if mass is None and skip is None:
            return rows.sum(), rows.new_full((), rows.numel())
        mass = torch.ones_like(rows) if mass is None else mass.to(rows.dtype)
        return rows.sum(), (mass if skip is None else torch.where(skip, 0, mass)).sum()

    def _reduced(self, rows: Tensor, mass: Tensor | None, skip: Tensor | None) -> Tensor:
        if self.reduction == "none":
            return rows
        total, count = self._sums(rows, mass, skip)
        return total if self.reduction == "sum" else total / torch.where(count > 0, count, 1)

    def __repr__(self) -> str:
        """A named loss shows its hyperparameters: ``EntmaxLoss(alpha=1.3, reduction='sum')``."""
        made = [repr(self.omega)]
        if self.hyperparameters is not None:
            made = [f"{name}={show(getattr(self.omega, name))}" for name in self.hyperparameters]
        own = unusual(
            dim=(self.dim, 1),
            weight=(self.weight, None),
            ignore_index=(self.ignore_index, -100),
            reduction=(self.reduction, "mean"),
            label_smoothing=(self.label_smoothing, 0.0),
        )
        return called(self, made + own + self.mapping.options())


def _kind(item: Any) -> str:
    if not isinstance(item, Tensor):
        return repr(item)
    return f"a tensor of shape {tuple(item.shape)}, {item.dtype}"


def taken(weight: Tensor, index: Tensor) -> Tensor:
    """The weight of each index, also under vmap."""
    return weight.index_select(0, index.reshape(-1)).view(index.shape)
