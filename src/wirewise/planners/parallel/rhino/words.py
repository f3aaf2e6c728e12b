"""Explanation of a plan: which tensors it shards and why, in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from wirewise.plans.parallel import BlockChoice, ParallelPlan, parse_placements
from wirewise.trace.operator_graph import OperatorGraph
from wirewise.units import format_size

__all__ = ["choices_of", "reasons"]

_KINDS = {
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "send": "message",
}
_AXES = ("rows", "columns")
_MOST_OTHERS = 3


def choices_of(graph: OperatorGraph, plan: ParallelPlan) -> tuple[BlockChoice, ...]:
    """Sharding of each block with parameters; blocks sharded alike are merged."""
    modules: dict[str, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == "parameter":
            modules.setdefault(node.source.rpartition(".")[0], []).append(number)
    said: dict[str, str] = {}
    for module, parameters in modules.items():
        said[module] = _strategy(graph, plan, module, parameters)
    return tuple(BlockChoice(block=block or "model", strategy=text) for block, text in _folded(said))


def _strategy(graph: OperatorGraph, plan: ParallelPlan, module: str, parameters: Sequence[int]) -> str:
    words = []
    for axis, name in enumerate(plan.mesh_names):
        cut = []
        for number in parameters:
            node = graph.nodes[number]
            one = parse_placements([plan.placements[number][axis]])[0]
            if one.kind == "S":
                where = _AXES[one.dim] if len(node.shape) == 2 else f"dimension {one.dim}"
                strided = f" of {one.factor} blocks each" if one.factor > 1 else ""
                cut.append(f"{node.source.rpartition('.')[2]} by {where}{strided}")
        batch = _cut_activations(graph, plan, module, parameters, axis)
        both = [*cut, *([f"activations by dimension {batch}"] if batch is not None else [])]
        words.append(f"{', '.join(both) or 'whole'} on {name}")
    stages = sorted({plan.stage_of[n] for n in parameters})
    where = f"; stage {', '.join(map(str, stages))}" if plan.stages > 1 else ""
    return "; ".join(words) + where + _moves_of(graph, plan, parameters)


def _cut_activations(
    graph: OperatorGraph, plan: ParallelPlan, module: str, parameters: Sequence[int], axis: int
) -> int | None:
    """Dimension by which what the parameters' operators make is cut along an axis, if the parameters are not."""
    for number in parameters:
        for user in graph.users[number]:
            node = graph.nodes[user]
            if node.phase == "forward" and node.computes:
                one = plan.placement_of(user)[axis]
                if one.kind == "S" and not any(
                    d.kind == "S" for d in plan.placement_of(number)[axis : axis + 1]
                ):
                    return one.dim
    return None


def _moves_of(graph: OperatorGraph, plan: ParallelPlan, parameters: Sequence[int]) -> str:
    own = {graph.nodes[u].module for n in parameters for u in graph.users[n] if graph.nodes[u].module}
    counted: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}
    for move in plan.moves:
        node = graph.nodes[move.producer]
        if node.module in own:
            for step in move.steps:
                if step.sent_bytes:
                    counted[node.phase][_KINDS[step.kind]] += 1
    said = [
        ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in kinds.items()) + f" {phase}"
        for phase, kinds in counted.items()
        if kinds
    ]
    return "".join(f"; {one}" for one in said)


def _folded(said: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Modules whose names differ in one number and that are split alike, with the numbers as a range."""
    groups: dict[tuple[str, str], list[int]] = {}
    for module, text in said.items():
        match = re.search(r"\d+", module)
        pattern = module if match is None else f"{module[: match.start()]}*{module[match.end() :]}"
        groups.setdefault((pattern, text), []).append(-1 if match is None else int(match[0]))
    for (pattern, text), numbers in groups.items():
        whole = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
        name = f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(map(str, numbers))
        yield pattern.replace("*", name), text


def reasons(graph: OperatorGraph, plan: ParallelPlan, others: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Sentences that explain the plan: shardings, remaining collectives, compared alternatives."""
    cut = [
        number
        for number, node in enumerate(graph.nodes)
        if node.op == "parameter" and any(one.kind == "S" for one in plan.placement_of(number))
    ]
    total = sum(node.op == "parameter" for node in graph.nodes)
    held = sum(graph.nodes[n].output_bytes for n in cut)
    shared = any("S" in word for words in plan.placements for word in words)
    if not cut and not shared and plan.stages == 1:
        yield "Nothing is cut: every rank computes the whole step, as any message would take longer than it saves."
    elif not cut and plan.stages == 1:
        yield (
            "Every rank has all parameters, and the batch or operators are cut: exchanging gradients costs less than "
            "exchanging what cut parameters would make."
        )
    elif cut:
        yield (
            f"{len(cut)} of {total} parameters, {format_size(held)} of {format_size(graph.parameter_bytes)}, are cut: "
            "exchanging their activations costs less than exchanging their gradients, or memory wants it."
        )
    counts: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for _, step, often in plan.collectives:
        counts[step.kind] += often
        sent[step.kind] += step.sent_bytes * often
    if counts:
        each = ", ".join(f"{n} {_KINDS[kind]}s of {format_size(sent[kind])}" for kind, n in counts.items())
        yield f"A rank's messages of a step: {each}, counted as bytes that it sends."
    if plan.stages > 1:
        sizes = [format_size(size) for size in plan.memory_bytes[:: len(plan.ranks[0])]]
        yield f"{plan.stages} stages hold {', '.join(sizes)} on each of their ranks."
    if plan.recompute:
        yield f"Outputs of {len(plan.recompute)} operators are computed again and not kept, to save memory."
    if others:
        best = sorted(others, key=lambda one: one[1])[:_MOST_OTHERS]
        listed = "; ".join(f"{shape}: {seconds:.4g} s" for shape, seconds in best)
        yield f"{len(others) + 1} shapes were compared, the next best of them: {listed}."
    else:
        yield f"Stages, mesh and microbatches were given: {plan.stages}, {list(plan.mesh)}, {plan.microbatches}."
