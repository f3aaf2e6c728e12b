"""Buckets of a plan in a simulated step."""

import msgspec
import numpy as np
import pytest

from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.sim import predict, replay
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.sim.lowering.recorded import with_plan

LAYERS = [LayerCost(f"block.{i}", 1e-3, 2e-3, 1e6) for i in range(4)]
LINKS = Links.uniform(2, 1e9, 1e-4)
"""A bucket of 1 MB: 1 ms for the bytes, twice the latency of 0.1 ms."""
FLOW = data_parallel_step(LAYERS, [0, 1], bucket_bytes=4e6)


def plan(*groups: tuple[int, ...], chunks: int = 1, prefix: str = "block.") -> FusionPlan:
    buckets = tuple(
        Bucket(
            parameters=tuple(f"{prefix}{i}.weight" for i in group),
            size_bytes=1_000_000 * len(group),
            chunks=chunks,
        )
        for group in groups
    )
    return FusionPlan(world_size=2, planner="test", buckets=buckets)


def transfers(flow):
    return [op for op in range(len(flow.names)) if flow.size_bytes[op] > 0]


def starts(flow):
    return [replay(flow, LINKS).start_s[op] for op in transfers(flow)]


def test_the_transfers_are_those_of_the_plan():
    flow = with_plan(FLOW, LINKS, plan((3,), (2, 1), (0,)))
    assert [flow.names[op] for op in transfers(flow)] == ["bucket 0", "bucket 1", "bucket 2"]
    assert flow.size_bytes[transfers(flow)].tolist() == [1e6, 2e6, 1e6]


@pytest.mark.parametrize("prefix", ["block.", "other."])
def test_a_bucket_starts_after_its_last_gradient(prefix):
    flow = with_plan(FLOW, LINKS, plan((3,), (2, 1), (0,), prefix=prefix))
    # Forward ends at 4 ms, then a layer every 2 ms.
    np.testing.assert_allclose(starts(flow), [6e-3, 10e-3, 12e-3], rtol=1e-9)


def test_names_tell_the_op_where_gradients_are_not_in_order():
    flow = with_plan(FLOW, LINKS, plan((3, 0), (2,), (1,)))
    # Buckets are launched in order, so all wait for the first, which needs the last gradient.
    assert min(starts(flow)) == pytest.approx(12e-3)


def test_pieces_wait_for_their_gradient():
    names = (
        ("block.3.weight", "block.2.weight[0]"),
        ("block.2.weight[1]", "block.1.weight"),
        ("block.0.weight",),
    )
    buckets = tuple(Bucket(parameters=group, size_bytes=1_000_000) for group in names)
    split = FusionPlan(world_size=2, planner="test", buckets=buckets, splits={"block.2.weight": 4096})
    np.testing.assert_allclose(starts(with_plan(FLOW, LINKS, split)), [8e-3, 10e-3, 12e-3], rtol=1e-9)


def test_chunks_share_the_bytes_and_each_pays_the_latency():
    whole, parts = (with_plan(FLOW, LINKS, plan((3, 2, 1, 0), chunks=c)) for c in (1, 4))
    assert parts.size_bytes[transfers(parts)].tolist() == [1e6] * 4
    assert len(transfers(whole)) == 1
    assert replay(parts, LINKS).step_s >= replay(whole, LINKS).step_s


def test_a_plan_in_the_buckets_of_the_graph_changes_nothing():
    flow = data_parallel_step(LAYERS, [0, 1], bucket_bytes=2e6)
    same = plan((3, 2), (1, 0))
    assert replay(with_plan(flow, LINKS, same), LINKS).step_s == pytest.approx(
        replay(flow, LINKS).step_s, rel=1e-9
    )


def test_the_prediction_is_that_of_the_replay_transfers_included():
    one = plan((3,), (2,), (1,), (0,))
    found = predict(one, FLOW, LINKS)
    assert found.step_s == replay(with_plan(FLOW, LINKS, one), LINKS).step_s
    assert found.timeline.seconds == pytest.approx(found.step_s, rel=1e-12)
    assert found.phases_s["communication"] == pytest.approx(4 * 1.2e-3, rel=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "bfloat16"},
        {"recompute": ("0",)},
        {"accumulation": 2},
        {"fused_ops": (("a", "b"),)},
        {"regions": (("a",),)},
    ],
)
def test_what_the_graph_cannot_show_is_refused_by_name(change):
    changed = msgspec.structs.replace(plan((3, 2, 1, 0)), **change)
    with pytest.raises(PlanError, match=rf"at `\$\.{next(iter(change))}`; a recorded graph"):
        predict(changed, FLOW, LINKS)


def test_a_codec_of_a_recorded_graph_is_refused():
    buckets = (Bucket(parameters=("block.3.weight",), size_bytes=4_000_000, codec="fp16"),)
    with pytest.raises(PlanError, match=r"`\$\.buckets\[0\]`: fp16 by all_reduce; a recorded graph"):
        predict(FusionPlan(world_size=2, planner="test", buckets=buckets), FLOW, LINKS)


def test_another_number_of_ranks_is_refused():
    with pytest.raises(PlanError, match=r"world size 3.*2 ranks"):
        with_plan(FLOW, LINKS, msgspec.structs.replace(plan((0,)), world_size=3))
