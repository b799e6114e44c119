"""Π_Ω of Ω = Σ e(y_i) in operations of PyTorch, for graphs, from e', e'' and e'''.

y_i is where e'(y_i) = z_i − τ, or 0 where z_i − e'(0) ≤ τ, and Σ y = 1 (Blondel, Martins & Niculae
2019, Prop. 5). Newton's method on τ and steps of the third order on each y_i run side by side, both
in brackets: with z_i − e'(y_i) in [lo, hi], Σ y(lo) ≥ Σ y and Σ y(hi) ≤ Σ y. e'' is replaced by
the power that has its value and slope at y_i, e''(t) ≈ e''(y_i) (t/y_i)^(b−1), so that a step is
exact for powers and for y log y.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .. import transforms
from ..roots import State, loop
from ..simplex import normalize
from .entry import Entrywise
from .reader import LAYOUT
from .source import derivatives, recorded
from .tape import FILLED, Ref, Step, Unknown, function, needed

EPS = torch.finfo(torch.float64).eps
FLOOR, TOP = 1e-30, 1 - EPS / 2
"""Where e is evaluated instead of at 0 and at 1."""
STEPS, NEAR = 200, 1e-9
"""The most steps; the change of y, in Σ|·|, with which a row stops."""
Slopes = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def solve(slopes: Slopes, z: Tensor, on: Tensor) -> Tensor:
    """argmax ⟨y, z⟩ − Σ e(y_i) over y ≥ 0 with Σ y = 1 of rows in float64, for participants
    ``on``. NaN where e' falls, or where no certificate is reached: |z − e'(y) − τ|/e'' and
    |Σ y − 1| add up to at most ``NEAR`` before the last step."""
    z = torch.where(on, z, 0)
    some = torch.where(on, 1 / _sum(on, torch.ones_like(z)), FLOOR).clamp_max(TOP)
    floor, top = torch.full_like(z, FLOOR), torch.full_like(z, TOP)
    at_top, at_some, at_zero = slopes(torch.stack((top, some, floor)))[0]
    low, high = (
        torch.where(on, z - slope, -torch.inf).amax(-1, keepdim=True) for slope in (at_top, at_some)
    )
    ends = torch.where(on, z - at_zero, -torch.inf)

    def step(
        y: Tensor, left: Tensor, right: Tensor, tau: Tensor, low: Tensor, high: Tensor,
        width: Tensor, done: Tensor,
    ) -> State:  # fmt: skip
        g, h, c = slopes(y)
        r, alive = z - g, ends > tau
        off = (r - tau).abs()
        left = torch.where(r >= tau, torch.maximum(left, y), left)
        right = torch.where(r <= tau, torch.minimum(right, y), right)
        noise = 4 * EPS * (z.abs() + g.abs())
        solved = (off <= torch.maximum(noise, width / 8)) | (right - left <= 4 * EPS * right)
        settled = (solved | ~alive).all(-1, keepdim=True)
        # where the entries of a settled row add up to more than 1, τ is above their least z − e'
        total = _sum(alive, y)
        least = torch.where(alive, r, torch.inf).amin(-1, keepdim=True)
        most = torch.where(alive, r, ends).amax(-1, keepdim=True)
        low = torch.where(settled & (total >= 1), torch.maximum(low, least), low)
        high = torch.where(settled & (total <= 1), torch.minimum(high, most), high)
        b = torch.where(h > 0, 1 + y * c / h, 1)
        found, rate = _moved(y, h, b, r - tau)
        inside = (found >= left) & (found <= right)
        found = torch.where(inside, found, left + (right - left) / 2)
        sums, rates = _sum(alive, found), _sum(alive, rate)
        # Newton's method on (Σ y)^b, which is linear in τ for powers
        power, log = (_sum(alive, b * rate) / rates).clamp(0, 20), sums.log()
        bent = power * log
        straight = bent.abs() < 1e-4  # in ONNX expm1 is exp less 1
        curved = -torch.expm1(-bent) / torch.where(straight, 1, power)
        change = torch.where(straight, log - bent * log / 2, curved) * sums / rates
        trial = torch.minimum(torch.maximum(tau + change, low), high)
        length = (trial - tau).abs()
        safe = length <= width / 2
        following = torch.where(safe, trial, low + (high - low) / 2)
        ahead = _moved(y, h, b, r - following)[0]
        ahead = torch.where(ahead.isnan(), found, ahead).clamp(FLOOR, TOP)
        ahead = torch.where(settled, torch.where(ends > following, ahead, FLOOR), found)
        error = _sum(alive, (ahead - y).abs() + off / h) + (total - 1).abs()
        now = settled & (error <= NEAR) & (_sum(alive & ~(h >= 0), some) == 0)
        return (
            torch.where(done, y, ahead),
            torch.where(settled, FLOOR, left),
            torch.where(settled, TOP, right),
            torch.where(settled & ~done, following, tau),
            low,
            high,
            torch.where(settled, torch.where(safe, length, (high - low) / 2), width),
            done | now,
        )

    done = torch.zeros_like(low, dtype=torch.bool)
    state: Any = (some, floor, top, low + (high - low) / 2, low, high, 2 * (high - low), done)
    y, *_, done = loop(lambda *state: ~state[-1], step, state, STEPS)
    y = normalize(torch.where(y > 2 * FLOOR, y, 0))
    return torch.where(done, y, torch.nan)


def _sum(where: Tensor, t: Tensor) -> Tensor:
    return torch.where(where, t, 0).sum(-1, keepdim=True)


def _moved(y: Tensor, h: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """The point where the model of e' is e'(y) + r, and its derivative in r."""
    w = r / (h * y)
    straight = b.abs() < 1e-7
    log = torch.log1p((b * w).clamp_min(-1))
    grown = y * torch.where(straight, w, log / torch.where(straight, 1, b)).exp()
    return grown, grown * (-log).exp() / (h * y)


def slopes(entry: Entrywise, p: list[Tensor]) -> Slopes:
    """e', e'' and e''' of each entry at the inputs p, as operations."""
    call, numbers = transforms.apart(_derivatives, entry, len(p))

    def found(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with _Digits():
            given = [transforms.number(t, y) for t in numbers]
            g, h, c = (t + torch.zeros_like(y) for t in call(y, *p, *given))
        return g, h, c

    return found


def _derivatives(entry: Entrywise, count: int) -> tuple[Callable[..., list[Tensor]], list[float]]:
    """The same of y, ``count`` inputs and these numbers, from the operations that autograd runs."""
    tape, results = recorded(derivatives(entry), [False] * count)
    place = {k: Ref(k) for k in range(1 + count)}
    varying, numbers, steps = set(place), {}, []

    def taken(ref: Ref) -> Ref:
        if ref.at not in place:
            t = tape.values[ref.at].flatten()
            if not bool((t == t[0]).all()):
                raise Unknown("a derivative depends on a tensor that is not recorded")
            place[ref.at], numbers[ref.at] = ref, float(t[0])
        return place[ref.at]

    for step in needed(tape.steps, results):
        if step.name not in FILLED and any(ref.at in varying for ref in step.refs()):
            varying.add(step.at)
            args, kwargs = tree_map_only(Ref, taken, (step.args, step.kwargs))
            moved = step.name in LAYOUT or step.name == "detach"
            place[step.at] = args[0] if moved else Ref(step.at)
            steps += [] if moved else [Step(step.at, step.op, args, kwargs)]
    found = [taken(ref) for ref in results]
    return function(steps, [*range(1 + count), *numbers], found), list(numbers.values())


class _Digits(TorchDispatchMode):
    """Numbers become tensors as in :func:`regmax.kernels.transforms.number`: the exporter for ONNX
    rounds those of operations to float32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        overload = _TENSORS.get(func._overloadname)
        wide = [k for k, item in enumerate(args) if type(item) is float and _rounds(item)]
        if wide and overload is not None and hasattr(func.overloadpacket, overload):
            like = next(item for item in args if isinstance(item, Tensor))
            func = getattr(func.overloadpacket, overload)
            args = tuple(transforms.number(t, like) if k in wide else t for k, t in enumerate(args))
        return func(*args, **(kwargs or {}))


_TENSORS = {"Scalar": "Tensor", "Tensor_Scalar": "Tensor_Tensor", "Tensor": "Tensor"}


def _rounds(number: float) -> bool:
    """Whether float32 rounds a number."""
    return ctypes.c_float(number).value != number
