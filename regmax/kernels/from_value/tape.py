"""The operations of a computation in PyTorch, recorded, to be repeated or translated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

aten = torch.ops.aten

FILLED = frozenset(("ones_like", "zeros_like", "full_like", "fill"))
"""Operations whose result does not depend on the numbers of their arguments."""


class Unknown(Exception):
    """Why no kernel can be made of a value."""


@dataclass(frozen=True)
class Ref:
    """The value with this number."""

    at: int


@dataclass(frozen=True)
class Step:
    """An operation; its result is the value number ``at``."""

    at: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """The operation without its overload."""
        return str(self.op.overloadpacket.__name__)

    def refs(self) -> list[Ref]:
        """The values that it takes."""
        return [leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if type(leaf) is Ref]


class Tape(TorchDispatchMode):
    """What runs inside ``with tape:``, as steps on the ``inputs``, which are the first values.
    ``writes``: an operation may write to a tensor of which there are no views. ``parts``: the
    operations that are recorded as what a function of the same arguments does."""

    def __init__(
        self,
        inputs: Sequence[Tensor],
        writes: bool = False,
        parts: Mapping[str, Callable[..., Tensor]] = MappingProxyType({}),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writes, self._parts = writes, parts
        self.steps: list[Step] = []
        self.values: list[Tensor] = []
        self._kept: list[Tensor] = []  # a tensor is known by its identity
        self._known: dict[int, Ref] = {}
        for t in inputs:
            self._new(t)
        self.outside: list[int] = []
        """The values that are neither inputs nor results: tensors from elsewhere."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # else the first use would load the compiler, for 1.5 s
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        part = self._parts.get(func.overloadpacket.__name__)
        if part is not None:
            try:
                with self:
                    return part(*args, **(kwargs or {}))
            except TypeError:
                raise Unknown(f"{func} has no translation with these arguments") from None
        shapes = torch.Tag.dynamic_output_shape in func.tags
        if func is aten.index.Tensor:  # a mask is read, positions are not
            shapes = any(t is not None and t.dtype == torch.bool for t in args[1])
        if shapes:
            raise Unknown(f"the shape of a result depends on numbers ({func})")
        if torch.Tag.data_dependent_output in func.tags:
            raise Unknown("it reads the numbers of a tensor (.item(), or a branch)")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unknown(f"it is random ({func})")
        given = tree_map_only(Tensor, self.ref, (args, kwargs or {}))
        if func._schema.is_mutable:
            name = func.overloadpacket.__name__
            if not self._writes or not name.endswith("_"):
                raise Unknown(f"it writes to a tensor ({func})")
            self.values[given[0][0].at] = args[0].clone()
            self._kept.append(args[0])
            result = func(*args, **(kwargs or {}))
            func = getattr(getattr(aten, name[:-1]), func._overloadname)
        else:
            result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor):
            raise Unknown(f"{func} does not return one tensor")
        self.steps.append(Step(self._new(result).at, func, *given))
        return result

    def ref(self, t: Tensor) -> Ref:
        """The number of a tensor."""
        if id(t) not in self._known:
            self.outside.append(self._new(t).at)
        return self._known[id(t)]

    def _new(self, t: Tensor) -> Ref:
        found = self._known[id(t)] = Ref(len(self.values))
        self.values.append(t)
        self._kept.append(t)
        return found


def function(steps: Iterable[Step], given: Sequence[int], results: Sequence[Ref]) -> Any:
    """The results of the steps as a function of the values ``given``."""
    known: dict[str, Any] = {}

    def text(item: Any) -> str:
        if isinstance(item, Ref):
            return f"v{item.at}"
        if type(item) in (tuple, list):
            inside = "".join(f"{text(each)}, " for each in item)
            return f"({inside})" if type(item) is tuple else f"[{inside}]"
        known[f"c{len(known)}"] = item
        return f"c{len(known) - 1}"

    lines = [f"def repeated({', '.join(f'v{at}' for at in given)}):"]
    for step in steps:
        call = text(step.op)
        arguments = [*map(text, step.args), *(f"{k}={text(a)}" for k, a in step.kwargs.items())]
        lines.append(f"    v{step.at} = {call}({', '.join(arguments)})")
    lines.append(f"    return [{', '.join(map(text, results))}]")
    exec("\n".join(lines), known)
    return known["repeated"]


def needed(steps: Sequence[Step], results: Iterable[Ref]) -> list[Step]:
    """The steps that the results depend on."""
    wanted, kept = {ref.at for ref in results}, []
    for step in reversed(steps):
        if step.at in wanted:
            kept.append(step)
            if step.name not in FILLED:
                wanted.update(ref.at for ref in step.refs())
    return kept[::-1]
