r"""A maximum flow from the nodes of a set with an excess to those with a deficit.

Edge e of capacity c_e carries f_e ∈ [−c_e, c_e], positive from its tail to its head. x_i is the
value of node i minus the mean of its set. Excess (x_i > tol) is pushed towards deficits (x_i < 0)
along residual arcs, within the nodes of one label.

Push–relabel, first in first out, without a source or sink. A node's distance is a lower bound on
the number of residual arcs to a deficit; from time to time a backward search from all deficits
makes it exact. A push takes all of the excess or all of the residual capacity, so one of the two
is exactly 0 after it.

Sources: A. V. Goldberg and R. E. Tarjan, "A new approach to the maximum-flow problem", Journal of
the ACM 35(4), 1988; for the exact distances, B. V. Cherkassky and A. V. Goldberg, "On
implementing the push-relabel method for the maximum flow problem", Algorithmica 19, 1997.
"""

from __future__ import annotations

from typing import Any

from ._jit import njit

PATIENCE = 4
"""Arcs that may be scanned without a push, per node, before distances are made exact."""


@njit
def _distances(
    nodes: Any, x: Any, cap: Any, f: Any, arcs: Any, label: Any, distance: Any, queue: Any
) -> None:
    """The number of residual arcs from each node of a set to a deficit; the set's size if none."""
    start, to, edge, way = arcs
    own, n = label[nodes[0]], len(nodes)
    last = 0
    for i in nodes:
        distance[i] = n
        if x[i] < 0.0:
            distance[i] = 0
            queue[last] = i
            last += 1
    first = 0
    # ends: a node enters the queue once
    while first < last:
        j = queue[first]
        first += 1
        for a in range(start[j], start[j + 1]):
            i, e = to[a], edge[a]
            # the reverse arc, from i to j, has residual capacity c + (f along this arc)
            if label[i] == own and distance[i] == n and -way[a] * f[e] < cap[e]:
                distance[i] = distance[j] + 1
                queue[last] = i
                last += 1


@njit
def route(
    nodes: Any, x: Any, tol: float, cap: Any, f: Any, arcs: Any, label: Any, ints: Any
) -> None:
    """Push until no excess can reach a deficit; x and f are changed in place.

    ``nodes`` are those of one label; ``ints`` is scratch, four rows of the number of nodes.
    """
    start, to, edge, way = arcs
    distance, current, queue, queued = ints[0], ints[1], ints[2], ints[3]
    own, n = label[nodes[0]], len(nodes)
    # ends: after exact distances some node pushes, and there is a bound on the number of pushes:
    # each empties a node or fills an arc exactly, and distances, at most n, never decrease
    # (Goldberg & Tarjan 1988)
    while True:
        _distances(nodes, x, cap, f, arcs, label, distance, queue)
        count = 0
        for i in nodes:
            current[i] = start[i]
            queued[i] = 0
            if x[i] > tol and distance[i] < n:
                queue[count] = i
                queued[i] = 1
                count += 1
        if count == 0:
            return
        first, last, patience = 0, count % n, PATIENCE * n
        # ends: each round pushes, relabels, or removes a node
        while count > 0 and patience > 0:
            i = queue[first]
            first = first + 1 if first + 1 < n else 0
            count -= 1
            queued[i] = 0
            # ends: the current arc moves on, the arc fills, the node empties, or its distance grows
            while x[i] > tol:
                a = current[i]
                if a == start[i + 1]:
                    nearest = n
                    for b in range(start[i], a):
                        j, e = to[b], edge[b]
                        if label[j] == own and way[b] * f[e] < cap[e]:
                            nearest = min(nearest, distance[j] + 1)
                    patience -= a - start[i]
                    distance[i] = nearest
                    current[i] = start[i]
                    if nearest >= n or patience <= 0:
                        break
                    continue
                j, e = to[a], edge[a]
                s = way[a]
                if label[j] != own or distance[i] != distance[j] + 1 or s * f[e] >= cap[e]:
                    current[i] = a + 1
                    continue
                room = cap[e] - s * f[e]
                if x[i] < room:
                    f[e] += s * x[i]
                    if s * f[e] > cap[e]:
                        f[e] = s * cap[e]
                    x[j] += x[i]
                    x[i] = 0.0
                else:
                    f[e] = s * cap[e]
                    x[j] += room
                    x[i] -= room
                if x[j] > tol and queued[j] == 0:
                    queue[last] = j
                    last = last + 1 if last + 1 < n else 0
                    queued[j] = 1
                    count += 1


@njit
def beyond(
    nodes: Any, x: Any, tol: float, cap: Any, f: Any, arcs: Any, label: Any, side: Any, queue: Any
) -> int:
    """side_i = 1 if node i can be reached from remaining excess, else 0: a minimum cut. Returns the
    number of nodes with side 1."""
    start, to, edge, way = arcs
    own = label[nodes[0]]
    last = 0
    for i in nodes:
        side[i] = 0
        if x[i] > tol:
            side[i] = 1
            queue[last] = i
            last += 1
    first = 0
    # ends: a node enters the queue once
    while first < last:
        i = queue[first]
        first += 1
        for a in range(start[i], start[i + 1]):
            j, e = to[a], edge[a]
            if label[j] == own and side[j] == 0 and way[a] * f[e] < cap[e]:
                side[j] = 1
                queue[last] = j
                last += 1
    return last
