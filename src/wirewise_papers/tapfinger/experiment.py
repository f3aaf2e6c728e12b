"""TapFinger and other schedulers: simulated on the same queues, and executed with real jobs on clusters of a lab.

Y. Li, T. Zeng, X. Zhang, J. Duan, C. Wu: TapFinger: Task Placement and Fine-Grained Resource Allocation for Edge
Machine Learning, INFOCOM 2023. Composes `planners.jobs` (policies), `sim.jobs` (queues), `runtime.jobs` (execution) and
`trials.lab_jobs` (ranks).
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from wirewise.errors import InputError, LabError, PeerError
from wirewise.files import owns_folder, write_json
from wirewise.hosts.allocation import current_allocation
from wirewise.lab import Lab, Loopback
from wirewise.planners import PLANNERS
from wirewise.planners.jobs import RULES, JobProblem, tune
from wirewise.planners.jobs.online import online_policy
from wirewise.planners.jobs.problem import simulate_rule
from wirewise.plans import JobPlan, save
from wirewise.runtime.jobs import QueueExecutor, step_table
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue
from wirewise.sim.jobs.ends import job_ends
from wirewise.trace.queues import JobKind, JobQueue, write_queue
from wirewise.trials.lab_jobs import JobCommand, LabJobs
from wirewise.trials.slurm_jobs import SlurmJobs, hosts_of_slurm
from wirewise.trials.start import JOB, choose_network
from wirewise_papers.tapfinger.job import REAL_KINDS, TapFingerJob
from wirewise_papers.tapfinger.records import JobsRun, RealQueue, SchedulerRecord
from wirewise_papers.tapfinger.worker import ClusterJob, write_parts

__all__ = ["Speeds", "completions", "real_queue", "run", "run_real"]

_DRAWN = {"even": (EVEN, 3.0), "uneven": (UNEVEN, 6.0)}
"""Clusters and jobs a slot of simulated queues."""
_LAST = 5000
"""Slot at which the learned policy is stopped where it lets jobs wait for ever."""
_TUNED = ("threshold", "tiresias")
_PRELOAD = ("wirewise_papers.tapfinger.warm",)
_MEASURED_S, _MEASURED_STEPS = 1.5, 12
"""Seconds and steps after which an amount is measured, whichever comes later; at most twice as many seconds."""
_LEAST_STEPS = 4
"""Steps that are waited for, however slow they are; the first two do not count."""
_MANY = 1_000_000
_SLURM_SILENCE_S = 900.0
"""Seconds without a step after which a job of Slurm counts as failed: it may wait for its host, and starts cold."""


class Speeds(NamedTuple):
    """Measurements of real jobs before they are scheduled."""

    steps_s: dict[str, dict[tuple[int, int], float]]
    """Seconds of a step by kind, CPUs and accelerators."""
    start_s: float
    stop_s: float


@owns_folder
def run(job: TapFingerJob, folder: Path, log: Callable[[str], None]) -> JobsRun:
    """Compare all schedulers on simulated queues, then run real jobs under one of them.

    Args:
        job: Settings of the run.
        folder: Folder for the real queue, its plan, and folders of the jobs.
        log: Called with progress messages.

    Raises:
        LabError: A lab was requested and cannot be built, or a host did not start.
        PeerError: A real job failed while it was measured.
    """
    if job.real_jobs:
        _settled(job)  # before minutes of simulation
    clusters, rate = _DRAWN[job.queues]
    pairs = [
        (
            JobProblem(draw_queue(clusters, rate, jobs=job.jobs or None, seed=seed + 100), job.kept),
            JobProblem(draw_queue(clusters, rate, jobs=job.jobs or None, seed=seed), job.kept),
        )
        for seed in range(job.seed, job.seed + job.seeds)
    ]
    schedulers = {name: _record(found, pairs) for name, found in completions(pairs).items()}
    ranked = dict(sorted(schedulers.items(), key=lambda item: item[1].mean_jct))
    best = next(iter(ranked))
    log(f"simulated: {best} takes {ranked[best].mean_jct:.2f} slots on average, the least of {len(ranked)}")
    real = run_real(job, folder, [job.planner], log)[0] if job.real_jobs else None
    return JobsRun(
        queues=f"{job.jobs or 64 * len(clusters)} jobs on {len(clusters)} clusters, {rate:g} a slot",
        seeds=job.seeds,
        kept=job.kept,
        schedulers=ranked,
        real=real,
    )


def run_real(
    job: TapFingerJob, folder: Path, planners: Sequence[str], log: Callable[[str], None]
) -> list[RealQueue]:
    """Measure kinds of real jobs, then run the same queue of them under each scheduler.

    Args:
        job: Settings of the run.
        folder: Folder for queues, plans, and folders of the jobs.
        planners: Names of schedulers.
        log: Called with progress messages.

    Raises:
        LabError: A lab was requested and cannot be built, or a host did not start.
        PeerError: A real job failed while it was measured.
    """
    with _clusters(job, log) as (launcher, network, notes):
        bench = _Bench(job, launcher, folder, write_parts(folder / "parts", job.gpus, seed=job.seed), log)
        speeds = measure(bench)
        queue = real_queue(job, speeds)
        return [_run_queue(bench, planner, queue, speeds, notes, network) for planner in planners]


def _settled(job: TapFingerJob) -> tuple[str, list[str], list[str]]:
    """Network of the real jobs, its hosts if it is Slurm's, and what a reader must know of it."""
    own = current_allocation()
    if job.network == "auto" and own is not None:
        raise InputError(
            f"real jobs go through the queue of Slurm, where allocation {own.job} holds {', '.join(own.hosts)}; "
            "say --network slurm, to give them to other hosts, or --network lab"
        )
    if job.network == "slurm":
        # Jobs would wait for what this process holds.
        hosts = [host for host in hosts_of_slurm() if own is None or host not in own.hosts]
        if job.fault or len(hosts) < job.clusters:
            where = "outside of this allocation, " if own else ""
            raise InputError(
                f"Slurm can run jobs on {len(hosts)} hosts, {where}and fault is {job.fault!r}; expected "
                f"{job.clusters} (--clusters), and no fault, whose hosts are those of a lab"
            )
        hosts = hosts[: job.clusters]
        return job.network, hosts, [f"Slurm ran the real jobs on {', '.join(hosts)}."]
    network, notes = choose_network(job.network, slurm=False)
    if job.fault and network != "lab":
        raise LabError(f"got fault {job.fault!r} without a lab, whose hosts it would strike; leave it out")
    return network, [], notes


@contextmanager
def _clusters(
    job: TapFingerJob, log: Callable[[str], None]
) -> Iterator[tuple[LabJobs | SlurmJobs, Lab | None, list[str]]]:
    """Launcher of real jobs, the lab if that is one, and notes for the reader."""
    network, hosts, notes = _settled(job)
    if network == "slurm":
        with SlurmJobs(hosts, {}, log=log) as launcher:
            yield launcher, None, notes
        return
    with (
        Lab(job.clusters, job.link) if network == "lab" else Loopback() as entered,
        LabJobs(entered, job.clusters, {}, processor=job.processor, preload=_PRELOAD) as own,
    ):
        yield own, entered if isinstance(entered, Lab) else None, notes


def completions(pairs: Sequence[tuple[JobProblem, JobProblem]]) -> dict[str, list[NDArray[np.float64]]]:
    """Completion times of the jobs of each queue, in slots, by planner; `tapfinger` is the policy alone.

    Args:
        pairs: Queues to tune amounts of rules on, and queues that are scheduled.
    """
    from wirewise.planners.jobs.policy import run_episodes
    from wirewise.planners.jobs.tapfinger import SHIPPED, read_weights

    trained = {rule: tune([other for other, _ in pairs], rule) for rule in _TUNED}
    found = {
        rule: [
            (simulate_rule(one, rule, known, seed).finish - one.arrays.arrival).astype(float)
            for seed, (_, one) in enumerate(pairs)
        ]
        for rule in RULES
        for known in [trained.get(rule) or pairs[0][1].knowledge()]
    }
    states = run_episodes(read_weights(SHIPPED), [one for _, one in pairs], _LAST)
    found["tapfinger"] = [
        np.where(state.finish < 0, _LAST, state.finish - one.arrays.arrival).astype(float)
        for state, (_, one) in zip(states, pairs, strict=True)
    ]
    return found


def _record(
    found: Sequence[NDArray[np.float64]], pairs: Sequence[tuple[JobProblem, JobProblem]]
) -> SchedulerRecord:
    means = np.array([one.mean() for one in found])
    half = 0.0
    if len(means) > 1:
        half = float(stats.t.ppf(0.975, len(means) - 1) * np.std(means, ddof=1) / math.sqrt(len(means)))
    mean = float(means.mean())
    ends = [float((one + own.arrays.arrival).max()) for one, (_, own) in zip(found, pairs, strict=True)]
    return SchedulerRecord(
        mean_jct=mean,
        ci95=(mean - half, mean + half),
        makespan=statistics.fmean(ends),
        p99=float(np.mean([np.percentile(one, 99) for one in found])),
        quantiles=tuple(np.percentile(np.concatenate(found), range(0, 101, 5)).tolist()),
    )


class _Bench(NamedTuple):
    """Where real jobs run."""

    job: TapFingerJob
    launcher: LabJobs | SlurmJobs
    folder: Path
    parts: Path
    """Folder of the graph's parts."""
    log: Callable[[str], None]

    def command(self, name: str, kind: str, steps: int) -> None:
        """Let a job be started by its name, in the folder of the path that the name is."""
        place, known = self.folder / name, self.job.real_kinds[kind]
        place.mkdir(parents=True, exist_ok=True)
        settings = ClusterJob(
            kind=kind,
            steps=steps,
            accelerator_s=self.job.accelerator_s,
            parts=str(self.parts.resolve()),
            seed=self.job.seed,
        )
        write_json(place / JOB, settings)
        self.launcher.add(place.name, JobCommand(known.target, place.resolve(), known.ranks))


def measure(bench: _Bench) -> Speeds:
    """Measure each kind with some amounts of resources, one at a time on each cluster.

    Raises:
        PeerError: A job failed.
    """
    job, launcher = bench.job, bench.launcher
    amounts = [
        (kind, c, g)
        for kind, known in job.real_kinds.items()
        for g in sorted({n for n in (1, 2, job.gpus) if not known.ranks or n in known.ranks})
        for c in sorted({1, 2, job.cpus})
        if c <= job.cpus
    ]
    found: dict[str, dict[tuple[int, int], float]] = {kind: {} for kind in job.real_kinds}
    starts_s: list[float] = []
    stops_s: list[float] = []
    for first in range(0, len(amounts), job.clusters):
        together = amounts[first : first + job.clusters]
        for cluster, (kind, c, g) in enumerate(together):
            name = f"measure-{kind}-{c}x{g}"
            bench.command(f"measured/{name}", kind, _MANY)
            launcher.start(name, cluster, c, g)
        for (kind, c, g), one in zip(together, _watch(launcher, together), strict=True):
            found[kind][c, g] = one.steps_s[kind][c, g]
            starts_s.append(one.start_s)
            stops_s.append(one.stop_s)
    speeds = Speeds(found, statistics.median(starts_s), statistics.median(stops_s))
    said = ", ".join(f"{kind} {1e3 * min(own.values()):.0f} ms" for kind, own in found.items())
    bench.log(
        f"measured: a step takes {said} at best; a start {speeds.start_s:.2f} s, a stop {speeds.stop_s:.2f} s"
    )
    return speeds


def _watch(launcher: LabJobs | SlurmJobs, together: Sequence[tuple[str, int, int]]) -> list[Speeds]:
    """Watch jobs that were just started until enough steps are measured, and stop them."""
    names = [f"measure-{kind}-{c}x{g}" for kind, c, g in together]
    began_s = time.monotonic()
    times: dict[str, list[float]] = {name: [] for name in names}
    asked: dict[str, float] = {}
    stopped: dict[str, float] = {}
    while len(stopped) < len(names):
        for report in launcher.reports():
            times[report.job] += [line.at_s for line in report.progress if line.event in ("", "begin")]
            if report.state == "failed":
                raise PeerError(f"{report.job} failed: {report.words}")
            if report.state != "running":
                stopped[report.job] = report.at_s
        for name in names:
            own = times[name]
            measured_s = own[-1] - own[0] if own else 0.0
            long_enough = len(own) > _MEASURED_STEPS or measured_s > 2 * _MEASURED_S
            enough = len(own) > _LEAST_STEPS and measured_s > _MEASURED_S and long_enough
            if enough and name not in asked:
                launcher.stop(name)
                asked[name] = time.monotonic()
        time.sleep(0.01)
    return [
        Speeds(
            {kind: {(c, g): statistics.fmean(b - a for a, b in pairwise(times[name][2:]))}},
            times[name][0] - began_s,
            stopped[name] - asked[name],
        )
        for name, (kind, c, g) in zip(names, together, strict=True)
    ]


def real_queue(job: TapFingerJob, speeds: Speeds) -> JobQueue:
    """Queue of real jobs with measured kinds; the start of a job counts as part of its work.

    Args:
        job: Settings of the run.
        speeds: Measured speeds of the kinds.
    """
    kinds = {}
    for kind, (_, ranks) in job.real_kinds.items():
        table = step_table(speeds.steps_s[kind], job.cpus, job.gpus)
        least = min(ranks, default=1)
        steps = _steps(job, speeds, kind)
        progress = job.slot_s / (speeds.start_s + steps * table)
        for g in range(job.gpus + 1):
            # What a kind has no use for is worth as much as the most that it can use.
            used = max([n for n in ranks if n <= g], default=0 if ranks else g)
            progress[:, g] = progress[:, used] if used else 0.0
        progress[0] = 0.0
        kinds[kind] = JobKind(progress=tuple(map(tuple, progress.tolist())), cpus=1, gpus=least)
    return draw_queue(
        [(job.cpus, job.gpus)] * job.clusters,
        job.rate,
        jobs=job.real_jobs,
        kinds=kinds,
        noise=job.spread,
        seed=job.seed,
        slot_s=job.slot_s,
    )


def _steps(job: TapFingerJob, speeds: Speeds, kind: str) -> int:
    """Steps of an ordinary job of a kind."""
    least = min(job.real_kinds[kind].ranks, default=1)
    return max(1, round(job.size_s / speeds.steps_s[kind][1, least]))


def _run_queue(
    bench: _Bench, planner: str, queue: JobQueue, speeds: Speeds, notes: Sequence[str], lab: Lab | None
) -> RealQueue:
    """Predict what a scheduler makes of a queue, then let it schedule the real jobs."""
    job, folder = bench.job, bench.folder
    kept = max(0.0, 1 - (speeds.start_s + speeds.stop_s) / job.slot_s)
    problem = JobProblem(queue, kept)
    plan = PLANNERS["jobs"][planner](problem, seed=job.seed)
    assert isinstance(plan, JobPlan)
    write_queue(queue, folder / f"queue-{planner}.json")
    save(plan, folder / f"plan-{planner}.json")
    ends_s = job_ends(plan, queue)
    arrivals_s = {one.name: one.arrival * queue.slot_s for one in queue.queue}
    predicted_s = statistics.fmean(ends_s[name] - arrivals_s[name] for name in ends_s)
    bench.log(f"{planner}: {predicted_s:.1f} s from a job's arrival to its end, simulated")
    steps = {}
    for one in queue.queue:
        steps[one.name] = max(1, round(_steps(job, speeds, one.kind) / one.pace))
        bench.command(f"{planner}/{one.name}", one.kind, steps[one.name])
    policy, said = online_policy(problem, planner, seed=job.seed)
    silence_s = _SLURM_SILENCE_S if isinstance(bench.launcher, SlurmJobs) else 60.0
    executor = QueueExecutor(queue, steps, policy, bench.launcher, silence_s=silence_s, log=bench.log)
    with _Fault(job, lab):
        executed = executor.run()
    measured_s = executed.mean_completion_s
    bench.log(f"{planner}: {measured_s:.1f} s, measured")
    return RealQueue(
        planner=planner,
        predicted_jct_s=predicted_s,
        measured_jct_s=measured_s,
        error=predicted_s / measured_s - 1,
        predicted_makespan_s=max(ends_s.values()),
        measured_makespan_s=max(one.ended_s for one in executed.jobs),
        slot_s=queue.slot_s,
        clusters=plan.clusters,
        predicted_ends_s=ends_s,
        executed=executed,
        start_s=speeds.start_s,
        stop_s=speeds.stop_s,
        kept=kept,
        step_s={
            kind: {f"{c}x{g}": seconds for (c, g), seconds in own.items()}
            for kind, own in speeds.steps_s.items()
        },
        notes=(
            *notes,
            *_of_own(job),
            f"Processor time of jobs is limited {bench.launcher.limits}.",
            *(f"{one}." for one in said),
        ),
    )


def _of_own(job: TapFingerJob) -> list[str]:
    """Notes on kinds that do not come with wirewise."""
    own = [
        f"{name} ({Path(kind.target).name})"
        for name, kind in job.real_kinds.items()
        if name not in REAL_KINDS
    ]
    return [f"Ranks of {', '.join(own)} compute what they would by themselves."] if own else []


class _Fault:
    """Lets a fault strike a host at its time, within a `with` block."""

    def __init__(self, job: TapFingerJob, lab: Lab | None) -> None:
        self._fault, self._lab = job.host_fault, lab
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._strike, name="wirewise-fault", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _strike(self) -> None:
        fault = self._fault
        if fault is not None and self._lab is not None and not self._ended.wait(fault.at_s):
            fault.inject(self._lab)
