r"""Isotonic regression, the projection on the decreasing vectors,

    z = argmin_z 1/2 ||z - v||^2  subject to  z_1 >= z_2 >= .. >= z_d.

The solution is constant on blocks B of neighbours, with z_B = mean(v_B).  On the CPU, rows are
computed by the pool adjacent violators algorithm compiled with numba, O(d) a row (`_numba`).
Elsewhere, and without numba, the reference implementation `isotonic_decreasing_reference` joins
solved halves.
With x = -v, increasing solutions l of a left half and r of a right half are joined by pooling the
entries of l above m and those of r below m, where

    F(m) = sum_i (m - r_i)_+  -  sum_i (l_i - m)_+  =  0,

and as F increases, l_j is pooled iff F(l_j) > 0 and r_j iff F(r_j) < 0; if the last l is not above
the first r, none is pooled.  O(log d) levels, each of O(log d) vector steps over all halves.

Sources: M. J. Best and N. Chakravarti, "Active set algorithms for isotonic regression; a unifying
framework", Mathematical Programming 47, 1990; for the use in the OSCAR proximal operator,
X. Zeng and M. Figueiredo, "The ordered weighted l1 norm", 2014, and V. Niculae and M. Blondel,
"A regularized framework for sparse and structured neural attention", NeurIPS 2017, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regmax.kernels import transforms
from regmax.kernels.base import on_cpu
from regmax.kernels.neighbours import (
    averages,
    bounds,
    flat,
    means,
    packed,
    positions,
    scan,
    unpacked,
)

__all__ = ["isotonic_decreasing", "isotonic_decreasing_reference"]


def isotonic_decreasing(v: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""z = argmin_z 1/2 ||z - v||^2 subject to z_1 >= z_2 >= .. >= z_d, per row.

    v: (*batch, d), float32 or float64, any strides.  mask: bool, the shape of v; only entries
    where it is True are participants, in their order, and z is 0 elsewhere.

    Returns z, of the shape, dtype and device of v, without a gradient.  Entries of a block are
    equal bit for bit, an entry that is a block of its own is v_i exactly, and z decreases exactly.
    Accumulation is in float64, rounded once.

    A row with a participant that is not finite is NaN at its participants; other rows are not
    affected.

    Raises TypeError for another dtype of v or mask, ValueError if the shapes do not match.

    Source: Best and Chakravarti (1990), see the module.
    """
    if transforms.tracing():
        return _in_graph(v, mask)
    rows = on_cpu("regmax_oscar._cpu", v)
    if rows is None:
        return isotonic_decreasing_reference(v, mask)
    x, m = flat(v, mask)
    z: Tensor = rows.isotonic_rows(x.contiguous(), None if m is None else m.contiguous())
    return z.reshape(v.shape)


def isotonic_decreasing_reference(v: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""z = argmin_z 1/2 ||z - v||^2 subject to z_1 >= z_2 >= .. >= z_d, in plain PyTorch.

    Shapes, dtypes, results and errors as in `isotonic_decreasing`; any device.  Every operation
    is elementwise over the rows, so that a row's result does not depend on its batch.

    Source: pooling of adjacent blocks, Best and Chakravarti (1990), by halves; see the module.
    """
    x, m = flat(v, mask)
    if x.numel() == 0:
        return torch.zeros_like(v, requires_grad=False)
    used = torch.ones_like(x, dtype=torch.bool) if m is None else m
    bad = (used & ~x.isfinite()).any(1, keepdim=True)
    # x = -v, and inf up to a power of two, never pooled
    full, order = packed(torch.where(bad, 0, -x), used, torch.inf)
    end = _blocks(full)
    z = -_means(torch.where(full.isinf(), 0, full), end, used.sum(1, keepdim=True))
    return unpacked(z + 0.0, order, used, bad, v)


def _in_graph(v: Tensor, mask: Tensor | None) -> Tensor:
    """The same in a fixed number of operations, for graphs; O(d^2) memory and time a row.

    A block ends after the entry k if and only if S_k = v_1 + .. + v_k is a corner of the least
    concave majorant of S: all slopes to it from the left are above all those to the right of it.
    """
    on = torch.ones_like(v, dtype=torch.bool) if mask is None else mask
    count = on.sum(-1, keepdim=True).clamp_min(1)
    x = torch.where(on, v, 0).double()
    mean = x.sum(-1, keepdim=True) / count
    x = torch.where(on, x - mean, 0)
    at, sums = pad(on.cumsum(-1), (1, 0)), pad(x.cumsum(-1), (1, 0))
    steps = at.unsqueeze(-2) - at.unsqueeze(-1)
    slopes = (sums.unsqueeze(-2) - sums.unsqueeze(-1)) / torch.where(steps == 0, 1, steps)
    left = torch.where(steps < 0, slopes, torch.inf).amin(-1)
    right = torch.where(steps > 0, slopes, -torch.inf).amax(-1)
    slack = 16 * torch.finfo(x.dtype).eps * sums.abs().amax(-1, keepdim=True)
    ids = (left - right > slack)[..., :-1].cumsum(-1) - 1  # a corner at 0 too
    return torch.where(on, averages(x, ids, on) + mean, 0).to(v.dtype)


def _blocks(x: Tensor) -> Tensor:
    """The last entries of the blocks of the increasing regression of x, (R, a power of two)."""
    z = x.clone()
    end = torch.ones_like(x, dtype=torch.bool)
    h = 1
    # ends: h doubles
    while h < x.shape[1]:
        shape = (len(x), -1, 2, h)
        left, right = z.view(shape)[:, :, 0].contiguous(), z.view(shape)[:, :, 1].contiguous()
        at = positions(left)
        # suf_j = sum_{i >= j} l_i, pre_j = sum_{i < j} r_i, j = 0..h
        suf, pre = pad(scan(left.flip(-1)).flip(-1), (0, 1)), pad(scan(right), (1, 0))
        # F(l_j), F(r_j): p = #{r < l_j}, q = #{l <= r_j}
        p = torch.searchsorted(right, left)
        q = torch.searchsorted(left, right, right=True)
        f_left = p * left - pre.gather(-1, p) - (suf[..., :h] - (h - at) * left)
        f_right = at * right - pre[..., :h] - (suf.gather(-1, q) - (h - q) * right)
        above = (f_left > 0).sum(-1, keepdim=True)
        below = (f_right < 0).sum(-1, keepdim=True)
        # m = (sum of the pooled) / (their number)
        mean = (suf.gather(-1, h - above) + pre.gather(-1, below)) / (above + below)
        joined = (left[..., -1:] > right[..., :1]) & (above > 0) & (below > 0)
        from_left, from_right = joined & (at >= h - above), joined & (at < below)
        z = torch.stack(
            (torch.where(from_left, mean, left), torch.where(from_right, mean, right)), 2
        ).view_as(x)
        inner = torch.stack((from_left, joined & (at < below - 1)), 2).view_as(x)
        end &= ~inner
        h *= 2
    return end


def _means(x: Tensor, end: Tensor, length: Tensor) -> Tensor:
    """mean(x_B) from the data; blocks out of order among the first length entries are merged."""
    at = positions(x)
    # ends: each round merges blocks
    while True:
        z = means(x, *bounds(end))
        wrong = pad(z[:, :-1] > z[:, 1:], (0, 1)) & (at < length - 1)
        if not bool(wrong.any()):
            return z
        end = end & ~wrong
