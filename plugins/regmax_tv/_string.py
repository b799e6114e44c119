r"""The prox of total variation on a chain in a fixed number of operations, for graphs.

With S_k = v_1 + .. + v_k, the sums z_1 + .. + z_k are the shortest path in the tube
[S_k - w, S_k + w] from S_0 to S_d: the taut string.  It bends up at a point (k, S_k + w) of the
upper wall, or down at one of the lower wall, if and only if the shortest path from this point to
the end begins with a slope above, or below, that with which the path from the start arrives.  The
first slope of the shortest path to the right from a point (k, s) is

    min_{r > k} max( (S_r + w - s) / (r - k),  max_{k < b <= r} (S_b - w - s) / (b - k) ),

and to the left the same, mirrored.  So every point is examined alone.  The groups of z lie between
the bends.  O(d^2) memory and time a row.

Source: P. L. Davies and A. Kovac, "Local extremes, runs, strings and multiresolution", Annals of
Statistics 29(1), 2001, section 2.2, for the taut string; the formula is the threshold {z > t} by
the messages of `chain`, where t varies.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regmax.kernels.neighbours import averages

DOUBLINGS = 20
"""Rows have at most 2^20 entries, where each matrix would have 8 TiB."""


def taut_string(v: Tensor, weight: Tensor, on: Tensor) -> Tensor:
    """z for v (*batch, d) in float64, weight (*batch, 1) or fewer dimensions, and participants
    ``on``; 0 elsewhere.  Members of a group are equal bit for bit."""
    count = on.sum(-1, keepdim=True).clamp_min(1)
    v = torch.where(on, v, 0)
    mean = v.sum(-1, keepdim=True) / count
    v = torch.where(on, v - mean, 0)
    # without an effect above max |S|
    w = torch.minimum(weight, v.abs().sum(-1, keepdim=True))
    at, sums = pad(on.cumsum(-1), (1, 0)), pad(v.cumsum(-1), (1, 0))
    inner = (at > 0) & (at < count)
    wall = torch.where(inner, w, 0)
    up, down = sums + wall, sums - wall
    slack = 16 * torch.finfo(v.dtype).eps * (sums.abs().amax(-1, keepdim=True) + w)
    bends_up = inner & (_bend(at, up, down, up) > slack)
    bends_down = inner & (_bend(at, up, down, down) < -slack)
    bends = bends_up | bends_down
    path = torch.where(bends_up, wall, 0) - torch.where(bends_down, wall, 0)
    ids = bends.cumsum(-1)[..., :-1]
    z = averages(v + path[..., 1:] - path[..., :-1], ids, on) + mean
    return torch.where(on & (weight >= 0), z, torch.where(on, torch.nan, 0))


def _bend(at: Tensor, up: Tensor, down: Tensor, points: Tensor) -> Tensor:
    """The slope with which the shortest path leaves each point, minus that with which it
    arrives."""
    back = [t.flip(-1) for t in (-at, up, down, points)]
    return _first_slope(at, up, down, points) + _first_slope(*back).flip(-1)


def _first_slope(at: Tensor, up: Tensor, down: Tensor, points: Tensor) -> Tensor:
    """The first slope of the shortest path to the right from each point; inf at the end."""
    steps = at.unsqueeze(-2) - at.unsqueeze(-1)
    ahead = steps > 0
    steps, start = torch.where(ahead, steps, 1), points.unsqueeze(-1)
    high = torch.where(ahead, (up.unsqueeze(-2) - start) / steps, torch.inf)
    low = torch.where(ahead, (down.unsqueeze(-2) - start) / steps, -torch.inf)
    d, place = at.shape[-1], torch.arange(at.shape[-1], device=at.device)
    # low becomes its running maximum
    for k in range((d - 1).bit_length() if isinstance(d, int) else DOUBLINGS):
        low = torch.maximum(low, low.index_select(-1, (place - (1 << k)).clamp_min(0)))
    return torch.maximum(high, low).amin(-1)
