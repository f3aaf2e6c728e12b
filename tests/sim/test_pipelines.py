from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.sim.pipeline_jobs import chain, costs_of, links, one_each
from wirewise.cost import LinkCost, Links
from wirewise.errors import InputError
from wirewise.plans import ValueSplit
from wirewise.plans.timetables import weight_version
from wirewise.sim.pipelines import simulate_pipeline, steady_update


def update_s(plan, job, on=None, **conditions):
    on = links(plan.world_size) if on is None else on
    _, begin, end = steady_update(plan, costs_of(plan, job), on, **conditions)
    return end - begin


# Figures of an independent simulator of eager 1F1B; a message takes c, F = 1, B = 2.
TABLE = [
    (4, 16, 0.0, 57, 57, 54),
    (4, 16, 0.5, 71, 60, 57),
    (4, 16, 1.0, 85, 63, 60),
    (4, 16, 2.0, 113, 75, 66),
    (8, 32, 0.5, 151, 124, 117),
    (8, 32, 1.0, 185, 131, 124),
]


@pytest.mark.parametrize(("p", "m", "c", "plain", "eager", "split"), TABLE)
def test_s2_updates_take_what_an_independent_simulator_says(p, m, c, plain, eager, split):
    for style, seconds in (("1f1b", plain), ("eager", eager), ("eager-split", split)):
        assert update_s(one_each(style, p, m), chain(p, c), shared_nics=False) == pytest.approx(seconds)


@pytest.mark.parametrize("style", ["gpipe", "1f1b", "eager", "interleaved"])
def test_s2_without_messages_an_update_takes_the_known_number_of_turns(style):
    for p, m in ((1, 3), (2, 5), (4, 16), (3, 2)):
        chunks = 2 if style == "interleaved" else None
        plan = one_each(style, p * (chunks or 1), m, chunks=chunks)
        expected = 3.0 * (m + p - 1) if chunks is None else 3.0 * (2 * m + p - 1)
        # Interleaved stages leave the short bubble only where rounds are whole.
        if chunks is None or m % p == 0 or p == 1:
            assert update_s(plan, chain(len(plan.stages))) == pytest.approx(expected)


def test_gradients_of_weights_fill_bubbles():
    """Three positions' idle time (p - 1)(F + I - W) is left of (p - 1)(F + B)."""
    assert update_s(one_each("zero-bubble", 4, 16), chain(4)) == pytest.approx(48 + 3 * (1 + 1 - 1))


def test_two_versions_leave_no_bubble():
    for p, m in ((1, 2), (4, 4), (4, 16), (3, 7)):
        assert update_s(one_each("2bw", p, m), chain(p)) == pytest.approx(3.0 * m)
    # Messages of half a forward pass are hidden where more microbatches are in flight.
    late = one_each("2bw", 4, 16)
    eager = one_each("2bw", 4, 16, depths=(7, 5, 3, 1))
    assert update_s(late, chain(4, 0.5)) == pytest.approx(60.0)
    assert update_s(eager, chain(4, 0.5)) == pytest.approx(48.0)


def test_every_pass_comes_after_what_it_needs():
    plan = one_each("2bw", 3, 4, replicas=2, exchange="hidden")
    found = simulate_pipeline(
        plan,
        costs_of(plan, chain(3, 0.7, parameter_bytes=500.0)),
        links(6, latency_s=0.1),
        updates=4,
        fold=False,
    )
    at = {
        (op.replica, op.phase, op.stage, op.update, op.microbatch): (found.start_s[n], found.end_s[n])
        for n, op in enumerate(found.ops)
        if op.target < 0
    }
    exchanged = {
        (op.position, op.update): found.end_s[n]
        for n, op in enumerate(found.ops)
        if op.phase == "communication"
    }
    assert len(exchanged) == 3 * 4
    checked = 0
    for (replica, phase, stage, update, k), (start, _) in at.items():
        if phase == "forward" and stage:
            before = at[replica, phase, stage - 1, update, k][1]
            assert start >= before + 0.1 + 0.7 - 1e-9
            checked += 1
        if phase == "forward" and (version := weight_version(update * 4 + k, 4)):
            assert start >= exchanged[stage, version - 1] - 1e-9
            checked += 1
        if phase == "backward" and stage < 2:
            assert start >= at[replica, phase, stage + 1, update, k][1] + 0.8 - 1e-9
            checked += 1
    assert checked > 100


def test_messages_of_a_link_go_one_after_the_other():
    plan = one_each("gpipe", 2, 6)
    found = simulate_pipeline(plan, costs_of(plan, chain(2, 1.5)), links(2), shared_nics=False)
    for source in (0, 1):
        sent = sorted(
            (found.start_s[n], found.end_s[n])
            for n, op in enumerate(found.ops)
            if op.phase == "message" and op.position == source
        )
        assert len(sent) == 6
        assert all(later[0] >= earlier[1] - 1e-12 for earlier, later in itertools.pairwise(sent))


def test_messages_share_the_interfaces_of_hosts():
    """Position 1 sends activations on and gradients back at once."""
    plan, job = one_each("1f1b", 3, 8), chain(3, 2.0)
    alone = update_s(plan, job, shared_nics=False)
    assert update_s(plan, job) > 1.02 * alone
    # Ranks of one host share what is inside it, and nothing else.
    inside = Links.uniform(1, 1.0, ranks_per_host=3, intra_bytes_per_s=1e9)
    assert update_s(plan, job, inside) == pytest.approx(update_s(plan, chain(3, 0.0)), rel=1e-4)


def test_a_slow_pair_is_as_slow_as_it_was_measured():
    """Rank 0 reaches 1 ten times as slowly as others reach each other."""
    pairs = {(a, b): LinkCost(latency_s=0.0, s_per_byte=1e-3) for a in range(3) for b in range(3) if a != b}
    pairs[0, 1] = LinkCost(latency_s=0.0, s_per_byte=1e-2)
    plan = one_each("gpipe", 3, 5)
    on = Links.of_pairs(pairs, 3)
    assert update_s(plan, chain(3, 0.5), on) > update_s(plan, chain(3, 0.5)) + 4 * 4.0


def test_replicas_exchange_at_the_end_or_beside_the_next_update():
    job = chain(2, 0.0, parameter_bytes=3000.0, optimizer_s=0.25)
    exchange_s = 2 * (2 - 1) / 2 * 3.0
    plan = one_each("1f1b", 2, 4, replicas=2)
    assert update_s(plan, job) == pytest.approx(15 + exchange_s + 0.25)
    assert update_s(one_each("1f1b", 2, 4), job) == pytest.approx(15 + 0.25)
    hidden = one_each("2bw", 2, 4, replicas=2, exchange="hidden")
    blocking = one_each("2bw", 2, 4, replicas=2)
    assert update_s(hidden, job) == pytest.approx(12 + 0.25)
    assert update_s(blocking, job) == pytest.approx(12 + 0.25 + exchange_s)
    # What is longer than an update's passes cannot hide.
    heavy = chain(2, 0.0, parameter_bytes=20_000.0)
    assert 20.0 <= update_s(hidden, heavy) < 12 + 20.0


def test_recomputing_takes_a_forward_pass_more():
    plan = one_each("1f1b", 2, 4, recompute=True)
    assert update_s(plan, chain(2)) == pytest.approx(4.0 * (4 + 1))


def test_seconds_of_messages_can_be_said():
    plan = one_each("1f1b", 4, 16)
    asked = []

    def edge_s(source, target, size_bytes):
        asked.append((source, target, size_bytes))
        return 0.5

    assert update_s(plan, chain(4, 9.0), edge_s=edge_s) == pytest.approx(71.0)
    assert sorted(asked) == sorted(
        [(s, s + 1, 9000.0) for s in range(3)] + [(s + 1, s, 9000.0) for s in range(3)]
    )


def test_ranks_that_share_a_stage_each_get_all_of_it_or_a_part():
    """Four hosts: a value that is whole on two of them enters both; one in parts goes from rank to rank."""
    plan = one_each("1f1b", 2, 4, width=2)
    split = [ValueSplit(module="m0", stage=stage, dim=0) for stage in (0, 1)]
    one = one_each("1f1b", 2, 4)
    assert update_s(plan, chain(2, 2.0)) > update_s(one, chain(2, 2.0))
    parts = one_each("1f1b", 2, 4, width=2, splits=split)
    assert update_s(parts, chain(2, 2.0)) == pytest.approx(update_s(one, chain(2, 1.0)))


def test_a_missing_path_is_named():
    on = Links.of_pairs(LinkCost(latency_s=0.0, s_per_byte=1e-3), 2)
    cut = replace(on.pairs, s_per_byte=np.array([[0.0, np.inf], [1e-3, 0.0]]))
    with pytest.raises(InputError, match="no path leads from rank 0 to rank 1"):
        update_s(one_each("1f1b", 2, 2), chain(2, 1.0), on.with_pairs(cut))
