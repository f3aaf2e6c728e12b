"""What all ranks do after a failure: by hand, and in every state that the protocol can reach."""

from __future__ import annotations

import itertools

import pytest

from tests.runtime.recovery import pipeline_protocol, protocol
from wirewise.errors import PeerError
from wirewise.runtime.recovery.decision import RankRecord, RecoveryAction, assign_spares, decide


def record(rank: int, step: int, *, ahead: str = "", stage: int = 0, **fields: object) -> RankRecord:
    """A record with buckets that are "u" updated, "r" reduced or "-" neither, for the next step."""
    return RankRecord(
        rank=rank,
        stage=stage,
        committed_step=step,
        versions=tuple(step + (one == "u") for one in ahead),
        reduced=tuple(one in "ur" for one in ahead),
        **fields,  # type: ignore[arg-type]
    )


def kinds(decision: object) -> list[str]:
    return [action.kind for action in decision.actions]  # type: ignore[attr-defined]


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize(("spares", "steps", "buckets"), [(0, 1, 2), (1, 1, 1)])
def test_no_state_of_the_protocol_deadlocks_diverges_or_loses_a_step(in_backward, spares, steps, buckets):
    job = protocol.Job(spares=spares, steps=steps, buckets=buckets, in_backward=in_backward)
    assert protocol.explore(job) > 2000


@pytest.mark.slow
@pytest.mark.parametrize(("in_backward", "can_restore"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize(("spares", "steps", "buckets"), [(1, 1, 2), (2, 2, 1)])
@pytest.mark.sample(2)
def test_no_state_of_longer_trainings_breaks_a_law(in_backward, can_restore, spares, steps, buckets):
    job = protocol.Job(
        spares=spares, steps=steps, buckets=buckets, in_backward=in_backward, can_restore=can_restore
    )
    assert protocol.explore(job) > 20_000


@pytest.mark.parametrize(
    "job", [pipeline_protocol.Job(faults=1), pytest.param(pipeline_protocol.Job(), marks=pytest.mark.slow)]
)
def test_no_state_of_a_pipeline_deadlocks_or_loses_a_step(job):
    assert protocol.explore(job) > 1000


def test_a_pipeline_that_cannot_take_an_update_back_may_need_its_checkpoint():
    with pytest.raises(AssertionError, match="logs were not enough"):
        protocol.explore(pipeline_protocol.Job(steps=1, can_restore=False))


def test_the_laws_are_broken_where_a_rank_that_lags_overwrites_its_state():
    with pytest.raises(PeerError, match="is lost"):
        protocol.explore(protocol.Job(steps=1, buckets=1, in_place=True))


def test_updates_in_back_propagation_need_a_way_back():
    with pytest.raises(PeerError, match="is lost"):
        protocol.explore(protocol.Job(steps=1, in_backward=True, can_restore=False, digests=False))


def test_a_spare_copies_from_all_replicas():
    decision = decide([record(0, 7), record(2, 7)], dead={1: 0}, spares=1)
    assert decision.step == 7 and decision.strategy == "replica" and decision.vacant == ()
    assert decision.of(1) == RecoveryAction(rank=1, kind="copy", sources=(0, 2))


def test_one_rank_that_has_every_gradient_takes_all_others_forward():
    decision = decide([record(0, 7, ahead="--"), record(1, 7, ahead="ur"), record(2, 8, ahead="--")])
    assert decision.step == 8
    assert kinds(decision) == ["copy", "finish", "keep"]
    assert decision.of(0).sources == (1, 2)


def test_an_update_that_cannot_be_completed_is_taken_back():
    torn = record(1, 7, ahead="u-", can_restore=True)
    assert kinds(decide([record(0, 7, ahead="--"), torn])) == ["keep", "restore"]


def test_a_torn_update_that_cannot_be_taken_back_is_copied():
    assert kinds(decide([record(0, 7, ahead="--"), record(1, 7, ahead="u-")])) == ["keep", "copy"]


def test_one_rank_undoes_where_bits_would_differ_and_the_others_copy():
    torn = [
        record(rank, 7, ahead=ahead, can_restore=True, exact=False)
        for rank, ahead in ((0, "uu-"), (1, "u--"))
    ]
    decision = decide(torn)
    assert kinds(decision) == ["copy", "restore"] and decision.of(0).sources == (1,)
    assert kinds(decide([*torn, record(2, 7, ahead="---")])) == ["copy", "copy", "keep"]


def test_replicas_that_differ_are_named():
    with pytest.raises(PeerError, match="ranks 0 and 2 hold different states of step 7"):
        decide([record(0, 7, digest="a"), record(1, 6, digest="c"), record(2, 7, digest="b")])


def test_spares_go_where_no_replica_is_left_and_the_rest_stays_vacant():
    assert assign_spares({0: 0, 3: 1, 4: 1}, [0, 2, 2], 2) == (0, 3)
    assert assign_spares({0: 0, 3: 1, 4: 1}, [0, 2, 2], 1) == (3,)
    decision = decide([record(0, 3)], dead={1: 0, 2: 0}, spares=1)
    assert decision.vacant == (2,)


def test_a_stage_without_process_and_spare_is_refused():
    with pytest.raises(PeerError, match="stage 1 has no process left and there are 0 spares"):
        decide([record(0, 3)], dead={1: 1})


CHAIN = [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)]


def stages(lost: set[int], step: int = 9) -> list[RankRecord]:
    return [RankRecord(rank=s, stage=s) if s in lost else record(s, step, stage=s) for s in range(4)]


def test_a_lost_stage_recomputes_from_logs_and_the_others_wait():
    checkpoints = dict.fromkeys(range(4), (0, 5))
    decision = decide(stages({2}), checkpoints=checkpoints, logs=dict.fromkeys(CHAIN, (5, 9)))
    assert decision.step == 9 and decision.units == ((2,),) and decision.strategy == "log"
    assert kinds(decision) == ["keep", "keep", "recompute", "keep"] and decision.of(2).from_step == 5


def test_neighbours_that_died_together_are_one_unit_and_others_are_not():
    checkpoints, logs = dict.fromkeys(range(4), (5,)), dict.fromkeys(CHAIN, (5, 9))
    assert decide(stages({1, 2}), checkpoints=checkpoints, logs=logs).units == ((1, 2),)
    assert decide(stages({0, 2}), checkpoints=checkpoints, logs=logs).units == ((0,), (2,))


def test_a_neighbour_whose_messages_are_not_logged_recomputes_too():
    logs = dict.fromkeys(CHAIN, (5, 9)) | {(1, 2): (0, 0)}
    decision = decide(stages({2}), checkpoints=dict.fromkeys(range(4), (5,)), logs=logs)
    assert decision.units == ((1, 2),) and kinds(decision) == ["keep", "recompute", "recompute", "keep"]


def test_without_logs_all_stages_load_the_newest_checkpoint_that_all_have():
    checkpoints = {0: (0, 4, 8), 1: (0, 4), 2: (0, 4, 8), 3: (4, 8)}
    decision = decide(stages({2}), checkpoints=checkpoints, logs=dict.fromkeys(CHAIN, (0, 0)))
    assert decision.step == 4 and set(kinds(decision)) == {"load"} and decision.strategy == "checkpoint"
    with pytest.raises(PeerError, match=r"stages \[2\] is lost and no checkpoint is whole"):
        decide(stages({2}), logs=dict.fromkeys(CHAIN, (0, 0)))


def test_a_checkpoint_of_the_step_itself_needs_no_logs():
    decision = decide(stages({2}), checkpoints={2: (9,)}, logs=dict.fromkeys(CHAIN, (0, 0)))
    assert kinds(decision) == ["keep", "keep", "recompute", "keep"]


def test_the_decision_does_not_depend_on_the_order_of_records():
    known = [record(0, 7, ahead="ur"), record(1, 8, ahead="--"), RankRecord(rank=2), record(3, 7, ahead="u-")]
    assert len({str(decide(order)) for order in itertools.permutations(known)}) == 1
