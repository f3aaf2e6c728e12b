"""Advice on a training command: one run records and measures; further runs try plans and changes inside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from wirewise import plans
from wirewise.advice import compression, reading, restarts
from wirewise.advice.options import AdviceOptions
from wirewise.advice.ranking import merge_candidates
from wirewise.advice.records import Advice, Candidate
from wirewise.cost.gradients import TrainingMeasurements
from wirewise.cost.intervals import median95
from wirewise.decoding import decode_json
from wirewise.errors import PeerError
from wirewise.files import owns_folder
from wirewise.plans import FusionPlan
from wirewise.plans.fusion import LOSSES
from wirewise.trace.files import rank_file
from wirewise.trials.inside import Record, environment
from wirewise.trials.inside.trying import TrialMeasurements
from wirewise.trials.start import hosts_of_command, run_command

__all__ = ["advise_command"]

_LEAST_INTERVAL = 4
"""Minimum number of steps under a plan for an interval of their median."""


@owns_folder
def advise_command(
    command: Sequence[str], folder: Path, log: Callable[[str], None], options: AdviceOptions | None = None
) -> Advice:
    """Run a command for some steps, find its bottleneck, predict changes, and try the best plans inside it.

    One run records all ranks; if the script uses DistributedDataParallel, it also times codecs and collectives.
    Gradient plans are tried in a second run, and changes that need a restart in further runs. All runs end the script
    early; the script can see this by the variable WIREWISE_TRIAL.

    Args:
        command: Command of a training script, such as torchrun train.py; not changed.
        folder: Folder for logs, the recorded run, plans, the advice and its page.
        log: Called with each progress message.
        options: Codecs, steps, windows and minutes of trials. Defaults to the command line's defaults.

    Raises:
        InputError: A codec is unknown, or the program does not exist.
        PeerError: The command failed before the first step was recorded; the message quotes the end of its output.
    """
    options = options or AdviceOptions()
    compression.check_codecs(options.codecs)
    hosts_of_command(command)
    measured, why = _recorded(command, folder, log, options)
    log("replaying what was recorded")
    step_s = None if measured is None else measured.step_s
    advice = reading.advise(folder / "run", folder=folder, step_s=step_s)
    until_s = time.monotonic() + 60 * options.minutes
    if measured is None:
        found = merge_candidates(advice, (), {"codecs": why})
    else:
        found = _try_plans(command, advice, measured, folder, log, options)
    found = restarts.try_restarts(command, found, folder, log, options, until_s)
    found.save(folder)
    return found


def _recorded(
    command: Sequence[str], folder: Path, log: Callable[[str], None], options: AdviceOptions
) -> tuple[TrainingMeasurements | None, str]:
    """Record the command, and measure it if it has DistributedDataParallel; None and the reason if not."""
    run, first = folder / "run", rank_file(folder / "run", 0)
    recording = Record(folder=str(run.resolve()), warmup=options.warmup, steps=options.steps, stop=True)
    task = msgspec.structs.replace(compression.measure_task(folder, options), record=recording)
    Path(task.file).unlink(missing_ok=True)
    steps = 2 * (options.warmup + options.steps) + 2
    log(f"running the command as it is for {steps} steps: recorded, then measured")
    what = "its first step was recorded"
    try:
        run_command(
            command, folder / "log.txt", environment(task, trial="recording"), result=first, label=what
        )
    except PeerError as error:
        if _has_steps(first):
            return None, f"the recorded run could not be measured: {error}"
        log(f"running the command again, recorded only, as it cannot be measured: {error}")
        run_command(
            command, folder / "log.txt", environment(recording, trial="recording"), result=first, label=what
        )
        return None, str(error)
    if Path(task.file).exists():
        return decode_json(Path(task.file).read_bytes(), TrainingMeasurements), ""
    return (
        None,
        f"in the first {steps} steps the script had no model in DistributedDataParallel, or ended before them",
    )


def _has_steps(file: Path) -> bool:
    return file.exists() and b'"step"' in file.read_bytes()


def _try_plans(
    command: Sequence[str],
    advice: Advice,
    measured: TrainingMeasurements,
    folder: Path,
    log: Callable[[str], None],
    options: AdviceOptions,
) -> Advice:
    others = _fitting(advice, measured)
    found = compression.advise_measured(command, measured, folder, log, options, others)
    added = list(_candidates(found.tried_step_s, advice, folder, options))
    reasons = {} if any(one.family == "codecs" for one in added) else {"codecs": found.sentence}
    return merge_candidates(advice, added, reasons, compression=found, notes=(*advice.notes, *found.notes))


def _fitting(advice: Advice, measured: TrainingMeasurements) -> dict[str, FusionPlan]:
    """Plans of the recorded run whose gradients are those that were measured."""
    names = {tensor.name for tensor in measured.trace.tensors}
    return {
        one.planner: plan
        for one in advice.candidates
        if one.family == "buckets" and one.plan_file
        if isinstance(plan := plans.load(one.plan_file), FusionPlan) and set(plan.parameters) == names
    }


def _candidates(
    steps_s: Mapping[str, float], advice: Advice, folder: Path, options: AdviceOptions
) -> Iterator[Candidate]:
    """A candidate for each plan that had its windows."""
    file = folder / "tried.json"
    if not steps_s or not file.exists():
        return
    tried = decode_json(file.read_bytes(), TrialMeasurements)
    for name, step_s in tried.steps_s.items():
        yield _candidate(name, step_s, tried.seconds.get(name, []), advice, folder, options)


def _candidate(
    name: str, step_s: float, seconds: Sequence[float], advice: Advice, folder: Path, options: AdviceOptions
) -> Candidate:
    file = folder / f"tried-{name}.json"
    plan = plans.load(file)
    assert isinstance(plan, FusionPlan)
    interval = median95(seconds) if len(seconds) >= _LEAST_INTERVAL else None
    known = next((one for one in advice.candidates if (one.family, one.planner) == ("buckets", name)), None)
    if known is not None:
        return msgspec.structs.replace(known, measured_step_s=step_s, ci95=interval)
    codecs = sorted({bucket.codec for bucket in plan.buckets} - {"none"})
    sent = " and ".join(LOSSES.get(codec, "less") for codec in codecs)
    return Candidate(
        family="codecs" if codecs else "buckets",
        planner="cupcake" if name == "none" else name,
        predicted_step_s=plan.predicted_step_s if 0 < plan.predicted_step_s < math.inf else None,
        measured_step_s=step_s,
        ci95=interval,
        risk=f"sends {sent} in the place of each gradient; compare the loss of whole runs" if codecs else "",
        plan_file=str(file),
        lines=compression.lines_of(file, plan, options.ratio),
    )
