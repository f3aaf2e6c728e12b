"""Bottleneck of a step from records of single ranks, without replay, so that one rank of many is enough."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wirewise.sim.arrivals import LateRank
from wirewise.sim.diagnose import seconds_words
from wirewise.sim.usage import RankUse

__all__ = ["HELPS", "Verdict", "shares_of", "verdict_of"]

HELPS = {
    "host": "CUDA graphs, torch.compile, a larger batch, or fewer synchronisations such as .item()",
    "data": "more loader workers, prefetching, or a faster disk",
    "network": "more overlap with compute, fewer bytes, or faster links; files of more ranks tell who comes late",
    "imbalance": "a look at the late ranks: lengths of their data, their clock rate, others on their machine",
    "compute": "faster or fused kernels, lower precision, or a faster device",
    "copies": "pinned memory with non_blocking copies, or data that stays on the device",
    "launch": "fewer and larger kernels: torch.compile, fused optimizers, a larger batch",
    "dependency": "a look at what these kernels wait for: events of other streams, other ranks, memory of the host",
    "unknown": "a recording of whole steps in which the time is spent, with the activities of host and device",
}
"""Remedies that shorten a step, by its bound."""

_BUSY = ("compute", "network", "imbalance", "copies")
_IDLE = ("host", "data", "launch", "dependency", "unknown")
_LATE_SHARE = 0.15
"""Fraction of a step from which waiting for late ranks bounds it, as of bounds that are replayed."""
_LATE_EXPOSED = 0.25
"""Exposed fraction of such waiting from which it counts."""
_MEANWHILE = 0.5
"""Fraction of the time of late launches that an activity of hosts must fill to be named."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Largest part of the mean rank's step."""

    bound: str
    """A key of HELPS."""
    share: float
    """Fraction of the step that the bound fills."""
    sentence: str


def verdict_of(uses: Sequence[RankUse], late: Sequence[LateRank] = ()) -> Verdict:
    """Name what takes most of a step, or the ranks that others wait for.

    Args:
        uses: Device use of at least one rank.
        late: Ranks that others wait for (`arrivals.late_ranks`).
    """
    waiting = max(uses, key=lambda use: use.late_wait_s)
    if late and _is_bound(waiting):
        return Verdict(
            bound="imbalance",
            share=waiting.late_wait_s / _whole(waiting),
            sentence=_late_words(waiting, late),
        )
    rows = [shares_of(use) for use in uses]
    parts = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    busy = max(_BUSY, key=parts.__getitem__)
    # Idleness has several causes, which are one thing beside what the device does.
    idle = max(_IDLE, key=parts.__getitem__)
    bound = busy if parts[busy] >= sum(parts[name] for name in _IDLE) else idle
    return Verdict(bound=bound, share=parts[bound], sentence=_sentence(bound, parts[bound], uses))


def _whole(use: RankUse) -> float:
    return max(use.step_s, use.wall_s)


def _is_bound(use: RankUse) -> bool:
    return (
        use.late_wait_s >= _LATE_SHARE * _whole(use)
        and use.exposed_late_wait_s >= _LATE_EXPOSED * use.late_wait_s
    )


def _late_words(use: RankUse, late: Sequence[LateRank]) -> str:
    """Waiting rank, its seconds, and the ranks that it waits for."""
    named = late[
        : next((n for n in range(1, len(late)) if sum(one.share for one in late[:n]) >= 0.9), len(late))
    ]
    whom = " and ".join(f"rank {one.rank} ({100 * one.share:.0f} %)" for one in named[:4])
    turns = f"in turns for {whom}" if len(named) > 1 else f"for {whom}"
    return (
        f"Imbalance bounds the step: rank {use.rank} waits {seconds_words(use.late_wait_s)} of "
        f"{seconds_words(_whole(use))} in collectives {turns}, {seconds_words(use.exposed_late_wait_s)} of it without "
        f"compute beside it. What helps: {HELPS['imbalance']}."
    )


def shares_of(use: RankUse) -> dict[str, float]:
    """Fractions of a rank's step by the keys of HELPS; communication that overlaps with compute counts as compute."""
    whole = _whole(use)
    if whole <= 0:
        return dict.fromkeys(HELPS, 0.0)
    transfer = use.exposed_communication_s - use.exposed_late_wait_s
    if use.lane == "host":
        parts = {
            "compute": use.compute_s,
            "network": transfer,
            "imbalance": use.exposed_late_wait_s,
            "unknown": use.idle_s,
        }
        return {name: parts.get(name, 0.0) / whole for name in HELPS}
    # Before the first kernel and behind the last one the device waits for the host, too.
    late = use.host_wait_s + whole - use.wall_s
    unknown = min(use.unrecorded_s, late + use.other_idle_s)
    data = min(use.data_wait_s, max(late - unknown, 0.0))
    parts = {
        "host": max(late - unknown - data, 0.0),
        "data": data,
        "network": transfer,
        "imbalance": use.exposed_late_wait_s,
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
    step = seconds_words(sum(map(_whole, uses)) / count)
    filled = f"{100 * share:.0f} % of {step}"
    device = all(use.lane == "device" for use in uses)
    said = {
        "host": f"The host bounds the step: kernels are launched too late in {filled}",
        "data": f"Loading data bounds the step: the device waits for it in {filled}",
        "imbalance": f"Imbalance bounds the step: ranks wait for later ones in {filled}",
        "network": f"Communication bounds the step: nothing runs beside it in {filled}",
        "compute": f"Compute bounds the step: it fills {filled}",
        "copies": f"Copies bound the step: nothing else runs in {filled}",
        "launch": f"The start of kernels bounds the step: gaps between them fill {filled}",
        "dependency": f"Dependencies bound the step: nothing runs before kernels launched in time in {filled}",
        "unknown": f"Nothing recorded fills {filled}",
    }[bound]
    busy = f", and the device is idle {100 * idle:.0f} % of its time" if device else ""
    if bound == "host" and (name := _meanwhile(share, uses)):
        busy += f"; meanwhile the host is most in {name}"
    return f"{said}{busy}. What helps: {HELPS[bound]}."


def _meanwhile(share: float, uses: Sequence[RankUse]) -> str:
    """Activity of hosts while kernels are launched too late; empty if nothing stands out."""
    most = max(uses, key=lambda use: use.host_name_s)
    return most.host_name if most.host_name_s >= _MEANWHILE * share * _whole(most) else ""
