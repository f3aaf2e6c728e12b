"""Which steps of a rank share a thread block."""

from __future__ import annotations

from collections import defaultdict

from wirewise.collective.exporters.msccl.dependences import Draft
from wirewise.collective.exporters.msccl.fusion import fused

__all__ = ["thread_blocks"]


def thread_blocks(drafts: list[Draft], fuse: bool) -> list[list[Draft]]:
    """Steps of a rank by thread block, each in the order of the program; with or without joined steps."""
    blocks, rest = fused(drafts) if fuse else ([], drafts)
    return sorted(blocks + _shared(rest), key=_peers)


def _shared(drafts: list[Draft]) -> list[list[Draft]]:
    """Steps by thread block: sends and receives of one channel together where no step needs both."""
    groups: dict[tuple[int, int, int], list[Draft]] = defaultdict(list)
    for draft in sorted(drafts, key=lambda d: d.order):
        groups[draft.send, draft.receive, draft.channel].append(draft)
    free = {key: {d.order[0] for d in found} for key, found in groups.items() if key[1] >= 0}
    blocks = []
    for (send, receive, channel), found in groups.items():
        if receive >= 0:
            continue
        steps = {d.order[0] for d in found}
        fits = [
            key
            for key, others in free.items()
            if send >= 0 and key[2] == channel and steps.isdisjoint(others)
        ]
        if fits:
            # The same peer first: then the thread block serves one link.
            mate = min(fits, key=lambda key: (key[1] != send, key))
            del free[mate]
            found = sorted([*found, *groups[mate]], key=lambda d: d.order)
        blocks.append(found)
    blocks.extend(groups[key] for key in free)
    return blocks


def _peers(block: list[Draft]) -> tuple[int, int, int]:
    return max(d.send for d in block), max(d.receive for d in block), block[0].channel
