"""Attention in one compiled kernel, where Ω offers one (:class:`regmax.kernels.AttentionKernel`).

Scores are never in memory, so no chunks are needed. What the kernel does not differentiate is
computed from the scores.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..kernels import AttentionKernel, transforms
from ..kernels.base import CannotLaunch
from ..mapping.methods import kernel as kernels
from ..regularizers.expressions import Scaled
from ..regularizers.identity import names_of, unscaled
from ..regularizers.regularizer import Regularizer
from . import chunks, gradients, matmul, packed, whole
from .learnable import Learnable
from .whole import Inputs, Options

F32 = torch.float32
_REFUSED: set[tuple[Any, ...]] = set()
"""Kernels, devices, dtypes and sizes of heads that have raised ``CannotLaunch``."""


@dataclass(frozen=True)
class Fused(gradients.Operation):
    """The kernel. ``given``: q, k, v, mask, sink, γ and θ, as it takes them."""

    kernel: AttentionKernel
    options: Options
    omega: Regularizer

    def forward(self, grad: bool, *given: Any) -> tuple[Tensor, Sequence[Tensor | None]]:
        try:
            return self.kernel.forward(self.options, grad, *given)
        except CannotLaunch as error:
            _REFUSED.add(_key(self.kernel, given[0], given[2]))
            _warn(error)
            raise

    def backward(
        self, wants: Sequence[bool], g: Tensor, kept: Sequence[Any], *given: Any
    ) -> Sequence[Tensor | None] | None:
        try:
            return self.kernel.backward(self.options, tuple(wants), g, tuple(kept), *given)
        except CannotLaunch as error:
            _warn(error)
            return None

    def recorded(self, *given: Any) -> Tensor:
        q, k, v, mask, *numbers = given
        sink, gamma, *theta = (t[..., None, None] if isinstance(t, Tensor) else t for t in numbers)
        named = zip(names_of(self.omega), theta, strict=True)
        held = {name: t for name, t in named if isinstance(t, Tensor)}
        at = self.omega.with_tensors(held) if held else self.omega
        options = replace(self.options, offsets=None)
        dropped = self.kernel.factors(self.options, q, k) if self.options.dropout else None

        def alone(q: Tensor, k: Tensor, v: Tensor, factors: Tensor | None) -> Tensor:
            return whole.attended(options, at, Inputs(q, k, v, mask, sink, gamma), factors)[0]

        if self.options.offsets is None:
            return alone(q, k, v, dropped)
        return packed.each(alone, self.options.offsets, q, k, v, dropped)


def prepared(
    options: Options, omega: Regularizer | Learnable, given: Inputs
) -> Callable[[], Tensor] | str:
    """Attention by the kernel, or why no kernel computes it. A wrong argument is such a reason too:
    another way raises its error."""
    if not transforms.plain():
        return "a transform or a tracer is active"
    if options.certify:
        return "weights that are not in memory cannot be certified"
    if options.domain is not None:
        return "the kernel takes the simplex alone"
    kernel = _kernel(omega, given.q, given.k)
    if kernel is None:
        return "Ω has no attention kernel for this device"
    (q, k, v), (mask, sink, gamma) = matmul.as_autocast(*given[:3]), given[3:]
    score_ndim, v_ndim = max(q.ndim, k.ndim), v.ndim
    if not q.dtype == k.dtype == v.dtype or q.dtype not in kernel.dtypes:
        return "the kernel does not take these dtypes"
    if max(score_ndim, v_ndim) > 4 or not isinstance(options.scale, int | float):
        return "the kernel takes at most 4 dimensions, and a number as scale"
    present, ranges = (omega(), omega.ranges()) if isinstance(omega, Learnable) else (omega, {})
    try:
        q, k, v, scores = _laid_out(q, k, v, options.enable_gqa)
        if mask is not None:
            mask = mask.expand(scores.shape[4 - score_ndim :])[(None,) * (4 - score_ndim)]
            mask = mask.expand(scores.shape)
    except (RuntimeError, AttributeError):  # of the wrong shape, or no tensor
        return "the shapes do not fit"
    numbers, bare = _numbers(present, kernel, ranges, gamma, scores, score_ndim)
    if sink is not None:
        sink = _per_head(sink, scores, score_ndim)
        numbers = [] if sink is None else numbers
    if not numbers:
        return "γ, the sink and numbers inside Ω must be one for each head, in the kernel's range"
    tensors = [t for t in (q, k, v, mask, sink, *numbers) if isinstance(t, Tensor)]
    if _key(kernel, q, v) in _REFUSED:
        return "the kernel does not fit this device"
    if (
        not all(type(t) in transforms.PLAIN and t.device == q.device for t in tensors)
        or any(t.layout != torch.strided or t.is_neg() or not t.numel() for t in tensors)
        or options.dropout >= 1
        or not (mask is None or _takes_mask(mask, q, k, omega))
        or not kernel.takes(options, q, k, v, mask, sink)
    ):
        return "the kernel does not take these sizes or arguments"
    own = Fused(kernel, options, bare)
    return partial(_launched, max(score_ndim, v_ndim), own, q, k, v, mask, sink, *numbers)


def _launched(ndim: int, kernel: Fused, q: Tensor, *given: Any) -> Tensor:
    if kernel.options.dropout:
        seed = torch.randint(1 << 62, (1,), device=q.device)
        kernel = replace(kernel, options=replace(kernel.options, seed=seed))
    out = gradients.apply(kernel, q, *given)
    return out.reshape(out.shape[4 - ndim :])


def _key(kernel: AttentionKernel, q: Tensor, v: Tensor) -> tuple[Any, ...]:
    return kernel, q.device, q.dtype, q.shape[-1], v.shape[-1]


def _warn(error: CannotLaunch) -> None:
    warnings.warn(
        f"the attention kernel does not fit this device, and scores are computed instead: {error}",
        RuntimeWarning,
        stacklevel=3,
    )


def _kernel(omega: Regularizer | Learnable, q: Tensor, k: Tensor) -> AttentionKernel | None:
    bare, _ = unscaled(omega.base if isinstance(omega, Learnable) else omega, 1)
    if type(q) not in transforms.PLAIN or q.is_meta or bare.entries not in (None, k.shape[-2]):
        return None
    row = torch.empty((), dtype=F32, device=q.device).expand(1, k.shape[-2])
    kernel = kernels.kernel_of(bare, row)
    return None if kernel is None else kernel.attention


def _laid_out(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, ...]:
    """q, k and v with four dimensions and one batch size, and a tensor of the shape of the scores;
    RuntimeError if they do not fit."""
    fewest = min(t.ndim for t in (q, k, v))
    q, k, v = (t[(None,) * (4 - t.ndim)] for t in (q, k, v))
    if enable_gqa:
        (batch,) = torch.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])
        if fewest < 3 or k.shape[1] != v.shape[1] or q.shape[1] % max(k.shape[1], 1):
            raise RuntimeError
        q, k, v = (t.expand(batch, *t.shape[1:]) for t in (q, k, v))
    else:
        lead = torch.broadcast_shapes(q.shape[:2], k.shape[:2], v.shape[:2])
        q, k, v = (t.expand(*lead, *t.shape[2:]) for t in (q, k, v))
    like = q.new_empty((), dtype=torch.promote_types(q.dtype, F32)).expand(
        *q.shape[:-1], k.shape[-2]
    )
    return q, k, v, like


def _numbers(
    omega: Regularizer,
    kernel: AttentionKernel,
    ranges: dict[str, tuple[float, float]],
    gamma: Any,
    scores: Tensor,
    ndim: int,
) -> tuple[list[Any], Regularizer]:
    """γ and θ as the kernel takes them, and the Ω that has θ. No numbers, if there is not one for
    each head, or one may be out of the kernel's range."""
    like = scores[(0,) * (4 - ndim)]
    prefix = ""
    own, made = kernels.checked(omega, gamma, like, ndim - 1)
    while isinstance(omega, Scaled):
        omega, prefix = omega.base, prefix + "base."
    theta = zip(names_of(own), made[1:], strict=True)
    for (name, item), (low, high) in zip(theta, kernel.bounds, strict=True):
        if isinstance(item, Tensor):
            least, most = ranges.get(prefix + name) or _range(item)
        else:
            least = most = item
        if not low <= least <= most <= high:
            return [], omega
    if any(isinstance(t, Tensor) and t.shape[-2] != 1 for t in made):
        return [], omega
    heads = scores.shape[:2]
    return [t[..., 0, 0].expand(heads) if isinstance(t, Tensor) else t for t in made], omega


def _per_head(item: Any, scores: Tensor, ndim: int) -> Any:
    """A number, or a tensor that broadcasts to the scores, as the kernel takes it; None if it is
    neither, or not one number for each head."""
    if not isinstance(item, Tensor):
        return float(item) if isinstance(item, int | float) else None
    if item.ndim > ndim or any(n != 1 for n in item.shape[-2:]) or item.is_complex():
        return None
    try:
        item = item[(None,) * (4 - item.ndim)].expand(*scores.shape[:2], 1, 1)
    except RuntimeError:
        return None
    return item[..., 0, 0]


def _range(t: Tensor) -> tuple[float, float]:
    """The least and the largest number of t; all numbers where reading them would synchronise."""
    if not transforms.may_look(t) or not t.numel():
        return -math.inf, math.inf
    least, most = t.detach().aminmax()
    return float(least), float(most)


def _takes_mask(mask: Tensor, q: Tensor, k: Tensor, omega: Regularizer | Learnable) -> bool:
    """Whether the kernel takes the mask. The gradient of one that is shared by heads or queries is
    first as large as the scores: no larger than those that are computed at once otherwise."""
    if mask.dtype == torch.bool:
        return True
    learns = mask.requires_grad and torch.is_grad_enabled()
    if learns and 0 in mask.stride() and chunks.automatic(q, k, omega) < q.shape[-2]:
        return False
    return mask.dtype in (F32, torch.float16, torch.bfloat16)
