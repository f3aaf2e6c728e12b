"""Picture of a parallel plan: modules coloured by sharding, their communication, and a step over time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wirewise.cost.links import Links
from wirewise.plans.parallel import MoveStep, ParallelPlan, parse_placements
from wirewise.report import figures, shell, svg
from wirewise.report.timetable_picture import bars_of, timetable_chart
from wirewise.sim.parallel_steps import ParallelStep, StepSimulator
from wirewise.trace.operator_graph import BOUNDARY_OPS, OperatorGraph
from wirewise.units import format_size

__all__ = ["module_rows", "parallel_sections"]

_WIDTH, _HIGH, _BETWEEN = 1000.0, 24.0, 8.0
_MOST_ROWS, _MOST_BARS = 80, 1500
_STAGES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c0")
_CUTS = {
    "whole": "p-other",
    "cut by dimension 0": "p-pack",
    "cut by dimension 1": "p-marginal",
    "cut by another dimension": "p-dense",
    "partial sums": "p-reduce",
}
_KINDS = {
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "send": "message",
}
_PHASES = {"forward": "p-central", "recompute": "p-unpack", "backward": "p-pack", "communication": "p-wire"}


class ModuleRow(NamedTuple):
    """Module in the picture, or several with the same sharding."""

    name: str
    module: str
    """Qualified name of the module, or of the first that shares the row."""
    stage: int
    parameter: tuple[str, ...]
    """Placement of its largest parameter, [mesh dimensions]; empty if it has no parameters."""
    output: tuple[str, ...]
    """Placement of the last output of its forward pass."""
    forward: tuple[tuple[str, int], ...]
    """Kinds of communication in the forward pass, with the bytes that a rank sends per step."""
    backward: tuple[tuple[str, int], ...]


def module_rows(plan: ParallelPlan, graph: OperatorGraph) -> list[ModuleRow]:
    """Modules in forward order; repeated blocks with the same sharding share rows."""
    sent = _sent(plan, graph)
    members: dict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(graph.nodes):
        if node.phase == "forward" and (node.computes or node.op == "getitem"):
            members[node.module].append(number)
    weights: dict[str, int] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == "parameter":
            other = weights.get(node.module)
            if other is None or graph.nodes[other].elements < node.elements:
                weights[node.module] = number
    rows = {}
    for module, own in members.items():
        last = max((n for n in own if graph.nodes[n].computes), default=own[-1])
        weight = weights.get(module)
        rows[module] = ModuleRow(
            module or "(model and loss)",
            module,
            plan.stage_of[last],
            () if weight is None else plan.placements[weight],
            tuple(word.partition(",")[0] for word in plan.placements[last]),
            sent[module, "forward"],
            sent[module, "backward"],
        )
    return _folded(rows, graph)


def _folded(rows: dict[str, ModuleRow], graph: OperatorGraph) -> list[ModuleRow]:
    """One set of rows for copies of a block that are treated alike, one after the other."""
    left = dict(rows)
    named: dict[str, str] = {}
    for one in graph.repeats:
        run: list[str] = []

        def end(run: list[str]) -> None:
            if len(run) > 1:
                parent, _, first = run[0].rpartition(".")
                named[run[0]] = f"{parent}.{first}-{run[-1].rpartition('.')[2]}"
                for copy in run[1:]:
                    for module in [m for m in left if _within(m, copy)]:
                        del left[module]

        def looks(prefix: str) -> list[tuple[str, ModuleRow]]:
            return [
                (m.removeprefix(prefix), row._replace(name="", module=""))
                for m, row in rows.items()
                if _within(m, prefix)
            ]

        for prefix in one.prefixes:
            if run and looks(prefix) != looks(run[0]):
                end(run)
                run = []
            run.append(prefix)
        end(run)
    return [
        row._replace(
            name=next((name + m.removeprefix(p) for p, name in named.items() if _within(m, p)), row.name)
        )
        for m, row in left.items()
    ]


def _within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def _sent(
    plan: ParallelPlan, graph: OperatorGraph
) -> defaultdict[tuple[str, str], tuple[tuple[str, int], ...]]:
    """Messages of the operators of each module in each phase: kind, and bytes that a rank sends in a step."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(number: int, step: MoveStep, often: int) -> None:
        node = graph.nodes[number]
        if step.sent_bytes:
            found[node.module, node.phase][step.kind] += step.sent_bytes * often

    for move in plan.moves:
        # A gradient's sum belongs to the parameter's module; all else to who takes it.
        taken = move.consumers[0]
        number = move.producer if graph.nodes[taken].op == "output" else taken
        for step in move.steps:
            add(number, step, 1 if move.once else plan.microbatches)
    for number, steps in plan.inner.items():
        for step in steps:
            add(number, step, plan.microbatches)
    return defaultdict(tuple, {key: tuple(counts.most_common()) for key, counts in found.items()})


def parallel_sections(
    plan: ParallelPlan, graph: OperatorGraph | None, links: Links | None = None
) -> Iterator[str]:
    """HTML sections of a page about a parallel plan.

    Args:
        plan: Plan to draw.
        graph: Training step of the plan. None to leave out the picture of the modules.
        links: Links between its ranks, to show a step over time. None to leave that out.
    """
    yield shell.cards(_cards(plan))
    if graph is None:
        yield shell.notes(
            "Modules", ["The graph of the step does not lie beside the plan, so its modules are not drawn."]
        )
    else:
        plan.check_graph(graph.digest, len(graph.nodes))
        rows = module_rows(plan, graph)
        lead = (
            "Modules from the first to the last, lines where an output is taken further below, how their largest "
            "parameter and their output lie along each dimension of the mesh, and what a rank sends for them in a step."
        )
        if len(rows) > _MOST_ROWS:
            lead += f" The first {_MOST_ROWS} of {len(rows)} are shown."
        shown = rows[:_MOST_ROWS]
        yield shell.section(
            "Modules",
            lead,
            shell.figure(_modules_chart(plan, shown, _skips(shown, graph)), shell.legend(_CUTS)),
        )
    yield shell.section("What travels", "", shell.table(*_travels(plan)))
    if graph is not None and links is not None:
        yield _timeline(plan, StepSimulator(plan, graph, links).step())
    yield shell.notes("Why this plan", plan.why)
    yield shell.notes("Notes", plan.notes)


def _cards(plan: ParallelPlan) -> Iterator[tuple[str, str, str]]:
    mesh = " x ".join(f"{size} {name}" for size, name in zip(plan.mesh, plan.mesh_names, strict=True))
    yield "ranks", str(plan.world_size), f"{plan.stages} stage{'s' * (plan.stages > 1)} of {mesh}"
    if plan.predicted_step_s > 0:
        many = f"{plan.microbatches} microbatch{'es' * (plan.microbatches > 1)}"
        yield "a step, simulated", figures.seconds(plan.predicted_step_s), many
    yield "sent in a step", format_size(plan.collective_bytes), "by all ranks together"
    if plan.memory_bytes:
        most = max(range(plan.world_size), key=plan.memory_bytes.__getitem__)
        yield "memory", format_size(plan.memory_bytes[most]), f"of rank {most}, which needs most"
    if plan.bound_s > 0:
        yield "above the least cost", figures.percent(plan.gap), "at most, of this shape"


def _skips(rows: Sequence[ModuleRow], graph: OperatorGraph) -> list[tuple[int, int]]:
    """Rows whose outputs are taken further below than by the next one, and by which."""
    places = {row.module: number for number, row in enumerate(rows)}
    found = {
        (places[graph.nodes[source].module], places[node.module])
        for node in graph.nodes
        for source in node.inputs
        if node.phase == graph.nodes[source].phase == "forward"
        and graph.nodes[source].op not in BOUNDARY_OPS
        and graph.nodes[source].module in places
        and node.module in places
    }
    return sorted((a, b) for a, b in found if b > a + 1)


def _arc(x: float, start: float, end: float) -> str:
    """A line from a row to one further below, right of the rows' stages."""
    out = svg.number(x + min(8 + (end - start) / 12, 34))
    a, b = svg.number(start), svg.number(end)
    return f'<path d="M{svg.number(x)} {a}C{out} {a} {out} {b} {svg.number(x)} {b}" class="hop c0"/>'


def _modules_chart(plan: ParallelPlan, rows: Sequence[ModuleRow], skips: Sequence[tuple[int, int]]) -> str:
    # Stages are named left of their first modules.
    of_stage = svg.text_width(f"stage {plan.stages}", 12.0) + 12 if plan.stages > 1 else 0.0
    left = min(24 + max(svg.text_width(row.name, 12.0) for row in rows), 330.0) + of_stage
    axes = len(plan.mesh)
    wide = 46.0
    parameters = left + 38
    outputs = parameters + max(axes * wide, 58.0) + 16
    forward, top = outputs + axes * wide + 18, 40.0
    backward = forward + (_WIDTH - forward) / 2
    parts = [
        svg.text(parameters, 14, "parameter", "tick"),
        svg.text(outputs, 14, "output", "tick"),
        svg.text(forward, 14, "sent forward", "tick"),
        svg.text(backward, 14, "sent backward", "tick"),
    ]
    for axis, name in enumerate(plan.mesh_names):
        for at in (parameters, outputs):
            parts.append(svg.text(at + axis * wide + 2, 30, name, "note"))
    parts += [
        _arc(left + 8, top + a * (_HIGH + _BETWEEN) + _HIGH / 2, top + b * (_HIGH + _BETWEEN) + _HIGH / 2)
        for a, b in skips
    ]
    for number, row in enumerate(rows):
        y = top + number * (_HIGH + _BETWEEN)
        if number and rows[number - 1].stage == row.stage:
            x = svg.number(left + 2)
            parts.append(f'<path d="M{x} {svg.number(y - _BETWEEN)}V{svg.number(y)}" class="axis"/>')
        stage = f"stage {row.stage}, ranks {', '.join(map(str, plan.ranks[row.stage]))}"
        colour = _STAGES[row.stage % len(_STAGES)]
        parts.append(svg.rect(left - 2, y, 8, _HIGH, f"bar {colour}", f"{row.name}: {stage}"))
        parts.append(svg.text(left - 10, y + 16, row.name, "", "end"))
        for at, words, what in ((parameters, row.parameter, "parameter"), (outputs, row.output, "output")):
            for axis, word in enumerate(words):
                tip = f"{what} of {row.name} along {plan.mesh_names[axis]}: {_told(word)}"
                place = at + axis * wide
                parts.append(svg.rect(place, y, wide - 4, _HIGH, f"bar {_CUTS[_cut(word)]}", tip))
                parts.append(svg.text(place + wide / 2 - 2, y + 16, word, "inside", "middle"))
        for at, moves in ((forward, row.forward), (backward, row.backward)):
            text = ", ".join(f"{_KINDS[kind]} {format_size(size)}" for kind, size in moves)
            if text:
                parts.append(svg.circle(at + 5, y + 12, 4, "dot p-wire", f"{row.name}: {text} by each rank"))
                parts.append(svg.text(at + 14, y + 16, text))
    for own in sorted({row.stage for row in rows}) if plan.stages > 1 else ():
        first = next(number for number, row in enumerate(rows) if row.stage == own)
        y = top + first * (_HIGH + _BETWEEN)
        parts.append(svg.text(6, y + 16, f"stage {own}", f"label {_STAGES[own % len(_STAGES)]}"))
    return svg.document(
        _WIDTH, top + len(rows) * (_HIGH + _BETWEEN), "Modules and how they are cut", "".join(parts)
    )


def _cut(word: str) -> str:
    (one,) = parse_placements([word])
    if one.kind != "S":
        return "whole" if one.kind == "R" else "partial sums"
    return f"cut by dimension {one.dim}" if one.dim < 2 else "cut by another dimension"


def _told(word: str) -> str:
    (one,) = parse_placements([word])
    if one.kind == "S":
        return f"dimension {one.dim} in parts{f' of each of {one.factor} blocks' * (one.factor > 1)}"
    return "whole on every rank" if one.kind == "R" else "ranks have partial sums"


def _travels(plan: ParallelPlan) -> tuple[list[str], list[list[str]]]:
    counts: dict[tuple[str, str], list[int]] = {}
    for _, step, often in plan.collectives:
        axis = "between stages" if step.mesh_dim < 0 else plan.mesh_names[step.mesh_dim]
        own = counts.setdefault((_KINDS.get(step.kind, step.kind), axis), [0, 0])
        own[0], own[1] = own[0] + often, own[1] + step.sent_bytes * often
    rows = [[kind, axis, str(n), format_size(size)] for (kind, axis), (n, size) in sorted(counts.items())]
    return ["what", "along", "times a step", "bytes that a rank sends"], rows


def _timeline(plan: ParallelPlan, step: ParallelStep) -> str:
    lead = f"A step takes {figures.seconds(step.seconds)} simulated."
    if step.pipeline is not None:
        names = [f"stage {stage}" for stage in range(plan.stages)]
        colours = {"forward": "p-central", "backward": "p-pack", "optimizer": "p-dense"}
        return shell.section(
            "Step", f"{lead} Numbers are microbatches.",
            shell.figure(timetable_chart(names, bars_of(step.pipeline)), shell.legend(colours)),
        )  # fmt: skip
    shown = {phase: colour for phase, colour in _PHASES.items() if any(s.phase == phase for s in step.spans)}
    return shell.section("Step", lead, shell.figure(_spans_chart(step), shell.legend(shown)))


def _spans_chart(step: ParallelStep) -> str:
    if not step.spans:
        return ""
    left = 110.0
    x = svg.Scale(0.0, max(span.end_s for span in step.spans), left, _WIDTH - 12)
    lanes = {"computing": 8.0, "communication": 8.0 + _HIGH + _BETWEEN}
    bottom = 8.0 + 2 * _HIGH + _BETWEEN
    parts = [
        f'<path d="M{svg.number(x(t))} 2V{svg.number(bottom + 4)}" class="grid"/>'
        + svg.text(x(t), bottom + 18, figures.seconds(t), "tick", "middle")
        for t in svg.ticks(x.low, x.high, 8)
    ]
    for name, y in lanes.items():
        parts.append(svg.text(left - 10, y + 16, name, "label", "end"))
        parts.append(svg.rect(left, y, x.end - left, _HIGH, "lane"))
    longest = sorted(step.spans, key=lambda span: span.start_s - span.end_s)[:_MOST_BARS]
    for span in longest:
        y = lanes["communication" if span.phase == "communication" else "computing"]
        tip = (
            f"{span.label or span.phase}: {figures.seconds(span.end_s - span.start_s)} at "
            f"{figures.seconds(span.start_s)}"
        )
        wide = max(x(span.end_s) - x(span.start_s) - 0.3, 0.4)
        parts.append(
            svg.rect(
                x(span.start_s), y + 1, wide, _HIGH - 2, f"bar {_PHASES.get(span.phase, 'p-other')}", tip
            )
        )
    return svg.document(_WIDTH, bottom + 28, "A step over time", "".join(parts))
