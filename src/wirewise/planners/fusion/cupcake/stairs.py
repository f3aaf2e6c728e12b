"""Labels with two entries (u, v), extended by a group as u' = u + a and v' = max(v, u') + b.

Pareto-optimal labels form a staircase: u rises, v falls. Extending all labels by a group shifts the staircase, up to
the first label where u' exceeds v; new staircases are therefore merged from shifted ones. The continuation of a label
ends at the minimum of max(u + v*, v + u*) over the staircase (u*, v*) of the other direction.
"""

from __future__ import annotations

import numpy as np

from wirewise.planners.arrays import Ints, Vector
from wirewise.sim.compiled import outer

__all__ = ["extend"]


_COARSER = 20.0
"""Factor by which steps of labels that hardly end before the limit are wider."""


@outer
def extend(
    position: int, u: Vector, v: Vector, starts: Ints, ready: Vector, sums: Vector, knots: Vector, swap: bool,
    other_u: Vector, other_v: Vector, bound: float, limit: float, room: int, real: bool,
) -> tuple[Vector, Vector, Ints, bool]:  # fmt: skip
    """Compute the staircase of a position from those of all positions before it.

    Args:
        position: Position: number of tensors already covered.
        u: First entries of the labels of all earlier positions, concatenated.
        v: Second entries of these labels.
        starts: Start of each position's labels, then the end.
        ready: Back-propagation time of the first tensors, in seconds, [tensors + 1].
        sums: Total elements of the first tensors, [tensors + 1].
        knots: Size, seconds and slope of the first and second cost curve, [options, 2, 3, knots].
        swap: Whether the two curves exchange roles, as when the problem is read from its end.
        other_u: First entries of the other direction's labels; empty if unknown.
        other_v: Second entries of these labels.
        bound: Lower bound of any end, in seconds.
        limit: Prune labels that cannot end before it, in seconds.
        room: Maximum number of labels to keep.
        real: If there are more, whether to keep feasible labels, or replace them by infeasible dominating ones.

    Returns:
        Entries u and v and parent * options + option of each label, and whether labels exceeded the room.
    """
    options, count, thinned, most = len(knots), 0, False, max(4 * room, 1024)
    at = np.zeros((options, 2), dtype=np.int64)
    front_u, front_v, front_code = np.empty(most), np.empty(most), np.empty(most, np.int64)
    slack = np.empty(most)
    rest_u, rest_v, rest_code = np.empty(most), np.empty(most), np.empty(most, np.int64)
    new_u, new_v, new_code = np.empty(room + 1), np.empty(room + 1), np.empty(room + 1, np.int64)
    # v* of the last and u* of the first label are the least, so nothing at or beyond these can end before the limit.
    last_u = limit - (other_v[-1] if len(other_v) else 0.0)
    last_v = limit - (other_u[0] if len(other_u) else 0.0)
    for i in range(position - 1, -1, -1):
        begin, end = starts[i], starts[i + 1]
        if begin == end:
            continue
        gap, size = ready[position] - ready[i], sums[position] - sums[i]
        for option in range(options):
            a = gap + _seconds(knots[option, 0], at[option], 0, size)
            b = _seconds(knots[option, 1], at[option], 1, size)
            if swap:
                a, b = b, a
            # The corner that no moved label is below: where it is too late or beaten, all of them are.
            low_u = u[begin] + a
            low_v = max(v[end - 1], low_u) + b
            if low_u >= last_u or low_v >= last_v or _end(low_u, low_v, other_u, other_v) >= limit:
                continue
            if count + end - begin > most:
                count = _below(front_u, front_v, front_code, slack, count, other_u, other_v, bound, limit)
                if count > most // 2:
                    count, thinned = _thin(front_u, front_v, front_code, slack, count, most // 2, real), True
            first = np.searchsorted(front_u[:count], low_u, side="right")
            if first > 0 and front_v[first - 1] <= low_v:
                continue
            new = _moved(
                u, v, begin, end, a, b, last_u, last_v, front_u, front_v, first, count, new_u, new_v, new_code
            )
            if new > 0:
                new_code[:new] = new_code[:new] * options + option
                count = _merge(
                    front_u, front_v, front_code, count, new_u, new_v, new_code, new,
                    rest_u, rest_v, rest_code,
                )  # fmt: skip
    count = _below(front_u, front_v, front_code, slack, count, other_u, other_v, bound, limit)
    if count > room:
        count, thinned = _thin(front_u, front_v, front_code, slack, count, room, real), True
    return front_u[:count].copy(), front_v[:count].copy(), front_code[:count].copy(), thinned


@outer
def _seconds(knots: Vector, at: Ints, part: int, size: float) -> float:
    """Seconds of a group; `at` remembers the segment, because sizes rise."""
    k = at[part]
    while k + 1 < knots.shape[1] and knots[0, k + 1] <= size:
        k += 1
    at[part] = k
    return knots[1, k] + knots[2, k] * (size - knots[0, k])


@outer
def _end(u: float, v: float, other_u: Vector, other_v: Vector) -> float:
    """When what follows a label ends at the least."""
    low, high = 0, len(other_u)
    # u* - v* rises along the stairs: from some label on v + u* is the larger, before it u + v*; each is least there.
    while low < high:
        middle = (low + high) // 2
        if other_u[middle] - other_v[middle] >= u - v:
            high = middle
        else:
            low = middle + 1
    end = v + other_u[low] if low < len(other_u) else np.inf
    if low > 0:
        end = min(end, u + other_v[low - 1])
    return end if len(other_u) else max(u, v)


@outer
def _moved(
    u: Vector, v: Vector, begin: int, end: int, a: float, b: float, last_u: float, last_v: float,
    front_u: Vector, front_v: Vector, first: int, count: int, new_u: Vector, new_v: Vector, parent: Ints,
) -> int:  # fmt: skip
    """The stairs behind one more group, less what is too late or beaten by the front; how many."""
    new, x = 0, first
    for k in range(begin, end):
        next_u = u[k] + a
        if next_u >= last_u:
            break
        caught = v[k] <= next_u
        next_v = (next_u if caught else v[k]) + b
        while x < count and front_u[x] <= next_u:
            x += 1
        beaten = (x > 0 and front_v[x - 1] <= next_v) or (new > 0 and new_v[new - 1] <= next_v)
        if next_v < last_v and not beaten:
            new_u[new], new_v[new], parent[new] = next_u, next_v, k
            new += 1
        # From here on v' is u' + b and rises with u: the labels behind this one are beaten by it.
        if caught:
            break
    return new


@outer
def _merge(
    u: Vector, v: Vector, code: Ints, count: int, new_u: Vector, new_v: Vector, new_code: Ints, new: int,
    rest_u: Vector, rest_v: Vector, rest_code: Ints,
) -> int:  # fmt: skip
    """Put labels that the front does not beat into it, and drop those that they beat; the front's new count."""
    # Labels of a smaller u stay: nothing new can beat them. Only what follows is merged.
    z = np.searchsorted(u[:count], new_u[0])
    rest, x = count - z, 0
    rest_u[:rest], rest_v[:rest], rest_code[:rest] = u[z:count], v[z:count], code[z:count]
    for k in range(new + 1):
        while x < rest and (k == new or rest_u[x] < new_u[k]):
            if z == 0 or rest_v[x] < v[z - 1]:
                u[z], v[z], code[z] = rest_u[x], rest_v[x], rest_code[x]
                z += 1
            x += 1
        if k < new:
            u[z], v[z], code[z] = new_u[k], new_v[k], new_code[k]
            z += 1
    return z


@outer
def _below(
    u: Vector, v: Vector, code: Ints, slack: Vector, count: int, other_u: Vector, other_v: Vector,
    bound: float, limit: float,
) -> int:  # fmt: skip
    """Keep what can end before the limit, and say how much of the way to it each label's end has gone; how many."""
    kept = 0
    for x in range(count):
        end = _end(u[x], v[x], other_u, other_v)
        if end < limit:
            u[kept], v[kept], code[kept] = u[x], v[x], code[x]
            slack[kept] = max(end - bound, 0.0) / (limit - bound)
            kept += 1
    return kept


@outer
def _thin(u: Vector, v: Vector, code: Ints, slack: Vector, count: int, room: int, real: bool) -> int:
    """Replace neighbours by one label, the more of them the further they are from the bound; how many are left."""
    low, high = 0.0, max(u[count - 1] - u[0], v[0] - v[count - 1])
    width, tries = high / room, 0
    while tries < 20:
        kept = _steps(u, v, slack, count, width)
        low, high = (low, width) if kept <= room else (width, high)
        if 0.8 * room < kept <= room:
            break
        width, tries = (low + high) / 2, tries + 1
    kept, x = 0, 0
    while x < count:
        y = _step_end(u, v, slack, count, x, high)
        if real:
            z = x + np.argmin(slack[x : y + 1])
            u[kept], v[kept], code[kept] = u[z], v[z], code[z]
        else:
            # (u[x], v[y]) beats all that it replaces, so that what the walk ends with is a bound from below.
            nearer = y if u[y] - u[x] <= v[x] - v[y] else x
            u[kept], v[kept], code[kept] = u[x], v[y], code[nearer]
        kept, x = kept + 1, y + 1
    return kept


@outer
def _steps(u: Vector, v: Vector, slack: Vector, count: int, width: float) -> int:
    kept, x = 0, 0
    while x < count:
        kept, x = kept + 1, _step_end(u, v, slack, count, x, width) + 1
    return kept


@outer
def _step_end(u: Vector, v: Vector, slack: Vector, count: int, x: int, width: float) -> int:
    """The last label up to which (u[x], v[y]) is no more than the width better than one that there is.

    The width is larger for labels that are nearer to the limit than to the bound.
    """
    y, least = x, slack[x]
    while y + 1 < count:
        least = min(least, slack[y + 1])
        if min(u[y + 1] - u[x], v[x] - v[y + 1]) > width * (1.0 + _COARSER * least):
            break
        y += 1
    return y
