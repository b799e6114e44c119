"""Learned hyperparameters, kept in their range, for instance one per attention head; and a
temperature that depends on the number of keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..mapping.rows import computed_in
from ..regularizers.printing import brief, called, unusual
from ..regularizers.registry import registry
from ..regularizers.regularizer import Regularizer, checked


def check_numbers(**numbers: Any) -> None:
    for name, item in numbers.items():
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise TypeError(f"{name} must be a number; got {type(item).__name__} {brief(item)}")


MOST = 1 << 22
"""Entries of a parameter: far more than heads, and a text from outside cannot fill the memory."""


def _full(shape: Any, number: float) -> nn.Parameter:
    if not isinstance(shape, tuple | list) or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError(f"shape must hold ints >= 0, as (heads, 1, 1) does; got {brief(shape)}")
    if math.prod(shape) > MOST:
        raise ValueError(f"shape must have at most {MOST} entries; got {tuple(shape)}")
    return nn.Parameter(torch.full(shape, number))


def _wide(a: Tensor) -> Tensor:
    """In half precision the result could reach the ends of its range."""
    return a.to(computed_in(a.dtype))


def _before(number: float) -> float:
    """a with log(1 + eᵃ) = number."""
    return number + math.log(-math.expm1(-number))


class Between(nn.Module):
    """low + (high − low) σ(a), a number in (low, high) for each entry of the parameter ``a``.

    ``shape``: the shape of a, (H, 1, 1) for one number per head; (1,) and not (), which
    ``fully_shard`` does not shard. ``init``: the initial number, by
    default the middle. (1, 2) gives Correia, Niculae & Martins (2019), eq. 10; they draw a at
    random, ``nn.init.normal_(module.a)``.
    """

    def __init__(
        self, low: float, high: float, shape: tuple[int, ...] = (1,), init: float | None = None
    ) -> None:
        super().__init__()
        check_numbers(low=low, high=high)
        if not low < high:
            raise ValueError(f"low must be < high; got low={low}, high={high}")
        init = (low + high) / 2 if init is None else init
        check_numbers(init=init)
        if not low < init < high:
            raise ValueError(f"init must be in ({low}, {high}); got {init}")
        self.low, self.high, self.init = low, high, init
        part = (init - low) / (high - low)
        self.a = _full(shape, math.log(part / (1 - part)))

    def forward(self) -> Tensor:
        return self.low + (self.high - self.low) * _wide(self.a).sigmoid()

    def __repr__(self) -> str:
        """The module as constructed; the state dict holds the learned values."""
        middle = (self.low + self.high) / 2
        options = unusual(shape=(tuple(self.a.shape), (1,)), init=(self.init, middle))
        return called(self, [repr(self.low), repr(self.high), *options])


class Positive(nn.Module):
    """log(1 + eᵃ), a number > 0 for each entry of the parameter ``a``: γ, λ or a weight.

    ``shape``: the shape of a, (H, 1, 1) for one number per head. ``init``: the initial number.
    """

    def __init__(self, shape: tuple[int, ...] = (1,), init: float = 1.0) -> None:
        super().__init__()
        check_numbers(init=init)
        if not 0 < init < math.inf:
            raise ValueError(f"init must be > 0 and finite; got {init}")
        self.init = init
        self.a = _full(shape, _before(init))

    def forward(self) -> Tensor:
        return nn.functional.softplus(_wide(self.a))

    def __repr__(self) -> str:
        """The module as constructed."""
        return called(self, unusual(shape=(tuple(self.a.shape), (1,)), init=(self.init, 1.0)))


class Learnable(nn.Module):
    """Ω with learned hyperparameters: a module computes each and keeps it in its range.

    Parameters
    ----------
    omega: a :class:`regmax.Regularizer`.
    hyperparameters: by name, modules such as :class:`Between` and :class:`Positive`. They take no
        argument and return a tensor that broadcasts to the scores with size 1 along the keys. The
        names in a sum or a product are dotted: ``**{"base.alpha": Between(1, 2)}``.

    A call returns Ω with the present values, for :class:`regmax.RegularizedMax` or a loss.
    :func:`regmax.nn.attention` and :class:`regmax.nn.MultiheadAttention` call it at every step.
    """

    def __init__(self, omega: Regularizer, **hyperparameters: nn.Module) -> None:
        super().__init__()
        checked(omega)
        known = {prefix + name for prefix, name, _ in omega.declared()} | set(omega.tensors(True))
        for name, module in hyperparameters.items():
            if name not in known:
                raise TypeError(
                    f"{omega} has no hyperparameter {name!r}; "
                    f"accepted: {', '.join(sorted(known)) or '(none)'}"
                )
            if not isinstance(module, nn.Module):
                raise TypeError(
                    f"{name} must be a module that computes it, such as regmax.nn.Between(1, 2); "
                    f"got {type(module).__name__} {brief(module)}"
                )
        self.base = omega
        self.names = tuple(hyperparameters)
        self.learned = nn.ModuleDict(
            {name.replace(".", "_"): module for name, module in hyperparameters.items()}
        )

    def values(self) -> dict[str, Tensor]:
        """The present hyperparameters by name; gradients flow to the parameters of the modules."""
        return {name: self.learned[name.replace(".", "_")]() for name in self.names}

    def ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges of the hyperparameters that :class:`Between` computes, by name."""
        modules = {name: self.learned[name.replace(".", "_")] for name in self.names}
        return {n: (m.low, m.high) for n, m in modules.items() if type(m) is Between}

    def forward(self) -> Regularizer:
        """Ω at the present values."""
        return self.base.with_tensors(self.values())

    def __repr__(self) -> str:
        parts = [repr(self.base)]
        for name in self.names:
            module = self.learned[name.replace(".", "_")]
            parts.append(f"**{{{name!r}: {module!r}}}" if "." in name else f"{name}={module!r}")
        return called(self, parts)


class AdaptiveEntmax(Learnable):
    """Entmax with a learned α = 1 + σ(a) ∈ (1, 2) for each head.

    ``heads``: their number. α and ``a`` have shape (heads, 1, 1), for scores of shape
    (batch, heads, L, S). ``init``: the initial α. Correia, Niculae & Martins (2019), eq. 10, who
    draw a at random: ``nn.init.normal_(omega.a)``, for instance.
    """

    def __init__(self, heads: int, init: float = 1.5) -> None:
        entmax = registry().get("mapping", "regmax.entmax")
        super().__init__(entmax(), alpha=Between(1, 2, (heads, 1, 1), init))

    def __repr__(self) -> str:
        return called(self, [str(self.a.numel()), *unusual(init=(self.learned["alpha"].init, 1.5))])

    @property
    def a(self) -> Any:
        return self.learned["alpha"].a

    @property
    def alpha(self) -> Tensor:
        """α; its gradient flows to ``a``."""
        return self.values()["alpha"]


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
        self.b = _full((heads, 1, 1), _before(beta))
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
        b, c = _wide(b), None if c is None else _wide(c)
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
