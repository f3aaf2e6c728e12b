"""Where ranks go on in the loop of their script, for every mixture of ranks that a failure can leave."""

from __future__ import annotations

from itertools import combinations_with_replacement

import msgspec
import pytest

from wirewise.runtime.recovery.decision import Phase, RankRecord, decide
from wirewise.runtime.recovery.phases import Continuation, continuations

STEP = 7


def record(
    rank: int, committed: int, *phases: Phase, complete: bool = False, reduced: bool = False
) -> RankRecord:
    return RankRecord(
        rank=rank,
        committed_step=committed,
        versions=(committed,),
        reduced=(reduced,),
        phases=phases or ("before", "after"),
        complete=complete,
    )


def spare(rank: int) -> RankRecord:
    return RankRecord(rank=rank)


def ahead(rank: int) -> RankRecord:
    """Rank in the batch after the step: it has committed the step, and its code has run."""
    return record(rank, STEP)


def late(rank: int, *, complete: bool = True) -> RankRecord:
    """Rank in the batch of the step that lacks its gradients."""
    return record(rank, STEP - 1, complete=complete)


def reduced(rank: int) -> RankRecord:
    """Rank in the batch of the step that has all gradients."""
    return record(rank, STEP - 1, complete=True, reduced=True)


def committed(rank: int, *, complete: bool = True) -> RankRecord:
    """Rank that has committed the step and is still in its block."""
    return record(rank, STEP, "before", complete=complete)


def plan(*records: RankRecord) -> tuple[int, list[tuple[str, Phase, tuple[int, ...]]]]:
    decision = decide(records)
    how = continuations(records, decision)
    return decision.step, [(how[r.rank].then, how[r.rank].phase, how[r.rank].sources) for r in records]


def test_an_attempt_that_no_rank_can_finish_is_repeated_from_the_top() -> None:
    step, how = plan(late(0), late(1), spare(2))
    assert step == STEP - 1
    assert how == [("top", "after", ()), ("top", "after", ()), ("top", "after", (0, 1))]


def test_ranks_that_have_computed_the_batch_run_the_code_after_it_beside_one_that_has() -> None:
    step, how = plan(ahead(0), late(1), reduced(2), spare(3), late(4, complete=False))
    assert step == STEP
    assert how == [
        ("top", "after", ()),
        ("return", "before", (0, 2)),
        ("return", "before", ()),
        # Neither has computed the batch, and the code has run elsewhere.
        ("top", "after", (0,)),
        ("top", "after", (0,)),
    ]


def test_where_nobody_has_run_the_code_and_a_spare_lacks_the_batch_all_compute_it_once_more() -> None:
    step, how = plan(reduced(0), late(1), spare(2), committed(3, complete=False))
    assert step == STEP
    assert [one[0] for one in how] == ["pass"] * 4
    assert [one[2] for one in how] == [(), (0, 3), (0, 3), ()]
    assert [one[0] for one in plan(reduced(0), late(1), committed(2))[1]] == ["return"] * 3


def test_a_state_that_is_known_only_after_the_code_is_taken_so() -> None:
    replaced = record(0, STEP, "after")
    assert plan(replaced, late(1))[1] == [("top", "after", ()), ("top", "after", (0,))]


def test_a_checkpoint_is_the_state_after_the_code() -> None:
    records = [spare(0), spare(1)]
    decision = decide(records, checkpoints={0: [5]})
    assert set(continuations(records, decision).values()) == {Continuation(phase="after", then="top")}


def test_a_collective_that_was_cut_short_is_repeated_by_all() -> None:
    cut = msgspec.structs.replace(committed(0, complete=False), cut=True)
    step, how = plan(cut, ahead(1), late(2), spare(3))
    assert step == STEP
    assert [one[:2] for one in how] == [("pass", "before")] * 4
    assert [one[2] for one in how] == [(), (), (0, 1), (0, 1)]


def test_weights_that_the_code_changes_come_from_ranks_in_the_same_phase() -> None:
    def touching(one: RankRecord) -> RankRecord:
        return msgspec.structs.replace(one, touches=True)

    records = [touching(ahead(0)), touching(late(1)), spare(2)]
    how = continuations(records, decide(records))
    # The weights before the code are nowhere left, so the code is not run on those after it.
    assert [(one.then, one.weights) for one in how.values()] == [("top", ()), ("top", (0,)), ("top", (0,))]
    cut = msgspec.structs.replace(committed(0, complete=False), cut=True, touches=True)
    records = [cut, touching(ahead(1)), spare(2)]
    how = continuations(records, decide(records))
    assert [(one.then, one.weights) for one in how.values()] == [("pass", ()), ("pass", (0,)), ("pass", (0,))]


KINDS = {
    "spare": spare,
    "ahead": ahead,
    "late": late,
    "cut": lambda rank: late(rank, complete=False),
    "reduced": reduced,
    "committed": committed,
    "passing": lambda rank: committed(rank, complete=False),
}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_has_the_code_of_the_step_run_once(ranks: int) -> None:
    for kinds in combinations_with_replacement(KINDS, ranks):
        if set(kinds) == {"spare"}:
            continue
        records = [KINDS[kind](rank) for rank, kind in enumerate(kinds)]
        decision = decide(records)
        how = continuations(records, decision)
        code_has_run = any(one.phase == "after" for one in how.values())
        for one in records:
            own = how[one.rank]
            # What is copied is there, and only a rank that has computed the batch returns to the code behind it.
            assert all(one.rank != source for source in own.sources), kinds
            assert (own.then == "top") == (own.phase == "after"), kinds
            if own.then == "return":
                assert one.complete and one.committed_step in (decision.step - 1, decision.step), kinds
            # The batch is computed once more by all ranks or by none.
            assert (own.then == "pass") == (how[0].then == "pass"), kinds
            assert own.then != "pass" or not code_has_run, kinds
