"""Module traces from recordings of ordinary training steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.sim.gradients import Gradients, all_reduces
from wirewise.sim.rewrite import remove_communication
from wirewise.sim.step_replay import replay
from wirewise.sim.steps import without_interference
from wirewise.sim.traces import record
from wirewise.trace.dataflow import KINDS, Dataflow
from wirewise.trace.modules import BucketSpan, Module, ModuleTrace
from wirewise.trace.records import Trace

__all__ = ["MemorySizes", "modules_of_flows", "modules_of_trace", "with_memory"]

Vector = NDArray[np.float64]
Job = TypeVar("Job", bound=ModuleTrace)

_ROOT = "model"
"""Name of the outermost module's ops."""
_LEAST_LATENCY_S = 100e-6
"""Latency of a round, where a fit to large buckets finds less: about what TCP takes between two processes. Without a
fixed cost a plan would send every gradient alone."""


class MemorySizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory kept by a module; fields as in `Module`."""

    saved_bytes: float
    input_bytes: float = 0.0
    workspace_bytes: float = 0.0
    bfloat16_bytes: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class _Computed:
    """A step without its communication; seconds by rank."""

    names: list[str]
    """Names of the backward ops in their order."""
    backward_s: Vector
    """[ranks, k]"""
    forward: list[tuple[str, float]]
    """Name and seconds of each forward op of rank 0."""
    forward_s: Vector
    """Seconds before the first backward op, [ranks]."""
    optimizer_s: Vector
    """Seconds behind the last backward op, [ranks]."""


def modules_of_trace(trace: Trace, links: Links | None = None) -> tuple[ModuleTrace, Links]:
    """Modules of a run, with medians over its steps, and the links of the measurement.

    Args:
        trace: Trace on aligned clocks, of data-parallel training whose all-reduces are rings.
        links: Links of its hosts. Defaults to fitted ones, with at least 0.1 ms of latency.

    Raises:
        InputError: There are no gradient buckets, or backward ops differ between ranks.
        TraceError: Raised by `trace.dataflow.build`.
    """
    if links is None:
        fitted = Links.fit(trace)
        links = replace(fitted, latency_s=np.maximum(fitted.latency_s, _LEAST_LATENCY_S))
    found = record(trace, links=links)
    steps = found.steps
    job = modules_of_flows(
        [step.dataflow for step in steps],
        found.links,
        interference=found.interference,
        measured_step_s=float(np.median([(step.end_s - step.begin_s).mean() for step in steps])),
        parameters=_parameters(trace, [step.number for step in steps]),
    )
    return job, found.links


def _parameters(trace: Trace, steps: Sequence[int]) -> list[tuple[str, ...]]:
    """Names in each bucket of rank 0, in the order of the buckets; empty where no step has recorded any.

    DistributedDataParallel makes its buckets anew in its second step, and tells what they hold after it.
    """
    for step in steps:
        sent = [
            op for op in trace.of(0, step) if op.kind == "communication" and op.collective == "all_reduce"
        ]
        if found := [op.parameters for op in sorted(sent, key=lambda op: op.seq) if op.parameters]:
            return found
    return []


def modules_of_flows(
    flows: Sequence[Dataflow],
    links: Links,
    *,
    measured_step_s: float = 0.0,
    parameters: Sequence[Sequence[str]] = (),
    algorithm: str = "ring",
    interference: float = 1.0,
) -> ModuleTrace:
    """Modules of a job, from dataflow graphs of its steps.

    The backward op that completes some gradients is one module; forward ops belong to the module of their name, and
    others to the first one. Idle time between ops counts as theirs. If names do not reveal which op completes which
    parameter, the recorded buckets are the finest grain.

    Args:
        flows: Steps of one job; those with unusual backward ops or buckets are left out.
        links: Links of its hosts.
        measured_step_s: Measured step time, in seconds.
        parameters: Parameter names of each bucket.
        algorithm: Algorithm of the all-reduces.
        interference: Slowdown factor of compute that overlaps with communication.

    Raises:
        InputError: Raised by `modules_of_trace`, or there are no graphs.
    """
    if not flows:
        raise InputError("got no graph of a step; record at least one whole step")
    flows = [without_interference(flow, links, interference) for flow in flows]
    parts = [Gradients(flow, links) for flow in flows]
    computed = [_computed(flow, part, links) for flow, part in zip(flows, parts, strict=True)]
    forms = [
        (tuple(one.names), tuple(size for _, size in part.buckets))
        for one, part in zip(computed, parts, strict=True)
    ]
    form = Counter(forms).most_common(1)[0][0]
    usual, kept = form[0], [i for i, other in enumerate(forms) if other == form]
    flow, part, steps = flows[kept[0]], parts[kept[0]], [computed[i] for i in kept]
    whole = np.array([one.backward_s.sum(axis=1) + one.forward_s for one in steps])
    slowdown = np.median(whole / np.maximum(whole.mean(axis=1, keepdims=True), 1e-30), axis=0)
    slowdown = np.maximum(slowdown, 1e-6)
    backward = _typical(np.array([one.backward_s for one in steps]), slowdown)
    forward = _typical(np.array([one.forward_s for one in steps])[:, :, None], slowdown)[0]
    sizes, names = _named(list(usual), part, parameters)
    shares = _forward_shares(list(usual), steps[0].forward, float(forward))
    modules = [
        Module(
            name=name,
            forward_s=shares[k],
            backward_s=float(backward[k]),
            gradient_bytes=float(sizes[k]),
            parameters=names[k],
        )
        for k, name in enumerate(_unique(usual))
    ]
    return ModuleTrace(
        modules=modules[::-1],
        hosts=flow.hosts.tolist(),
        slowdown=slowdown.tolist(),
        optimizer_s=float(np.median([(one.optimizer_s / slowdown).mean() for one in steps])),
        comm_slots=int(flow.slots[flow.resource[all_reduces(flow)[0]]]),
        algorithm=algorithm,
        interference=interference,
        recorded=_recorded(part.buckets, np.flatnonzero(sizes > 0)),
        measured_step_s=measured_step_s,
    )


def with_memory(job: Job, sizes: Mapping[str, MemorySizes]) -> Job:
    """Job with the memory kept by each module; unlisted modules keep none.

    Raises:
        InputError: The job lacks a module.
    """
    known = {module.name for module in job.modules}
    if unknown := sorted(set(sizes) - known):
        raise InputError(
            f"got sizes of {unknown[0]!r}, which is no module of the run; it has {', '.join(sorted(known)[:20])}"
        )
    modules = [
        replace(module, **msgspec.structs.asdict(sizes[module.name])) if module.name in sizes else module
        for module in job.modules
    ]
    return replace(job, modules=modules)


def _computed(flow: Dataflow, part: Gradients, links: Links) -> _Computed:
    """Activity of each rank when no transfer takes time."""
    alone = replay(remove_communication(flow), links)
    start, end = alone.start_s, alone.end_s
    ends = np.array([end[ops] for ops in part.backward])
    first = np.array([start[ops[0]] for ops in part.backward])
    own = np.flatnonzero((flow.rank == 0) & (flow.kind == KINDS.index("forward")))
    own = own[np.argsort(start[own], kind="stable")]
    return _Computed(
        [flow.names[op] for op in part.backward[0]],
        np.diff(ends, axis=1, prepend=first[:, None]),
        [(flow.names[op], float(end[op] - start[op])) for op in own.tolist()],
        first,
        # All wait for the gradients of the slowest.
        np.maximum(alone.finish_s - ends[:, -1].max(), 0.0),
    )


def _typical(seconds: Vector, slowdown: Vector) -> Vector:
    """Medians of ops over steps and ranks, [k], their sum that of the median step; from [steps, ranks, k]."""
    even = seconds / slowdown[None, :, None]
    typical: Vector = np.median(even, axis=(0, 1))
    whole = float(np.median(even.sum(axis=2).mean(axis=1)))
    return typical * (whole / typical.sum()) if typical.sum() > 0 else typical


def _forward_shares(backward: list[str], forward: list[tuple[str, float]], whole_s: float) -> list[float]:
    """Forward seconds of the module of each backward op; together `whole_s`."""
    seconds: dict[str, float] = {}
    for name, own in forward:
        seconds[name] = seconds.get(name, 0.0) + own
    shares = [seconds.pop(name, 0.0) for name in backward]
    total = sum(shares) + sum(seconds.values())
    shares = [share * whole_s / total if total > 0 else 0.0 for share in shares]
    # The module that runs first in the forward pass is the last in the backward pass.
    shares[-1] += max(whole_s - sum(shares), 0.0)
    return shares


def _named(
    ops: list[str], part: Gradients, parameters: Sequence[Sequence[str]]
) -> tuple[Vector, list[tuple[str, ...]]]:
    """Bytes and parameter names of each backward op."""
    if len(parameters) != len(part.buckets):
        return part.sizes, [()] * len(ops)
    found: list[list[str]] = [[] for _ in ops]
    for (last, _), bucket in zip(part.buckets, parameters, strict=True):
        for name in bucket:
            places = _places(name, ops)
            # An op that a launch broke in two had completed what was launched.
            before = [k for k in places if k <= last]
            if places:
                found[before[-1] if before else places[0]].append(name)
    sizes = _moved(ops, part.sizes, found)
    complete = sum(map(len, found)) == sum(map(len, parameters))
    if complete and all(bool(own) == (size > 0) for own, size in zip(found, sizes.tolist(), strict=True)):
        return sizes, [tuple(own) for own in found]
    sizes = np.zeros(len(ops))
    whole: list[tuple[str, ...]] = [()] * len(ops)
    for (last, size), own in zip(part.buckets, parameters, strict=True):
        sizes[last] += size
        whole[last] = (*whole[last], *own)
    return sizes, whole


def _places(parameter: str, ops: list[str]) -> list[int]:
    """Ops of the innermost module that holds a parameter; those of the whole model hold what no other does."""
    pieces = parameter.split(".")
    for module in (*(".".join(pieces[:end]) for end in range(len(pieces), 0, -1)), _ROOT):
        if places := [k for k, name in enumerate(ops) if name == module]:
            return places
    return []


def _moved(ops: list[str], sizes: Vector, found: list[list[str]]) -> Vector:
    """Bytes of ops of one name at those of them that complete parameters, by their number."""
    moved = sizes.copy()
    for name, count in Counter(ops).items():
        own = [k for k, op in enumerate(ops) if op == name]
        named = np.array([len(found[k]) for k in own], dtype=np.float64)
        if count > 1 and named.sum() > 0:
            moved[own] = sizes[own].sum() * named / named.sum()
    return moved


def _recorded(buckets: Sequence[tuple[int, float]], units: NDArray[np.int64]) -> tuple[BucketSpan, ...]:
    """The buckets of the run over gradients that are completed at these places."""
    lasts = sorted({int(np.searchsorted(units, place, side="right")) - 1 for place, _ in buckets})
    lasts = [last for last in lasts[:-1] if last >= 0] + [len(units) - 1]
    lasts = sorted(set(lasts))
    return tuple(BucketSpan(a + 1, b) for a, b in zip([-1, *lasts], lasts, strict=False))


def _unique(names: Sequence[str]) -> list[str]:
    """Names with a number where one comes again."""
    seen, found = Counter[str](), []
    for name in names:
        found.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found
