"""What failures cost: seconds of each part of a recovery, and the goodput of a job whose failures come at random.

Failures are a Poisson process of one every `mtbf_s` seconds. Each strikes at an equally likely place between two
checkpoints, and one that strikes during a recovery lets it begin anew. Where all ranks go back to a checkpoint, this is
J. T. Daly: A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006, exactly.
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
    """A kind of failures, and what each of them takes."""

    share: float
    """Probability that a failure is of the kind."""
    fixed_s: float
    """Seconds whenever it strikes."""
    step_s: float
    """Seconds for each step since the last checkpoint."""


class Efficiency(NamedTuple):
    """How time goes by where steps fail at random."""

    goodput: float
    """Share of the time in which steps are computed for the first time."""
    overhead: float
    """What protection adds while nothing fails, as a share of the steps' time."""
    lost_s: float
    """Seconds that a failure costs with all that strike during its recovery, the mean."""


def efficiency(
    step_s: float,
    losses: Iterable[Loss],
    mtbf_s: float,
    *,
    interval_steps: int,
    checkpoint_s: float,
    overhead_s: float = 0.0,
) -> Efficiency:
    """The mean over all places between two checkpoints at which a failure may strike.

    Args:
        step_s: Seconds of a step without protection.
        losses: Kinds of failures, whose shares add up to 1.
        mtbf_s: Seconds between failures, the mean.
        interval_steps: Steps between checkpoints.
        checkpoint_s: Seconds for which a checkpoint stops training.
        overhead_s: Seconds that protection adds to a step.
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
    """What a plan's protection and recoveries take."""

    phases: tuple[RecoveryPhases, ...]
    """Recovery of each stage from a failure halfway between two checkpoints, [stages]."""
    mean: RecoveryPhases
    """The mean over failures."""
    efficiency: Efficiency
    checkpoint_s: float
    """Seconds for which a checkpoint stops training."""
    overhead_s: float
    """Seconds that logs and consistency add to a step."""


def recovery_figures(
    plan: RecoveryPlan, trace: RecoveryTrace, links: Links, mtbf_s: float | None = None
) -> RecoveryFigures:
    """Seconds of the plan's recoveries, and its goodput.

    Args:
        plan: Plan of the trace's stages.
        trace: Figures of the job.
        links: Links between its ranks.
        mtbf_s: Seconds between failures, the mean; None: what the plan was made for.

    Raises:
        PlanError: A way to consistency whose seconds were not measured.
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
    """Seconds of a recovery from a failure in the middle of a step.

    Args:
        plan: Plan of the trace's stages.
        trace: Figures of the job.
        links: Links between its ranks.
        number: Number of the stage that is lost.
        lost_steps: Steps since the checkpoint from which the recovery begins.
        mtbf_s: Seconds between failures, the mean; None: what the plan was made for.
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
    """Kinds of failures under a plan, whatever its interval; those that cost the same count as one.

    Args:
        plan: Plan of the trace's stages.
        trace: Figures of the job.
        links: Links between its ranks.
        mtbf_s: Seconds between failures, the mean.
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
    """Seconds in which a group of stages computes a lost step again, in microbatches that follow each other.

    With one microbatch this is the published sum of what stages compute and of what passes between them.

    Args:
        trace: Figures of the job.
        links: Links between its ranks.
        group: Numbers of its stages.
        tier: Where the logs lie that it reads.
        helpers: Survivors that take microbatches of it.
        exact: Whether gradients of helpers are folded in the order of microbatches.
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
    """Seconds in which a lost replica of a stage gets its state in stripes from `sources_of`, the mean of all.

    Args:
        trace: Figures of the job.
        links: Links between its ranks.
        number: Number of the stage.
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
    """Ranks among these that outlive a lost one: those on other hosts, and on a single host all others."""
    hosts = links.host_of_rank
    alone = bool((hosts == hosts[lost]).all())
    return [rank for rank in ranks if rank != lost and (alone or hosts[rank] != hosts[lost])]


def checkpoint_s(trace: RecoveryTrace) -> float:
    """Seconds for which a checkpoint stops training: as measured, else to copy the largest state in memory."""
    return trace.checkpoint_s or _largest_state(trace) / trace.memory_log_bytes_per_s


def persist_s(trace: RecoveryTrace) -> float:
    """Seconds beside training until a checkpoint is durable."""
    return _largest_state(trace) / trace.checkpoint_bytes_per_s


def _largest_state(trace: RecoveryTrace) -> float:
    return max(stage.state_bytes for stage in trace.stages)


def log_overhead_s(trace: RecoveryTrace, logs: Iterable[MessageLog]) -> float:
    """Seconds that writing logs adds to a step: what the stage with the most of it has no idle time for.

    Args:
        trace: Figures of the job.
        logs: Messages that are logged.
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
    """Seconds until the new group stands; without a warmed spare it waits for a new process (Erlang's loss formula).

    Args:
        trace: Figures of the job.
        spares: Warmed processes that wait, each of which is replaced when it is taken.
        mtbf_s: Seconds between failures, the mean.
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
