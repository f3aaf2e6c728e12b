"""Times of trees of messages, by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.planners.reshard.helpers import tensor
from wirewise.cost import LinkCost, Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import parse_sharding
from wirewise.sim import predict

RATE, LATENCY = 1e6, 1e-3


def planned(source, target, links, shape=(1000,), **knobs):
    before = parse_sharding(source)
    after = parse_sharding(target, first_rank=len(before.ranks))
    return cross_mesh(tensor(before, after, shape), links, **knobs)


def test_a_chain_takes_its_slice_and_a_chunk_a_hop():
    links = Links.uniform(4, RATE, LATENCY)
    plan = planned("1:R", "3:R", links, strategy="ring", chunk_bytes=100)
    hop_s = LATENCY + 100 / RATE
    assert plan.predicted_s == pytest.approx(LATENCY + 4000 / RATE + 2 * hop_s)
    assert planned("1:R", "3:R", links, strategy="p2p").predicted_s == pytest.approx(LATENCY + 12000 / RATE)


def test_a_host_hands_on_inside_beside_the_network():
    links = Links.uniform(2, RATE, LATENCY, intra_bytes_per_s=10 * RATE, ranks_per_host=2)
    found = planned("1@0:R", "2@2-3:R", links, strategy="ring", chunk_bytes=100).predicted_s
    assert found == pytest.approx(LATENCY + 4000 / RATE + 100 / (10 * RATE))


def test_a_pair_that_is_narrower_than_interfaces_holds_back():
    fast, slow = LinkCost(latency_s=0.0, s_per_byte=1e-6), LinkCost(latency_s=0.0, s_per_byte=4e-6)
    pairs = {(a, b): slow if (a, b) == (0, 2) else fast for a in range(3) for b in range(3) if a != b}
    links = Links.of_pairs(pairs, 3)
    assert planned("1@0:R", "1@1:R", links, strategy="p2p").predicted_s == pytest.approx(4000e-6)
    assert planned("1@0:R", "1@2:R", links, strategy="p2p").predicted_s == pytest.approx(16000e-6)


def test_senders_keep_to_their_rounds_and_addends_come_first():
    links = Links.uniform(4, RATE)
    plan = planned("1:R", "2:S0", links, strategy="p2p", order="naive")
    rounds = sorted((task.round, span) for task, span in zip(plan.tasks, (0, 1), strict=True))
    assert [number for number, _ in rounds] == [0, 1]
    spans = [span for span in predict(plan, None, links).timeline.spans if span.rank == 0]
    assert spans[0].end_s <= spans[1].start_s + 1e-12
    summed = planned("2:R,P0", "1@2:R", links, strategy="p2p")
    assert summed.predicted_s == pytest.approx(2 * 4000 / RATE)


def test_other_ranks_hosts_and_jobs_are_refused():
    links = Links.uniform(4, RATE)
    plan = planned("1:R", "2:S0", links)
    with pytest.raises(PlanError, match="world size 4, the links have 3 ranks"):
        predict(plan, None, Links.uniform(3, RATE))
    with pytest.raises(
        PlanError, match=r"at `\$\.hosts`; the links have their ranks on hosts \[0, 0, 1, 1\]"
    ):
        predict(plan, None, Links.uniform(2, RATE, ranks_per_host=2))
    with pytest.raises(InputError, match="got a list as the job; a reshard plan holds its tensors itself"):
        predict(plan, [], links)


def test_nothing_is_quicker_than_the_bound():
    random = np.random.default_rng(0)
    words = ["2x2:R,R", "2x2:S0,S1", "2x2:S1,R", "2x2:R,S01", "2x2:S10,R"]
    for source in words:
        for target in words:
            rates = random.uniform(1, 5, 4)
            links = Links(
                rates,
                random.uniform(1, 5, 4),
                np.zeros((4, 4)),
                np.full(4, np.inf),
                host_of_rank=np.arange(8) // 2,
            )
            plan = planned(source, target, links, (12, 8))
            assert plan.predicted_s >= plan.bound_s * (1 - 1e-9)
            slower = msgspec.structs.replace(plan, chunk_bytes=10**6)
            assert predict(slower, None, links).step_s >= plan.predicted_s * (1 - 1e-9)
