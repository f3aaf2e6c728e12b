"""Data for the viewer's script, as plain lists: programs with simulated times, recorded runs, networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from wirewise.collective import REDUCING, Message, Network
from wirewise.errors import TraceError
from wirewise.report.collective_analysis import Analysis
from wirewise.report.figures import factor, seconds, size
from wirewise.trace import Match, Trace, match
from wirewise.units import format_rate

__all__ = ["cut_words", "network_object", "program_object", "trace_objects", "vertex_positions"]


def program_object(analysis: Analysis, title: str) -> dict[str, Any]:
    """Program with initial memories, messages and their simulated times."""
    program, timeline = analysis.program, analysis.timeline
    chunks, ends_s = range(program.chunks), _short(timeline.end_s.ravel().tolist())
    return {
        "title": title,
        "network": 0,
        "collective": program.collective,
        "sums": program.collective in REDUCING,
        "ranks": program.ranks,
        "group": list(program.group),
        "chunks": program.chunks,
        # Parts of a row; none: equal.
        "shares": _short(program.fractions()) if program.shares else [],
        "blocks": program.blocks,
        "segments": program.segments,
        "steps": program.steps,
        "starts": [program.starts_at(chunk) for chunk in chunks],
        "ends": [program.ends_at(chunk) for chunk in chunks],
        **_messages(timeline.messages, analysis.message_bytes),
        "start_s": _short(timeline.start_s.ravel().tolist()),
        "end_s": ends_s,
        # Rounded as the others are, so that the last message is in at the end.
        "finish_s": max(ends_s, default=0.0),
        "routes": _routes(analysis.network, timeline.messages),
        "edge_bytes": _short(analysis.edge_bytes),
        "edge_busy_s": _short(timeline.edge_busy_s),
        "cut": list(analysis.bound.vertices or analysis.bound.cut),
        "cut_edges": analysis.cut_edges,
        "cut_words": cut_words(analysis),
    }


def _messages(messages: Sequence[Message], sizes: Sequence[float]) -> dict[str, Any]:
    rows: list[list[float]] = []
    transfers: list[int] = []
    reduces: list[int] = []
    for message, each in zip(messages, sizes, strict=True):
        rows.append(
            [message.step, message.source, message.target, len(transfers), len(message.transfers), _six(each)]
        )
        transfers += [t.chunk for t in message.transfers]
        reduces += [int(t.reduces) for t in message.transfers]
    return {
        "messages": rows,
        "transfers": transfers,
        "reduces": reduces,
        "largest_bytes": max(sizes, default=0.0),
    }


def _routes(network: Network, messages: Iterable[Message]) -> dict[str, list[int]]:
    pairs = sorted({(message.source, message.target) for message in messages})
    return {f"{s},{t}": [edge for edge, _ in network.route(s, t) or ()] for s, t in pairs}


def cut_words(analysis: Analysis) -> str:
    """Explain the lower bound, and how close this program is."""
    tight, where = analysis.bound, analysis.network.name
    if tight.seconds <= 0:
        return ""
    if tight.cut:
        ranks = f"rank{'s' if len(tight.cut) > 1 else ''} {', '.join(map(str, tight.cut))}"
        why = f"Tight cut: {size(tight.bytes_leaving)} must leave {ranks} of {where} at"
    else:
        why = f"No cut is as tight as the ports of all ranks: {size(tight.bytes_leaving)} must come in at"
    routes = analysis.bounds.routes
    along = f" Over the routes of programs none takes less than {seconds(routes.seconds)}." if routes else ""
    return (
        f"{why} {format_rate(tight.bandwidth_bytes_per_s)}, so no program takes less than "
        f"{seconds(tight.seconds)}."
        f"{along} This one takes {seconds(analysis.timeline.finish_s)}, {factor(analysis.over_bound)} the bound."
    )


def network_object(network: Network) -> dict[str, Any]:
    """Vertices with coordinates between -1 and 1, and directed edges."""
    return {
        "name": network.name,
        "ranks": network.ranks,
        "names": list(network.vertices),
        "places": [[round(x, 3), round(y, 3)] for x, y in vertex_positions(network)],
        "edges": [[e.source, e.target, e.bandwidth_bytes_per_s] for e in network.edges],
    }


def vertex_positions(network: Network) -> list[tuple[float, float]]:
    """Coordinates of each vertex: ranks on a circle, others at the centre of their neighbours (Tutte 1963).

    Coincident vertices are moved apart.
    """
    found = [*_circle(network.ranks), *[(0.0, 0.0)] * (len(network.vertices) - network.ranks)]
    near: list[set[int]] = [set() for _ in network.vertices]
    for edge in network.edges:
        near[edge.source].add(edge.target)
        near[edge.target].add(edge.source)
    for _ in range(200):
        for vertex in range(network.ranks, len(found)):
            if near[vertex]:
                xs, ys = zip(*(found[other] for other in sorted(near[vertex])), strict=True)
                found[vertex] = (math.fsum(xs) / len(xs), math.fsum(ys) / len(ys))
    return _apart(found, network.ranks)


def _circle(ranks: int) -> list[tuple[float, float]]:
    turns = [2 * math.pi * rank / ranks - math.pi / 2 for rank in range(ranks)]
    return [(math.cos(turn), math.sin(turn)) for turn in turns]


def _apart(found: list[tuple[float, float]], fixed: int, least: float = 0.2) -> list[tuple[float, float]]:
    """Push free vertices away from those before them, sideways round a small circle."""
    for vertex in range(fixed, len(found)):
        x, y = found[vertex]
        for attempt in range(60):
            turn, reach = 2.4 * attempt, 0.06 * math.sqrt(attempt) * 1.6
            here = (x + reach * math.cos(turn), y + reach * math.sin(turn))
            if all(math.dist(here, other) >= least for other in found[:vertex]):
                found[vertex] = here
                break
    return found


def trace_objects(
    trace: Trace, title: str, network: int, step: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Recorded run, and its ranks as a network of hosts: messages as recorded, collectives as spans.

    Messages inside a library's collective are not recorded; it is drawn as the time that each rank spends in it.

    Args:
        trace: Trace on aligned clocks.
        title: Name of the run.
        network: Index of the network in the page.
        step: Step to show. Defaults to the whole run.

    Raises:
        TraceError: No communication was recorded in the step.
    """
    found = [one for one in match(trace) if step is None or one.step == step]
    if not found:
        raise TraceError(
            f"the trace of {trace.world_size} ranks holds no communication"
            f"{'' if step is None else f' in step {step}'}; record a run that communicates, or name another step"
        )
    sent = sorted((one for one in found if one.collective == "send"), key=_sent_at)
    spans = [one for one in found if one.collective != "send"]
    origin = min(op.start_s for one in found for op in one.ops)
    last = max(op.end_s for one in found for op in one.ops)
    view = {
        "title": title,
        "network": network,
        "collective": "recorded",
        "sums": False,
        "ranks": trace.world_size,
        "group": list(range(trace.world_size)),
        "chunks": 0,
        "shares": [],
        "blocks": 1,
        "segments": 1,
        "steps": 0,
        "starts": [],
        "ends": [],
        "messages": [[0, *one.ranks, 0, 0, one.size_bytes] for one in sent],
        "transfers": [],
        "reduces": [],
        "largest_bytes": max((one.size_bytes for one in sent), default=0),
        "start_s": _short(_sent_at(one) - origin for one in sent),
        "end_s": _short(one.end_s - origin for one in sent),
        "finish_s": _six(last - origin),
        "spans": _spans(spans, origin),
        "collectives": len(spans),
        "doing": _doing(found, origin, trace.world_size),
        "cut": [],
        "cut_edges": [],
        "cut_words": "Recorded: messages between ranks as they were; links were not observed.",
    }
    graph = _pairs(trace, sent)
    pairs = {(s, t): number for number, (s, t, _) in enumerate(graph["edges"])}
    view["routes"] = {f"{s},{t}": [number] for (s, t), number in pairs.items()}
    view["edge_bytes"] = [sum(one.size_bytes for one in sent if one.ranks == pair) for pair in pairs]
    view["edge_busy_s"] = _short(
        sum(one.end_s - _sent_at(one) for one in sent if one.ranks == pair) for pair in pairs
    )
    return view, graph


def _sent_at(one: Match) -> float:
    """When a message began: its sender had it, and it had not come."""
    return min(one.ops[0].start_s, one.end_s)


def _spans(spans: Iterable[Match], origin: float) -> list[list[Any]]:
    return [
        [_six(op.start_s - origin), _six(op.end_s - origin), rank, one.collective or op.name]
        for one in spans
        for rank, op in zip(one.ranks, one.ops, strict=True)
    ]


def _doing(found: Iterable[Match], origin: float, ranks: int) -> list[list[list[Any]]]:
    rows: list[list[list[Any]]] = [[] for _ in range(ranks)]
    for one in found:
        for rank, op in zip(one.ranks, one.ops, strict=True):
            rows[rank].append([_six(op.start_s - origin), _six(op.end_s - origin), op.collective or op.name])
    return rows


def _pairs(trace: Trace, sent: Sequence[Match]) -> dict[str, Any]:
    """Ranks on a circle, and an edge for each pair that a message went between."""
    return {
        "name": "pairs of ranks",
        "ranks": trace.world_size,
        "names": [f"rank {r.header.rank} on {r.header.host}" for r in trace.ranks],
        "places": [[round(x, 3), round(y, 3)] for x, y in _circle(trace.world_size)],
        "edges": [[s, t, 0] for s, t in sorted({(one.ranks[0], one.ranks[1]) for one in sent})],
    }


def _six(value: float) -> float:
    """The value with six significant digits, which is more than the pixels can tell."""
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) else short


def _short(values: Iterable[float]) -> list[float]:
    return [_six(float(value)) for value in values]
