"""Candidates for a run that can be replayed: every change is predicted by replaying the steps with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from wirewise.advice.families import gradients, graphs
from wirewise.advice.families.combined import combine
from wirewise.advice.lines import accumulation_lines, loader_lines
from wirewise.advice.ranking import Answers
from wirewise.advice.records import Candidate
from wirewise.cost.gradients import GradientCosts
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.report.figures import count, factor, seconds
from wirewise.sim.analysis import TraceAnalysis
from wirewise.sim.diagnose import BALANCED, DATA_READY, NO_COMMUNICATION, remove_straggler
from wirewise.sim.steps import StepPrediction, replay_changed
from wirewise.sim.stragglers import find_straggler
from wirewise.sim.traces import TraceRecording
from wirewise.sim.whatif import Change, parse
from wirewise.trace.records import Trace

__all__ = ["ReplayedJob", "find_candidates_by_replay"]

Answer = list[Candidate] | str

_UNEQUAL = 1.25
"""Rate of the others over the slowest link's from which it counts as slow: probes of equal ones differ by a tenth."""
_MOST_WORKERS = 8
"""Workers of a loader that are proposed at most: hosts of 8 devices have 8 to 16 cores a rank."""
_MACHINES = "a change of machines, not of the script"


@dataclass(frozen=True)
class ReplayedJob:
    """A recorded run with its replay."""

    trace: Trace
    recording: TraceRecording
    analysis: TraceAnalysis
    folder: Path | None = None
    """Folder for plans. None if none are saved."""
    topology: Links | None = None
    """Links of another cluster. None if none was given."""
    costs: GradientCosts | None = None
    """Measured costs of codecs. None if not measured."""
    step_s: float = 0.0
    """Measured seconds of a step."""
    changes: dict[tuple[str, str], list[Change]] = field(default_factory=dict)
    """Changes of the replayed candidates, by family and name."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.trace.world_size

    @cached_property
    def scale(self) -> float:
        """Measured over replayed step time of the unchanged job."""
        return self.step_s / self.analysis.report.predicted_step_s

    @cached_property
    def loading_s(self) -> float:
        """Seconds of a step in which the mean rank waits for data."""
        loading = [op.end_s - op.start_s for rank in self.trace.ranks for op in rank.ops if op.kind == "data"]
        return float(np.sum(loading)) / self.ranks / max(len(self.recording.steps), 1)

    @property
    def exposed_share(self) -> float:
        """Fraction of the step time that would be saved if communication took no time."""
        report = self.analysis.report
        return 1.0 - self.predict(NO_COMMUNICATION).predicted_step_s / report.predicted_step_s

    def predict(self, change: str | Sequence[Change]) -> StepPrediction:
        """Replay the job with a change.

        Raises:
            InputError: The change does not fit the job.
        """
        for row in self.analysis.what_ifs:
            if row.change == change and row.prediction is not None:
                return row.prediction
        changes = parse(change) if isinstance(change, str) else change
        recording = self.recording
        return replay_changed(recording.steps, recording.links, changes, interference=recording.interference)

    def candidate(self, family: str, planner: str, change: str | Sequence[Change], **rest: Any) -> Candidate:
        """Build the candidate of a change; `rest` as in `Candidate`."""
        found = self.predict(change)
        self.changes[family, planner] = parse(change) if isinstance(change, str) else list(change)
        low, high = found.ci95_s
        interval = (low * self.scale, high * self.scale)
        predicted = found.predicted_step_s * self.scale
        return Candidate(family=family, planner=planner, predicted_step_s=predicted, ci95=interval, **rest)

    def save(self, name: str) -> Path | None:
        """Path for a plan of that name. None if plans are not saved."""
        return None if self.folder is None else self.folder / f"{name}.json"


def find_candidates_by_replay(job: ReplayedJob) -> Answers:
    """Find the candidates of all families by replay."""
    answers = {family: _answer(make, job) for family, make in _FAMILIES.items()}
    if graphs.mode_of(job.trace) and not gradients.has_buckets(job.trace):
        answers |= dict.fromkeys(
            _OF_WRAPPERS, "gradients are summed by pyg.Job, not by DistributedDataParallel"
        )
    return answers | {"combinations": _answer(lambda own: combine(own, answers), job)}


def _answer(make: Callable[[ReplayedJob], Answer], job: ReplayedJob) -> Answer:
    try:
        return make(job)
    except InputError as cause:
        return str(cause)


def _loader(job: ReplayedJob) -> Answer:
    data_s = job.loading_s
    if not data_s:
        return "the trace has no waiting for data of a DataLoader"
    rest_s = max(job.step_s - data_s, 1e-3 * job.step_s)
    workers = min(ceil(data_s / rest_s), _MOST_WORKERS)
    left_s = max(data_s / workers - rest_s, 0.0)
    change = f"scale=data:x{left_s / data_s:.4g}" if left_s else DATA_READY
    note = f"a rank waits {seconds(data_s)} of a step for data; workers load beside the rest of the step"
    planner = f"{count(workers, 'worker')} more"
    more = {"num_workers": workers}
    return [job.candidate("loader", planner, change, lines=loader_lines(workers), note=note, arguments=more)]


def _stragglers(job: ReplayedJob) -> Answer:
    straggler = find_straggler(job.trace)
    if straggler is not None:
        note = f"it computes {straggler.factor:.3g} times as long as the others ({straggler.cause})"
        change = remove_straggler(straggler)
        return [
            job.candidate("stragglers", f"rank {straggler.rank} as fast as the others", change, note=note)
        ]
    if not job.analysis.diagnosis.uneven:
        return "no rank computes clearly longer than the others" if job.ranks > 1 else "there is one rank"
    note = "the slowest rank changes from step to step: batches of like length"
    return [job.candidate("stragglers", "even batches", BALANCED, note=note)]


def _collectives(job: ReplayedJob) -> Answer:
    if not gradients.has_all_reduces(job.trace):
        return "the trace has no all-reduces of several ranks"
    names = ["tree"] + ["hierarchical"] * (1 < job.recording.links.hosts < job.ranks)
    note = f"links: {_equality(job.recording.links)}; a program for them: wirewise plan collective"
    return [job.candidate("collectives", name, f"algorithm={name}", note=note) for name in names]


def _equality(links: Links) -> str:
    slow = _slow_host(links)
    if slow is None:
        return "equal as far as the trace tells"
    return f"host {slow.host} has {1 / slow.factor:.2g} of the rate of the others"


class _SlowHost(NamedTuple):
    """Host whose link is slower than the others'."""

    host: int
    factor: float
    """Median rate of the other hosts over its own."""


def _slow_host(links: Links) -> _SlowHost | None:
    """Host with the slowest link. None if all links are alike, or unknown."""
    rates = np.minimum(links.bandwidth_out_bytes_per_s, links.bandwidth_in_bytes_per_s)
    if len(rates) < 2 or not np.isfinite(rates).all():
        return None
    host = int(np.argmin(rates))
    factor_of_others = float(np.median(np.delete(rates, host)) / rates[host])
    return _SlowHost(host, factor_of_others) if factor_of_others >= _UNEQUAL else None


def _links(job: ReplayedJob) -> Answer:
    if job.recording.links.hosts < 2:
        return "all ranks are on one host, whose transfers cross no link"
    twice = job.candidate("links", "all at 2 times the rate", "bandwidth=*:x2", note=_MACHINES)
    slow = _slow_host(job.recording.links)
    if slow is None:
        return [twice]
    mended = f"bandwidth={slow.host}:x{slow.factor:.4g}"
    note = f"its link has {1 / slow.factor:.2g} of the rate of the others; look at its cable, port and neighbours"
    return [job.candidate("links", f"host {slow.host} as fast as the others", mended, note=note), twice]


def _topology(job: ReplayedJob) -> Answer:
    other = job.topology
    if other is None:
        return "no other cluster was given; name one with --topology FILE"
    if other.hosts < job.recording.links.hosts:
        return f"the other cluster has {other.hosts} hosts, the job {job.recording.links.hosts}"
    change = Change("topology", lambda setting: replace(setting, links=other))
    return [job.candidate("topology", "the given cluster", [change], note=_MACHINES)]


def _ranks(job: ReplayedJob) -> Answer:
    if job.ranks < 2:
        return "a run of one rank exchanges nothing that could be scaled"
    numbers = [2 * job.ranks, *([job.ranks // 2] if job.ranks % 2 == 0 else [])]
    return [_of_ranks(job, ranks) for ranks in numbers]


def _of_ranks(job: ReplayedJob, ranks: int) -> Candidate:
    """Ranks with as many samples as now; so a longer step is machine time that a sample costs more."""
    found = job.candidate(
        "ranks", count(ranks, "rank"), f"ranks={ranks}", risk="the batch of a step changes with them"
    )
    times = ranks / job.ranks
    rate = times * job.step_s / (found.predicted_step_s or job.step_s)
    note = f"{factor(rate)} the samples a second on {factor(times)} the machines"
    return msgspec.structs.replace(found, note=note)


def _accumulation(job: ReplayedJob) -> Answer:
    if not gradients.has_all_reduces(job.trace):
        return "the trace has no all-reduces of gradients that could come less often"
    risk = "the batch of a step grows as well, unless micro-batches are as much smaller"
    return [
        job.candidate("accumulation", f"{times} micro-batches", f"accumulation={times}", work=float(times),
                      lines=accumulation_lines(times), risk=risk, arguments={"accumulation": times})
        for times in (2, 4)
    ]  # fmt: skip


def _kernels(job: ReplayedJob) -> Answer:
    return "host and device are one lane in this trace; a trace of a GPU tells how long the device waits for launches"


def _parallel(job: ReplayedJob) -> Answer:
    return "a trace does not hold the model's operators; capture it: wirewise profile stages, wirewise plan parallel"


def _protection(job: ReplayedJob) -> Answer:
    return "it costs time and saves it only at a rate of failures: wirewise plan recovery"


_OF_WRAPPERS = ("buckets", "bucket-view", "codecs", "collectives", "accumulation", "sharding")
"""Families whose changes are those of a wrapper around the model."""
_FAMILIES: dict[str, Callable[[Any], Answer]] = {
    "loader": _loader,
    "stragglers": _stragglers,
    "buckets": gradients.buckets,
    "bucket-view": gradients.bucket_view,
    "codecs": gradients.codecs,
    "collectives": _collectives,
    "links": _links,
    "topology": _topology,
    "ranks": _ranks,
    "accumulation": _accumulation,
    "kernels": _kernels,
    "sharding": gradients.sharding,
    "parallel": _parallel,
    "graph": graphs.modes,
    "protection": _protection,
}
