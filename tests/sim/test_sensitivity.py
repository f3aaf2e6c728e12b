"""Sensitivity by hand, and the baselines."""

import numpy as np
import pytest

from wirewise.cost import Links
from wirewise.sim import replay
from wirewise.sim.analysis import one_rank_s, slower_part_s, sum_of_parts_s
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.sim.sensitivity import link_sensitivity, op_sensitivity
from wirewise.trace.sketch import GraphSketch, SketchNode

MIB = 2**20


def two_branches(first, second):
    sketch = GraphSketch([0])
    ends = {
        sketch.add(SketchNode(name, "forward", rank=0, duration_s=s))
        for name, s in (("x", first), ("y", second))
    }
    sketch.add(SketchNode("z", "optimizer", rank=0, duration_s=1.0, after=ends))
    return sketch.dataflow()


def test_gain_ends_where_the_other_branch_decides():
    found = {s.name: s for s in op_sensitivity(replay(two_branches(5.0, 3.0), Links.uniform(1, 1.0)))}
    assert set(found) == {"x", "z"}
    assert found["x"].s_per_s == pytest.approx(1.0)
    assert found["x"].kink_s == pytest.approx(3.0, rel=1e-3)
    assert (found["z"].s_per_s, found["z"].kink_s) == (pytest.approx(1.0), pytest.approx(0.0))


def test_link_gain_ends_where_the_last_bucket_waits_for_compute():
    """Bucket 0 is 8 s long beside 4 s of compute; bucket 1 is behind it."""
    layers = [LayerCost("a", 0.0, 4.0, 1 * MIB), LayerCost("b", 0.0, 1.0, 8 * MIB)]
    flow = data_parallel_step(layers, [0, 1], bucket_bytes=1 * MIB, comm_slots=1)
    result = replay(flow, Links.uniform(2, MIB))
    assert result.step_s == pytest.approx(1 + 8 + 1)
    both, host, _ = link_sensitivity(result)
    assert both.host == -1
    assert both.s_per_byte_per_s == pytest.approx(-9 / MIB, rel=1e-3)
    assert both.s_for_twice_the_rate == pytest.approx(4.5)
    assert both.kink_factor == pytest.approx(2.0, rel=1e-3)
    # One host alone cannot make the ring faster.
    assert host.s_for_twice_the_rate == pytest.approx(0.0)


def test_baselines_by_hand():
    layers = [LayerCost("a", 1.0, 4.0, 2 * MIB), LayerCost("b", 1.0, 1.0, 2 * MIB)]
    flow = data_parallel_step(layers, [0, 1, 2, 3], bucket_bytes=1, optimizer_s=1.0, slowdown=[1, 1, 1, 2])
    links = Links.uniform(4, MIB, 0.1)
    # 4 / 3 ring: 3 s a bucket without latency; bucket 0 from 3 to 6, bucket 1 from 7 to 10, the update.
    assert one_rank_s(flow, links) == pytest.approx(11.0)
    assert sum_of_parts_s(flow, links) == pytest.approx(16.0 + 2 * (3 + 0.6))
    assert slower_part_s(flow, links) == pytest.approx(16.0)
    assert replay(flow, links).step_s == pytest.approx(14.0 + 3.6 + 2.0)
    assert np.isfinite(one_rank_s(flow, links, 3))


def test_ops_of_other_ranks_are_taken_out_at_once(monkeypatch):
    """Each removal looks through all ops, so one for each op takes minutes on large traces."""
    removed, remove = [], GraphSketch.remove
    monkeypatch.setattr(GraphSketch, "remove", lambda sketch, ops: (removed.append(1), remove(sketch, ops)))
    layers = [LayerCost("a", 1.0, 4.0, 2 * MIB), LayerCost("b", 1.0, 1.0, 2 * MIB)]
    flow = data_parallel_step(layers, [0, 1, 2, 3], bucket_bytes=1)
    assert one_rank_s(flow, Links.uniform(4, MIB, 0.1)) > 0
    assert len(removed) == 1
