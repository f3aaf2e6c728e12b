"""Fuse receives with the sends that forward the same chunks, as one step without a detour through memory.

A thread block that receives from one peer and sends to another does both in one step if it forwards exactly what it
received: `rcs` and `rrcs` also store it, `rrs` only reduces and forwards (MSCCLang, Cowan et al., ASPLOS 2023,
section 5).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from wirewise.collective.exporters.msccl.dependences import Order, StepDraft, accessed_chunks
from wirewise.collective.exporters.msccl.model import Place

__all__ = ["fuse_steps"]

_Peers = tuple[int, int, int]
"""Rank to send to, rank to receive from (-1: none), channel."""
_WITH_SEND = {"r": "rcs", "rrc": "rrcs"}


def fuse_steps(drafts: list[StepDraft]) -> tuple[list[list[StepDraft]], list[StepDraft]]:
    """Fuse steps of one rank into thread blocks; returns these, and the remaining steps.

    Each receiving group of steps is joined with at most one sending group of its channel: pairs with the most fusible
    steps come first. The order of sends on a connection stays as it is.
    """
    groups: dict[_Peers, list[StepDraft]] = defaultdict(list)
    ordered = sorted(drafts, key=lambda d: d.order)
    for draft in ordered:
        groups[draft.send, draft.receive, draft.channel].append(draft)
    origins, uses = _origins(ordered), _uses(ordered)
    pairs = [
        (_matches(groups[s], groups[r], origins), s, r)
        for s in groups
        for r in groups
        if s[0] >= 0 and r[1] >= 0 and s[2] == r[2]
    ]
    blocks = []
    for matches, s, r in sorted(pairs, key=lambda pair: (-len(pair[0]), pair[1:])):
        if matches and s in groups and r in groups:
            blocks.append(_joined(groups.pop(s), groups.pop(r), matches, uses))
    return blocks, [draft for found in groups.values() for draft in found]


def _origins(ordered: list[StepDraft]) -> dict[Order, StepDraft]:
    """Receive, by send, that wrote last and exactly what is sent."""
    writer: dict[Place, StepDraft] = {}
    found = {}
    for draft in ordered:
        for place, writes in accessed_chunks(draft.step):
            if writes:
                writer[place] = draft
        if draft.step.kind == "s" and draft.step.source is not None:
            last = writer.get(draft.step.source)
            # What covers exactly the same chunks and wrote the first of them wrote them all, unless a later one did.
            same = last is not None and (last.step.target, last.step.chunks) == (
                draft.step.source,
                draft.step.chunks,
            )
            alone = all(writer.get(place) is last for place, _ in accessed_chunks(draft.step))
            if last is not None and same and alone and last.step.kind in _WITH_SEND:
                found[draft.order] = last
    return found


def _uses(ordered: list[StepDraft]) -> dict[Place, list[tuple[Order, bool]]]:
    """Uses of each chunk in order: who, and whether to write."""
    found: dict[Place, list[tuple[Order, bool]]] = defaultdict(list)
    for draft in ordered:
        for place, writes in accessed_chunks(draft.step):
            found[place].append((draft.order, writes))
    return found


def _matches(
    sends: list[StepDraft], receives: list[StepDraft], origins: dict[Order, StepDraft]
) -> dict[Order, StepDraft]:
    """Send to join with each receive, such that no send overtakes an earlier one of its connection."""
    place = {draft.order: n for n, draft in enumerate(receives)}
    found: dict[Order, StepDraft] = {}
    last = -1
    latest: Order = (-1, False, -1)
    """Latest of the sends so far that are not joined."""
    for send in sends:
        receive = origins.get(send.order)
        if receive is not None and place.get(receive.order, -1) > last and latest < receive.order:
            found[receive.order] = send
            last = place[receive.order]
        else:
            latest = send.order
    return found


def _joined(
    sends: list[StepDraft],
    receives: list[StepDraft],
    matches: dict[Order, StepDraft],
    uses: dict[Place, list[tuple[Order, bool]]],
) -> list[StepDraft]:
    joined = {send.order for send in matches.values()}
    left = [draft for draft in sends if draft.order not in joined]
    for receive in receives:
        if receive.order not in matches:
            left.append(receive)
            continue
        send = matches[receive.order]
        step = receive.step._replace(kind=_WITH_SEND[receive.step.kind])
        if step.kind == "rrcs" and not _read_again(receive, send.order, uses):
            step = step._replace(kind="rrs", target=None)
        left.append(receive._replace(send=send.send, step=step))
    return sorted(left, key=lambda d: d.order)


def _read_again(receive: StepDraft, send: Order, uses: dict[Place, list[tuple[Order, bool]]]) -> bool:
    """Whether what the receive stores is needed by anything but the send, or is the result."""
    for place, writes in accessed_chunks(receive.step):
        if not writes:
            continue
        later = [
            use for use in uses[place][bisect_right(uses[place], (receive.order, True)) :] if use[0] != send
        ]
        if not (later[0][1] if later else place.buffer != "o"):
            return True
    return False
