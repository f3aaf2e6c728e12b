"""Collectives and messages of all ranks, matched."""

import msgspec
import pytest

from tests.trace.synthetic import make
from wirewise.errors import TraceError
from wirewise.trace.align import match
from wirewise.trace.match import slot_starts
from wirewise.trace.records import Header, Op, RankTrace, Trace


def change(trace, rank, place, **fields):
    ops = trace.ranks[rank].ops
    number = next(i for i, op in enumerate(ops) if op.kind == "communication" and op.seq == place)
    ops[number] = msgspec.structs.replace(ops[number], **fields)


def test_every_collective_is_matched_once_on_all_ranks():
    trace = make(3, 4).seen
    found = match(trace)
    assert [one.seq for one in found] == list(range(12))
    assert all(one.ranks == (0, 1, 2) and len({op.name for op in one.ops}) == 1 for one in found)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"collective": "all_gather"},
            "all_reduce of 4000000 bytes on rank 0 and all_gather of 4000000 bytes",
        ),
        ({"size_bytes": 12}, "of 4000000 bytes on rank 0 and all_reduce of 12 bytes on rank 2"),
    ],
)
def test_ranks_that_disagree_are_named_with_their_values(fields, words):
    trace = make(3, 4).seen
    change(trace, 2, 4, **fields)
    with pytest.raises(TraceError, match=words):
        match(trace)


def test_a_collective_that_a_rank_lacks_in_the_middle_is_named():
    trace = make(3, 4).seen
    trace.ranks[1].ops = [op for op in trace.ranks[1].ops if op.kind != "communication" or op.seq != 5]
    with pytest.raises(TraceError, match="rank 1 lacks collective 5 of group 'world', which rank 0 has"):
        match(trace)


def test_collectives_that_a_rank_no_more_recorded_are_left_out():
    trace = make(3, 4).seen
    trace.ranks[1].ops = [op for op in trace.ranks[1].ops if op.seq < 9]
    assert [one.seq for one in match(trace)] == list(range(9))


def test_an_unknown_group_and_a_number_given_twice_are_named():
    trace = make(2, 1).seen
    change(trace, 1, 2, seq=1)
    with pytest.raises(TraceError, match="rank 1 has collective 1 of group 'world' twice"):
        match(trace)
    trace = make(2, 1).seen
    change(trace, 1, 2, group="ghost")
    with pytest.raises(TraceError, match="group 'ghost', which no header names"):
        match(trace)


def message(kind, start, size, peer, tag=0):
    return Op(
        name=kind, kind="communication", start_s=start, end_s=start + 1, step=0, group="g",
        collective=kind, size_bytes=size, peer=peer, tag=tag,
    )  # fmt: skip


def test_messages_are_matched_in_order_by_ends_and_tag():
    headers = [Header(rank=r, world_size=2, host="h", groups={"g": [0, 1]}) for r in range(2)]
    sent = [message("send", 0, 5, 1), message("send", 1, 7, 1, tag=9), message("send", 2, 6, 1)]
    received = [message("recv", 0, 7, 0, tag=9), message("recv", 3, 5, 0), message("recv", 4, 6, 0)]
    trace = Trace(ranks=[RankTrace(headers[0], sent), RankTrace(headers[1], received)])
    assert [(one.size_bytes, one.ops[0].start_s, one.ops[1].start_s) for one in match(trace)] == [
        (5, 0, 3),
        (6, 2, 4),
        (7, 1, 0),
    ]
    trace.ranks[1].ops[1] = message("recv", 3, 50, 0)
    with pytest.raises(TraceError, match="5 bytes on rank 0 and 50 bytes on rank 1"):
        match(trace)


def test_the_source_of_a_broadcast_waits_for_nobody():
    headers = [Header(rank=r, world_size=3, host="h", groups={"g": [0, 1, 2]}) for r in range(3)]
    ops = [
        Op(
            name="b", kind="communication", start_s=r, end_s=r + 0.5, step=0, group="g", seq=0,
            collective="broadcast", peer=1,
        )
        for r in range(3)
    ]  # fmt: skip
    trace = Trace(ranks=[RankTrace(h, [op]) for h, op in zip(headers, ops, strict=True)])
    assert match(trace)[0].causes() == [(1, 0), (1, 2)]


def test_a_collective_starts_when_a_slot_is_free():
    run = make(2, 1, 0.01, sizes=(10_000_000,) * 3, jitter=0.0, lag_s=1e-9, seed=0)
    found = match(run.true)
    one_slot = slot_starts(found, 1)
    assert one_slot[1:] == [one.end_s for one in found[:2]]
    assert slot_starts(found, 3) == [one.start_s for one in found]
