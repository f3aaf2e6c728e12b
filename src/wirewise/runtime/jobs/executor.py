"""Executor of decisions on a job queue, slot by slot: starts, resizes and stops jobs, requeues failed ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wirewise.errors import InputError, PlanError
from wirewise.results import ExecutedJob, ExecutedQueue, ExecutedShare, QueueMoment
from wirewise.runtime.jobs.launcher import JobLauncher, JobReport, JobState
from wirewise.runtime.jobs.speeds import SpeedModel
from wirewise.sim.jobs.engine import (
    ARRIVED,
    RUNNING,
    SLOT,
    WAITING,
    QueueState,
    arrive,
    leave,
    new_state,
    stop,
)
from wirewise.trace.queues import JobQueue, QueueArrays

__all__ = ["Policy", "QueueExecutor"]

Policy = Callable[[QueueArrays, QueueState], None]
"""Function called once per slot with the estimated queue and its state, in which it starts, resizes and stops jobs."""

_LOOK_S = 0.02
_WARM = 2
"""Times of steps before the first that speeds are learnt from."""
_STUCK = 3
"""Slots in which jobs wait and nothing runs, arrives or starts before the policy is blamed."""
_LOG = 64
"""Changes of a job that the state has room to log; later ones are executed all the same."""


@dataclass
class _Job:
    """A job as the executor sees it."""

    name: str
    kind: str
    steps: int
    arrival_s: float
    share: ExecutedShare | None = None
    """Resources that it has now."""
    shares: list[ExecutedShare] = field(default_factory=list)
    done: int = 0
    ended_s: float | None = None
    started_s: float = 0.0
    """When the launcher was last told to start it."""
    heard_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    """Times of steps that nothing was learnt from yet."""
    failures: list[str] = field(default_factory=list)
    words: str = ""


class QueueExecutor:
    """Executor of a queue under a policy, in real time.

    At the start of a slot, finished jobs leave, new ones are queued, progress is read from the ranks' records, and
    the policy decides. Then jobs that lose or change resources are stopped, which saves their state, and once they
    are gone, jobs with new resources start. A failed job is requeued, and resumes from its last saved state.

    Args:
        queue: Jobs, kinds, clusters, and the slot length.
        steps: Number of steps of each job, by name.
        policy: Function that decides in each slot.
        launcher: Launcher of jobs.
        retries: Number of failures after which a job is abandoned.
        stop_s: Seconds that a job has to save its state before its processes are killed.
        silence_s: Seconds without a step after which a job counts as failed.
        log: Called with messages for the user.

    Raises:
        InputError: A job has no number of steps.
    """

    def __init__(
        self,
        queue: JobQueue,
        steps: Mapping[str, int],
        policy: Policy,
        launcher: JobLauncher,
        *,
        retries: int = 2,
        stop_s: float = 30.0,
        silence_s: float = 60.0,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        wrong = [job.name for job in queue.queue if steps.get(job.name, 0) < 1]
        if wrong:
            raise InputError(f"job {wrong[0]!r} has {steps.get(wrong[0], 0)} steps; expected at least one")
        arrays = queue.arrays()
        self._queue = queue
        # Clusters may die, and jobs then no longer run there.
        self._arrays = arrays._replace(room=arrays.room.copy(), reach=arrays.reach.copy())
        self._policy, self._launcher, self._say = policy, launcher, log
        self._retries, self._stop_s, self._silence_s = retries, stop_s, silence_s
        self._state = new_state(self._arrays, _LOG * len(queue.queue))
        self._speeds = SpeedModel(len(queue.kinds))
        self._jobs = [
            _Job(job.name, job.kind, steps[job.name], job.arrival * queue.slot_s) for job in queue.queue
        ]
        self._numbers = {job.name: number for number, job in enumerate(self._jobs)}
        self._moments: list[QueueMoment] = []
        self._starts_s: list[float] = []
        self._stops_s: list[float] = []
        self._notes: list[str] = []
        self._dead: set[int] = set()
        self._begin_s = 0.0

    def run(self) -> ExecutedQueue:
        """Run all jobs to their ends.

        Raises:
            PlanError: The policy lets jobs wait forever.
        """
        self._rehearse()
        self._begin_s = time.monotonic()
        slot = stuck = 0
        state = self._state
        while True:
            self._hear()
            state.counts[SLOT] = slot
            arrive(self._arrays, state)
            self._bury_clusters()
            self._learn()
            if state.counts[ARRIVED] == len(self._jobs) and not state.counts[WAITING] + state.counts[RUNNING]:
                break
            before = self._held()
            self._policy(self._arrays._replace(progress=self._speeds.believed(self._arrays.progress)), state)
            self._carry_out(before)
            idle = state.counts[ARRIVED] == len(self._jobs) and not state.counts[RUNNING]
            stuck = stuck + 1 if idle and state.counts[WAITING] else 0
            if stuck >= _STUCK:
                raise PlanError(
                    f"the policy lets {state.counts[WAITING]} jobs wait though nothing runs; choose another planner, "
                    "or clusters with more room"
                )
            slot = self._pass_slot(slot)
        return self._found()

    def _rehearse(self) -> None:
        """Let the policy decide once for nothing, so that no slot waits for what it compiles or loads at first."""
        state = new_state(self._arrays, _LOG * len(self._jobs))
        state.counts[SLOT] = self._arrays.arrival[0]
        arrive(self._arrays, state)
        self._policy(self._arrays, state)
        leave(state, 0)

    def _now_s(self) -> float:
        """Seconds since the first slot began."""
        return time.monotonic() - self._begin_s

    def _pass_slot(self, slot: int) -> int:
        """Wait for the begin of the next slot; its number, which skips those that stops and starts took."""
        state = self._state
        self._moments.append(
            QueueMoment(
                at_s=self._now_s(), waiting=int(state.counts[WAITING]), running=int(state.counts[RUNNING])
            )
        )
        following = max(slot + 1, int(self._now_s() / self._queue.slot_s))
        while (left_s := following * self._queue.slot_s - self._now_s()) > 0:
            time.sleep(min(left_s, _LOOK_S))
            self._hear()
            if state.counts[ARRIVED] == len(self._jobs) and all(
                job.ended_s is not None for job in self._jobs
            ):
                break
        return following

    def _held(self) -> list[tuple[int, int, int]]:
        state = self._state
        return [(int(c), int(h[0]), int(h[1])) for c, h in zip(state.cluster, state.held, strict=True)]

    def _carry_out(self, before: Sequence[tuple[int, int, int]]) -> None:
        """Stop who loses or changes something, wait until they are gone, and start who has something new."""
        after = self._held()
        # What failed since the slot began is in no place, whatever the policy did.
        changed = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        leaving = [number for number in changed if self._jobs[number].share is not None]
        asked_s = time.monotonic()
        for number in leaving:
            self._launcher.stop(self._jobs[number].name)
        while any(self._jobs[number].share is not None for number in leaving):
            if time.monotonic() - asked_s > self._stop_s:
                for number in leaving:
                    if self._jobs[number].share is not None:
                        self._say(f"{self._jobs[number].name} did not leave within {self._stop_s:g} s")
                        self._take_away(self._jobs[number], "stopped", "")
            time.sleep(_LOOK_S)
            self._hear(asked_s)
        for number in changed:
            job, (cluster, cpus, gpus) = self._jobs[number], self._held()[number]
            if cluster >= 0 and job.ended_s is None and job.share is None:
                self._launcher.start(job.name, cluster, cpus, gpus)
                job.started_s = job.heard_s = time.monotonic()
                job.times_s = []
                job.share = ExecutedShare(
                    cluster=cluster, cpus=cpus, gpus=gpus, start_s=self._now_s(), end_s=self._now_s()
                )

    def _hear(self, asked_s: float | None = None) -> None:
        """Take in what jobs tell.

        Args:
            asked_s: When jobs were asked to stop; None: none was.
        """
        for report in self._launcher.reports():
            job = self._jobs[self._numbers[report.job]]
            self._note_progress(job, report)
            if report.state != "running":
                self._note_end(job, report, asked_s)
        for job in self._jobs:
            if job.share is not None and time.monotonic() - job.heard_s > self._silence_s:
                self._take_away(job, "failed", f"no step for {self._silence_s:g} s")

    def _take_away(self, job: _Job, state: JobState, words: str) -> None:
        self._launcher.requeue(job.name)
        self._note_end(job, JobReport(job.name, state, time.monotonic(), (), words), None)

    def _note_progress(self, job: _Job, report: JobReport) -> None:
        number, share = self._numbers[job.name], job.share
        if not report.progress or share is None:
            return
        job.heard_s = time.monotonic()
        for line in report.progress:
            if line.event == "begin":
                self._starts_s.append(line.at_s - job.started_s)
            if line.note:
                self._tell(f"{job.name}: {line.note}")
        job.done = report.progress[-1].step
        self._state.done[number] = job.done / job.steps
        job.times_s += [line.at_s for line in report.progress if line.event in ("", "begin")]

    def _learn(self) -> None:
        """Correct what is believed of speeds by the steps of a slot."""
        for number, job in enumerate(self._jobs):
            share, times_s = job.share, job.times_s
            if share is None or len(times_s) <= _WARM:
                continue
            # The first steps of new ranks warm them up.
            taken_s = (times_s[-1] - times_s[_WARM - 1]) / (len(times_s) - _WARM)
            expected_s = self._step_s(number, share)
            if taken_s > 0 and expected_s > 0:
                kind = int(self._arrays.kind[number])
                self._speeds.observe(kind, share.cpus, share.gpus, taken_s, expected_s)
            job.times_s = times_s[-_WARM:]

    def _step_s(self, number: int, share: ExecutedShare) -> float:
        """Seconds of a step that were expected before anything ran."""
        kind, pace = int(self._arrays.kind[number]), float(self._arrays.pace[number])
        progress = float(self._arrays.progress[kind, share.cpus, share.gpus])
        return self._queue.slot_s / (progress * pace * self._jobs[number].steps) if progress > 0 else 0.0

    def _note_end(self, job: _Job, report: JobReport, asked_s: float | None) -> None:
        number, state = self._numbers[job.name], self._state
        if job.share is not None:
            end_s = report.at_s - self._begin_s
            job.shares.append(
                ExecutedShare(
                    cluster=job.share.cluster,
                    cpus=job.share.cpus,
                    gpus=job.share.gpus,
                    start_s=job.share.start_s,
                    end_s=max(end_s, job.share.start_s),
                )
            )
        job.share = None
        if report.state == "done":
            job.ended_s = report.at_s - self._begin_s
            leave(state, number)
        elif report.state == "stopped":
            if asked_s is not None:
                self._stops_s.append(report.at_s - asked_s)
        else:
            self._note_failure(job, number, report.words)

    def _note_failure(self, job: _Job, number: int, words: str) -> None:
        """Put a job back, or give it up."""
        cluster = job.shares[-1].cluster if job.shares else -1
        lost = cluster >= 0 and not self._launcher.alive(cluster)
        job.failures.append(words)
        if self._state.cluster[number] >= 0:
            stop(self._state, number)
        # A cluster that died is no fault of the job's.
        if not lost and len(job.failures) > self._retries:
            self._give_up(job, number, f"failed {len(job.failures)} times, at last: {words}")
        else:
            self._tell(f"{job.name} failed and waits again: {words}")

    def _give_up(self, job: _Job, number: int, words: str) -> None:
        job.words, job.ended_s = words, self._now_s()
        leave(self._state, number)
        self._tell(f"{job.name} is given up: {words}")

    def _bury_clusters(self) -> None:
        """Give nothing more to clusters that died, and give jobs up that none is left for."""
        arrays, state = self._arrays, self._state
        for cluster, place in enumerate(self._queue.clusters):
            if cluster not in self._dead and not self._launcher.alive(cluster):
                self._dead.add(cluster)
                self._tell(f"cluster {place.name} is dead; its jobs wait for others")
                for number in state.running[: state.counts[RUNNING]].tolist():
                    if state.cluster[number] == cluster:
                        stop(state, number)
                arrays.room[cluster] = state.free[cluster] = 0
                arrays.reach[:, cluster] = False
        if not self._dead:
            return
        for number in state.waiting[: state.counts[WAITING]].tolist():
            least = arrays.least[arrays.kind[number]]
            if not (arrays.reach[number] & (arrays.room >= least).all(axis=1)).any():
                dead = ", ".join(self._queue.clusters[c].name for c in sorted(self._dead))
                self._give_up(self._jobs[number], number, f"no cluster is left that may run it: {dead} died")

    def _tell(self, text: str) -> None:
        self._notes.append(text)
        self._say(text)

    def _found(self) -> ExecutedQueue:
        jobs = tuple(
            ExecutedJob(
                name=job.name,
                kind=job.kind,
                steps=job.steps,
                arrival_s=job.arrival_s,
                ended_s=job.ended_s or 0.0,
                shares=tuple(job.shares),
                failures=tuple(job.failures),
                words=job.words,
            )
            for job in self._jobs
        )
        return ExecutedQueue(
            jobs=jobs,
            moments=tuple(self._moments),
            starts_s=tuple(self._starts_s),
            stops_s=tuple(self._stops_s),
            notes=tuple(self._notes),
        )
