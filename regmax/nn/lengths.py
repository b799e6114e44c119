"""A temperature that depends on the number of keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..mapping.rows import HALF
from ..regularizers.printing import called, unusual
from .learnable import check_numbers


class LengthScaled(nn.Module):
    """γ of attention over n keys: 1/γ = δ + β (log n)^g with learned β > 0 and g for each head.

    With γ constant, attention spreads over more keys as n grows; with 1/γ ∝ log n it does not.
    Here β = softplus(b) and g = r tanh(c), in (−r, r). With ``features``, b and c are linear in the
    input of the query, so each head and query has its own, as in adaptive-scalable entmax
    (Vasylenko et al. 2025, arXiv:2506.16640, §4). ``delta=0, power=1`` is scalable softmax
    (Nakanishi 2025, arXiv:2501.19399), whose s is β.

    Parameters
    ----------
    heads: their number, H.
    features: the width of the queries' inputs, or None for one b and one c per head.
    delta: δ ≥ 0.
    beta: the initial β.
    power: g, if it is not learned.
    reach: r.

    ``forward(n, x=None)``: ``n`` is a number or a tensor that broadcasts to (…, L, 1); it counts as
    2 if it is smaller, since one key has weight 1 whatever γ is. ``x`` (…, L, features). The result
    broadcasts to (…, H, L, 1): pass it to :func:`regmax.nn.attention` as ``gamma``.
    :class:`regmax.nn.MultiheadAttention` with this module as ``gamma`` counts the keys that a mask
    leaves to each query, and takes ``query`` as x.
    """

    def __init__(
        self,
        heads: int,
        features: int | None = None,
        *,
        delta: float = 1.0,
        beta: float = 0.5,
        power: float | None = None,
        reach: float = 2.0,
    ) -> None:
        super().__init__()
        check_numbers(delta=delta, beta=beta, reach=reach, power=0 if power is None else power)
        if not (0 <= delta < math.inf and 0 < beta < math.inf and 0 < reach < math.inf):
            raise ValueError(
                "delta must be >= 0, beta > 0 and reach > 0, all finite; got "
                f"delta={delta}, beta={beta}, reach={reach}"
            )
        self.delta, self.beta, self.power, self.reach = delta, beta, power, reach
        self.heads, self.features = heads, features
        self.b = nn.Parameter(torch.full((heads, 1, 1), beta + math.log(-math.expm1(-beta))))
        self.c = None if power is not None else nn.Parameter(torch.zeros(heads, 1, 1))
        self.along: Any = None
        if features is not None:
            self.along = nn.Linear(features, (2 - (self.c is None)) * heads, bias=False)
            nn.init.zeros_(self.along.weight)

    def forward(self, n: int | Tensor, x: Tensor | None = None) -> Tensor:
        b: Tensor = self.b
        c: Tensor | None = self.c
        if self.along is not None:
            if x is None or x.shape[-1] != self.features:
                got = None if x is None else tuple(x.shape)
                raise ValueError(f"x must have shape (..., L, {self.features}); got {got}")
            own = self.along(x).mT.unsqueeze(-1)  # (…, heads or twice as many, L, 1)
            b = b + own[..., : self.heads, :, :]
            c = None if c is None else c + own[..., self.heads :, :, :]
        if b.dtype in HALF:
            b, c = b.float(), None if c is None else c.float()
        log = torch.as_tensor(n, device=b.device).clamp_min(2).to(b.dtype).log()
        g: Any = self.power if c is None else self.reach * c.tanh()
        inverse: Tensor = self.delta + nn.functional.softplus(b) * log**g
        return 1 / inverse

    def __repr__(self) -> str:
        own = unusual(
            features=(self.features, None),
            delta=(self.delta, 1.0),
            beta=(self.beta, 0.5),
            power=(self.power, None),
            reach=(self.reach, 2.0),
        )
        return called(self, [str(self.heads), *own])
