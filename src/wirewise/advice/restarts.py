"""Trials of changes that need a restart: the baseline command and changed commands, interleaved."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from wirewise.advice.lines import loader_lines
from wirewise.advice.options import AdviceOptions
from wirewise.advice.ranking import merge_candidates
from wirewise.advice.records import LEAST_GAIN, Advice, Candidate
from wirewise.cost.intervals import median95
from wirewise.errors import PeerError
from wirewise.files import make_folder
from wirewise.report.figures import count, seconds
from wirewise.trials.inside import Restart, environment
from wirewise.trials.inside.changing import GRAPH, LOADER, WRAPPER
from wirewise.trials.inside.restarting import RestartResult, read_results, result_file
from wirewise.trials.start import run_command
from wirewise.trials.windows import alternate

__all__ = ["AS_IT_IS", "try_restarts"]

AS_IT_IS = "as it is"
_LEAST_INTERVAL = 4
"""Minimum number of steps of a change for an interval of their median."""
_DRIFT = 0.10
"""Drift of the unchanged step from which a note reports it; runs on an idle machine differ by a few hundredths."""
_SLACK = 3.0
"""Times of the first run that a later one may take, before it counts as stuck."""
_LEAST_LIMIT_S = 60.0


def try_restarts(
    command: Sequence[str],
    advice: Advice,
    folder: Path,
    log: Callable[[str], None],
    options: AdviceOptions,
    until_s: float,
) -> Advice:
    """Try the changes that need a restart, and rank again.

    Each run of the command ends early. Baseline windows are interleaved with those of the changes, so that drift of
    the machine favours neither. Plans tried before are compared with the baseline before and after them. A change
    under which the script fails is no longer advised.

    Args:
        command: Command of a training script; not changed.
        advice: Advice so far, whose candidates say which arguments a trial changes.
        folder: Folder for the log and the results of each run.
        log: Called with each progress message.
        options: Steps, windows, and the number of changes to try.
        until_s: Deadline on the clock of `time.monotonic`, in seconds; no run starts after it.
    """
    if not options.trials or not options.restarts:
        return advice
    chosen = _chosen(advice, options)
    planned = [one for one in advice.candidates if one.measured_step_s is not None]
    if not chosen and not planned:
        return advice
    trials = _Trials(command, make_folder(folder / "restarts"), log, options, until_s)
    added = trials.run(chosen)
    added += [trials.against(advice.step_s, one) for one in planned]
    return merge_candidates(
        advice, added, {}, notes=(*advice.notes, *trials.notes, *trials.drift(advice.step_s))
    )


def _chosen(advice: Advice, options: AdviceOptions) -> list[Candidate]:
    """Candidates that a restart can try: those predicted to pay, then those of whose time nothing is predicted."""
    known = [one for one in advice.candidates if one.arguments and one.measured_step_s is None]
    paying = [one for one in known if one.gain(advice.step_s) >= LEAST_GAIN]
    unknown = [one for one in known if one.family == "bucket-view" or one.predicted_step_s is None]
    return sorted(
        {_key(one): one for one in (*paying, *unknown)}.values(), key=lambda one: -one.gain(advice.step_s)
    )[: options.restarts]


def _reason(error: PeerError) -> str:
    """Exit code and last line of a command, without the lines between."""
    first, *_, last = str(error).splitlines() if "\n" in str(error) else (str(error), "")
    return ": ".join(filter(None, (first.partition("; its log is")[0], last.strip())))


def _key(one: Candidate) -> str:
    return f"{one.family}: {one.planner}"


class _Trials:
    """Runs of one command."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        log: Callable[[str], None],
        options: AdviceOptions,
        until_s: float,
    ) -> None:
        self.notes: list[str] = []
        self._command, self._folder, self._say, self._asked = command, folder, log, options
        self._until_s = until_s
        self._steps = max(options.steps // max(options.trials, 1), 2)
        self._seconds: dict[str, list[float]] = {}
        self._runs, self._run_s = 0, 0.0

    def run(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """Candidates with what was measured of them."""
        if not self._has_time():
            return []
        try:
            first = self._measure(AS_IT_IS, {})
        except PeerError as error:
            self._note(
                f"no change was tried by a restart, as the command as it is fails then: {_reason(error)}"
            )
            return []
        rows = {_key(one): _adapted(one, first) for one in chosen}
        reasons = {name: row for name, row in rows.items() if isinstance(row, str)}
        tried = {name: row for name, row in rows.items() if isinstance(row, Candidate)}
        self.notes += [f"{name} was not tried: {reason}" for name, reason in reasons.items()]
        self._run_windows(tried)
        return [self._with_figures(name, one) for name, one in tried.items()]

    def _run_windows(self, tried: dict[str, Candidate]) -> None:
        """Run all windows but the first one, which was that of the command as it is."""
        for _, name in list(alternate([AS_IT_IS, *tried], self._asked.trials))[1:] if tried else ():
            if name != AS_IT_IS and (tried[name].failure or not tried[name].arguments):
                continue
            if not self._has_time():
                return
            arguments = {} if name == AS_IT_IS else tried[name].arguments
            try:
                result = self._measure(name, arguments)
            except PeerError as error:
                self._say(f"the script failed with {name}: {error}")
                if name != AS_IT_IS:
                    tried[name] = msgspec.structs.replace(tried[name], failure=_reason(error))
                continue
            if missing := [key for key in arguments if key not in result.changed]:
                reason = result.refused.get(missing[0], "the script does not call what it changes")
                tried[name] = msgspec.structs.replace(tried[name], arguments={})
                self.notes.append(f"{name} was not tried: {reason}")
                del self._seconds[name]

    def _has_time(self) -> bool:
        left_s = self._until_s - time.monotonic()
        if left_s >= max(self._run_s, 1.0):
            return True
        self._note(
            f"trials by restarts ended after {count(self._runs, 'run')}, as --minutes {self._asked.minutes:g} has "
            f"{max(left_s, 0.0):.0f} s left and a run takes {self._run_s:.0f} s"
        )
        return False

    def _note(self, text: str) -> None:
        self._say(text)
        self.notes.append(text)

    def _measure(self, name: str, arguments: Mapping[str, bool | int | float | str]) -> RestartResult:
        """Run the command once, and add the seconds of its steps to those of the name."""
        self._runs += 1
        folder = self._folder / f"{self._runs:02d}"
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        task = Restart(
            folder=str(folder.resolve()),
            arguments=dict(arguments),
            warmup=self._asked.warmup,
            steps=self._steps,
        )
        left_s = max(self._until_s - time.monotonic(), 0.0)
        self._say(f"restarting the command, run {self._runs}: {name}; {left_s:.0f} s of the trials are left")
        start_s = time.monotonic()
        # The first run may fill all that is left; one under a change that hangs is ended sooner.
        limit_s = max(_SLACK * self._run_s, _LEAST_LIMIT_S) if self._run_s else max(left_s, _LEAST_LIMIT_S)
        run_command(
            self._command,
            folder / "log.txt",
            environment(task, trial=name),
            result=result_file(folder, 0),
            label=f"{task.warmup + task.steps + 1} steps",
            limit_s=limit_s,
        )
        self._run_s = max(self._run_s, time.monotonic() - start_s)
        result = read_results(folder)
        self._seconds.setdefault(name, []).extend(result.seconds)
        return result

    @property
    def _as_it_is_s(self) -> float | None:
        known = self._seconds.get(AS_IT_IS)
        return statistics.median(known) if known else None

    def against(self, before_s: float, one: Candidate) -> Candidate:
        """A candidate of an earlier run, compared with the command as it is before and after that run."""
        after_s = self._as_it_is_s
        if after_s is None:
            return one
        return msgspec.structs.replace(one, baseline_step_s=(before_s + after_s) / 2)

    def drift(self, before_s: float) -> list[str]:
        """Note on a machine that got faster or slower between the recorded run and the trials."""
        after_s = self._as_it_is_s
        if after_s is None or abs(after_s / before_s - 1) <= _DRIFT:
            return []
        return [
            f"a step as it is took {seconds(before_s)} before the trials and {seconds(after_s)} between them, so "
            "something else uses the machine; compare measured figures with care, or advise again when it is idle"
        ]

    def _with_figures(self, name: str, one: Candidate) -> Candidate:
        own, baseline, as_it_is_s = self._seconds.get(name, []), self._seconds[AS_IT_IS], self._as_it_is_s
        if not own or one.failure or not one.arguments:
            return one
        steps = f"{count(len(own), 'step')} with it and {len(baseline)} as it is, {seconds(as_it_is_s)}, interleaved"
        return msgspec.structs.replace(
            one,
            measured_step_s=statistics.median(own),
            baseline_step_s=as_it_is_s,
            ci95=median95(own) if len(own) >= _LEAST_INTERVAL else None,
            note="; ".join(filter(None, (one.note, steps))),
        )


def _adapted(one: Candidate, first: RestartResult) -> Candidate | str:
    """The change as it is for what the script calls; a reason if there is nothing to change."""
    (name,) = one.arguments
    if name in GRAPH:
        return one
    if name in LOADER:
        if first.workers is None:
            return "the script iterates no DataLoader"
        workers = first.workers + int(one.arguments[name])
        return msgspec.structs.replace(one, arguments={name: workers}, lines=loader_lines(workers))
    if not first.wrapper:
        return "the script wraps no model in DistributedDataParallel"
    if name in WRAPPER and first.wrapper.get(name) == one.arguments[name]:
        return f"the script has {name}={one.arguments[name]} already"
    return one
