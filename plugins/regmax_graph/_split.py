r"""min_z ½‖z − v‖² + Σ_e c_e |z_i − z_j|, one row, exactly: sets of nodes split by minimum cuts.

z_i = v_i − Σ_e ±f_e for a flow |f_e| ≤ c_e from high to low, f_e = ±c_e where z_i ≠ z_j. Take a
connected set whose edges to other sets have their final flow. Let x_i = v_i − Σ_e ±f_e − m, m the
mean. If a flow inside the set makes every x_i = 0, then z = m on the set, and it is a group. If
not, {i : z_i > m} is a minimum cut. The edges across it get their final flow f_e = c_e, and the
connected components of either side become new sets, which keep their flow. At most d cuts.

The cuts decide only which sets are groups G. Their values are computed again from the data,

    z_G = mean(v_G) − (Σ of f_e out of G) / |G|.

Capacities are limited to the largest possible flow, so that c_e = 1e300 does not absorb v.

Sources: D. S. Hochbaum, "An efficient algorithm for image segmentation, Markov random fields and
related problems", Journal of the ACM 48(4), 2001; A. Chambolle and J. Darbon, "On total variation
minimization and surface evolution using parametric maximum flows", IJCV 84(3), 2009. The splitting
at means is the decomposition algorithm of H. Groenevelt (1991) and S. Fujishige (1980).
"""

from __future__ import annotations

import math
from typing import Any

from ._flow import beyond, route
from ._jit import njit

SLACK = 16 * 2.0**-52
"""Excess below this, relative to the size of the flow, is rounding."""


@njit
def _parts(
    order: Any,
    first: int,
    last: int,
    side: Any,
    cap: Any,
    arcs: Any,
    label: Any,
    copy: Any,
    sets: Any,
    top: int,
    fresh: int,
) -> Any:
    """Sort the nodes order[first:last], of one label, into the connected components of equal side.

    Each component gets a label, from ``fresh`` on, and is pushed on the stack of sets. Returns the
    stack's new height and the next label.
    """
    start, to, edge, _ = arcs
    own = label[order[first]]
    for k in range(first, last):
        copy[k] = order[k]
    at = first
    for k in range(first, last):
        if label[copy[k]] != own:
            continue
        begin, head = at, at
        order[at] = copy[k]
        label[copy[k]] = fresh
        at += 1
        # ends: a node is labelled once
        while head < at:
            i = order[head]
            head += 1
            for a in range(start[i], start[i + 1]):
                j = to[a]
                if label[j] == own and side[j] == side[i] and cap[edge[a]] > 0.0:
                    label[j] = fresh
                    order[at] = j
                    at += 1
        sets[0, top], sets[1, top] = begin, at
        top += 1
        fresh += 1
    return top, fresh


@njit
def _centred(nodes: Any, x: Any) -> float:
    """Subtract from x its mean over the nodes; returns the sum of its positive entries."""
    for _ in range(2):  # the second pass removes the rounding error of the first
        ref, total, lost = x[nodes[0]], 0.0, 0.0
        for i in nodes:
            term = (x[i] - ref) - lost
            following = total + term
            lost = (following - total) - term
            total = following
        mean = ref + total / len(nodes)
        for i in nodes:
            x[i] -= mean
    above = 0.0
    for i in nodes:
        above += max(x[i], 0.0)
    return above


@njit
def split(v: Any, cap: Any, arcs: Any, label: Any, f: Any, floats: Any, ints: Any) -> int:
    """Label the groups of the nodes with label 0 (others have −1), and find their flow f.

    Edges of capacity 0 are ignored. Returns a number above all labels, at most twice that of nodes.
    ``floats`` and ``ints`` are scratch: rows of the number of nodes, 1 and 9 of them.
    """
    start, _, edge, way = arcs
    x = floats[0]
    order, side, copy, sets = ints[4], ints[5], ints[6], ints[7:9]
    n = 0
    for i in range(len(v)):
        side[i] = 0
        if label[i] == 0:
            order[n] = i
            n += 1
    for e in range(len(cap)):
        f[e] = 0.0
    if n == 0:
        return 1
    top, fresh = _parts(order, 0, n, side, cap, arcs, label, copy, sets, 0, 1)
    # ends: a set is taken off, or split into smaller ones
    while top > 0:
        top -= 1
        first, last = sets[0, top], sets[1, top]
        if last - first == 1:
            continue
        nodes = order[first:last]
        scale = 0.0
        for i in nodes:
            x[i] = v[i]
            size = abs(v[i])
            for a in range(start[i], start[i + 1]):
                x[i] -= way[a] * f[edge[a]]
                size += abs(f[edge[a]])
            scale = max(scale, size)
        tol = SLACK * (scale + _centred(nodes, x))
        route(nodes, x, tol, cap, f, arcs, label, ints)
        inside = beyond(nodes, x, tol, cap, f, arcs, label, side, copy)
        if 0 < inside < last - first:
            top, fresh = _parts(order, first, last, side, cap, arcs, label, copy, sets, top, fresh)
    return fresh


@njit
def values(
    v: Any, cap: Any, f: Any, ends: Any, label: Any, count: int, sums: Any, sizes: Any, z: Any
) -> None:
    """z_G = mean(v_G) − (Σ of f_e out of G) / |G| for the groups labelled below ``count``.

    Two groups whose values contradict the flow between them are equal up to rounding and merged.
    ``sums`` and ``sizes`` are scratch, four rows and one, of twice the number of nodes.
    """
    tails, heads = ends
    ref, total, lost, out = sums[0], sums[1], sums[2], sums[3]
    # ends: each round merges two groups
    while True:
        for g in range(count):
            sizes[g] = 0
            out[g] = 0.0
        for i in range(len(v)):
            g = label[i]
            if g < 0:
                continue
            if sizes[g] == 0:
                ref[g], total[g], lost[g] = v[i], 0.0, 0.0
            sizes[g] += 1
            term = (v[i] - ref[g]) - lost[g]
            following = total[g] + term
            lost[g] = (following - total[g]) - term
            total[g] = following
        for e in range(len(cap)):
            g, h = label[tails[e]], label[heads[e]]
            if g != h and cap[e] > 0.0:
                out[g] += f[e]
                out[h] -= f[e]
        for g in range(count):
            if sizes[g] > 0:
                ref[g] = ref[g] + total[g] / sizes[g] - out[g] / sizes[g]
        merged = False
        for e in range(len(cap)):
            g, h = label[tails[e]], label[heads[e]]
            if g != h and cap[e] > 0.0 and f[e] * (ref[g] - ref[h]) < 0.0:
                for i in range(len(v)):
                    if label[i] == h:
                        label[i] = g
                merged = True
        if not merged:
            break
    for i in range(len(v)):
        if label[i] >= 0:
            z[i] = ref[label[i]] + 0.0


@njit
def capacities(
    v: Any, step: float, weights: Any, ends: Any, label: Any, y: Any, given: bool, cap: Any
) -> None:
    """c_e = step·w_e, limited to the largest possible flow; 0 unless both ends are participants
    and, if ``given``, have equal entries of y."""
    tails, heads = ends
    centre, n = 0.0, 0
    for i in range(len(v)):
        if label[i] == 0:
            n += 1
            centre += (v[i] - centre) / n
    most = 0.0
    for i in range(len(v)):
        if label[i] == 0:
            most += 4.0 * abs(v[i] - centre)
    for e in range(len(cap)):
        i, j = tails[e], heads[e]
        cap[e] = 0.0
        if label[i] == 0 and label[j] == 0 and not (given and y[i] != y[j]) and weights[e] > 0.0:
            cap[e] = min(step * weights[e], most)


@njit
def prox_row(
    v: Any, step: float, weights: Any, ends: Any, arcs: Any, label: Any, out: Any, s: Any
) -> None:
    """out = the prox of step·R at v on the nodes with label 0; 0 on the others (label −1)."""
    floats, edges, sums, ints, sizes = s
    shifted, cap, f = floats[1], edges[0], edges[1]
    usable, centre, n = step >= 0.0, 0.0, 0
    for i in range(len(v)):
        out[i] = 0.0
        if label[i] == 0:
            usable = usable and math.isfinite(v[i])
            n += 1
            centre += (v[i] - centre) / n
    for i in range(len(v)):
        if label[i] == 0 and not usable:
            out[i] = math.nan
        shifted[i] = v[i] - centre if label[i] == 0 else 0.0
    if not usable:
        return
    capacities(shifted, step, weights, ends, label, v, False, cap)
    count = split(shifted, cap, arcs, label, f, floats, ints)
    values(v, cap, f, ends, label, count, sums, sizes, out)


@njit
def subgradient_row(
    y: Any, near: Any, step: float, weights: Any, ends: Any, arcs: Any, label: Any, out: Any, s: Any
) -> None:
    """out = the element of step·∂R(y) nearest to ``near``: out_i = Σ_e ±t_e, |t_e| ≤ step·w_e.

    t_e = step·w_e·sign(y_i − y_j) if y_i ≠ y_j. On edges between equal entries the flow of the prox
    at ``near`` gives the nearest t_e.
    """
    floats, edges, _, ints, _ = s
    rest, cap, f, t = floats[1], edges[0], edges[1], edges[2]
    tails, heads = ends
    for i in range(len(y)):
        out[i] = 0.0
        rest[i] = near[i] if label[i] == 0 else 0.0
    for e in range(len(cap)):
        i, j = tails[e], heads[e]
        t[e] = 0.0
        if label[i] == 0 and label[j] == 0 and weights[e] > 0.0 and y[i] != y[j]:
            t[e] = step * weights[e] if y[i] > y[j] else -step * weights[e]
            rest[i] -= t[e]
            rest[j] += t[e]
    capacities(rest, step, weights, ends, label, y, True, cap)
    split(rest, cap, arcs, label, f, floats, ints)
    for e in range(len(cap)):
        t[e] += max(-cap[e], min(f[e], cap[e]))
        out[tails[e]] += t[e]
        out[heads[e]] -= t[e]


@njit
def groups_row(z: Any, weights: Any, arcs: Any, label: Any, out: Any, ints: Any) -> None:
    """out_i = the lowest node that a path of edges between equal entries connects to i."""
    order, sets, n = ints[4], ints[7:9], 0
    for i in range(len(z)):
        out[i] = i
        if label[i] == 0:
            order[n] = i
            n += 1
    if n == 0:
        return
    count, _ = _parts(order, 0, n, z, weights, arcs, label, ints[6], sets, 0, 1)
    for k in range(count):
        for i in order[sets[0, k] : sets[1, k]]:
            out[i] = order[sets[0, k]]
