"""Bit tables during training: both ends agree, plans are applied, predictions hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.full_graph.training import build_trainer, on_slow_links, small_graph, split, train
from wirewise import plans
from wirewise.cost import LinkCost, Links, PairEstimator
from wirewise.plans import BitWidthPlan
from wirewise.runtime import full_graph as fg


def tables(trainer: fg.Trainer) -> tuple[dict[Any, bytes], dict[Any, bytes]]:
    """What this rank thinks it sends and receives: {(exchange, sender, receiver): bits}."""
    rank = trainer.transport.rank
    sends, receives = {}, {}
    for name, lane in trainer.exchange.training_lanes().items():
        sends |= {(name, rank, p): b.tobytes() for p, b in lane.send_bits.items()}
        receives |= {(name, p, rank): b.tobytes() for p, b in lane.receive_bits.items()}
    fg.check_tables(trainer.exchange.training_lanes(), trainer.transport)
    return sends, receives


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("mode", ["adaqp", "adaqp-paper", "random"])
def test_both_ends_hold_the_same_tables(mode: str) -> None:
    run = train(split(small_graph(), 4), mode, epochs=8, replan_every=3, before=on_slow_links, after=tables)
    sent = {k: v for sends, _ in run.extra for k, v in sends.items()}
    received = {k: v for _, receives in run.extra for k, v in receives.items()}
    assert sent == received
    used = {b for table in sent.values() for b in table}
    assert used - {8}, "the tables are those of a decision, not the first ones"


def test_costs_of_links_follow_the_change_of_arrivals() -> None:
    def follow(trainer: fg.Trainer) -> list[np.ndarray]:
        bits, lanes = trainer.bits, trainer.exchange.training_lanes()
        rank, cost, slopes = trainer.transport.rank, LinkCost(latency_s=1e-4, s_per_byte=1e-6), []
        links = Links.of_pairs(cost, trainer.transport.world_size)
        bits._online = PairEstimator({(p, rank): cost for p in trainer.transport.peers})
        # Of three equal peers the first to land takes a third of the time of the last.
        for seconds in (1.0, 1.0, 3.0):
            for lane in lanes.values():
                lane._arrival_s = {p: seconds * (1 + i) for i, p in enumerate(trainer.transport.peers)}
            links = bits._refitted(links, lanes)
            slopes.append(links.pairs.s_per_byte[trainer.transport.peers, rank])
        return slopes

    run = train(split(small_graph(), 4), "adaqp", epochs=3, after=follow)
    for usual, same, late in run.extra:
        assert same == pytest.approx(usual, rel=1e-6)
        assert (late > 1.5 * same).all()


def test_a_plan_round_trips_and_is_carried_out() -> None:
    parts = split(small_graph(), 3)
    made: BitWidthPlan = train(
        parts, "adaqp", epochs=6, before=on_slow_links, after=lambda t: t.bits.current_plan()
    ).extra[0]
    plan = plans.loads(made.to_json())
    assert plan == made

    def body(rank: int, group: Any, store: Any) -> dict[str, dict[int, int]]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainer = build_trainer(parts[rank], transport, "adaqp")
        trainer.bits.plan = plan
        trainer.train_epoch()
        counts = trainer.bits.gather_counts([trainer.bits.counts()])[0]
        trainer.close()
        transport.close()
        return counts

    assert run_ranks_as_threads(3, body)[0] == {name: plan.counts(name) for name in sorted(plan.exchanges)}
