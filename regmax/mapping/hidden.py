"""Tensors that Ω depends on and that are not its attributes: a closure, a container, an object.

regmax cannot name such a tensor. It may be a constant; one that requires grad is refused.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..kernels import simplex, transforms
from ..regularizers.errors import RegularizerError
from ..regularizers.expressions import Scaled, ScaledPenalty, Sum
from ..regularizers.identity import REPLACED, depth
from ..regularizers.operand import Operand
from ..regularizers.penalty import value_of
from ..regularizers.regularizer import Regularizer


def may_hide_tensors(omega: Regularizer) -> bool:
    """Whether Ω may depend on tensors that are not attributes. A class that offers a kernel depends
    on its hyperparameters alone."""
    return any(
        _may_hide(type(m))  # type: ignore[arg-type]
        for m in omega.modules()
        if isinstance(m, Operand)
    )


@functools.lru_cache(maxsize=1024)
def _may_hide(cls: type[Operand]) -> bool:
    """Whether a class redefines Ω, or a hyperparameter, after the class of its kernel."""
    names = (*REPLACED, *(cls.hyperparameters or ()))
    late = any(depth(cls, name) < depth(cls, "kernel") for name in names)
    return late and cls not in (Scaled, ScaledPenalty, Sum)


def refuse_hidden(omega: Regularizer, y: Tensor, mask: Tensor | None) -> None:
    """Raise if autograd records and Ω(y) depends on a tensor that requires grad and that
    ``omega.tensors()`` does not name. Under ``torch.func`` its derivatives are exact."""
    if not torch.is_grad_enabled() or transforms.tracing() or transforms.transforming():
        return
    if not may_hide_tensors(omega):
        return
    known = omega.with_tensors({name: t.detach() for name, t in omega.tensors().items()})
    leaf = y.detach().requires_grad_()
    with transforms.full_precision(y.device.type):
        stack: list[Any] = [value_of(known, simplex.inward(leaf), mask).grad_fn]
    seen = {None}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if getattr(node, "variable", leaf) is not leaf:
            raise RegularizerError(
                f"{omega!r} depends on a tensor that requires grad and is not one of its "
                "attributes (a closure, or a tensor in a container or an object): regmax cannot "
                "name it, and gives it no gradient. Store it as an attribute of the Regularizer "
                "(self.w = w), an nn.Parameter or a buffer; or detach it"
            )
        seen.add(node)
        stack += [following for following, _ in node.next_functions]
