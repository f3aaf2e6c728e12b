"""Conversion of a captured training step to modules."""

from __future__ import annotations

from collections import defaultdict

from wirewise.errors import InputError
from wirewise.trace.operator_graph import OperatorGraph
from wirewise.trace.stages import StageModule, StageTrace

__all__ = ["modules_of"]

_VIEWS = ("aten.t.", "aten.view.", "aten.permute.", "aten.transpose.", "aten.reshape.", "aten._unsafe_view.")


def modules_of(graph: OperatorGraph, rows: int | None = None) -> StageTrace:
    """Convert an operator graph to modules: runs of forward operators, with their backward operators.

    If a module's operators form several runs, as the additions of a residual block, its backward time is divided like
    the forward time. Times are proportional to rows.

    Args:
        graph: Operators with their times.
        rows: Rows of the captured batch. Defaults to the first dimension of the first input.

    Raises:
        InputError: Times or the batch are missing.
    """
    if not graph.time_s:
        raise InputError("the operators have no times; fill in costs first, measured or by a roofline")
    inputs = [node for node in graph.nodes if node.op == "input" and node.shape]
    batch = rows or (inputs[0].shape[0] if inputs else 0)
    if batch < 1:
        raise InputError(f"the graph has {len(inputs)} inputs with rows; say how many rows were captured")
    unit, paths = _runs(graph)
    forward = [0.0] * len(paths)
    for number, run in unit.items():
        forward[run] += graph.nodes[number].time_s
    whole, weights = _backward_s(graph)
    of_path = defaultdict[str, float](float)
    for run, path in enumerate(paths):
        of_path[path] += forward[run]
    output, saved, edges = _tensors(graph, unit, len(paths))
    parameters, factored, factor = _parameters(graph, unit, len(paths))
    names = [
        f"{path or 'model'}#{run}" if paths.count(path) > 1 else path or "model"
        for run, path in enumerate(paths)
    ]
    modules = []
    for run, path in enumerate(paths):
        # A run without time of its own in a module that has none shares evenly.
        share = forward[run] / of_path[path] if of_path[path] else 1.0 / paths.count(path)
        modules.append(
            StageModule(
                name=names[run],
                forward_s=(forward[run],),
                backward_s=(share * whole[path],),
                weight_gradient_s=(share * min(weights[path], whole[path]),),
                output_bytes=output[run] / batch,
                saved_bytes=saved[run] / batch,
                parameter_bytes=parameters[run],
                factor_bytes=factor[run] / batch,
                factored_bytes=factored[run],
            )
        )
    return StageTrace(
        modules=tuple(modules),
        sizes=(batch,),
        edges=tuple((names[a], names[b]) for a, b in sorted(edges)),
        model=graph.model,
        device=graph.device,
    )


def _runs(graph: OperatorGraph) -> tuple[dict[int, int], list[str]]:
    """Run of each forward operator, and the module of each run."""
    unit: dict[int, int] = {}
    paths: list[str] = []
    for number, node in enumerate(graph.nodes):
        if node.phase == "forward" and (node.computes or node.op == "getitem"):
            if not paths or paths[-1] != node.module:
                paths.append(node.module)
            unit[number] = len(paths) - 1
    return unit, paths


def _backward_s(graph: OperatorGraph) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each module's backward operators, and of those that make gradients of parameters."""
    whole, weights = defaultdict[str, float](float), defaultdict[str, float](float)
    makers = {_made_by(graph, number) for number in graph.gradients.values()}
    for number, node in enumerate(graph.nodes):
        if node.phase == "backward":
            whole[node.module] += node.time_s
            weights[node.module] += node.time_s * (number in makers)
    return whole, weights


def _made_by(graph: OperatorGraph, number: int) -> int:
    """The operator behind views."""
    while graph.nodes[number].op.startswith(_VIEWS) and graph.nodes[number].inputs:
        number = graph.nodes[number].inputs[0]
    return number


def _tensors(
    graph: OperatorGraph, unit: dict[int, int], count: int
) -> tuple[list[float], list[float], set[tuple[int, int]]]:
    """Bytes that runs hand on and that backward operators read again, and pairs of runs, [runs]."""
    output, saved, edges = [0.0] * count, [0.0] * count, set[tuple[int, int]]()
    for number, run in unit.items():
        readers = graph.users[number]
        others = {unit[reader] for reader in readers if unit.get(reader, run) != run}
        edges |= {(run, other) for other in others}
        output[run] += graph.nodes[number].output_bytes * bool(others)
        again = any(graph.nodes[reader].phase == "backward" for reader in readers)
        saved[run] += graph.nodes[number].output_bytes * again
    return output, saved, edges


def _parameters(
    graph: OperatorGraph, unit: dict[int, int], count: int
) -> tuple[list[float], list[float], list[float]]:
    """Bytes of parameters, of those that are products of factors, and of these factors, [runs]."""
    parameters, factored, factor = ([0.0] * count for _ in range(3))
    for number, node in enumerate(graph.nodes):
        runs = _readers(graph, unit, number) if node.op == "parameter" else []
        if not runs:
            continue
        # Parameters that several modules read are the first one's.
        run = min(runs)
        parameters[run] += node.output_bytes
        made = graph.gradients.get(node.source)
        maker = None if made is None else graph.nodes[_made_by(graph, made)]
        if maker is not None and maker.op == "aten.mm.default" and len(runs) == 1:
            factored[run] += node.output_bytes
            factor[run] += sum(graph.nodes[one].output_bytes for one in maker.inputs)
    return parameters, factored, factor


def _readers(graph: OperatorGraph, unit: dict[int, int], number: int) -> list[int]:
    """Runs that read a parameter, through views too."""
    return sorted({unit[reader] for reader in graph.users[number] if reader in unit})
