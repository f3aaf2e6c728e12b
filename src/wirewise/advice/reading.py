"""Advice from a recorded run alone: a run folder, or one or more torch.profiler files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from wirewise.advice.curves import step_curves
from wirewise.advice.families import ReplayedJob, find_candidates_by_accounting, find_candidates_by_replay
from wirewise.advice.families.accounted import shares
from wirewise.advice.ranking import advice_of
from wirewise.advice.records import Advice
from wirewise.cost.gradients import GradientCosts
from wirewise.cost.links import Links
from wirewise.sim.analysis import analyse
from wirewise.sim.arrivals import late_ranks
from wirewise.sim.bounds import verdict_of
from wirewise.sim.diagnose import Diagnosis
from wirewise.sim.held_out import held_out_error
from wirewise.sim.traces import record
from wirewise.sim.usage import RankUse, collectives_of, exposed_by_group, rank_uses
from wirewise.topology import Topology
from wirewise.trace.files import ignore_progress
from wirewise.trace.records import Trace
from wirewise.trace.sources import on_one_clock, open_trace
from wirewise.trace.thinning import thin_steps

__all__ = ["advise"]

_BOUNDS = {"copies": "data", "launch": "host", "dependency": "unknown"}
"""Bounds of a step on a device, in the words of `records.BOUNDS`, where these differ."""


def advise(
    run: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Trace,
    topology: Topology | Links | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    costs: GradientCosts | None = None,
    step_s: float | None = None,
    log: Callable[[str], None] = ignore_progress,
) -> Advice:
    """Find the bottleneck of a recorded job, and predict the effect of changes of every family.

    Args:
        run: Run folder, one or more torch.profiler files, or an open trace.
        topology: Another cluster for which to predict the job too. Defaults to none.
        folder: Folder for plans. Defaults to none, so that plans are not saved.
        costs: Measured codec times. Defaults to none, so that codecs are not predicted.
        step_s: Step time without recording overhead, in seconds. Defaults to the recorded step time.
        log: Called with progress messages.

    Raises:
        TraceError: Raised by `trace.open_trace`.
        InputError: Raised by `sim.analysis.analyse`.
    """
    trace = run if isinstance(run, Trace) else open_trace(_sources(run), partial=True, log=log)
    if trace.partial or any(op.stream for rank in trace.ranks for op in rank.ops):
        return _from_devices(trace)
    if not trace.aligned:
        log("aligning clocks")
        trace = thin_steps(on_one_clock(trace))
    links = Links.of(topology) if isinstance(topology, Topology) else topology
    return _from_replay(trace, links, None if folder is None else Path(folder), costs, step_s, log)


def _sources(
    run: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> list[str | os.PathLike[str]]:
    return [run] if isinstance(run, str | os.PathLike) else list(run)


def _from_replay(
    trace: Trace,
    links: Links | None,
    folder: Path | None,
    costs: GradientCosts | None,
    step_s: float | None,
    log: Callable[[str], None],
) -> Advice:
    recording = record(trace)
    analysis = analyse(trace, log=log, recording=recording)
    report = analysis.report
    job = ReplayedJob(trace, recording, analysis, folder, links, costs, step_s or report.measured_step_s)
    log("replaying candidates")
    answers = find_candidates_by_replay(job)
    candidates = [one for answer in answers.values() if not isinstance(answer, str) for one in answer]
    return advice_of(
        answers,
        step_s=job.step_s,
        bound_by=_bound(analysis.diagnosis),
        bound_reason=analysis.diagnosis.sentence,
        ranks=trace.world_size,
        steps=report.steps,
        prediction_error=report.error,
        held_out_error=held_out_error(trace),
        parts_s=_parts_s(job),
        curves=step_curves(job, candidates),
        notes=tuple(trace.notes),
    )


def _parts_s(job: ReplayedJob) -> dict[str, float]:
    """Where the time of the mean rank goes; waiting for data stands apart from what the breakdown calls compute."""
    parts = job.analysis.report.breakdown
    loading_s = min(job.loading_s, parts.compute_s)
    return {
        "compute": parts.compute_s - loading_s,
        **({"loading": loading_s} if loading_s else {}),
        "exposed communication": parts.exposed_communication_s,
        "waiting": parts.wait_s,
    }


def _bound(diagnosis: Diagnosis) -> str:
    """Waiting that no change of the network removes is that for uneven ranks, where there are such."""
    if diagnosis.bound == "wait":
        return "imbalance" if diagnosis.uneven else "network"
    return diagnosis.bound


def _from_devices(trace: Trace) -> Advice:
    uses = rank_uses(trace)
    verdict = verdict_of(uses, late_ranks(trace.ranks, collectives_of(trace)))
    step_s = float(np.mean([max(use.step_s, use.wall_s) for use in uses]))
    return advice_of(
        find_candidates_by_accounting(uses, step_s),
        step_s=step_s,
        bound_by=_BOUNDS.get(verdict.bound, verdict.bound),
        bound_reason=verdict.sentence,
        ranks=_world_size(trace),
        steps=max(use.steps for use in uses),
        parts_s={name: share * step_s for name, share in shares(uses).items() if share > 0},
        notes=(*_partial(trace), *_groups(trace, uses), *trace.notes),
    )


def _world_size(trace: Trace) -> int:
    return max(trace.world_size, *(rank.header.world_size for rank in trace.ranks))


def _partial(trace: Trace) -> list[str]:
    return [f"{trace.partial}; the advice is on the others"] if trace.partial else []


def _groups(trace: Trace, uses: list[RankUse]) -> list[str]:
    """Exposed communication of each process group, on the rank that has most of it."""
    place = int(np.argmax([use.exposed_communication_s for use in uses]))
    found = exposed_by_group(trace.ranks[place])
    rank = trace.ranks[place].header.rank
    rows = sorted(found.items(), key=lambda row: -row[1])
    return [
        f"exposed communication of group {name or 'unnamed'!r} on rank {rank}: {1e3 * value:.3g} ms of a step"
        for name, value in rows
        if value > 0
    ]
