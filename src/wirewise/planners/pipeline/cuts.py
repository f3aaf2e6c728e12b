"""Partition of a model into stages.

`balanced_cut` minimises the largest computing time of a stage, in the order of the list. `best_cut` takes
any costs of stages, and is exact over all ways to take modules off a graph one after the other: its states are sets of
modules that hold all that their members need, of which a chain, with or without skips, has one more than modules. A
stage is the difference of two of them, so that no stage needs a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wirewise.planners.pipeline.sums import Ints, ModuleSums, Table, Vector
from wirewise.sim.compiled import outer
from wirewise.trace.stages import StageTrace

__all__ = ["StageFigures", "balanced_cut", "best_cut", "figures", "prefixes"]

_MOST_SETS = 300
"""Sets of modules that are compared with each other."""
_SAME = 1.0 + 1e-12


@outer
def balanced_cut(summed: Vector, stages: int) -> Ints:
    """Split modules into contiguous stages with the least maximum sum; returns boundaries, [stages + 1].

    Among optimal cuts, later stages get the most modules, as earlier stages keep more activations.

    Args:
        summed: Cumulative seconds of modules, [L + 1].
        stages: Number of stages, at most L.
    """
    modules = len(summed) - 1
    low, high = 0.0, summed[modules]
    for i in range(modules):
        low = max(low, summed[i + 1] - summed[i])
    low = max(low, summed[modules] / stages)
    bounds = np.zeros(stages + 1, np.int64)
    bounds[stages] = modules
    for _ in range(64):
        middle = 0.5 * (low + high)
        if _fill(summed, stages, low, bounds):
            high = low
            break
        if middle <= low or middle >= high:
            break
        if _fill(summed, stages, middle, bounds):
            high = middle
        else:
            low = middle
    _fill(summed, stages, high, bounds)
    return bounds


@outer
def _fill(summed: Vector, stages: int, limit: float, bounds: Ints) -> bool:
    """Fill stages from the last on; whether no sum is above the limit."""
    limit *= 1.0 + 1e-12
    end = len(summed) - 1
    for stage in range(stages - 1, 0, -1):
        first = end - 1
        while first > stage and summed[end] - summed[first - 1] <= limit:
            first -= 1
        if summed[end] - summed[first] > limit:
            return False
        bounds[stage] = end = first
    return summed[end] <= limit


@dataclass(frozen=True)
class StageFigures:
    """Costs of every stage between two module sets, [sets, sets]; defined only above the diagonal."""

    sets: Sequence[int]
    """Sets of modules as bits, by size; the last one holds all."""
    compute_s: Table
    """Seconds of forward and backward passes."""
    input_bytes: Table
    """Bytes received from earlier modules; for the first stage, the batch."""
    saved_bytes: Table
    parameter_bytes: Table


def prefixes(trace: StageTrace) -> tuple[list[int], bool]:
    """Module sets between which stages can lie, as bit masks by size; and whether the list is complete."""
    count = len(trace.modules)
    in_order = [(1 << number) - 1 for number in range(count + 1)]
    needs = [0] * count
    for source, target in trace.flows:
        needs[target] |= 1 << source
    found, layer = [0], {0}
    while layer:
        layer = {
            one | 1 << number
            for one in layer
            for number in range(count)
            if not one >> number & 1 and needs[number] & ~one == 0
        }
        found += sorted(layer)
        if len(found) > max(_MOST_SETS, count + 1):
            return in_order, False
    return found, True


def figures(sums: ModuleSums, trace: StageTrace, sets: Sequence[int]) -> StageFigures:
    """Costs of the stages between each pair of these sets."""
    count = len(trace.modules)
    member = np.array([[one >> number & 1 for number in range(count)] for one in sets], dtype=bool)
    # Counts, not each module of each pair: a table of all three would take the cube of the modules.
    common = member.astype(np.float32) @ member.T.astype(np.float32)
    inside = (common == common.diagonal()[:, None]) & ~np.eye(len(sets), dtype=bool)

    def between(summed: Vector) -> Table:
        total = member @ np.diff(summed)
        return np.where(inside, total[None] - total[:, None], np.inf)

    users: dict[int, list[int]] = {}
    for source, target in trace.flows:
        users.setdefault(source, []).append(target)
    # The stage takes an output if one of its users is new there, and it is not computed there itself. One user each, as
    # in a chain, is a product of tables; a table for each output would be passed over as often as there are modules.
    alone = [(source, targets[0]) for source, targets in users.items() if len(targets) == 1]
    owners, taken_by = np.array(alone, np.int64).reshape(-1, 2).T
    before = (member[:, owners] & ~member[:, taken_by]) * sums.output_bytes[owners]
    size = before @ member[:, taken_by].T.astype(np.float64)
    for source, targets in users.items():
        if len(targets) > 1:
            known = np.sum(member[:, targets], axis=1)
            takes = (known[None] > known[:, None]) & member[:, source][:, None]
            size += np.where(takes, sums.output_bytes[source], 0.0)
    size[0] += sums.input_bytes
    return StageFigures(
        sets, between(sums.compute_s()), size, between(sums.saved_bytes), between(sums.parameter_bytes)
    )


def best_cut(sets: Sequence[int], cost: Sequence[Table], tie_cost: Sequence[Table]) -> list[list[int]] | None:
    """Partition modules into stages with the least maximum cost; ties by the least sum of a second cost.

    Dynamic programming over stages and sets of modules: O(stages * sets^2).

    Args:
        sets: Module sets as bit masks, by size; the last one holds all.
        cost: Cost of the stage between two sets, for each stage; infinite if not allowed.
        tie_cost: Second cost, for each stage.

    Returns:
        Module indices by stage. None if no partition is allowed.
    """
    n = len(sets)
    best = np.full(n, np.inf)
    best[0] = 0.0
    for table in cost:
        best = np.maximum(best[:, None], table).min(axis=0)
    limit = best[n - 1] * _SAME
    if not np.isfinite(limit):
        return None
    total = np.full(n, np.inf)
    total[0] = 0.0
    before = []
    for table, other in zip(cost, tie_cost, strict=True):
        both = np.where(table <= limit, total[:, None] + other, np.inf)
        before.append(np.argmin(both, axis=0))
        total = both.min(axis=0)
    chosen, at = list[list[int]](), n - 1
    for row in reversed(before):
        first = int(row[at])
        new = sets[at] & ~sets[first]
        chosen.append([number for number in range(new.bit_length()) if new >> number & 1])
        at = first
    return chosen[::-1]
