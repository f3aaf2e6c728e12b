"""Cost of failures: phases of a recovery, and the goodput of a job with random failures.

Failures are a Poisson process with mean time `mtbf_s` between failures. Each occurs uniformly between two
checkpoints, and one during a recovery restarts it. If all ranks roll back to a checkpoint, this is J. T. Daly: A
higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from wirewise.cost.links import Links
from wirewise.errors import PlanError
from wirewise.plans.recovery import LogTier, MessageLog, RecoveryPhases, RecoveryPlan
from wirewise.trace.recovery import RecoveryTrace

__all__ = [
    "Efficiency",
    "Loss",
    "RecoveryFigures",
    "checkpoint_s",
    "copy_s",
    "efficiency",
    "group_recompute_s",
    "log_overhead_s",
    "losses_of",
    "persist_s",
    "recovery_figures",
    "recovery_phases",
    "regroup_s",
    "sources_of",
]

_LARGEST = 700.0
"""Largest exponent of which floats hold the power."""


class Loss(NamedTuple):
    """Kind of failure, and the time that each costs."""

    share: float
    """Probability that a failure is of the kind."""
    fixed_s: float
    """Seconds independent of the time of the failure."""
    step_s: float
    """Seconds for each step since the last checkpoint."""


class Efficiency(NamedTuple):
    """Use of time under random failures."""

    goodput: float
    """Fraction of the time in which steps are computed for the first time."""
    overhead: float
    """Failure-free overhead, as a fraction of step time."""
    lost_s: float
    """Mean cost of a failure, in seconds, including further failures during its recovery."""


def efficiency(
    step_s: float,
    losses: Iterable[Loss],
    mtbf_s: float,
    *,
    interval_steps: int,
    checkpoint_s: float,
    overhead_s: float = 0.0,
) -> Efficiency:
    """Compute goodput, averaged over the failure's position between two checkpoints.

    Args:
        step_s: Step time without protection, in seconds.
        losses: Kinds of failures, with fractions that add up to 1.
        mtbf_s: Mean time between failures, in seconds.
        interval_steps: Number of steps between checkpoints.
        checkpoint_s: Time for which a checkpoint blocks training, in seconds.
        overhead_s: Protection overhead per step, in seconds.
    """
    whole_s = step_s + overhead_s
    segment_s = interval_steps * whole_s + checkpoint_s
    in_steps = interval_steps * whole_s / segment_s
    # Mean of exp(rate x lost seconds), minus 1, is the time lost to a failure in units of the time between two.
    extra = 0.0
    for share, fixed_s, lost_step_s in losses:
        if share > 0:
            amid = _power(fixed_s / mtbf_s) * _mean_power(whole_s / mtbf_s)
            found = in_steps * amid * _mean_of_powers(lost_step_s / mtbf_s, interval_steps)
            if checkpoint_s > 0:
                back = _power((fixed_s + interval_steps * lost_step_s) / mtbf_s)
                found += (1.0 - in_steps) * back * _mean_power(checkpoint_s / mtbf_s)
            extra += share * (found - 1.0)
    return Efficiency(
        interval_steps * step_s / segment_s / (1.0 + extra),
        segment_s / (interval_steps * step_s) - 1.0,
        mtbf_s * extra,
    )


def _power(exponent: float) -> float:
    return math.exp(exponent) if exponent < _LARGEST else math.inf


def _mean_power(top: float) -> float:
    """Mean of the powers of e over exponents from 0 to `top`."""
    if top >= _LARGEST:
        return math.inf
    return math.expm1(top) / top if top > 0 else 1.0


def _mean_of_powers(exponent: float, count: int) -> float:
    """Mean of the powers of e of 0, 1, ... `count` - 1 times the exponent."""
    if exponent * count >= _LARGEST:
        return math.inf
    return math.expm1(exponent * count) / (count * math.expm1(exponent)) if exponent > 0 else 1.0


class RecoveryFigures(NamedTuple):
    """Figures of a plan's protection and recoveries."""

    phases: tuple[RecoveryPhases, ...]
    """Recovery of each stage from a failure halfway between two checkpoints, [stages]."""
    mean: RecoveryPhases
    """The mean over failures."""
    efficiency: Efficiency
    checkpoint_s: float
    """Seconds for which a checkpoint blocks training."""
    overhead_s: float
    """Overhead of logs and consistency per step, in seconds."""


def recovery_figures(
    plan: RecoveryPlan, trace: RecoveryTrace, links: Links, mtbf_s: float | None = None
) -> RecoveryFigures:
    """Predict the plan's recovery times, and its goodput.

    Args:
        plan: Plan of the trace's stages.
        trace: Figures of the job.
        links: Links between its ranks.
        mtbf_s: Mean time between failures, in seconds. Defaults to the plan's.

    Raises:
        PlanError: The job does not say how long the plan's consistency method takes.
    """
    mtbf_s = plan.mtbf_s if mtbf_s is None else mtbf_s
    overhead_s, shares = _overhead_s(plan, trace), trace.failure_shares
    half = (plan.interval_steps - 1) / 2 + _undurable(trace)
    phases = tuple(
        recovery_phases(plan, trace, links, number, half, mtbf_s) for number in range(len(plan.stages))
    )
    mean = RecoveryPhases(
        **{
            name: sum(share * getattr(one, name) for share, one in zip(shares, phases, strict=True))
            for name in RecoveryPhases.__struct_fields__
        }
    )
    found = efficiency(
        trace.step_s,
        losses_of(plan, trace, links, mtbf_s),
        mtbf_s,
        interval_steps=plan.interval_steps,
        checkpoint_s=checkpoint_s(trace),
        overhead_s=overhead_s,
    )
    return RecoveryFigures(phases, mean, found, checkpoint_s(trace), overhead_s)


def recovery_phases(
    plan: RecoveryPlan,
    trace: RecoveryTrace,
    links: Links,
    number: int,
    lost_steps: float,
    mtbf_s: float | None = None,
) -> RecoveryPhases:
    """Predict the phases of a recovery from a failure in the middle of a step, in seconds.

    Args:
        plan: Plan of the trace's stages.
        trace: Figures of the job.
        links: Links between its ranks.
        number: Index of the lost stage.
        lost_steps: Steps since the checkpoint from which the recovery starts.
        mtbf_s: Mean time between failures, in seconds. Defaults to the plan's.
    """
    mtbf_s = plan.mtbf_s if mtbf_s is None else mtbf_s
    own = _losses(plan, trace, links, mtbf_s)[number]
    begun_s = sum(one.share * (one.fixed_s - _undurable(trace) * one.step_s) for one in own)
    return RecoveryPhases(
        detect_s=_detect_s(plan, trace),
        fence_s=trace.fence_s,
        regroup_s=regroup_s(trace, plan.spares, mtbf_s),
        restore_s=begun_s - _begin_s(plan, trace, mtbf_s),
        recompute_s=lost_steps * sum(one.share * one.step_s for one in own)
        + (trace.step_s + _overhead_s(plan, trace)) / 2,
        resume_s=trace.resume_s,
    )


def losses_of(plan: RecoveryPlan, trace: RecoveryTrace, links: Links, mtbf_s: float) -> list[Loss]:
    """Kinds of failures under a plan, for any interval; those of equal cost are merged.

    Args:
        plan: Plan of the trace's stages.
        trace: Figures of the job.
        links: Links between its ranks.
        mtbf_s: Mean time between failures, in seconds.
    """
    found: dict[tuple[float, float], float] = {}
    for share, own in zip(trace.failure_shares, _losses(plan, trace, links, mtbf_s), strict=True):
        for one in own:
            key = (one.fixed_s, one.step_s)
            found[key] = found.get(key, 0.0) + share * one.share
    return [Loss(share, *key) for key, share in found.items()]


def _losses(plan: RecoveryPlan, trace: RecoveryTrace, links: Links, mtbf_s: float) -> list[list[Loss]]:
    """Kinds of failures of each stage, their shares adding up to 1."""
    begin_s, step_s = _begin_s(plan, trace, mtbf_s), trace.step_s + _overhead_s(plan, trace)
    # All ranks read their states beside each other.
    back_s = begin_s + _largest_state(trace) / trace.load_bytes_per_s + _undurable(trace) * step_s
    by_group = [_group_loss(plan, trace, links, group, begin_s) for group in plan.groups]
    found = []
    for number, stage in enumerate(plan.stages):
        if stage.strategy == "replica":
            copied_s = begin_s + copy_s(trace, links, number)
            # All other replicas may die before one has been copied; then only the checkpoint is left.
            rate = copied_s / (mtbf_s * trace.world_size)
            gone = math.prod(-math.expm1(-k * rate) for k in range(1, len(stage.ranks)))
            found.append([Loss(1.0 - gone, copied_s, 0.0), Loss(gone, back_s, step_s)])
        elif stage.strategy == "log":
            found.append([by_group[stage.group]])
        else:
            found.append([Loss(1.0, back_s, step_s)])
    return found


def _group_loss(
    plan: RecoveryPlan, trace: RecoveryTrace, links: Links, group: Collection[int], begin_s: float
) -> Loss:
    load_s = max(trace.stages[number].state_bytes for number in group) / trace.load_bytes_per_s
    exact = plan.parallel_mode == "exact"
    replay_s = group_recompute_s(trace, links, group, plan.tier_of(group), helpers=plan.helpers, exact=exact)
    return Loss(1.0, begin_s + load_s + _undurable(trace) * replay_s, replay_s)


def _undurable(trace: RecoveryTrace) -> float:
    """Steps for which a new checkpoint is not durable yet, so that recoveries begin with the one before."""
    return persist_s(trace) / trace.step_s


def _begin_s(plan: RecoveryPlan, trace: RecoveryTrace, mtbf_s: float) -> float:
    """Seconds of a recovery in which no state is restored."""
    return _detect_s(plan, trace) + trace.fence_s + regroup_s(trace, plan.spares, mtbf_s) + trace.resume_s


def _overhead_s(plan: RecoveryPlan, trace: RecoveryTrace) -> float:
    return log_overhead_s(trace, plan.logs) + _consistency_s(plan, trace)


def group_recompute_s(
    trace: RecoveryTrace,
    links: Links,
    group: Collection[int],
    tier: LogTier,
    *,
    helpers: int = 0,
    exact: bool = True,
) -> float:
    """Time in which a group of stages recomputes a lost step, pipelined over microbatches, in seconds.

    With one microbatch this is the published sum of the stages' compute times and the message times between them.

    Args:
        trace: Figures of the job.
        links: Links between its ranks.
        group: Indices of its stages.
        tier: Storage tier of the logs that it reads.
        helpers: Number of survivors that recompute microbatches of it.
        exact: Whether gradients of helpers are summed in the order of microbatches.
    """
    rate = trace.memory_log_bytes_per_s if tier == "memory" else trace.disk_log_bytes_per_s
    # Seconds that each stage of the group is busy, and each link between two of them.
    busy = {number: trace.stages[number].compute_s for number in group}
    wires: dict[tuple[int, int], float] = {}
    for one in trace.messages:
        if one.target in group:
            seconds = one.size_bytes * _s_per_byte(trace, links, one.source, one.target)
            if one.source in group:
                wires[one.source, one.target] = seconds
            else:
                busy[one.target] += max(seconds, one.size_bytes / rate)
    longest, whole = (of([*busy.values(), *wires.values()]) for of in (max, sum))
    updates = max(trace.stages[number].optimizer_s for number in group)
    count = trace.microbatches
    workers = min(helpers + 1, count)
    most = math.ceil(count / workers)
    # The first microbatch goes through all of them, the others follow at the pace of the slowest.
    found = (longest if trace.concurrent else whole) / count + (most - 1) * longest / count + updates
    if workers == 1:
        return found
    gradients = sum(trace.stages[number].gradient_bytes for number in group)
    # In order, helpers' gradients of every microbatch go to the one that folds; else they are summed in a ring.
    moved = (count - most) * gradients if exact else 2.0 * (workers - 1) / workers * gradients
    return found + moved / _least_rate(links)


def copy_s(trace: RecoveryTrace, links: Links, number: int) -> float:
    """Time to copy a stage's state to a replacement in stripes from `sources_of`, averaged over its ranks, in seconds.

    Args:
        trace: Figures of the job.
        links: Links between its ranks.
        number: Index of the stage.
    """
    stage, seconds = trace.stages[number], []
    for rank in stage.ranks:
        sources = sources_of(stage.ranks, rank, links)
        if not sources or not stage.state_bytes:
            continue
        share = stage.state_bytes / len(sources)
        slowest = max(links.pair(source, rank).seconds(share) for source in sources)
        into = links.bandwidth_in_bytes_per_s[links.host_of_rank[rank]]
        seconds.append(max(slowest, stage.state_bytes / float(into)))
    return sum(seconds) / len(seconds) if seconds else 0.0


def sources_of(ranks: Sequence[int], lost: int, links: Links) -> list[int]:
    """Ranks among these that survive a lost one: those on other hosts, or on a single host all others."""
    hosts = links.host_of_rank
    alone = bool((hosts == hosts[lost]).all())
    return [rank for rank in ranks if rank != lost and (alone or hosts[rank] != hosts[lost])]


def checkpoint_s(trace: RecoveryTrace) -> float:
    """Seconds for which a checkpoint blocks training: as measured, else to copy the largest state in memory."""
    return trace.checkpoint_s or _largest_state(trace) / trace.memory_log_bytes_per_s


def persist_s(trace: RecoveryTrace) -> float:
    """Time of the asynchronous write until a checkpoint is durable, in seconds."""
    return _largest_state(trace) / trace.checkpoint_bytes_per_s


def _largest_state(trace: RecoveryTrace) -> float:
    return max(stage.state_bytes for stage in trace.stages)


def log_overhead_s(trace: RecoveryTrace, logs: Iterable[MessageLog]) -> float:
    """Logging overhead per step, in seconds: time beyond the idle time of the stage that logs most.

    Args:
        trace: Figures of the job.
        logs: Messages in the logs.
    """
    rates = {"memory": trace.memory_log_bytes_per_s, "disk": trace.disk_log_bytes_per_s}
    written = [0.0] * len(trace.stages)
    for log in logs:
        written[log.source] += log.bytes_per_step / rates[log.tier]
    idle = (max(trace.step_s - one.compute_s - one.optimizer_s, 0.0) for one in trace.stages)
    return max(max(took - free, 0.0) for took, free in zip(written, idle, strict=True))


def _consistency_s(plan: RecoveryPlan, trace: RecoveryTrace) -> float:
    if plan.consistency in trace.consistency_s:
        return trace.consistency_s[plan.consistency]
    if plan.consistency in ("auto", "roll-forward"):
        return 0.0
    raise PlanError(
        f"consistency is {plan.consistency!r} - at `$.consistency`; the job does not say how long that takes "
        f"(consistency_s has {', '.join(trace.consistency_s) or 'nothing'}); measure it, or choose another"
    )


def _detect_s(plan: RecoveryPlan, trace: RecoveryTrace) -> float:
    silent_s = plan.silence_limit_s + plan.heartbeat_s / 2
    return (1.0 - trace.silent_share) * trace.detect_s + trace.silent_share * silent_s


def regroup_s(trace: RecoveryTrace, spares: int, mtbf_s: float) -> float:
    """Time until the new process group exists, with the wait for a process if no spare is left (Erlang B), in seconds.

    Args:
        trace: Figures of the job.
        spares: Number of warm standby processes, each replaced when used.
        mtbf_s: Mean time between failures, in seconds.
    """
    blocked = 1.0
    for number in range(1, spares + 1):
        load = trace.spawn_s / mtbf_s
        blocked = load * blocked / (number + load * blocked)
    return trace.regroup_s + blocked * trace.spawn_s / (spares + 1)


def _s_per_byte(trace: RecoveryTrace, links: Links, source: int, target: int) -> float:
    pair = trace.stages[source].ranks[0], trace.stages[target].ranks[0]
    return links.pair(*pair).s_per_byte


def _least_rate(links: Links) -> float:
    return float(min(links.interface_bytes_per_s, links.inside_bytes_per_s))
