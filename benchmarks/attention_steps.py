"""Attention with any Ω beside ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regmax.nn import AdaptiveEntmax, attention
from regmax.nn.omega import Omega

from .peers import Candidate, Step

MATH = "torch SDPA math"
OURS = ("softmax", "sparsemax", "entmax15", "entmax", "fusedmax", "oscarmax")
NAMES = tuple(f"regmax {mapping}" for mapping in OURS)


@dataclass(frozen=True)
class Heads:
    """q, k, v and the gradient of the result, each (sequences, heads, length, width)."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    causal: bool

    def double(self) -> Heads:
        """The same in float64."""
        q, k, v, out = (t.double() for t in (self.q, self.k, self.v, self.out))
        return Heads(q, k, v, out, self.causal)

    def describe(self) -> dict[str, Any]:
        """The keys by which rows of the results are matched; a row of scores is a query's."""
        sequences, heads, length, width = self.q.shape
        shape = f"{sequences} × {heads} × {length} × {width}"
        dtype = str(self.q.dtype).removeprefix("torch.")
        where = shape + (", causal" if self.causal else "")
        return {"rows": sequences * heads * length, "d": length, "dtype": dtype, "input": where}


def heads(shape: tuple[int, int, int, int], causal: bool, device: str) -> Heads:
    """Drawn from N(0, 1), as the scores then are: the same every time."""
    generator = torch.Generator(device=device).manual_seed(shape[2])
    q, k, v, out = torch.randn(4, *shape, device=device, generator=generator)
    return Heads(q, k, v, out, causal)


def steps(given: Heads) -> list[Step]:
    """PyTorch's attention, by its plain backend and as it comes, and every mapping of regmax."""

    def default(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = scaled_dot_product_attention(q, k, v, is_causal=given.causal)
        return out

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return default(q, k, v)

    found = [
        _step(Candidate("torch", "SDPA", apply, variant), given)
        for apply, variant in ((plain, "math"), (default, "default"))
    ]
    return found + [_ours(mapping, given) for mapping in OURS]


def _ours(mapping: str, given: Heads) -> Step:
    omega: Omega = mapping
    learnt: list[Tensor] = []
    if mapping == "entmax":
        omega = AdaptiveEntmax(given.q.shape[1]).to(given.q)
        learnt = list(omega.parameters())

    def apply(q: Tensor, k: Tensor, v: Tensor, *learnt: Tensor) -> Tensor:
        return attention(q, k, v, omega, is_causal=given.causal)

    return _step(Candidate("regmax", mapping, apply), given, *learnt)


def _step(candidate: Candidate, given: Heads, *learnt: Tensor) -> Step:
    leaves = [t.detach().requires_grad_() for t in (given.q, given.k, given.v)]
    return Step(candidate, (*leaves, *learnt), given.out)


def facts(step: Step, given: Heads) -> dict[str, float]:
    """After a step: the distance of its result from regmax's in float64."""
    mapping = step.candidate.mapping
    exact = _ours("softmax" if mapping == "SDPA" else mapping, given.double())
    exact.forward()
    assert exact.y is not None
    assert step.y is not None
    return {"error": float((step.y.detach().double() - exact.y.detach()).abs().max())}
