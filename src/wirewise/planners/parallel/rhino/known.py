"""Shardings that users write themselves, as preferred choices: the batch in parts, parameters whole or in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import numpy as np

from wirewise.planners.parallel.rhino.choices import Assignment
from wirewise.planners.parallel.rhino.shardings import STATE, JointStrategy, ShardingProblem
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["data_parallel", "paired_cuts", "solve_preferring", "tensor_parallel"]


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


def tensor_parallel(sharding: ShardingProblem, cuts: Mapping[str, str]) -> Assignment | None:
    """Parameters are cut as they are by hand, and what lies between the layers of a pair as these are.

    Args:
        sharding: Training step on a mesh of one dimension.
        cuts: Placements of parameters by patterns of their names; others are whole.
    """
    nodes, dims = sharding.graph.nodes, sharding.batch_dims
    cut = {
        number: next((word for pattern, word in cuts.items() if fnmatchcase(node.source, pattern)), "R")
        for number, node in enumerate(nodes)
        if node.op == "parameter"
    }
    split = {nodes[number].module for number, word in cut.items() if word != "R"}
    # What is between two layers of a pair is cut as they are.
    split |= {name.rpartition(".")[0] for name in split}

    def preferred(number: int, one: JointStrategy) -> bool:
        words = [str(layout[0]) for layout in one.outputs]
        if number in cut:
            return words == [cut[number]]
        if nodes[number].module not in split:
            return words == ["R"] * len(words)
        return all(dim is None or word != f"S{dim}" for word, dim in zip(words, dims[number], strict=True))

    return solve_preferring(sharding, preferred)


def paired_cuts(graph: OperatorGraph) -> dict[str, str]:
    """Cuts as they are mostly written by hand, in pairs of matrices (Megatron-LM).

    Of the matrices of a module all but the last are cut by their outputs, the last by its inputs, whose products the
    ranks then add up.

    Args:
        graph: Training step whose modules are the user's.
    """
    pairs: dict[str, list[OperatorNode]] = {}
    for node in graph.nodes:
        if node.op == "parameter" and len(node.shape) == 2:
            pairs.setdefault(node.module.rpartition(".")[0], []).append(node)
    found: dict[str, str] = {}
    biases = {node.module: node for node in graph.nodes if node.op == "parameter" and len(node.shape) == 1}
    for own in pairs.values():
        for node in own[:-1] if len(own) > 1 else ():
            found[node.source] = "S0"
            if node.module in biases:
                found[biases[node.module].source] = "S0"
        if len(own) > 1:
            found[own[-1].source] = "S1"
    return found


def _by(dim: int) -> str:
    return f"S{dim}"
