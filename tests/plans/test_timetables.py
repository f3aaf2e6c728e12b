from __future__ import annotations

import itertools

import pytest

from wirewise.errors import PlanError
from wirewise.plans import timetables
from wirewise.plans.timetables import (
    StageAction,
    StagePass,
    in_flight,
    needs,
    order_passes,
    timetable,
    unroll,
    weight_version,
)

SIZES = [(p, m) for p in range(1, 9) for m in range(1, 33)]
FLUSHING = [name for name in timetables.STYLES if name != "2bw"]


def chain(stages):
    return list(itertools.pairwise(range(stages)))


def run(rows, microbatches, stages, updates):
    """Raises where positions would wait for each other."""
    return order_passes([list(unroll(row, microbatches, updates)) for row in rows], chain(stages))


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("style", FLUSHING)
def test_s1_no_position_waits_for_ever(style):
    for p, m in SIZES:
        for chunks in (1, 2, 3) if style == "interleaved" else (None,):
            rows = timetable(style, p, m, chunks=chunks)
            stages = p * (chunks or 1)
            done = [step for _, step in run(rows, m, stages, 1)]
            assert len(set(done)) == len(done)
            backward = {step for step in done if step.kind in "BI"}
            assert len(backward) == stages * m == sum(step.kind == "F" for step in done)


def test_s1_two_versions_never_wait_for_ever_and_never_flush():
    for p, m in SIZES:
        if m < p:
            with pytest.raises(PlanError, match="as many microbatches as positions"):
                timetable("2bw", p, m)
            continue
        rows = timetable("2bw", p, m)
        assert len(run(rows, m, p, 4)) == 4 * 2 * m * p
        assert [in_flight(row, m) for row in rows] == [p - i for i in range(p)]
        for row in rows:
            # A forward pass and a backward pass in turns, from one update into the next.
            kinds = [step.kind for step in unroll(row, m, 4)]
            ahead = kinds.index("B") - 1
            assert kinds[ahead : len(kinds) - ahead] == ["F", "B"] * (4 * m - ahead)


def test_s1_what_is_in_flight():
    for p, m in SIZES:
        positions = range(p)
        expected = {
            "gpipe": [m] * p,
            "1f1b": [min(m, p - i) for i in positions],
            "eager": [min(m, 2 * (p - i) - 1) for i in positions],
            "eager-split": [min(m, 2 * (p - i) - 1) for i in positions],
            "zero-bubble": [min(m, p)] * p,
        }
        for style, depths in expected.items():
            assert [in_flight(row, m) for row in timetable(style, p, m)] == depths, (style, p, m)


def torch_order(positions, microbatches, chunks):
    """What torch's interleaved schedule computes on each rank, in its order."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    names = {"FORWARD": "F", "FULL_BACKWARD": "B"}
    one = schedules.ScheduleInterleaved1F1B.__new__(schedules.ScheduleInterleaved1F1B)
    one.pp_group_size, one.n_local_stages, one._n_microbatches = positions, chunks, microbatches
    one.microbatches_per_round = microbatches // max(1, microbatches // positions)
    for rank in range(positions):
        found = one._calculate_single_rank_operations(rank)
        yield [
            (names[a.computation_type.name], a.stage_index, a.microbatch_index)
            for a in found
            if a is not None
        ]


@pytest.mark.parametrize(("style", "chunks"), [("eager", 1), ("interleaved", 2), ("interleaved", 3)])
def test_s1_order_is_that_of_torch(style, chunks):
    compared = 0
    for p, m in SIZES:
        if m % max(1, m // p):
            continue
        rows = timetable(style, p, m, chunks=chunks)
        for row, expected in zip(rows, torch_order(p, m, chunks), strict=True):
            assert [(a.kind, a.stage, a.microbatch) for a in row] == expected
            compared += 1
    assert compared > 500


@pytest.mark.parametrize("style", ["eager", "eager-split", "zero-bubble", "2bw"])
def test_depths_are_carried_out(style):
    rows = timetable(style, 3, 6, depths=(5, 4, 2))
    late = {"zero-bubble": [0, 1, 2]}.get(style, [0, 0, 0])
    assert [in_flight(row, 6) for row in rows] == [d + w for d, w in zip((5, 4, 2), late, strict=True)]
    assert len(run(rows, 6, 3, 3)) == 3 * 3 * 6 * (3 if style in ("eager-split", "zero-bubble") else 2)


@pytest.mark.parametrize("depths", [(1, 2), (2, 0), (2,), (3, 2, 1)])
def test_depths_that_cannot_be_are_refused(depths):
    with pytest.raises(PlanError, match="depths are"):
        timetable("eager", 2, 4, depths=depths)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: timetable("fifo", 2, 4), "unknown style of timetable 'fifo'"),
        (lambda: timetable("1f1b", 0, 4), "positions is 0"),
        (lambda: timetable("1f1b", 2, 0), "microbatches is 0"),
        (lambda: timetable("gpipe", 2, 4, depths=(2, 1)), "leave depths out"),
        (lambda: timetable("eager", 2, 4, chunks=2), "take interleaved"),
        (lambda: timetable("interleaved", 2, 4, chunks=0), "chunks is 0"),
        (lambda: timetable("2bw", 2, 4, depths=(5, 1)), "5 in flight"),
    ],
)
def test_what_no_style_has_is_refused(call, said):
    with pytest.raises(PlanError, match=said):
        call()


def test_gradients_of_weights_come_late_where_bubbles_are_filled():
    rows = timetable("zero-bubble", 2, 4)
    assert "".join(f"{a.kind}{a.microbatch}" for a in rows[0]) == "F0F1I0W0F2I1W1F3I2W2I3W3"
    assert "".join(f"{a.kind}{a.microbatch}" for a in rows[1]) == "F0I0F1I1W0F2I2W1F3I3W2W3"


def test_needs_follow_edges():
    edges = [(0, 1), (1, 2), (0, 2)]
    assert needs(StagePass(0, "F", 2, 5), edges) == [StagePass(0, "F", 1, 5), StagePass(0, "F", 0, 5)]
    assert needs(StagePass(1, "B", 0, 5), edges) == [StagePass(1, "B", 1, 5), StagePass(1, "B", 2, 5)]
    assert needs(StagePass(0, "W", 0, 5), edges) == []


def test_who_waits_is_told():
    first = [StageAction(k, 0, m) for k, m in (("F", 0), ("B", 0), ("F", 1), ("B", 1))]
    last = [StageAction(k, 1, m) for k, m in (("F", 0), ("F", 1), ("B", 0), ("B", 1))]
    with pytest.raises(
        PlanError, match=r"position 0 waits before B0 of stage 0 .*position 1 waits before F1"
    ):
        run([first, last], 2, 2, 1)


def test_versions_are_those_of_the_update_before():
    assert [weight_version(k, 4) for k in range(16)] == [0] * 8 + [1] * 4 + [2] * 4
