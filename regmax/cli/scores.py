"""Scores for the commands: made here, or from a ``.npy``, ``.pt`` or ``.csv`` file; and tensors of
such files as arguments of Ω."""

from __future__ import annotations

import csv
import math
import zipfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..regularizers.errors import clipped
from ..testing.inputs import normal
from .common import UsageError, needs, note

SUFFIXES = (".npy", ".pt", ".csv")
MOST, LONGEST = 1 << 24, 1 << 16
"""Scores that a command computes with: 128 MiB in float64; and those in a row that it makes."""


def builtin(d: int = 12) -> Tensor:
    """(6, d) float64 scores: two rows each of scale 0.3, 1 and 3, with masked entries in one."""
    x = made_up(6, d, (0.3, 0.3, 1.0, 1.0, 3.0, 3.0))
    x[3, x[3].argmax()] = -torch.inf  # a mapping that ignores masks would put its weight here
    x[3, d // 2] = -torch.inf
    return x


def made_up(rows: int, d: int, scales: Sequence[float] = (0.3, 1.0, 3.0)) -> Tensor:
    """(rows, d) float64 scores of these scales in turn."""
    scale = torch.tensor(scales, dtype=torch.float64, device="cpu")
    return scale.repeat(rows // len(scales) + 1)[:rows, None] * normal(rows, d)


def tensor(path: Path) -> Tensor:
    """The tensor in the file, in its dtype; of a .csv with one line, that line as (d,)."""
    x = _read(path)
    if math.prod(x.shape) > MOST:
        raise UsageError(f"{path}: too large for an argument; accepted: {MOST} numbers in all")
    x = x if isinstance(x, Tensor) else torch.from_numpy(x.copy())
    return x[0] if path.suffix.lower() == ".csv" and len(x) == 1 else x


def load(path: Path, limit: int, row: int | None = None) -> tuple[Tensor, int]:
    """The rows of the file as (rows, d) float64, and their number in the file. At most ``limit``
    rows (0: all), evenly spread, which a note says, or one ``row``, the last if there are fewer.
    Leading dimensions are rows. :class:`UsageError` says what is wrong with the file.

    Of a .npy or .pt file these rows alone are read, so it may be larger than memory.
    """
    x = _read(path)
    if x.ndim == 0:
        raise UsageError(f"{path}: holds a single number; expected scores of shape (..., d)")
    if 0 in x.shape:
        raise UsageError(f"{path}: holds no scores; its shape is {tuple(x.shape)}")
    x = x[None] if x.ndim == 1 else x
    *batch, d = map(int, x.shape)
    total = math.prod(batch)
    count = 1 if row is not None else min(limit, total) if limit else total
    if count * d > MOST:
        raise UsageError(
            f"{path}: {count} rows of {d} scores are too many; accepted: {MOST} scores in all, "
            "fewer rows by --rows"
        )
    chosen = torch.linspace(0, total - 1, count, dtype=torch.float64, device="cpu").round().long()
    chosen = chosen if row is None else torch.tensor([min(row, total - 1)], device="cpu")
    at = torch.unravel_index(chosen, batch)
    if isinstance(x, Tensor):
        rows = x[at].to(torch.float64)
    else:
        rows = torch.from_numpy(x[tuple(t.numpy() for t in at)].astype("float64"))
    for what, wrong in (
        ("NaN", rows.isnan()),
        ("+inf", rows == torch.inf),
        ("no finite score", (rows == -torch.inf).all(-1, keepdim=True)),
    ):
        if bool(wrong.any()):
            first = int(chosen[wrong.any(-1).nonzero()[0]])
            raise UsageError(
                f"{path}: {what} in row {first}; accepted: finite scores, and -inf for one that "
                "takes no part, with at least one finite score in each row"
            )
    if row is None and count < total:
        note(f"{path}: {count} of {total} rows, evenly spread (--rows 0: all)")
    return rows, total


def _read(path: Path) -> Any:
    """A tensor, or an array that is mapped into memory."""
    reader = {".npy": _npy, ".pt": _pt, ".csv": _csv}.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: a scores file must end in one of {', '.join(SUFFIXES)}")
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: not a file, but a folder or a device")
        return reader(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _npy(path: Path) -> Any:
    with needs("validate", "reading .npy files"):
        import numpy as np
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OverflowError) as error:
        reason = clipped(str(error), 200)
        reason = "it holds no array of numbers" if "pickle" in reason else reason
        raise UsageError(f"{path}: not a readable .npy file: {reason}") from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        kind = getattr(found, "dtype", type(found).__name__)
        raise UsageError(f"{path}: expected an array of real numbers; found {clipped(str(kind))}")
    return found


def _pt(path: Path) -> Tensor:
    in_zip = zipfile.is_zipfile(path)  # files of PyTorch before 1.6 cannot be mapped into memory
    if not in_zip:
        _refuse_large(path)
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=in_zip)
    except OSError:
        raise
    except Exception as error:  # torch.load may raise any exception
        raise UsageError(
            f"{path}: not a readable .pt file of one tensor: it is damaged, or holds other "
            "objects, which are not loaded"
        ) from error
    if not isinstance(found, Tensor):
        raise UsageError(f"{path}: expected one tensor; found {type(found).__name__}")
    plain = type(found) in (Tensor, torch.nn.Parameter) and found.layout == torch.strided
    if not plain or found.is_nested or found.is_quantized or found.device.type != "cpu":
        kind = "nested" if found.is_nested else f"{found.layout}, {found.dtype}, {found.device}"
        raise UsageError(f"{path}: expected a dense tensor with numbers; found one that is {kind}")
    if found.is_complex() or found.dtype == torch.bool:
        raise UsageError(f"{path}: expected a dense tensor of real numbers; found {found.dtype}")
    return found.detach()


def _refuse_large(path: Path) -> None:
    if path.stat().st_size > 8 * MOST:
        raise UsageError(
            f"{path}: larger than {8 * MOST >> 20} MiB; save it by numpy.save or torch.save, of "
            "whose files the chosen rows alone are read"
        )


def _csv(path: Path) -> Tensor:
    _refuse_large(path)
    numbers, columns = array("d"), 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for line, cells in enumerate(csv.reader(file), start=1):
                if cells and not cells[0].lstrip().startswith("#"):
                    numbers.extend(_number(path, line, k, cell) for k, cell in enumerate(cells, 1))
                    columns = columns or len(cells)
                    if len(cells) != columns:
                        raise UsageError(
                            f"{path}: line {line} has {len(cells)} columns, the first row "
                            f"{columns}; write -inf for a score that takes no part"
                        )
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a readable .csv file: {clipped(str(error))}") from error
    return torch.tensor(numbers, dtype=torch.float64, device="cpu").view(-1, columns or 1)


def _number(path: Path, line: int, column: int, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UsageError(
            f"{path}: line {line}, column {column}: {clipped(cell, 40)!r} is not a number "
            "(rows of comma-separated scores, without a header; # starts a comment)"
        ) from None
