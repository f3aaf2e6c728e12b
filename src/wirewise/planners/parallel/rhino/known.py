"""Hand-written shardings as preferred choices: the batch in shards, parameters replicated or sharded."""

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
    """Find the cheapest choices among those with the fewest non-preferred strategies. None if infeasible.

    Args:
        sharding: Training step on a mesh.
        preferred: Whether a strategy is preferred for a node, by its index.
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
    """Shard everything that grows with the batch, along the batch, on all mesh dimensions. None if infeasible.

    Args:
        sharding: Training step on a mesh.
        cut: Whether to shard parameters by their first dimension and gather them where used, as FSDP does; otherwise
            they are replicated.
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
    """Shard parameters as given, with activations between paired layers sharded accordingly. None if infeasible.

    Args:
        sharding: Training step on a mesh of one dimension.
        cuts: Placements of parameters by name pattern; others are replicated.
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
    """Derive the usual hand-written tensor-parallel shardings, in pairs of matrices (Megatron-LM).

    All but the last matrix of a module are sharded by their outputs, the last one by its inputs, followed by an
    all-reduce.

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
