"""The learned hyperparameters of a model over a training run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import Learnable
from ..regularizers.operand import Operand
from ..regularizers.regularizer import Regularizer


class Trajectories:
    """The learned hyperparameters of a model, step by step: α of each head, for instance.

        record = Trajectories(model)
        for step in …: …; optimizer.step(); record.step(step)
        record.values["encoder.0.omega.alpha"]  # (steps, *shape of alpha)

    It records the hyperparameters of every :class:`regmax.nn.Learnable`, those that every Ω and
    penalty declares (the tensors of an Ω that declares none), and the γ of every module with an Ω,
    if they require grad at construction. Values computed from parameters, as α = 1 + sigmoid(a),
    are computed at each step. Steps stay on the device of the values, without synchronisation.
    ``state_dict`` and ``load_state_dict`` continue the record of a resumed run. Correia et al.
    (2019), Figure 2.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
        with torch.enable_grad():  # without grad mode, a computed value would not require grad
            self._learns = {
                (f"{prefix}." if prefix else "") + name: (module, name)
                for prefix, module in model.named_modules()
                for name in _hyperparameters(module)
                if isinstance(item := _present(module, name), Tensor) and item.requires_grad
            }
            self._shapes = {key: _present(*place).shape for key, place in self._learns.items()}
        self.steps: list[int] = []
        self._rows: list[Tensor] = []

    @torch.no_grad()
    def step(self, n: int) -> None:
        """Record the present values for step ``n``, which must exceed the last recorded step."""
        if self.steps and n <= self.steps[-1]:
            raise ValueError(f"n must be > {self.steps[-1]}, the last step recorded; got {n}")
        self._rows.append(_flat([_present(*place) for place in self._learns.values()]))
        self.steps.append(n)

    @property
    def values(self) -> dict[str, Tensor]:
        """By dotted name: (steps, *shape), on the CPU."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        rows = [row.cpu() for row in self._rows]
        table = torch.stack(rows) if rows else torch.empty(0, sum(sizes), device="cpu")
        parts = zip(self._shapes.items(), table.split(sizes, -1), strict=True)
        return {key: part.reshape(len(table), *shape) for (key, shape), part in parts}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self.steps), "values": self.values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``, of a model with the same hyperparameters."""
        steps, values = list(state["steps"]), state["values"]
        wanted = {key: (len(steps), *shape) for key, shape in self._shapes.items()}
        found = {key: tuple(table.shape) for key, table in values.items()}
        if found != wanted:
            raise ValueError(f"state must hold values of the shapes {wanted}; got {found}")
        self.steps = steps
        self._rows = [_flat([values[key][k] for key in wanted]) for k in range(len(steps))]


def _hyperparameters(module: nn.Module) -> Iterator[str]:
    """The names of this module's own hyperparameters that may be learned."""
    if isinstance(getattr(module, "omega", None), Regularizer | Learnable):
        yield "gamma"
    if isinstance(module, Learnable):
        yield from module.names
    elif isinstance(module, Regularizer) and module.hyperparameters is None:
        yield from (key for key in module.tensors() if "." not in key)
    elif isinstance(module, Operand):
        yield from module.hyperparameters or ()


def _present(module: nn.Module, name: str) -> Any:
    """The present value of the hyperparameter; a module computes its own."""
    item = module.values()[name] if isinstance(module, Learnable) else getattr(module, name, None)
    return item() if isinstance(item, nn.Module) else item


def _flat(items: list[Tensor]) -> Tensor:
    """All numbers in one vector, on the device of the first."""
    if not items:
        return torch.empty(0, device="cpu")
    return torch.cat([item.detach().reshape(-1).to(items[0].device) for item in items])
