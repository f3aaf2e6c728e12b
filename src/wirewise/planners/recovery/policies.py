"""Other recovery policies, priced by the same formula as plans: the baselines."""

from __future__ import annotations

import math

from wirewise.planners.recovery.interval import best_interval
from wirewise.planners.recovery.problem import RecoveryProblem
from wirewise.plans.recovery import PricedPolicy
from wirewise.sim.recovery import Loss, checkpoint_s, copy_s, efficiency, persist_s, regroup_s, sources_of

__all__ = ["priced_policies"]

_CHECKFREQ_OVERHEAD = 0.035
"""Overhead that CheckFreq keeps to (J. Mohan, A. Phanishayee, V. Chidambaram, FAST 2021)."""


def priced_policies(problem: RecoveryProblem, spares: int, most_interval: int) -> tuple[PricedPolicy, ...]:
    """Goodput of policies in which all ranks roll back to a copy of the state.

    checkpoint: a launcher restarts all processes from the last checkpoint, which blocks training while it is written.
    checkfreq: the same from asynchronous snapshots, as often as an overhead of 3.5 % allows. elastic-commit:
    survivors keep commits in memory and wait for a new process, as with Elastic Horovod; only where each stage has a
    replica elsewhere. gemini: each step's state is copied to the memory of another host, from which a spare loads it.

    Args:
        problem: Job, links, and failure rate.
        spares: Number of warm standby processes, for the policy that uses them.
        most_interval: Maximum number of steps between two copies.
    """
    trace, links = problem.trace, problem.links
    state = max(stage.state_bytes for stage in trace.stages)
    snapshot_s, durable_s = checkpoint_s(trace), persist_s(trace)
    load_s = state / trace.load_bytes_per_s
    restart_s = trace.detect_s + trace.restart_s + load_s
    often = max(durable_s, snapshot_s / _CHECKFREQ_OVERHEAD) / trace.step_s
    found = [
        _priced(problem, "checkpoint", restart_s, durable_s, most_interval),
        # What happens until a snapshot is durable is lost with the one before.
        _priced(
            problem,
            "checkfreq",
            restart_s + durable_s,
            snapshot_s,
            most_interval,
            interval=max(math.ceil(often), 1),
        ),
    ]
    if all(sources_of(stage.ranks, rank, links) for stage in trace.stages for rank in stage.ranks):
        copied_s = max(copy_s(trace, links, number) for number in range(len(trace.stages)))
        waits_s = trace.detect_s + trace.regroup_s + trace.spawn_s + copied_s + trace.resume_s
        found.append(_priced(problem, "elastic-commit", waits_s, snapshot_s, most_interval))
    if links.hosts > 1:
        rate = links.interface_bytes_per_s
        moved = max(
            sum(one.size_bytes for one in trace.messages if one.source == number)
            + stage.gradient_bytes * 2 * (1 - 1 / len(stage.ranks))
            for number, stage in enumerate(trace.stages)
        )
        beyond_s = max((state + moved) / rate - trace.step_s, 0.0)
        waits_s = regroup_s(trace, spares, problem.mtbf_s)
        takes_s = trace.detect_s + trace.fence_s + waits_s + state / rate + trace.resume_s
        # The copy of the step before is the last whole one.
        found.append(
            _priced(problem, "gemini", takes_s + trace.step_s, 0.0, 1, interval=1, overhead_s=beyond_s)
        )
    return tuple(found)


def _priced(
    problem: RecoveryProblem,
    name: str,
    fixed_s: float,
    stands_s: float,
    most_interval: int,
    *,
    interval: int = 0,
    overhead_s: float = 0.0,
) -> PricedPolicy:
    """A policy whose failures take a fixed time and all steps since the last copy.

    Args:
        problem: Job, links, and how often it fails.
        name: Name of the policy.
        fixed_s: Seconds of a failure beside the steps.
        stands_s: Seconds for which a copy stops training.
        most_interval: Largest number of steps between two copies.
        interval: Steps between two copies; 0: the best.
        overhead_s: Seconds that the policy adds to a step.
    """
    step_s = problem.trace.step_s
    losses = [Loss(1.0, fixed_s, step_s + overhead_s)]

    def at(steps: int) -> tuple[float, float, float]:
        return efficiency(
            step_s,
            losses,
            problem.mtbf_s,
            interval_steps=steps,
            checkpoint_s=stands_s,
            overhead_s=overhead_s,
        )

    steps = interval or best_interval(lambda one: at(one)[0], 1, most_interval)
    goodput, overhead, lost_s = at(steps)
    return PricedPolicy(
        name=name, interval_steps=steps, overhead=overhead, lost_s=min(lost_s, 1e300), goodput=goodput
    )
