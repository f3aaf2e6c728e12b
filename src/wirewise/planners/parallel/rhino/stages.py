"""Stages of any model, also non-chains: an integer programme over the operators of its forward pass.

Variables are the stage of every op, an integer, with stage(op) <= stage(user) along every edge, which imposes no order
on the ops; a binary for every tensor and later stage that reads it, so that a tensor read by several ops of a stage is
sent there once; and binaries of op and stage, for the work of each. The objective is the seconds of tensors between
stages, under a limit of each stage's work (Zhang et al., "Rhino", 2023, on non-linear models; the flags per tensor and
stage are those of hyper-edges).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint
from scipy.sparse import coo_array

from wirewise.errors import PlanError
from wirewise.planners.solvers import mixed_integer, sparse_iteration_s
from wirewise.sim.mesh_costs import MeshCosts
from wirewise.trace.operator_graph import OperatorGraph

__all__ = [
    "BALANCE",
    "StageCut",
    "StageGraph",
    "communication_cost",
    "cut_stages",
    "stage_graph",
    "stages_of_nodes",
]

BALANCE = 0.08
"""Maximum excess of a stage's work over the mean, as a fraction."""
_GAP = 1e-4
_MOST_OPS = 400
"""Ops of an integer programme at most; neighbours are one op until there are no more."""


class StageGraph(NamedTuple):
    """Ops of a forward pass, coarse or fine, in topological order."""

    work: tuple[float, ...]
    """Seconds of each op, including its backward pass."""
    tensors: tuple[tuple[int, float, tuple[int, ...]], ...]
    """Producer of each tensor, its cost to another stage (bytes or seconds), and its consumers."""
    together: tuple[tuple[int, ...], ...] = ()
    """Ops that must be in the same stage, such as those that share a parameter."""


class StageCut(NamedTuple):
    """Stage of each op."""

    stage_of: tuple[int, ...]
    cost: float
    """Cost of tensors between stages."""
    bound: float
    balance: float
    """Largest work of a stage over the mean."""


def communication_cost(graph: StageGraph, stage_of: Sequence[int]) -> float:
    """Cost of tensors between stages, counted once per receiving stage."""
    return sum(
        size * len({stage_of[user] for user in users} - {stage_of[op]}) for op, size, users in graph.tensors
    )


def cut_stages(
    graph: StageGraph, stages: int, *, balance: float = BALANCE, time_limit_s: float = 20.0
) -> StageCut:
    """Assign ops to stages with the least communication cost, under a balance limit.

    Args:
        graph: Ops and tensors.
        stages: Number of stages.
        balance: Maximum excess of a stage's work over the mean, as a fraction; increased by halves if infeasible.
        time_limit_s: Work limit of each programme, in seconds of an unloaded CPU (`wirewise.work`).

    Raises:
        PlanError: There are more stages than ops.
    """
    ops = len(graph.work)
    if stages > ops:
        raise PlanError(f"got {stages} stages for {ops} operators; expected no more stages than operators")
    if stages == 1:
        return StageCut((0,) * ops, 0.0, 0.0, 1.0)
    heaviest = stages * max(graph.work) / max(sum(graph.work), 1e-30) - 1.0
    limit = max(balance, heaviest)
    for _ in range(8):
        found = _programmed(graph, stages, limit, time_limit_s)
        if found is not None:
            work = np.bincount(found[0], graph.work, stages)
            return StageCut(
                tuple(map(int, found[0])),
                communication_cost(graph, found[0]),
                found[1],
                float(work.max() / work.mean()),
            )
        limit = 1.5 * limit + 0.02
    raise PlanError(f"no cut of {ops} operators in {stages} stages was found; ask for fewer stages")


def _programmed(
    graph: StageGraph, stages: int, balance: float, time_limit_s: float
) -> tuple[list[int], float] | None:
    ops, tensors = len(graph.work), len(graph.tensors)
    # Columns: whether op is at or before stage s (s < stages - 1), then flags of tensors and stages.
    behind = stages - 1
    flags = ops * behind
    rows: list[tuple[list[int], list[float], float, float]] = []
    for op in range(ops):
        # An op that is done by stage s is done by stage s + 1.
        rows += [
            ([op * behind + s, op * behind + s + 1], [1.0, -1.0], -np.inf, 0.0) for s in range(behind - 1)
        ]
    for op, _, users in graph.tensors:
        rows += [
            ([user * behind + s, op * behind + s], [1.0, -1.0], -np.inf, 0.0)
            for user in users
            for s in range(behind)
        ]
    for group in graph.together:
        rows += [
            ([group[0] * behind + s, other * behind + s], [1.0, -1.0], 0.0, 0.0)
            for other in group[1:]
            for s in range(behind)
        ]
    for number, (op, _, users) in enumerate(graph.tensors):
        for s in range(1, stages):
            for user in users:
                # The flag is at least [user is at s] - [op is at s], both differences of columns.
                columns, values = [flags + number * behind + s - 1], [1.0]
                for of, sign in ((user, -1.0), (op, 1.0)):
                    if s < behind:
                        columns.append(of * behind + s)
                        values.append(sign)
                    columns.append(of * behind + s - 1)
                    values.append(-sign)
                # At the last stage both are one minus a column: the ones cancel.
                rows.append((columns, values, 0.0, np.inf))
    mean = sum(graph.work) / stages
    for s in range(stages):
        columns, values, constant = list[int](), list[float](), 0.0
        for op, seconds in enumerate(graph.work):
            if s < behind:
                columns.append(op * behind + s)
                values.append(seconds / mean)
            else:
                constant += seconds / mean
            if s:
                columns.append(op * behind + s - 1)
                values.append(-seconds / mean)
        rows.append((columns, values, -np.inf, 1.0 + balance + 1e-9 - constant))
    count = flags + tensors * behind
    scale = max((size for _, size, _ in graph.tensors), default=1.0) or 1.0
    cost = np.zeros(count)
    for number, (_, size, _) in enumerate(graph.tensors):
        cost[flags + number * behind : flags + (number + 1) * behind] = size / scale
    integrality = np.zeros(count)
    integrality[:flags] = 1
    lengths = [len(columns) for columns, *_ in rows]
    matrix = coo_array(
        (
            np.concatenate([values for _, values, _, _ in rows]),
            (np.repeat(np.arange(len(rows)), lengths), np.concatenate([columns for columns, *_ in rows])),
        ),
        shape=(len(rows), count),
    ).tocsr()
    found = mixed_integer(
        cost,
        budget_s=time_limit_s,
        gap=_GAP,
        iteration_s=sparse_iteration_s(len(rows)),
        integrality=integrality,
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(matrix, np.array([r[2] for r in rows]), np.array([r[3] for r in rows])),
    )
    if found.x is None:
        return None
    done: NDArray[np.int64] = np.round(found.x[:flags]).astype(np.int64).reshape(ops, behind)
    return (behind - done.sum(axis=1)).tolist(), float(found.mip_dual_bound) * scale


def stage_graph(
    graph: OperatorGraph, costs: MeshCosts | None = None, *, share: float = 1.0
) -> tuple[StageGraph, list[int]]:
    """Ops of a training step's forward pass for `cut_stages`, and the op of each forward node (-1 for none).

    Views, and tensors with a single user, are merged with their op until there are few enough ops. A backward node
    belongs to the forward op whose tensors it reads.

    Args:
        graph: Training step with seconds.
        costs: Costs of messages between stages, in seconds. Defaults to costs proportional to bytes.
        share: Fraction of a tensor sent by each rank of a stage.
    """
    nodes, users = graph.nodes, graph.users
    forward = [
        n
        for n, node in enumerate(nodes)
        if node.phase == "forward" and node.computes | (node.op == "getitem")
    ]
    inside = set(forward)
    behind = {n: [u for u in users[n] if u in inside] for n in forward}
    group = {n: n for n in forward}

    def root(n: int) -> int:
        while group[n] != n:
            group[n] = group[group[n]]
            n = group[n]
        return n

    # What is made of parameters alone belongs to its user.
    for n in reversed(forward):
        if behind[n] and not any(i in inside for i in nodes[n].inputs):
            group[n] = root(behind[n][0])
    threshold, total = 0.0, sum(nodes[n].time_s for n in forward)
    # A node that takes one tensor alone, or little work behind one other, is its producer's.
    while True:
        for n in forward:
            made = {root(i) for i in nodes[n].inputs if i in inside}
            small = nodes[n].time_s <= threshold or nodes[n].op == "getitem"
            if small and len(made) == 1 and root(n) == n:
                group[n] = made.pop()
        roots = sorted({root(n) for n in forward})
        if len(roots) <= _MOST_OPS or threshold > total:
            break
        threshold = max(threshold * 2, total * 1e-4)
    number = {n: i for i, n in enumerate(roots)}
    op_of = [number[root(n)] if n in inside else -1 for n in range(len(nodes))]
    work = np.zeros(len(roots))
    homes: dict[int, int] = {}
    for n, node in enumerate(nodes):
        if op_of[n] >= 0:
            work[op_of[n]] += node.time_s
        elif node.phase == "backward" and node.computes | (node.op == "getitem"):
            own = [op_of[i] for i in node.inputs if op_of[i] >= 0]
            past = [homes[i] for i in node.inputs if i in homes]
            homes[n] = max(own) if own else min(past, default=len(roots) - 1)
            work[homes[n]] += node.time_s
    tensors = []
    for n in forward:
        taking = tuple(sorted({op_of[u] for u in behind[n]} - {op_of[n]}))
        if taking:
            size = nodes[n].output_bytes * share
            tensors.append((op_of[n], size if costs is None else size * costs.send_s_per_byte, taking))
    together = list[tuple[int, ...]]()
    for n, node in enumerate(nodes):
        homes_of = tuple(sorted({op_of[u] for u in users[n]} - {-1}))
        if node.op in ("parameter", "buffer") and len(homes_of) > 1:
            together.append(homes_of)
    return StageGraph(tuple(work.tolist()), tuple(tensors), tuple(together)), op_of


def stages_of_nodes(graph: OperatorGraph, op_of: Sequence[int], stage_of: Sequence[int]) -> list[int]:
    """Stage of every node: backward nodes follow their forward tensors, parameters their first user.

    Raises:
        PlanError: A backward node reads a parameter of a later stage than the source of its gradient.
    """
    nodes, last = graph.nodes, max(stage_of)
    found = [stage_of[op] if op >= 0 else -1 for op in op_of]
    for n, node in enumerate(nodes):
        if found[n] < 0 and node.phase == "forward" and not node.computes and node.op != "output":
            users = [found[u] for u in graph.users[n] if nodes[u].phase == "forward" and found[u] >= 0]
            found[n] = min(users, default=-1)
    for n, node in enumerate(nodes):
        if found[n] < 0 and node.phase == "backward" and node.inputs:
            own = [found[i] for i in node.inputs if nodes[i].phase == "forward" and nodes[i].op != "input"]
            past = [found[i] for i in node.inputs if nodes[i].phase == "backward" and found[i] >= 0]
            found[n] = max(own, default=-1) if max(own, default=-1) >= 0 else min(past, default=last)
    # A parameter's gradient is made where the parameter is, with the views and sums behind its product.
    sources = {node.source: n for n, node in enumerate(nodes) if node.op == "parameter"}
    for name, number in graph.gradients.items():
        while name in sources and nodes[number].phase == "backward":
            found[number] = found[sources[name]]
            before = nodes[number].inputs
            if len(before) != 1 or len([u for u in graph.users[before[0]] if nodes[u].op != "output"]) != 1:
                break
            number = before[0]
    # What the backward pass makes of forward tensors alone is made where it is taken.
    for n in reversed(range(len(nodes))):
        taken = [found[u] for u in graph.users[n] if nodes[u].op != "output"]
        alone = not any(nodes[i].phase == "backward" for i in nodes[n].inputs)
        if nodes[n].phase == "backward" and nodes[n].inputs and alone and taken:
            found[n] = max(taken)
    for n, node in enumerate(nodes):
        if node.op == "getitem":
            found[n] = found[node.inputs[0]]
    found = [last if one < 0 else one for one in found]
    _follow_the_pass(graph, found)
    return found


def _follow_the_pass(graph: OperatorGraph, stage: list[int]) -> None:
    """Move backward nodes so that none takes what an earlier stage makes, and each is where its parameters are."""
    nodes = graph.nodes
    held = {node.source: n for n, node in enumerate(nodes) if node.op == "parameter"}
    fixed = {number: stage[held[name]] for name, number in graph.gradients.items() if name in held}
    backward = [n for n, node in enumerate(nodes) if node.phase == "backward" and node.op != "output"]
    for n in backward:
        own = [stage[i] for i in nodes[n].inputs if nodes[i].op == "parameter"]
        fixed |= {n: max(own)} if own else {}
    for n, one in fixed.items():
        stage[n] = one
    for n in reversed(backward):
        taken = [stage[u] for u in graph.users[n] if nodes[u].op != "output"]
        if n not in fixed:
            stage[n] = max([stage[n], *taken])
    for n in backward:
        made = [stage[i] for i in nodes[n].inputs if nodes[i].phase == "backward"]
        if nodes[n].op == "getitem":
            stage[n] = stage[nodes[n].inputs[0]]
        elif made and min(made) < stage[n]:
            if n in fixed:
                raise PlanError(
                    f"backward operator {nodes[n].name!r} belongs to stage {stage[n]} by its parameter and takes what "
                    f"stage {min(made)} makes; ask for other stages"
                )
            stage[n] = min(made)
