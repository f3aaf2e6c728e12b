"""Clock alignment against clocks that are known, and matching of collectives."""

import msgspec
import numpy as np
import pytest

from tests.trace.synthetic import make
from wirewise.trace.align import align, violations
from wirewise.trace.records import Header, Op, RankTrace, Trace


def offset_errors(run, trace):
    """Greatest error in s of each rank's corrected times over the run."""
    errors = []
    for rank, fit in enumerate(trace.offsets):
        t = np.linspace(
            *np.array([[op.start_s, op.end_s] for op in run.seen.ranks[rank].ops])[[0, -1], 0], 50
        )
        found = np.array([fit.common(x) for x in t])
        errors.append(np.abs(found - run.common(rank, t)).max())
    return np.array(errors)


def drift_errors(run, trace):
    true = (1.0 + run.drifts[0]) / (1.0 + run.drifts) - 1.0
    return np.abs(np.array([fit.drift for fit in trace.offsets]) - true)


def without_alignment(run):
    return max(np.abs(run.common(r, t := np.array([100.0])) - t).max() for r in range(len(run.offsets)))


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("probes", [0, 100])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_offsets_of_a_second_and_drifts_of_100_ppm_over_a_minute(ranks, probes):
    run = make(ranks, 200, 0.3, clock_s=1.0, drift=1e-4, probes=probes, seed=ranks)
    found = align(run.seen)
    assert offset_errors(run, found).max() <= 100e-6
    assert drift_errors(run, found).max() <= 1e-6
    assert violations(found) == 0
    assert found.notes == []
    # What it corrects is hundreds of times larger.
    assert without_alignment(run) > 500 * 100e-6
    assert violations(run.seen) > 0


@pytest.mark.parametrize(("sizes", "limit_s"), [((1024, 4096, 2048), 200e-6), ((1_000_000,) * 3, 500e-6)])
def test_collectives_alone_tell_offsets(sizes, limit_s):
    run = make(4, 100, 0.05, clock_s=1.0, sizes=sizes, seed=5)
    assert offset_errors(run, align(run.seen)).max() <= limit_s


def test_a_drift_is_worth_correcting():
    """An offset alone, as dPRO has it, is off by milliseconds at the ends of a minute."""
    run = make(2, 200, 0.3, clock_s=1.0, drift=1e-4, seed=1)
    found = align(run.seen)
    constant = [msgspec.structs.replace(fit, drift=0.0) for fit in found.offsets]
    assert offset_errors(run, Trace(ranks=found.ranks, offsets=constant)).max() > 1e-3
    assert offset_errors(run, found).max() < 100e-6


def test_stragglers_do_not_pull_the_clocks():
    """One rank is late by milliseconds in every fifth collective."""
    run = make(4, 100, 0.1, clock_s=1.0, drift=1e-4, seed=3)
    draw = np.random.default_rng(0)
    late = run.seen.ranks[2]
    late.ops = [
        msgspec.structs.replace(op, end_s=op.end_s + 5e-3)
        if op.kind == "communication" and draw.random() < 0.2
        else op
        for op in late.ops
    ]
    assert offset_errors(run, align(run.seen)).max() < 100e-6


def test_a_bias_of_ends_is_told_from_an_offset_by_probes():
    run = make(2, 100, 0.1, clock_s=1.0, probes=50, seed=3)
    late = run.seen.ranks[1]
    late.ops = [
        msgspec.structs.replace(op, end_s=op.end_s + 150e-6) if op.kind == "communication" else op
        for op in late.ops
    ]
    assert offset_errors(run, align(run.seen)).max() < 50e-6
    late.header.probes.clear()
    assert offset_errors(run, align(run.seen)).max() > 100e-6


def test_causality_is_kept_where_ends_say_otherwise():
    """Rank 1 always ends 150 us early, a transfer takes 100 us: by its ends it would start after others end."""
    run = make(2, 50, 0.1, clock_s=1.0, sizes=(1000, 1000, 1000), seed=8)
    early = run.seen.ranks[1]
    early.ops = [
        msgspec.structs.replace(op, end_s=op.end_s - 150e-6) if op.kind == "communication" else op
        for op in early.ops
    ]
    found = align(run.seen)
    assert violations(found) == 0
    assert 50e-6 < offset_errors(run, found).max() < 140e-6


def test_times_that_no_clocks_fit_are_a_note():
    run = make(2, 20, 0.1, clock_s=1.0, seed=8)
    wrong = run.seen.ranks[1]
    number = next(i for i, op in enumerate(wrong.ops) if op.kind == "communication" and op.seq == 30)
    op = wrong.ops[number]
    wrong.ops[number] = msgspec.structs.replace(op, start_s=op.start_s - 0.5, end_s=op.end_s - 0.4)
    found = align(run.seen)
    assert "no clocks fulfil all orders of events" in found.notes[0]


def test_an_aligned_trace_stays_and_one_rank_needs_nothing():
    run = make(2, 5, clock_s=1.0)
    found = align(run.seen)
    assert align(found) is found
    single = make(1, 5)
    assert align(single.seen).ranks[0].ops == single.seen.ranks[0].ops


def test_all_times_move_together():
    run = make(2, 10, clock_s=1.0, probes=5)
    found = align(run.seen)
    fit = found.offsets[1]
    for before, after in zip(run.seen.ranks[1].ops, found.ranks[1].ops, strict=True):
        assert after.start_s == fit.common(before.start_s)
        assert after.enqueued_s == (fit.common(before.enqueued_s) if before.enqueued_s != -1 else -1)
    assert all(p.sent_s < p.peer_s < p.received_s for p in found.ranks[1].header.probes)


def test_a_rank_without_ties_is_aligned_by_the_real_time_clock():
    ranks = [
        RankTrace(
            Header(rank=r, world_size=2, host="h", groups={}, clock_pairs=[(10.0 + 5 * r, 10**18)]),
            [Op(name="fc", kind="forward", start_s=10.0 + 5 * r, end_s=11.0 + 5 * r, step=0)],
        )
        for r in range(2)
    ]
    found = align(Trace(ranks=ranks))
    assert found.ranks[1].ops[0].start_s == pytest.approx(10.0, abs=1e-6)
    assert "rank 1 shares no collective and no probe" in found.notes[0]
