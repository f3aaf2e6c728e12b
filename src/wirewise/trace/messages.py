"""Messages between two ranks: each in one step of both, and steps of which the recording cut one off left out."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from wirewise.trace.records import Op, Trace

__all__ = ["MessageKey", "messages_in_one_step", "sent_and_received"]

MessageKey = tuple[str, int, int, int]
"""Group, sender, receiver and tag; messages of one key arrive in the order in which they were sent."""
Sides = dict[MessageKey, list[Op]]


def sent_and_received(trace: Trace) -> tuple[Sides, Sides]:
    """Both ends of all messages, by time on the rank."""
    sent: Sides = defaultdict(list)
    received: Sides = defaultdict(list)
    for rank, recorded in enumerate(trace.ranks):
        own = [
            op
            for op in recorded.ops
            if op.collective in ("send", "recv") and op.kind == "communication" and op.peer >= 0
        ]
        for op in sorted(own, key=lambda op: op.start_s):
            if op.collective == "send":
                sent[op.group, rank, op.peer, op.tag].append(op)
            else:
                received[op.group, op.peer, rank, op.tag].append(op)
    return sent, received


def messages_in_one_step(trace: Trace) -> Trace:
    """The trace, with both ends of each message in the later of their steps.

    A rank may post a receive a step ahead, as stages of a pipeline do. The first and the last step are left out if one
    end of a message of theirs was not recorded, which is then noted.
    """
    sent, received = sent_and_received(trace)
    moved: dict[int, int] = {}
    cut: set[int] = set()
    for key in sent.keys() | received.keys():
        outs, intos = sent.get(key, []), received.get(key, [])
        both = min(len(outs), len(intos))
        if len(outs) == len(intos):
            for out, into in zip(outs, intos, strict=True):
                if out.step != into.step:
                    moved[id(out)] = moved[id(into)] = max(out.step, into.step)
        # Of unequal numbers nobody knows which belong together, unless there is none on one side.
        cut |= {op.step for op in (*outs[both:], *intos[both:])}
    if not moved and not cut:
        return trace
    for rank in trace.ranks:
        rank.ops = [
            msgspec.structs.replace(op, step=moved[id(op)]) if id(op) in moved else op for op in rank.ops
        ]
    steps = trace.steps()
    left_out = [step for step in dict.fromkeys((*steps[:1], *steps[-1:])) if step in cut]
    if not left_out or len(left_out) >= len(steps):
        return trace
    for rank in trace.ranks:
        rank.ops = [op for op in rank.ops if op.step not in left_out]
    which = " and ".join(map(str, left_out))
    trace.notes.append(f"step {which} left out: messages were under way when the recording began or ended")
    return trace
