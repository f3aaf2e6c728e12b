"""Timeouts after which an agent gives up on a process, a host or the store, as command options."""

from __future__ import annotations

from typing import Annotated

from wirewise import options as opt

__all__ = ["AgentLimits"]


class AgentLimits(opt.Options, frozen=True, kw_only=True):
    """Timeouts of an agent, in seconds; the fields are arguments of `Agent`."""

    start_timeout_s: Annotated[
        opt.Positive,
        opt.about(
            "Seconds that a living process may take before it calls `protect`: to read data, to download a checkpoint.",
            option="--start-timeout",
        ),
    ] = 1800.0
    progress_timeout_s: Annotated[
        float,
        opt.about(
            "Seconds that ranks wait for one that makes no progress, wherever it hangs, before it is killed and "
            "replaced; more than an evaluation, a checkpoint or a compilation of one rank takes. 0: as many as "
            "`protect(ranks=Ranks(timeout_s=...))`.",
            option="--progress-timeout",
            ge=0,
        ),
    ] = 0.0
    silence_s: Annotated[
        opt.Positive,
        opt.about(
            "Heartbeat timeout, in seconds, after which a process is killed and replaced, such as one "
            "that is stopped; ten times as long while it computes.",
            option="--silence",
        ),
    ] = 2.0
    lease_s: Annotated[
        opt.Positive,
        opt.about("Seconds without the store after which a host stops its processes.", option="--lease"),
    ] = 5.0
    wait_s: Annotated[
        opt.Positive,
        opt.about(
            "Seconds that ranks wait for hosts and processes that are missing, and are not starting.",
            option="--wait",
        ),
    ] = 120.0
