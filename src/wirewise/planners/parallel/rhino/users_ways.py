"""Users' own ways to split a model (ddp, fsdp, tensor), as parallel plans for predicting the step time.

The plans are for prediction only, not execution: FSDP2's collectives of a block are placed at one of its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from wirewise.cost.links import Links
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.buckets import DDP_BYTES, assign_buckets
from wirewise.planners.parallel.rhino.explore import plan_of
from wirewise.planners.parallel.rhino.known import data_parallel, tensor_parallel
from wirewise.plans.parallel import Move, MoveKind, MoveStep, ParallelPlan
from wirewise.trace.operator_graph import OperatorGraph

__all__ = ["plan_of_way"]


def plan_of_way(
    method: str, graph: OperatorGraph, links: Links, cuts: Mapping[str, str] | None = None
) -> ParallelPlan | None:
    """Express a way as a plan of the step's operators. None if the way is unknown.

    Args:
        method: Name of the way: ddp, fsdp or tensor.
        graph: Training step with the seconds of its operators.
        links: Links between the ranks.
        cuts: Placements of parameters sharded by the way tensor, by name pattern; others are replicated.
    """
    problem = ParallelProblem(graph=graph, links=links, states=1.0)
    if method == "ddp":
        plan = plan_of(problem, data_parallel, method)
        return None if plan is None else assign_buckets(plan, graph, *DDP_BYTES)
    if method == "fsdp":
        plan = plan_of(problem, partial(data_parallel, cut=True), method)
        return None if plan is None else _in_blocks(plan, graph)
    return plan_of(problem, partial(tensor_parallel, cuts=cuts or {}), method) if method == "tensor" else None


def _in_blocks(plan: ParallelPlan, graph: OperatorGraph) -> ParallelPlan:
    """FSDP2: parameters of a block are gathered together for each pass; its gradients are summed together.

    Nobody computes meanwhile, as on the CPU, and gloo, which has no reduce-scatter of its own, sums all everywhere.
    """
    nodes, inner, gathers = graph.nodes, dict(plan.inner), list[Move]()
    blocks: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        if node.op == "parameter":
            words = node.source.split(".")
            blocks.setdefault(".".join(words[: 1 + (words[0] in _LISTS)]), []).append(number)
    for own in blocks.values():
        gathers += _gathers(plan, graph, own)
        gradients = [graph.gradients[nodes[n].source] for n in own if nodes[n].source in graph.gradients]
        if gradients:
            inner[max(gradients)] = _exchange("all_reduce", graph, gradients, plan.world_size)
    others = [
        msgspec.structs.replace(move, steps=()) if _is_gradient(move, graph) else move
        for move in plan.moves
        if nodes[move.producer].op != "parameter"
    ]
    moves = sorted([*others, *gathers], key=lambda one: (one.producer, one.consumers))
    return msgspec.structs.replace(plan, moves=tuple(moves), inner=inner, buckets=())


def _gathers(plan: ParallelPlan, graph: OperatorGraph, parameters: Sequence[int]) -> Iterator[Move]:
    """Moves of a block's parameters to their users; the first user of each pass waits for all."""
    for phase in ("forward", "backward"):
        users = {n: [u for u in graph.users[n] if _computes(graph, u, phase)] for n in parameters}
        first = min((some[0] for some in users.values() if some), default=None)
        steps: tuple[MoveStep, ...] = _exchange("all_gather", graph, parameters, plan.world_size)
        for number, some in users.items():
            if some:
                yield Move(
                    producer=number,
                    consumers=tuple(some),
                    source=plan.placements[number],
                    target=("R",),
                    steps=steps if some[0] == first else (),
                    once=True,
                )
                steps = () if some[0] == first else steps


def _computes(graph: OperatorGraph, number: int, phase: str) -> bool:
    return graph.nodes[number].phase == phase and graph.nodes[number].op != "output"


_LISTS = ("blocks", "downs", "ups", "layers")
"""Lists of modules of which each is a block."""


def _is_gradient(move: Move, graph: OperatorGraph) -> bool:
    return move.once and move.consumers == (len(graph.nodes) - 1,)


def _exchange(kind: MoveKind, graph: OperatorGraph, numbers: Iterable[int], ranks: int) -> tuple[MoveStep]:
    size = sum(graph.nodes[number].output_bytes for number in numbers)
    sent = (2 if kind == "all_reduce" else 1) * size * (ranks - 1) // ranks
    return (MoveStep(kind=kind, mesh_dim=0, size_bytes=size, sent_bytes=sent),)
