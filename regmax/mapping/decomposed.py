"""``regmax::argmax`` in operations of ATen, for ONNX, AOTInductor and ExecuTorch.

``torch.export`` records Π_Ω as one operator, which needs regmax at run time. The stages after it
(``run_decompositions``, which ``torch.onnx.export`` and ExecuTorch call, and AOTInductor) trace the
program again. There the operator is replaced by the PyTorch form of Ω: its closed form, the prox of
its penalty followed by that of its base, or the equation of its value
(:mod:`regmax.kernels.from_value.in_graph`).

Such a form reads no number of a tensor and has no loop over the length of a row, which is dynamic.
Steps towards a root are one operation, ``while_loop`` (:func:`regmax.kernels.roots.loop`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.overrides import TorchFunctionMode

from ..kernels import transforms
from ..regularizers.expressions import Scaled
from ..regularizers.penalty import Penalized
from ..regularizers.recorded import Recorded
from ..regularizers.regularizer import Regularizer
from .methods.closed_form import closed_form
from .rows import prepare

# make_fx adds it to every table
_ALWAYS = torch.ops.aten.sym_numel.default


def asked(mode: ProxyTorchDispatchMode) -> bool:
    """Whether an exported program is traced again to decompose it: not by
    ``run_decompositions({})``, nor by ``torch.compile``."""
    decomposes = any(op is not _ALWAYS for op in mode.decomposition_table)
    return decomposes and not mode.pre_dispatch and torch.compiler.is_exporting()


def argmax(omega: Regularizer, gamma: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """Π_Ω of rows as the user gives them, in operations of ATen."""
    try:
        with _Constants():
            # in float64: in float32 the rounding of x/γ moves entries to and from 0
            rows = prepare(omega, x, gamma, -1, mask, wide=True)
            number = transforms.number(rows.gamma, rows.x)
            return rows.restore(_formula(rows.omega, rows.x, number, rows.mask))
    except Exception as error:  # a plugin's code may raise anything
        raise NotImplementedError(
            f"{omega} has no form in operations of ATen, which ONNX, AOTInductor, ExecuTorch "
            "and run_decompositions need: its closed form or prox reads numbers of tensors, or "
            "loops over the entries of a row. "
            "run_decompositions({}) keeps the operator of regmax, for processes that import it"
        ) from error


class _Constants(TorchFunctionMode):
    """``torch.tensor`` of a number is an operation: a program that exists takes no new tensor."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.tensor, torch.as_tensor) and isinstance(args[0], int | float):
            return torch.full((), *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _formula(omega: Regularizer, x: Tensor, gamma: Tensor, mask: Tensor | None) -> Tensor:
    while isinstance(omega, Scaled):
        c: Any = omega.c
        omega, gamma = omega.base, gamma * transforms.number(c, x)
    if isinstance(omega, Recorded):
        return omega.in_graph(x / gamma, mask)
    y = closed_form(omega, x, gamma, mask)
    if y is not None:
        return y
    assert isinstance(omega, Penalized)  # the operator is recorded for an Ω with a formula
    exact: Any = omega.with_tensors({"lam": transforms.number(omega.lam, x)})
    return _formula(omega.base, exact.composed(x, gamma, mask), gamma, mask)
