"""Scores for the commands: built in, or from a ``.npy``, ``.pt`` or ``.csv`` file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .common import UsageError, needs

SUFFIXES = (".npy", ".pt", ".csv")


def builtin(d: int = 12) -> Tensor:
    """(6, d) float64 scores: two rows each of scale 0.3, 1 and 3, with masked entries in one."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.3, 0.3, 1.0, 1.0, 3.0, 3.0], dtype=torch.float64, device="cpu")
    x = torch.randn(6, d, generator=generator, dtype=torch.float64, device="cpu") * scale[:, None]
    x[3, x[3].argmax()] = -torch.inf  # a mapping that ignores masks would put its weight here
    x[3, d // 2] = -torch.inf
    return x


def load(path: Path, limit: int) -> tuple[Tensor, int]:
    """The rows of the file as (rows, d) float64, and their number in the file. At most ``limit``
    rows (0: all), evenly spread. Leading dimensions are rows. :class:`UsageError` says what is
    wrong with the file."""
    x = _read(path)
    if x.ndim == 0:
        raise UsageError(f"{path}: holds a single number; expected scores of shape (..., d)")
    if x.numel() == 0:
        raise UsageError(f"{path}: holds no scores; its shape is {tuple(x.shape)}")
    rows = x.reshape(-1, x.shape[-1]).to(torch.float64)
    for what, wrong in (
        ("NaN", rows.isnan()),
        ("+inf", rows == torch.inf),
        ("no finite score", (rows == -torch.inf).all(-1, keepdim=True)),
    ):
        if bool(wrong.any()):
            at = int(wrong.any(-1).nonzero()[0])
            raise UsageError(
                f"{path}: {what} in row {at}; accepted: finite scores, and -inf for one that "
                "takes no part, with at least one finite score in each row"
            )
    total = len(rows)
    if 0 < limit < total:
        rows = rows[torch.linspace(0, total - 1, limit, device="cpu").round().long()]
    return rows, total


def _read(path: Path) -> Tensor:
    reader = {".npy": _npy, ".pt": _pt, ".csv": _csv}.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: a scores file must end in one of {', '.join(SUFFIXES)}")
    try:
        return reader(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _npy(path: Path) -> Tensor:
    with needs("validate", "reading .npy files"):
        import numpy as np
    try:
        array: Any = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path}: not a readable .npy file: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        found = getattr(array, "dtype", type(array).__name__)
        raise UsageError(f"{path}: expected an array of real numbers; found {found}")
    return torch.from_numpy(array.astype(np.float64))


def _pt(path: Path) -> Tensor:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load may raise any exception
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: not a readable .pt file of one tensor: {reason}") from error
    if not isinstance(found, Tensor):
        raise UsageError(f"{path}: expected one tensor; found {type(found).__name__}")
    if found.is_complex() or found.dtype == torch.bool or found.is_sparse or found.is_quantized:
        raise UsageError(f"{path}: expected a dense tensor of real numbers; found {found.dtype}")
    return found.detach()


def _csv(path: Path) -> Tensor:
    rows: list[list[float]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for line, cells in enumerate(csv.reader(file), start=1):
                if cells and not cells[0].lstrip().startswith("#"):
                    rows.append([_number(path, line, k, cell) for k, cell in enumerate(cells, 1)])
                    if len(rows[-1]) != len(rows[0]):
                        raise UsageError(
                            f"{path}: line {line} has {len(rows[-1])} columns, the first row "
                            f"{len(rows[0])}; write -inf for a score that takes no part"
                        )
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a readable .csv file: {error}") from error
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


def _number(path: Path, line: int, column: int, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UsageError(
            f"{path}: line {line}, column {column}: {cell!r} is not a number "
            "(rows of comma-separated scores, without a header; # starts a comment)"
        ) from None
