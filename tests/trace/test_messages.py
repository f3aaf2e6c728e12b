"""Messages that cross the ends of steps, or of the recording."""

from __future__ import annotations

from wirewise.trace.files import assemble
from wirewise.trace.match import match
from wirewise.trace.messages import messages_in_one_step
from wirewise.trace.records import Header, Op, RankTrace, Trace


def message(collective: str, step: int, start_s: float, peer: int, tag: int) -> Op:
    return Op(
        name=collective, kind="communication", start_s=start_s, end_s=start_s + 1, step=step, group="g",
        collective=collective, size_bytes=8, peer=peer, tag=tag,
    )  # fmt: skip


def trace_of(sent: list[Op], received: list[Op], steps: range) -> Trace:
    ranks = []
    for rank, ops in enumerate((sent, received)):
        header = Header(rank=rank, world_size=2, host="h", groups={"g": [0, 1]})
        marks = [Op(name="step", kind="step", start_s=10.0 * n, end_s=10.0 * n + 10, step=n) for n in steps]
        ranks.append(RankTrace(header, ops + marks))
    return messages_in_one_step(assemble(ranks, "run"))


def test_a_receive_posted_a_step_ahead_belongs_to_the_step_of_its_message() -> None:
    sent = [message("send", step, 10.0 * step + 1, 1, tag=step) for step in range(3)]
    ahead = [message("recv", max(step - 1, 0), 10.0 * step - 3, 0, tag=step) for step in range(3)]
    trace = trace_of(sent, ahead, range(3))
    assert [[op.step for op in one.ops] for one in match(trace)] == [[0, 0], [1, 1], [2, 2]]
    assert [op.start_s for op in trace.ranks[1].ops if op.collective] == [-3.0, 7.0, 17.0]
    assert trace.steps() == [0, 1, 2] and not trace.notes


def test_first_and_last_steps_that_the_recording_cut_are_left_out() -> None:
    sent = [message("send", step, 10.0 * step + 1, 1, tag=step) for step in (1, 2, 3, 4)]
    received = [message("recv", step, 10.0 * step + 1, 0, tag=step) for step in (2, 3, 5)]
    trace = trace_of(sent, received, range(1, 6))
    # Step 4 lacks its receive too, but does not end the trace: that is no end of a recording.
    assert trace.steps() == [2, 3, 4]
    assert trace.notes == ["step 1 and 5 left out: messages were under way when the recording began or ended"]
    assert {op.step for rank in trace.ranks for op in rank.ops} == {2, 3, 4}


def test_the_only_step_stays() -> None:
    trace = trace_of([message("send", 0, 1.0, 1, tag=0)], [], range(1))
    assert trace.steps() == [0] and not trace.notes


def test_messages_of_one_tag_stay_where_an_end_is_missing() -> None:
    """Which end is missing is not known, so that none may be moved to another step."""
    sent = [message("send", step, 10.0 * step + 1, 1, tag=0) for step in (0, 1, 2)]
    received = [message("recv", step, 10.0 * step + 1, 0, tag=0) for step in (1, 2)]
    trace = trace_of(sent, received, range(4))
    assert [op.step for rank in trace.ranks for op in rank.ops if op.collective] == [0, 1, 2, 1, 2]
    assert trace.steps() == [0, 1, 2, 3]
