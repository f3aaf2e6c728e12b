"""Receives joined with the sends that pass the same chunks on, as one step without a detour through memory.

A thread block that receives from one peer and sends to another does both in one step where what it sends is just
what it received: `rcs` and `rrcs` also store it, `rrs` only adds and passes on (MSCCLang, Cowan et al., ASPLOS 2023,
section 5).
"""

from __future__ import annotations

from collections import defaultdict

from wirewise.collective.exporters.msccl.dependences import Draft, touched
from wirewise.collective.exporters.msccl.model import Place

__all__ = ["fused"]

_Peers = tuple[int, int, int]
"""Rank to send to, rank to receive from (-1: none), channel."""
_WITH_SEND = {"r": "rcs", "rrc": "rrcs"}


def fused(drafts: list[Draft]) -> tuple[list[list[Draft]], list[Draft]]:
    """Thread blocks of one rank with joined steps, and the steps of all others.

    Each receiving group of steps is joined with at most one sending group of its channel: those first that have
    most steps to join. The order of sends on a connection stays as it is.
    """
    groups: dict[_Peers, list[Draft]] = defaultdict(list)
    for draft in sorted(drafts, key=lambda d: d.order):
        groups[draft.send, draft.receive, draft.channel].append(draft)
    origin = _origins(drafts)
    pairs = [
        (_matches(groups[s], groups[r], origin), s, r)
        for s in groups
        for r in groups
        if s[0] >= 0 and r[1] >= 0 and s[2] == r[2]
    ]
    blocks = []
    for matches, s, r in sorted(pairs, key=lambda pair: (-len(pair[0]), pair[1:])):
        if matches and s in groups and r in groups:
            blocks.append(_joined(groups.pop(s), groups.pop(r), matches, drafts))
    return blocks, [draft for found in groups.values() for draft in found]


def _origins(drafts: list[Draft]) -> dict[Draft, Draft]:
    """By send: the receive that wrote, last and exactly, what it sends."""
    writer: dict[Place, Draft] = {}
    found = {}
    for draft in sorted(drafts, key=lambda d: d.order):
        for place, writes in touched(draft.step):
            if writes:
                writer[place] = draft
        if draft.step.kind == "s":
            writers = {writer.get(place) for place, _ in touched(draft.step)}
            last = writers.pop() if len(writers) == 1 else None
            same = last is not None and (last.step.target, last.step.chunks) == (
                draft.step.source,
                draft.step.chunks,
            )
            if last is not None and same and last.step.kind in _WITH_SEND:
                found[draft] = last
    return found


def _matches(sends: list[Draft], receives: list[Draft], origin: dict[Draft, Draft]) -> dict[Draft, Draft]:
    """By receive: the send to join with it, such that no send overtakes an earlier one of its connection."""
    place = {draft: n for n, draft in enumerate(receives)}
    found: dict[Draft, Draft] = {}
    last = -1
    for n, send in enumerate(sends):
        receive = origin.get(send)
        if receive is None or place.get(receive, -1) <= last:
            continue
        unjoined = [other for other in sends[:n] if other not in found.values()]
        if all(other.order < receive.order for other in unjoined):
            found[receive] = send
            last = place[receive]
    return found


def _joined(
    sends: list[Draft], receives: list[Draft], matches: dict[Draft, Draft], drafts: list[Draft]
) -> list[Draft]:
    left = [draft for draft in sends if draft not in matches.values()]
    for receive in receives:
        if receive not in matches:
            left.append(receive)
            continue
        send = matches[receive]
        kind = _WITH_SEND[receive.step.kind]
        step = receive.step._replace(kind=kind)
        if kind == "rrcs" and not _read_again(receive, send, drafts):
            step = step._replace(kind="rrs", target=None)
        left.append(receive._replace(send=send.send, step=step))
    return sorted(left, key=lambda d: d.order)


def _read_again(receive: Draft, send: Draft, drafts: list[Draft]) -> bool:
    """Whether what the receive stores is needed by anything but the send, or is the result."""
    open_ = {place for place, writes in touched(receive.step) if writes}
    for draft in sorted(drafts, key=lambda d: d.order):
        if draft.order <= receive.order or draft is send:
            continue
        for place, writes in touched(draft.step):
            if place in open_ and not writes:
                return True
        open_ -= {place for place, writes in touched(draft.step) if writes}
    return any(place.buffer == "o" for place in open_)
