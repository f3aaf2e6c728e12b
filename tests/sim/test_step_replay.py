"""Replay of small data-parallel steps: by hand, and laws that hold for all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.sim import replay
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.trace.sketch import GraphSketch, SketchNode

MIB = 2**20

LAYERS = [LayerCost("a", 1.0, 2.0, 2 * MIB), LayerCost("b", 1.0, 2.0, 1 * MIB)]

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_step_by_hand():
    """Gradient b is ready at 4 and a's at 6; a ring of two moves the bucket's size once, 1 MiB/s."""
    flow = data_parallel_step(LAYERS, [0, 1], bucket_bytes=1 * MIB, optimizer_s=0.5)
    result = replay(flow, Links.uniform(2, MIB, 0.25))
    times = {
        (name, int(rank)): (start, end)
        for name, rank, start, end in zip(flow.names, flow.rank, result.start_s, result.end_s, strict=True)
    }
    assert times["bucket 0", -1] == (4.0, pytest.approx(5.5))
    assert times["bucket 1", -1] == (6.0, pytest.approx(8.5))
    assert result.step_s == pytest.approx(9.0)
    assert [flow.names[op] for op in result.critical_path().ops] == [
        "a",
        "b",
        "b",
        "a",
        "bucket 1",
        "optimizer",
    ]
    parts = result.breakdown()
    assert parts.compute_s == pytest.approx(6.5)
    assert parts.overlapped_communication_s == pytest.approx(1.5)
    assert parts.exposed_communication_s == pytest.approx(2.5)
    assert parts.wait_s == pytest.approx(0.0)


def test_two_buckets_share_the_link():
    layers = [LayerCost("a", 0.0, 1.0, 2 * MIB), LayerCost("b", 0.0, 1.0, 2 * MIB)]
    flow = data_parallel_step(layers, [0, 1], bucket_bytes=1)
    # 1 MiB of bucket 0 alone until 2, then both at half the rate: 4 and 5 seconds.
    ends = replay(flow, Links.uniform(2, MIB)).end_s[flow.rank < 0]
    assert ends == pytest.approx([4.0, 5.0])
    one = data_parallel_step(layers, [0, 1], bucket_bytes=1, comm_slots=1)
    assert replay(one, Links.uniform(2, MIB)).end_s[one.rank < 0] == pytest.approx([3.0, 5.0])


def test_weights_share_the_link():
    """2 MiB each, the first with three times the weight: 0.75 and 0.25 of the rate, then the rest alone."""
    sketch = GraphSketch([0, 1])
    for weight in (3.0, 1.0):
        node = SketchNode(
            "message", "communication", size_bytes=2 * MIB, flows=[(0, 1, 2 * MIB)], collective="send"
        )
        node.weight = weight
        sketch.add(node)
    flow = sketch.dataflow()
    assert replay(flow, Links.uniform(2, MIB)).end_s == pytest.approx([2 / 0.75, 4.0])
    assert GraphSketch.of(flow).dataflow().weight.tolist() == [3.0, 1.0]


def test_slack_of_the_faster_rank():
    flow = data_parallel_step(LAYERS, [0, 1], slowdown=[1.0, 1.5], optimizer_s=1.0)
    result = replay(flow, Links.uniform(2, np.inf))
    path = result.critical_path()
    assert {int(flow.rank[op]) for op in path.ops if flow.rank[op] >= 0} == {1}
    backward = [op for op, name in enumerate(flow.names) if name == "a" and flow.rank[op] == 0]
    # Rank 0 is 3 s early, but for the half second that its own optimizer is shorter.
    assert path.slack_s[backward] == pytest.approx([3.0, 3.0])
    assert result.breakdown().wait_s > 0


def test_ranks_of_one_host_use_its_inner_rate():
    flow = data_parallel_step(LAYERS, [0, 0, 1, 1])
    slow_inside = Links.uniform(2, np.inf, intra_bytes_per_s=1.5 * MIB)
    # One hop inside each host with 1.5 times the bucket; the first, of b alone, is over before a's is ready.
    assert replay(flow, slow_inside).step_s == pytest.approx(6.0 + 1.5 * 2 / 1.5)


def test_interference_slows_compute_only_beside_communication():
    flow = data_parallel_step(LAYERS, [0, 1], bucket_bytes=1)
    links = Links.uniform(2, MIB)
    result = replay(flow, links, interference=1.5)
    # Bucket 0 runs from 4 to 5 beside the backward op of a: in that second it does 2 / 3 of a second's work.
    backward = [op for op in np.flatnonzero(flow.rank == 0) if flow.names[op] == "a"][-1]
    assert result.end_s[backward] == pytest.approx(6.0 + 1 / 3, rel=1e-3)
    assert result.end_s[backward - 1] == pytest.approx(4.0)


def test_ranks_begin_when_they_are_let():
    flow = data_parallel_step(LAYERS, [0, 1])
    late = replay(flow, Links.uniform(2, MIB), begin_s=np.array([5.0, 7.0]))
    assert late.start_s[flow.rank == 1].min() == 7.0
    assert late.step_s == pytest.approx(replay(flow, Links.uniform(2, MIB)).step_s + 2.0)


def test_errors_name_the_fault():
    flow = data_parallel_step(LAYERS, [0, 1])
    with pytest.raises(InputError, match="2 hosts, the links are those of 1"):
        replay(flow, Links.uniform(1, MIB))
    with pytest.raises(InputError, match=r"duration_s of op 'a' is -1\.0"):
        replay(replace(flow, duration_s=flow.duration_s * [-1.0] + 0.0), Links.uniform(2, MIB))
    circle = GraphSketch([0])
    first = circle.add(SketchNode("x", "other", rank=0))
    circle.nodes[first].after.add(circle.add(SketchNode("y", "other", rank=0, after={first})))
    with pytest.raises(InputError, match="2 ops wait for each other, among them 'x', 'y'"):
        replay(circle.dataflow(), Links.uniform(1, MIB))


@SLOW
@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_parts_add_up_and_bounds_hold(seed, ranks):
    random = np.random.default_rng(seed)
    layers = [
        LayerCost(f"{i}", *random.random(2), float(random.random() * 3 * MIB))
        for i in range(random.integers(1, 7))
    ]
    rate = float(random.random() * 4 * MIB + 1)
    flow = data_parallel_step(
        layers, range(ranks), bucket_bytes=MIB, optimizer_s=0.1, slowdown=1 + random.random(ranks)
    )
    result = replay(flow, Links.uniform(ranks, rate, 0.01))
    parts = result.breakdown()
    whole = parts.compute_s + parts.exposed_communication_s + parts.wait_s
    assert whole == pytest.approx(result.step_s)
    assert min(parts.compute_s, parts.exposed_communication_s, parts.wait_s) >= 0
    assert parts.overlapped_communication_s <= parts.compute_s + 1e-9
    sizes = sum(layer.gradient_bytes for layer in layers)
    assert result.step_s >= 2 * (ranks - 1) / ranks * sizes / rate * (1 - 1e-9)
    assert result.step_s >= max(flow.duration_s[flow.rank == r].sum() for r in range(ranks)) - 1e-9
