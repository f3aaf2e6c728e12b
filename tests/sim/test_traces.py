"""Replay of traces whose ops come from simulated steps on known links."""

import msgspec
import numpy as np
import pytest

from tests.trace.synthetic import make
from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.sim import replay
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.sim.traces import by_step, recorded_steps, replay_trace
from wirewise.trace import build
from wirewise.trace.records import COLLECTIVES, KINDS, Header, Op, RankTrace, Trace

MIB = 2**20
LINKS = Links.uniform(2, 30 * MIB, 1e-3)
GROUPS = {"all": [0, 1]}


def made(count=12):
    """A trace, and the graph of each of its steps."""
    random, begin, flows, ops = np.random.default_rng(3), np.zeros(2), {}, [[], []]
    seq = 0
    for step in range(count):
        layers = [LayerCost(f"{i}", 0.01, 0.02, 1.3 * MIB) for i in range(6)]
        slow = 1 + 0.1 * random.random(2)
        flows[step] = flow = data_parallel_step(layers, range(2), bucket_bytes=2 * MIB, slowdown=slow)
        result = replay(flow, LINKS, begin_s=begin)
        for op in np.argsort(result.start_s, kind="stable").tolist():
            start, end = float(result.start_s[op]), float(result.end_s[op])
            common = {"name": flow.names[op], "kind": KINDS[flow.kind[op]], "step": step}
            if flow.rank[op] >= 0:
                ops[flow.rank[op]].append(Op(start_s=start, end_s=end, **common))
                continue
            size, what = int(flow.size_bytes[op]), COLLECTIVES[flow.collective[op]]
            for own in ops:
                own.append(
                    Op(
                        start_s=start,
                        end_s=end,
                        group="all",
                        seq=seq,
                        collective=what,
                        size_bytes=size,
                        **common,
                    )
                )
            seq += 1
        end = result.finish_s.copy()
        for rank in range(2):
            ops[rank].append(Op(name="step", kind="step", step=step, start_s=begin[rank], end_s=end[rank]))
        begin = end + 0.001
    headers = [Header(rank=r, world_size=2, host=f"host {r}", groups=GROUPS) for r in range(2)]
    return Trace([RankTrace(h, o) for h, o in zip(headers, ops, strict=True)], aligned=True), flows


def test_trace_is_replayed_on_links_that_are_fitted_from_it():
    trace, flows = made()
    report = replay_trace(trace, lambda _, step: flows[step])
    assert report.error == pytest.approx(0.0, abs=0.01)
    assert report.interference == pytest.approx(1.0, abs=0.01)
    assert len(report.per_step) == 12


def test_known_links_and_a_change():
    trace, flows = made()
    report = replay_trace(
        trace, lambda _, step: flows[step], LINKS, what_if="bandwidth=x0.25", interference=1.0
    )
    assert report.error == pytest.approx(0.0, abs=1e-6)
    assert report.what_if.predicted_step_s > report.predicted_step_s * 1.2


def test_times_come_from_the_step_ops():
    trace, flows = made(2)
    first, second = recorded_steps(trace, lambda _, step: flows[step])
    assert second.begin_s == pytest.approx(first.end_s + 0.001)
    with pytest.raises(InputError, match="record at least one whole step"):
        recorded_steps(Trace([RankTrace(trace.ranks[0].header, [])]), lambda _, step: flows[step])


def test_steps_cut_out_give_the_same_graphs():
    trace = make(ranks=3, steps=4).true
    # A wait that ends in the next step.
    ops = trace.ranks[1].ops
    place = max(i for i, op in enumerate(ops) if op.kind == "wait" and op.step == 1)
    ops[place] = msgspec.structs.replace(ops[place], step=2)
    parts = by_step(trace)
    assert list(parts) == trace.steps()
    for step, part in parts.items():
        whole, cut = build(trace, step), build(part, step)
        assert whole.names == cut.names
        assert whole.indices.tolist() == cut.indices.tolist()
        assert whole.duration_s == pytest.approx(cut.duration_s)
