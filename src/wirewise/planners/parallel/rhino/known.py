"""Shardings that users write themselves, as preferred choices: the batch in parts, parameters whole or in parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wirewise.planners.parallel.rhino.choices import Assignment
from wirewise.planners.parallel.rhino.shardings import STATE, JointStrategy, ShardingProblem

__all__ = ["data_parallel", "solve_preferring"]


def solve_preferring(
    sharding: ShardingProblem, preferred: Callable[[int, JointStrategy], bool]
) -> Assignment | None:
    """The cheapest choices of those with the fewest strategies that are not preferred; None: there are none at all.

    Args:
        sharding: Training step on a mesh.
        preferred: Whether a node, by its number, shall run so.
    """
    wanted = {
        variable: np.array([preferred(node, one) for one in sharding.options[variable]])
        for node, variable in sharding.variables.items()
    }
    found = sharding.problem.preferring(wanted).solve()
    if found is None:
        return None
    cost, memory = sharding.problem.total(found.values)
    return found._replace(cost=cost, memory=memory, bound=-np.inf)


def data_parallel(sharding: ShardingProblem, *, cut: bool = False) -> Assignment | None:
    """What grows with the batch is cut along the batch on all dimensions of the mesh, if it can be.

    Args:
        sharding: Training step on a mesh.
        cut: Whether parameters that can be are cut by their first dimension and gathered where they are used, as FSDP
            does; else every rank has all.
    """
    nodes, dims = sharding.graph.nodes, sharding.batch_dims

    def preferred(number: int, one: JointStrategy) -> bool:
        if nodes[number].op in STATE:
            by = _by(0) if cut and nodes[number].op == "parameter" else "R"
            return all(str(word) == by for word in one.outputs[0])
        taken = [dims[source][0] for source in nodes[number].inputs]
        return all(
            dim is None or all(str(word) == _by(dim) for word in layout)
            for layout, dim in zip((*one.inputs, *one.outputs), (*taken, *dims[number]), strict=True)
        )

    return solve_preferring(sharding, preferred)


def _by(dim: int) -> str:
    return f"S{dim}"
