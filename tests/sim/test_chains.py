"""Messages between stages of several ranks take what a planner of moves finds for them."""

from __future__ import annotations

import pytest

from tests.sim.pipeline_jobs import chain, costs_of, one_each
from wirewise.cost import Links
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import LaidOutTensor, MulticastTree, ValueSplit
from wirewise.sim.chains import chain_edges, chunk_of, flows_between, last_chunk_s
from wirewise.sim.pipelines import message_seconds

WIDTHS = [(1, 2), (2, 1), (2, 2), (4, 2), (1, 4)]
SPLITS = [(None, None), (0, None), (None, 0), (0, 1)]


def plan_of(width, dims):
    splits = [
        ValueSplit(module="m0", stage=stage, dim=dim)
        for stage, dim in enumerate(dims)
        if dim is not None and width[stage] > 1
    ]
    return one_each("1f1b", 2, 2, width=width, splits=splits)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks_per_host", [1, 2])
@pytest.mark.parametrize("dims", SPLITS, ids=str)
def test_a_message_takes_what_the_reshard_plan_takes(dims, ranks_per_host):
    for width in WIDTHS:
        plan = plan_of(width, dims)
        if plan.world_size % ranks_per_host:
            continue
        links = Links.uniform(
            plan.world_size // ranks_per_host, 2.4e7, 1e-4, ranks_per_host=ranks_per_host, intra_bytes_per_s=2e9
        )  # fmt: skip
        job = chain(2, c=(1 << 21) / 1000.0)
        tensor = LaidOutTensor(
            name="m0",
            shape=(1024, 512),
            dtype="float32",
            source=plan.layout_of("m0", 0, 0, 2),
            target=plan.layout_of("m0", 1, 0, 2),
        )
        (found,) = message_seconds(plan, costs_of(plan, job), links)
        assert found == pytest.approx(cross_mesh(tensor, links).predicted_s, rel=0.04)


def test_addends_come_before_the_sum():
    links = Links.uniform(3, 1000.0)
    plan = one_each("1f1b", 2, 2, width=[2, 1], splits=[ValueSplit(module="m0", stage=0)])
    (found,) = message_seconds(plan, costs_of(plan, chain(2, c=2.0)), links)
    assert found == pytest.approx(4.0)


def test_a_chain_goes_from_host_to_host_and_on_inside_each():
    links = Links.uniform(3, 100.0, 0.5, ranks_per_host=2, intra_bytes_per_s=1000.0, intra_latency_s=0.1)
    assert chain_edges(0, [1, 2, 3, 4, 5], links) == [(0, 1), (0, 2), (2, 4), (2, 3), (4, 5)]
    (flow,) = flows_between(
        *(plan_of((2, 4), (None, None)).layout_of("m0", stage, 0, 1) for stage in (0, 1)), links
    )
    assert (flow.share, flow.sender, flow.edges) == (1.0, 0, ((0, 2), (2, 4), (2, 3), (4, 5)))
    tree = MulticastTree(start=0, stop=1000, sender=0, edges=flow.edges)
    # The last rank's chunk waits for a second host and for a step inside it.
    assert last_chunk_s(tree, 100, links) == pytest.approx(0.5 + 1.0 + 0.1 + 0.1)
    assert [chunk_of(size) for size in (1, 1 << 24, 1 << 40)] == [1 << 16, 1 << 17, 1 << 22]
