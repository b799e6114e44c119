"""What the figures draw: one Ω, or several by name, and patterns of three weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..nn.layer import RegularizedMax
from ..regularizers import printing
from ..regularizers.regularizer import Regularizer
from .style import PALETTE, formula

Omegas = Regularizer | Mapping[str, Regularizer]

PATTERNS = (
    ("three entries above 0", "#cfe1f2"),
    ("three, two of them fused", "#fdd49e"),
    ("three, all fused", PALETTE[1]),
    ("two entries above 0", "#6aaed6"),
    ("two, fused", PALETTE[4]),
    ("one entry above 0", "#08519c"),
)
"""The patterns of three weights with their colours: orange if fused, else blue."""


def label(omega: Regularizer) -> str:
    """``fusedmax(lam=0.1)``: the mapping with its hyperparameters, or str(Ω) without a mapping."""
    names = [omega.mapping] if isinstance(omega.mapping, str) else list(omega.mapping)
    if not names:
        return str(omega)
    with printing.short():
        inner = omega.extra_repr()
    return f"{names[0]}({inner})" if inner else names[0]


def several(omegas: Omegas, entries: int) -> dict[str, Regularizer]:
    """Ω by name. ValueError if one is made for rows of another length."""
    found = {label(omegas): omegas} if isinstance(omegas, Regularizer) else dict(omegas)
    if not found:
        raise ValueError("omegas must hold at least one regularizer; got none")
    for name, omega in found.items():
        if not isinstance(omega, Regularizer):
            raise TypeError(f"{name} must be a regmax.Regularizer; got {type(omega).__name__}")
        if not takes(omega, entries):
            raise ValueError(
                f"{name} is made for rows of {omega.entries or 'another number of'} entries; this "
                f"picture is of {entries}: draw its mapping or path at a row of its own"
            )
    return found


def takes(omega: Regularizer, entries: int) -> bool:
    """Whether Ω accepts rows of that many entries. An Ω that does not declare ``entries`` is
    tried."""
    if omega.entries is not None:
        return omega.entries == entries
    try:
        weights(omega, torch.zeros(entries, dtype=torch.float64, device="cpu"), 1.0)
    except ValueError as error:
        return "takes rows of" not in str(error)
    except Exception:  # a plugin's code may raise anything; the drawing will say so
        return True
    return True


def weights(omega: Regularizer, x: Tensor, gamma: float) -> Tensor:
    """Π_Ω(x), without gradients."""
    with torch.no_grad():
        y: Tensor = RegularizedMax(omega, gamma)(x)
        return y


def patterns(y: Tensor) -> Tensor:
    """(..., 3) weights -> the index of each row's pattern in :data:`PATTERNS`, int64."""
    equal = ((y == y.roll(1, -1)) & (y > 0)).sum(-1)
    table = torch.tensor([[5, 5, 5, 5], [3, 4, 5, 5], [0, 1, 2, 2]], device="cpu")
    return table[(y > 0).sum(-1).clamp(1, 3) - 1, equal]


def key(figure: Any, shown: Tensor, columns: int) -> None:
    """Add a key of the patterns in ``shown`` below the figure."""
    from matplotlib.patches import Patch

    found = [PATTERNS[k] for k in shown.unique().tolist()]
    patches = [Patch(facecolor=colour, label=text) for text, colour in found]
    place: Any = {
        "loc": "outside lower center",
        "frameon": False,
        "fontsize": 10,
        "columnspacing": 1,
    }
    figure.legend(handles=patches, ncols=min(columns, len(found)), **place)


def title(found: dict[str, Regularizer], gamma: float, of_several: str = "") -> str:
    """``sparsemax, γ = 1``."""
    name = next(iter(found)) if len(found) == 1 else of_several
    return f"{formula(name)}, γ = {gamma:g}" if name else f"γ = {gamma:g}"
