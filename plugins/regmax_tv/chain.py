r"""The proximal operator of total variation on a chain,

    z = argmin_z 1/2 ||z - v||^2 + w sum_i |z_{i+1} - z_i|,          w >= 0.

The solution is constant on groups of neighbours.  For a group G = {a, .., b} and the signs
s_k = sign(z_k - z_{k+1}) of the jumps around it (0 at the ends of the chain)

    z_G = mean(v_G) + w (s_{a-1} - s_b) / |G|.

w = 0 gives z = v, w = inf the mean.  On the CPU, rows are computed by Johnson's dynamic programme
compiled with numba, O(d) a row (`_segment`).  Elsewhere, and without numba, the reference
implementation `prox_chain_tv_reference` splits groups at their value until none can be split: for a
group with candidate value t, the set {i : z_i > t} solves the two-label problem

    min_{e in {0,1}^G}  sum_i e_i (t - v_i) + w sum_i |e_{i+1} - e_i|,

whose forward messages  m_i = clip(m_{i-1}, -w, w) + t - v_i  are compositions of clips, an
associative operation: a scan of O(log d) vector steps solves it for every group of every row.
In a graph, where nothing may depend on numbers or on d, `_string` examines every bend on its own.

Sources: N. Johnson, "A dynamic programming algorithm for the fused lasso and L0-segmentation",
JCGS 22(2), 2013; for the splitting, A. Chambolle and J. Darbon, "On total variation minimization
and surface evolution using parametric maximum flows", IJCV 84(3), 2009; for its use as a map to
the simplex, V. Niculae and M. Blondel, "A regularized framework for sparse and structured neural
attention", NeurIPS 2017, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regmax.kernels import transforms
from regmax.kernels.base import on_cpu
from regmax.kernels.neighbours import bounds, flat, means, packed, positions, scan, unpacked

from ._string import taut_string

__all__ = ["prox_chain_tv", "prox_chain_tv_reference"]

_EPS = torch.finfo(torch.float64).eps


def _checked(
    v: Tensor, weight: Tensor | float, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """v and mask as (R, d), weight as (R,) float64."""
    x, mask = flat(v, mask)
    if isinstance(weight, Tensor):
        weight = weight.detach().to(v.device, torch.float64)
    else:
        weight = v.new_full((), weight, dtype=torch.float64)
    try:
        weight = weight.expand(*v.shape[:-1], 1).reshape(len(x))
    except RuntimeError as error:
        raise ValueError(
            f"weight must broadcast to {(*v.shape[:-1], 1)}, one number per row; got "
            f"{tuple(weight.shape)}"
        ) from error
    return x, weight, mask


def prox_chain_tv(v: Tensor, weight: Tensor | float, mask: Tensor | None = None) -> Tensor:
    r"""z = argmin_z 1/2 ||z - v||^2 + weight sum_i |z_{i+1} - z_i|, per row.

    v: (*batch, d), float32 or float64, any strides.  weight: broadcastable to (*batch, 1), in
    [0, inf].  mask: bool, the shape of v; only entries where it is True are participants.
    Neighbours are adjacent participants, and z is 0 elsewhere.

    Returns z, of the shape, dtype and device of v, without a gradient.  Entries of a group are
    equal bit for bit; a group of one entry between a higher and a lower neighbour is exactly v_i.
    Accumulation is in float64, rounded once.

    A row with a participant that is not finite, or whose weight is negative or NaN, is NaN at its
    participants; other rows are not affected.

    Raises TypeError for another dtype of v or mask, ValueError if the shapes do not match.

    Source: Johnson (2013), see the module.
    """
    if transforms.tracing():
        on = torch.ones_like(v, dtype=torch.bool) if mask is None else mask
        return taut_string(v.double(), transforms.number(weight, v), on).to(v.dtype)
    rows = on_cpu("regmax_tv._cpu", v)
    if rows is None:
        return prox_chain_tv_reference(v, weight, mask)
    x, w, m = _checked(v, weight, mask)
    if x.numel() == 0:
        return torch.zeros_like(v, requires_grad=False)
    z: Tensor
    z = rows.whole_rows(x.contiguous(), w.contiguous(), None if m is None else m.contiguous())
    return z.reshape(v.shape)


def prox_chain_tv_reference(
    v: Tensor, weight: Tensor | float, mask: Tensor | None = None
) -> Tensor:
    r"""z = argmin_z 1/2 ||z - v||^2 + weight sum_i |z_{i+1} - z_i|, per row, in plain PyTorch.

    Shapes, dtypes, results and errors as in `prox_chain_tv`; any device.  Every operation is
    elementwise over the rows, so that a row's result does not depend on its batch.

    Source: Chambolle and Darbon (2009), see the module.
    """
    x, w, m = _checked(v, weight, mask)
    if x.numel() == 0:
        return torch.zeros_like(v, requires_grad=False)
    used = torch.ones_like(x, dtype=torch.bool) if m is None else m
    lam = w[:, None]
    bad = (used & ~x.isfinite()).any(1, keepdim=True) | ~(lam >= 0)
    full, order = packed(torch.where(bad, 0, x), used, 0.0)
    length = used.sum(1, keepdim=True)
    y = full - scan(full)[:, -1:] / length.clamp(min=1)
    y = torch.where(positions(y) < length, y, 0)
    size = scan(y.abs())[:, -1:]
    lam = torch.minimum(torch.where(bad, 0, lam), 2 * size)
    z = _values(full, lam, *_groups(y, lam, 4 * _EPS * (lam + size), length))
    return unpacked(z, order, used, bad, v)


def _candidates(
    x: Tensor, lam: Tensor, sign: Tensor, first: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """t_G = mean(x_G) + lam (s_{a-1} - s_b) / |G|, with s_{a-1} and s_b."""
    before = pad(sign, (1, 0)).gather(1, first)
    after = sign.gather(1, last)
    return means(x, first, last) + lam * (before - after) / (last - first + 1), before, after


def _messages(w: Tensor, lam: Tensor, start: Tensor) -> Tensor:
    """m_i = clip(m_{i-1}, -lam, lam) - w_i, m_i = -w_i at a start.

    x -> clip(x + c, lo, hi), then x -> clip(x + c', lo', hi'), is
    x -> clip(x + c + c', clip(lo + c', lo', hi'), clip(hi + c', lo', hi')).
    """
    c = -w
    lo = torch.where(start, c, c - lam)
    hi = torch.where(start, c, c + lam)
    h = 1
    # ends: h doubles
    while h < w.shape[1]:
        shape = (len(w), -1, 2, h)
        cs, los, his = c.view(shape), lo.view(shape), hi.view(shape)
        low, high = los[:, :, 1], his[:, :, 1]
        new_low = (los[:, :, 0, -1:] + cs[:, :, 1]).clamp(low, high)
        new_high = (his[:, :, 0, -1:] + cs[:, :, 1]).clamp(low, high)
        los[:, :, 1], his[:, :, 1] = new_low, new_high
        cs[:, :, 1] += cs[:, :, 0, -1:].clone()
        h *= 2
    return lo


def _split(y: Tensor, lam: Tensor, slack: Tensor, end: Tensor, sign: Tensor) -> Tensor:
    """sign(z_i - z_{i+1}) where {z > t} has a border inside a group of value t, else 0.

    e_i = [m_i < 0] at the end of a group and where |m_i| > lam + slack, else e_i = e_{i+1}; slack
    bounds the rounding of m, so that a finished group stays whole.
    """
    at = positions(y)
    first, last = bounds(end)
    t, before, after = _candidates(y, lam, sign, first, last)
    w = y - t + lam * (before * (at == first) - after * (at == last))
    m = _messages(w, lam, at == first)
    known = end | (m.abs() > lam + slack)
    source = torch.where(known, at, y.shape[1] - 1).flip(1).cummin(1).values.flip(1)
    e = (m < 0).gather(1, source).to(y.dtype)
    return torch.where(end, 0, e - pad(e[:, 1:], (0, 1)))


def _groups(y: Tensor, lam: Tensor, slack: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The last entries of the groups, and the sign of the jump after each."""
    at = positions(y)
    end = (at >= length - 1) | (lam == 0)
    end[:, -1] = True
    sign = torch.zeros_like(y)
    open_rows = torch.arange(len(y), device=y.device)
    # ends: each round splits a group of every open row
    while len(open_rows):
        cut = _split(*(x[open_rows] for x in (y, lam, slack, end, sign)))
        sign[open_rows] += cut
        end[open_rows] |= cut != 0
        open_rows = open_rows[(cut != 0).any(1)]
    return end, sign


def _values(x: Tensor, lam: Tensor, end: Tensor, sign: Tensor) -> Tensor:
    """z_G from the data; groups whose values contradict the jump between them are merged."""
    # ends: each round merges groups
    while True:
        z = _candidates(x, lam, sign, *bounds(end))[0]
        wrong = pad(sign[:, :-1] * (z[:, :-1] - z[:, 1:]) < 0, (0, 1))
        if not bool(wrong.any()):
            return z
        end = end & ~wrong
        sign = torch.where(wrong, 0, sign)
