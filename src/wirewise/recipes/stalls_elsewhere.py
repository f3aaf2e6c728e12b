"""A job's measured stalls as a workload that can be put on other machines."""

from __future__ import annotations

from wirewise.cost.instances import Workload
from wirewise.errors import InputError
from wirewise.profile.stalls.report import StallReport

__all__ = ["workload"]


def workload(stalls: StallReport, samples: float, s_per_reduction: float = 0.0) -> Workload:
    """What `cost.instances.choose` needs of a measured job.

    Communication that was hidden behind computing is what a ring over the measured link would take longer
    than the stall that was seen; it stays hidden elsewhere.

    Args:
        stalls: Measured; over links of a known rate where machines with several hosts are to be judged.
        samples: Samples that the whole job trains on.
        s_per_reduction: Of `cost.instances.MacroModel`, where it was fitted.

    Raises:
        InputError: The batch is not known.
    """
    batch = stalls.facts.get("batch")
    if not batch or not samples > 0:
        raise InputError(f"got a batch of {batch} and {samples} samples; expected both above 0")
    ranks, size = stalls.ranks, float(stalls.facts.get("gradient_bytes", 0))
    reductions = float(stalls.facts.get("reductions") or 1)
    plain = Workload(
        samples=samples,
        batch=batch,
        compute_s=stalls.compute_s.mean_s,
        data_s=max(0.0, stalls.prep_s.mean_s) + max(0.0, stalls.fetch_s.mean_s),
        interconnect_s=max(0.0, stalls.interconnect_s.mean_s),
        gradient_bytes=size,
        reductions=reductions,
        s_per_reduction=s_per_reduction,
    )
    if stalls.link_bytes_per_s is None or ranks < 2:
        return plain
    ring = plain.ring_s(stalls.link_bytes_per_s, ranks)
    seen = stalls.interconnect_s.mean_s + stalls.network_s.mean_s
    return plain.hiding(max(0.0, ring - max(0.0, seen)))
