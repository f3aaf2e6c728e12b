"""What bounds a step, from what ranks recorded by themselves: no replay, so that one rank of many is enough."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wirewise.sim.diagnose import seconds_words
from wirewise.sim.usage import RankUse

__all__ = ["HELPS", "Verdict", "verdict_of"]

HELPS = {
    "host": "CUDA graphs, torch.compile, a larger batch, or fewer synchronisations such as .item()",
    "network": "more overlap with compute, fewer bytes, faster links, or a look at the ranks that come late",
    "compute": "faster or fused kernels, lower precision, or a faster device",
    "copies": "pinned memory with non_blocking copies, or data that stays on the device",
    "launch": "fewer and larger kernels: torch.compile, fused optimizers, a larger batch",
    "dependency": "a look at what these kernels wait for: events of other streams, other ranks, memory of the host",
    "unknown": "a recording of whole steps in which the time is spent, with the activities of host and device",
}
"""What shortens a step, by what bounds it."""

_BUSY = ("compute", "network", "copies")
_IDLE = ("host", "launch", "dependency", "unknown")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What fills most of the mean rank's step."""

    bound: str
    """A key of HELPS."""
    share: float
    """Share of the step that the bound fills."""
    sentence: str


def verdict_of(uses: Sequence[RankUse]) -> Verdict:
    """Name what fills most of a step.

    Args:
        uses: Uses of at least one rank.
    """
    rows = [_parts(use) for use in uses]
    parts = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    busy = max(_BUSY, key=parts.__getitem__)
    # Idleness has several causes, which are one thing beside what the device does.
    idle = max(_IDLE, key=parts.__getitem__)
    bound = busy if parts[busy] >= sum(parts[name] for name in _IDLE) else idle
    return Verdict(bound=bound, share=parts[bound], sentence=_sentence(bound, parts[bound], uses))


def _parts(use: RankUse) -> dict[str, float]:
    """Shares of a rank's step."""
    whole = max(use.step_s, use.wall_s)
    if whole <= 0:
        return dict.fromkeys(HELPS, 0.0)
    if use.lane == "host":
        parts = {"compute": use.compute_s, "network": use.exposed_communication_s, "unknown": use.idle_s}
        return {name: parts.get(name, 0.0) / whole for name in HELPS}
    # Before the first kernel and behind the last one the device waits for the host, too.
    late = use.host_wait_s + whole - use.wall_s
    unknown = min(use.unrecorded_s, late + use.other_idle_s)
    parts = {
        "host": max(late - unknown, 0.0),
        "network": use.exposed_communication_s,
        "compute": use.compute_s,
        "copies": use.copy_s,
        "launch": use.kernel_wait_s,
        "dependency": use.other_idle_s - max(unknown - late, 0.0),
        "unknown": unknown,
    }
    return {name: parts[name] / whole for name in HELPS}


def _sentence(bound: str, share: float, uses: Sequence[RankUse]) -> str:
    count = len(uses)
    idle = sum(use.idle_share for use in uses) / count
    step = seconds_words(sum(max(use.step_s, use.wall_s) for use in uses) / count)
    filled = f"{100 * share:.0f} % of {step}"
    device = all(use.lane == "device" for use in uses)
    said = {
        "host": f"The host bounds the step: kernels are launched too late in {filled}",
        "network": f"Communication bounds the step: nothing runs beside it in {filled}",
        "compute": f"Compute bounds the step: it fills {filled}",
        "copies": f"Copies bound the step: nothing else runs in {filled}",
        "launch": f"The start of kernels bounds the step: gaps between them fill {filled}",
        "dependency": f"Dependencies bound the step: nothing runs before kernels launched in time in {filled}",
        "unknown": f"Nothing recorded fills {filled}",
    }[bound]
    busy = f", and the device is idle {100 * idle:.0f} % of its time" if device else ""
    return f"{said}{busy}. What helps: {HELPS[bound]}."
