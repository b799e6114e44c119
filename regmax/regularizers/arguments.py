"""Checks of arguments. Each message names the argument, the value received and what is accepted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..kernels import transforms
from ..kernels.transforms import PLAIN
from ..kernels.wrappers import dense, is_dtensor
from .printing import brief


def scores(x: Any, dim: Any, name: str = "x") -> tuple[Tensor, int]:
    """``x`` as a floating tensor of at least one dimension, ``dim`` as a nonnegative int; messages
    use ``name``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(x).__name__}")
    if x.dtype not in DTYPES:
        accepted = "floating (float16, bfloat16, float32, float64)"
        raise TypeError(f"{name} must be {accepted}; got {x.dtype}")
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension; got a 0-d tensor")
    if isinstance(dim, torch.SymInt):
        dim = int(dim)  # torch.compile would keep it symbolic
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int; got {dim!r}")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(
            f"dim must be in [{-x.ndim}, {x.ndim - 1}] for {name} of shape {tuple(x.shape)}; "
            f"got {dim}"
        )
    if x.shape[dim] == 0:
        raise ValueError(f"{name} must not be empty along dim={dim}; got shape {tuple(x.shape)}")
    return x, dim % x.ndim


def rows(omega: Any, x: Any, dim: Any, mask: Any) -> tuple[Tensor, int, Tensor | None]:
    """The scores, their dimension and their mask, checked: what every mapping and loss begins
    with."""
    x, dim = scores(dense("x", x), dim)
    entries(x, dim, omega.entries, omega)
    return x, dim, expanded(mask, x)


def entries(x: Tensor, dim: int, wanted: int | None, who: Any) -> None:
    """Raise ValueError unless rows have the ``wanted`` number of entries that ``who`` requires."""
    if wanted is not None and x.shape[dim] != wanted:
        raise ValueError(
            f"x must have {wanted} entries along dim={dim}, as {who} is made for; got "
            f"{x.shape[dim]}, shape {tuple(x.shape)}"
        )


def refuse_length(parts: Iterable[Any], x: Tensor, dim: int, error: RuntimeError) -> None:
    """Raise ValueError if one of the ``parts`` of an Ω requires rows of another length than ``x``,
    or other rows.

    The candidate lengths are the sizes in the text of ``error``. A part requires a length if its
    value can be computed for rows of that length and not for ``x``; other rows, which one of its
    tensors has, in the same way.
    """
    d, batch = x.shape[-1], tuple(x.shape[:-1])
    lengths = dict.fromkeys(int(n) for n in re.findall(r"(?<!\d)[1-9]\d{0,5}(?!\d)", str(error)))
    for part in parts:
        for n in lengths:
            if part.entries is None and n != d and _takes(part, x, n) and not _takes(part, x, d):
                name = type(part).__name__
                raise ValueError(
                    f"{name}.value(y) takes rows of {n} entries, and x has {d} along dim={dim} "
                    f"({error}). Set entries = {n} in {name}: rows are then checked by name"
                ) from None
        for key, t in part.tensors(fixed=True).items() if hasattr(part, "tensors") else ():
            own = tuple(t.shape[:-1])
            if own not in ((), batch) and _takes(part, x, d, own) and not _takes(part, x, d, batch):
                raise ValueError(
                    f"{key} must have one row for each row of x, or broadcast to them: {key} has "
                    f"shape {tuple(t.shape)}, and x has rows {batch} of {d} entries ({error})"
                ) from None


def refuse_columns(parts: Iterable[Any], x: Tensor, error: Exception) -> None:
    """Raise ValueError if the value of a part takes a hyperparameter of each row, (*batch, 1), for
    a number of the row, (*batch)."""
    d, batch = x.shape[-1], tuple(x.shape[:-1])
    for part in parts:
        each = part.per_row_tensors() if hasattr(part, "per_row_tensors") else {}
        one = {key: torch.ones_like(t.reshape(-1)[0]) for key, t in each.items() if t.numel()}
        if one and not _takes(part, x, d, batch) and _takes(part.with_tensors(one), x, d, batch):
            key = next(iter(one))
            raise ValueError(
                f"{type(part).__name__}.value(y): self.{key} has the shape of y with size 1 in its "
                f"last dimension ({error}). A term of one number per row takes "
                f"self.per_row({key!r})"
            ) from None


def _takes(part: Any, x: Tensor, n: int, batch: tuple[int, ...] = (1,)) -> bool:
    """Whether the value of a part can be computed for rows of n entries."""
    try:
        return bool(part.value(x.new_full((*batch, n), 1 / n)).shape == batch)
    except Exception:  # a plugin's code may raise anything
        return False


def first(wrong: Tensor) -> tuple[int, ...]:
    """Where the first wrong entry is, for a message."""
    return tuple(int(i) for i in wrong.nonzero()[0])


def few(wrong: Tensor) -> list[tuple[int, ...]]:
    """Where the first four are."""
    return [tuple(int(i) for i in at) for at in wrong.nonzero()[:4]]


def expanded(mask: Any, x: Tensor, name: str = "x") -> Tensor | None:
    """``mask`` expanded to the shape of ``x``; messages use ``name``."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a bool torch.Tensor or None; got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool (True = takes part); got {mask.dtype}")
    if type(mask) not in PLAIN:
        mask = dense("mask", mask, x)
    try:
        found: Tensor = mask.to(x.device).expand(x.shape)
    except RuntimeError:
        dense("mask", mask, x)
        raise ValueError(
            f"mask must broadcast to {name}: mask has shape {tuple(mask.shape)}, {name} "
            f"{tuple(x.shape)}"
        ) from None
    return found


def hyperparameter(
    name: str, item: Any, accepted: str, holds: Callable[[Any], Any]
) -> float | Tensor:
    """A number or floating tensor for which ``holds`` is true everywhere; messages print
    ``accepted``.

    The numbers of a tensor are tested only where that costs no synchronisation: on the CPU, in
    plain PyTorch.
    """
    if isinstance(item, Tensor):
        t: Tensor = item
        if not t.dtype.is_floating_point:
            raise TypeError(f"{name} must be a float or a floating tensor; got {t.dtype}")
        if type(t) not in PLAIN and not is_dtensor(t):
            t = dense(name, t)
        if not transforms.may_look(t):
            return t
        try:
            if not t.data_ptr():
                dense(name, t)
            if t.numel() == 1 and holds(number := t.item()) and math.isfinite(number):
                return t
            numbers = t.detach()
            right = holds(numbers)
            # a finite sum has finite terms, and takes less time than the test of each
            if bool(right.all()) and math.isfinite(numbers.sum().item()):
                return t
            right = right & torch.isfinite(numbers)
        except RuntimeError:  # a layout without strides: ``dense`` raises a message that names it
            dense(name, t)
            raise
        if not bool(right.all()):
            at = first(~right)
            where = f" at index {at}" if t.ndim else ""
            finite = " and finite" if math.isinf(t[at].item()) else ""
            raise ValueError(f"{name} must be {accepted}{finite}; got {t[at].item():g}{where}")
        return t
    if isinstance(item, torch.SymFloat | torch.SymInt):
        # a symbolic number of torch.compile, which a product turns into a tensor
        symbolic: Any = item
        symbolic_tensor: Tensor = torch.ones((), dtype=torch.float64, device="cpu") * symbolic
        return symbolic_tensor
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise TypeError(
            f"{name} must be a number or a torch.Tensor; got {type(item).__name__} {brief(item)}"
        )
    try:
        got = str(item) if math.isinf(item) else ""
    except OverflowError:
        got = "an int beyond the largest float"
    if got:
        raise ValueError(f"{name} must be {accepted} and finite; got {got}")
    if not holds(item):
        raise ValueError(f"{name} must be {accepted}; got {item}")
    return float(item)


def table(name: str, items: Any) -> Tensor:
    """A number, a tensor, nested lists or another iterable of numbers as float64 on the CPU,
    without gradients."""
    if isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
        items = [*items]
    try:
        return torch.as_tensor(items, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{name} must hold numbers, as a tensor or in lists of one length; got {brief(items)}"
        ) from None


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POSITIVE = ("> 0", lambda t: t > 0)


def aligned(name: str, item: Any, x: Tensor, dim: int) -> Any:
    """A per-row tensor laid out to broadcast to ``x`` with ``dim`` moved last; floats unchanged."""
    if not isinstance(item, Tensor):
        return item
    shape = (1,) * (x.ndim - item.ndim) + tuple(item.shape)
    fits = len(shape) == x.ndim and all(
        n == 1 or (n == m and i != dim) for i, (n, m) in enumerate(zip(shape, x.shape, strict=True))
    )
    if item.ndim > x.ndim or not fits:
        raise ValueError(
            f"{name} must broadcast to x with size 1 along dim={dim}: {name} has shape "
            f"{tuple(item.shape)}, x {tuple(x.shape)}"
        )
    item = item.reshape(shape) if item.ndim != x.ndim else item
    item = item.movedim(dim, -1) if dim != x.ndim - 1 else item
    return item if item.dtype == x.dtype and item.device == x.device else item.to(x)


def per_row(
    name: str, item: Any, accepted: tuple[str, Callable[[Any], Any]] | None, x: Tensor, dim: int
) -> Any:
    """A hyperparameter when used: range-checked, laid out for the rows ``x``, in x's dtype.

    Where the numbers of a tensor cannot be read, values out of range become NaN, and so do their
    rows.
    """
    if isinstance(item, Tensor) and (item.is_meta or type(item) not in PLAIN):
        item = dense(name, item, x)
    if accepted is not None:
        item = hyperparameter(name, item, *accepted)
    laid_out = aligned(name, item, x, dim)
    if accepted is None or not isinstance(laid_out, Tensor):
        return laid_out
    if laid_out.dtype != item.dtype:  # 1 + 1e-9 is 1 in float32
        hyperparameter(name, laid_out, *accepted)
    if transforms.may_look(laid_out):
        return laid_out
    detached = laid_out.detach()
    return torch.where(accepted[1](detached) & torch.isfinite(detached), laid_out, torch.nan)


def per_entry(
    name: str, item: Any, accepted: tuple[str, Callable[[Any], Any]], x: Tensor, dim: int
) -> float | Tensor:
    """A number of each entry when used: range-checked; a number, or laid out to broadcast to the
    rows of ``x``, without leading dimensions of size 1, in x's dtype, and NaN where its numbers
    cannot be read and are out of range."""
    item = hyperparameter(name, item, *accepted)
    if not isinstance(item, Tensor):
        return float(item)
    try:
        found = dense(name, item, x).to(x)
        found.expand(x.shape)
    except RuntimeError:
        dense(name, item, x)
        raise ValueError(
            f"{name} must broadcast to x: {name} has shape {tuple(item.shape)}, x {tuple(x.shape)}"
        ) from None
    found = found.reshape((1,) * (x.ndim - found.ndim) + tuple(found.shape)).movedim(dim, -1)
    while found.ndim > 1 and found.shape[0] == 1:  # ends: each step removes a dimension
        found = found.squeeze(0)
    if transforms.may_look(found):
        return found
    return torch.where(accepted[1](found.detach()), found, torch.nan)
