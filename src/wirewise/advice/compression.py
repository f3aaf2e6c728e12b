"""Test whether gradient compression pays for a training command: profile a short run, then rerun it under plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from wirewise import plans
from wirewise.advice.lines import plan_lines
from wirewise.advice.options import AdviceOptions
from wirewise.codec.gradients import CODECS
from wirewise.cost.gradients import TrainingMeasurements, codec_options
from wirewise.decoding import decode_json
from wirewise.errors import InputError, PeerError
from wirewise.files import owns_folder, write_json
from wirewise.planners.fusion.cupcake.advice import NO_STEPS, recommend
from wirewise.plans import FusionPlan
from wirewise.results import CompressionAdvice
from wirewise.trials.inside import Measure, TryPlans, environment
from wirewise.trials.inside.trying import TrialMeasurements
from wirewise.trials.start import hosts_of_command, run_command

__all__ = [
    "CompressionAdvice",
    "advise",
    "advise_from_measurements",
    "advise_measured",
    "check_codecs",
    "lines_of",
    "measure_task",
]

NO_PLANS: Mapping[str, FusionPlan] = MappingProxyType({})
_RATIO = 0.01
"""Fraction of the values that sparse codecs keep if they are not told."""


@owns_folder
def advise(
    command: Sequence[str],
    folder: Path,
    log: Callable[[str], None],
    options: AdviceOptions | None = None,
) -> CompressionAdvice:
    """Profile a short run of a command, plan gradient compression, and measure the command again under the plans.

    If the command fails under the plans, `log` is called with the reason, and the advice rests on predictions. If it
    ends before all plans were tried, the advice rests on those that were.

    Args:
        command: Command of a script that trains with DistributedDataParallel, such as torchrun train.py; not changed.
        folder: Folder for the log, the measurements, the plan and the advice.
        log: Called with each progress message.
        options: Codecs to choose from, number of steps, and number of windows in which plans are tried; windows share
            the steps.

    Raises:
        InputError: An unknown codec.
        PeerError: The command failed, or never reached the last step; the message quotes the end of its output.
    """
    options = options or AdviceOptions()
    check_codecs(options.codecs)
    log(f"running the command as it is for {options.warmup + options.steps} steps")
    return advise_measured(
        command, _measured(command, folder, measure_task(folder, options)), folder, log, options
    )


def check_codecs(names: Sequence[str]) -> None:
    """Raise InputError if a codec name is unknown.

    Raises:
        InputError: A name is unknown; the message names the first one.
    """
    if unknown := [name for name in names if name not in CODECS]:
        raise InputError(f"unknown gradient codec {unknown[0]!r}; expected some of: {', '.join(CODECS)}")


def measure_task(folder: Path, options: AdviceOptions) -> Measure:
    """Task that the command's ranks run to measure the input of `advise_measured`."""
    file = str((folder / "measured.json").resolve())
    return Measure(
        file=file, codecs=options.codecs, ratio=options.ratio, steps=options.steps, warmup=options.warmup
    )


def advise_measured(
    command: Sequence[str],
    measurements: TrainingMeasurements,
    folder: Path,
    log: Callable[[str], None],
    options: AdviceOptions,
    others: Mapping[str, FusionPlan] = NO_PLANS,
) -> CompressionAdvice:
    """Plan from existing measurements of a command's ranks, then try the plans in it; other arguments as in `advise`.

    Args:
        command: Command of the script.
        measurements: Measurements of its ranks.
        folder: Folder for plans, `tried.json` and the advice.
        log: Called with each progress message.
        options: Codecs, steps, windows and minutes.
        others: Further plans to try besides those of the codecs, by name.
    """
    log("planning")
    hosts = hosts_of_command(command)
    if not options.trials:
        return advise_from_measurements(measurements, folder, options.codecs, hosts=hosts)
    seconds: dict[str, list[float]] = {}

    def measure(tried: Mapping[str, FusionPlan]) -> dict[str, float]:
        task = _trial({**tried, **others}, measurements, folder, options)
        log(
            f"running the command under {len(task.plans)} plans, interleaved ({', '.join(task.plans)}): "
            f"{task.script_steps} steps, about {measurements.step_s * task.script_steps:.0f} s and the start; "
            "a shorter script tries what it can"
        )
        try:
            seen = _try_plans(command, folder, task, log)
        except PeerError as error:
            log(f"the advice is as predicted, as plans could not be tried: {error}")
            return {}
        seconds.update(seen.seconds)
        return {name: value for name, value in seen.steps_s.items() if name in tried}

    return advise_from_measurements(measurements, folder, options.codecs, measure, seconds, hosts=hosts)


def _trial(
    tried: Mapping[str, FusionPlan], measurements: TrainingMeasurements, folder: Path, options: AdviceOptions
) -> TryPlans:
    """Windows of all plans, with as many steps as the minutes have room for."""
    files = {name: (folder / f"tried-{name}.json").resolve() for name in tried}
    for name, plan in tried.items():
        plans.save(plan, files[name])
    affordable = 60 * options.minutes / measurements.step_s / (options.trials * len(tried))
    return TryPlans(
        file=str((folder / "tried.json").resolve()),
        plans={name: str(file) for name, file in files.items()},
        options={codec: codec_options(codec, options.ratio) for codec in options.codecs},
        windows=options.trials,
        steps=max(min(options.steps // options.trials, int(affordable)), 1),
        warmup=options.warmup,
    )


def _measured(command: Sequence[str], folder: Path, task: Measure) -> TrainingMeasurements:
    what = f"{task.warmup + task.steps + 1} steps of a model in DistributedDataParallel"
    run_command(
        command, folder / "log.txt", environment(task, trial="recording"), result=Path(task.file), label=what
    )
    return decode_json(Path(task.file).read_bytes(), TrainingMeasurements)


def _try_plans(
    command: Sequence[str], folder: Path, task: TryPlans, log: Callable[[str], None]
) -> TrialMeasurements:
    what = f"the first of {len(task.order)} windows of {task.steps} steps"
    run_command(
        command,
        folder / "trial-log.txt",
        environment(task, trial="plans"),
        result=Path(task.file),
        label=what,
    )
    found = decode_json(Path(task.file).read_bytes(), TrialMeasurements)
    if found.windows < len(task.order):
        left = [name for name in task.plans if name not in found.steps_s]
        log(
            f"the script ended after {found.windows} of {len(task.order)} windows, as it has fewer than "
            f"{task.script_steps} steps{'; not tried: ' + ', '.join(left) if left else ''}"
        )
    if "none" not in found.steps_s or len(found.steps_s) < min(2, len(task.plans)):
        raise PeerError(
            f"the script ended before a plan with and one without compression had {task.steps} steps each; give it "
            "more steps, or ask for fewer with --steps and --warmup"
        )
    return found


def advise_from_measurements(
    measurements: TrainingMeasurements,
    folder: Path,
    codecs: Sequence[str],
    measure: Callable[[Mapping[str, FusionPlan]], Mapping[str, float]] = lambda _: {},
    steps: Mapping[str, Sequence[float]] = NO_STEPS,
    *,
    hosts: int = 1,
) -> CompressionAdvice:
    """Plan from measurements, and write `plan.json` and `advice.json`.

    Args:
        measurements: Measurements of the command's ranks.
        folder: Folder for both files.
        codecs: Codecs to choose from.
        measure: Returns measured step times under plans, in seconds by plan name; predicted times decide if it
            returns none.
        steps: Step times under these plans, in seconds, filled once `measure` has returned.
        hosts: Hosts of the allocation that the command ran on.
    """
    advice, taken = recommend(measurements, codecs, measure, steps)
    path = folder / "plan.json"
    plans.save(taken, path)
    changes = advice.verdict in ("compress", "regroup")
    lines = lines_of(path, taken, measurements.costs.ratio) if changes else ()
    advice = msgspec.structs.replace(advice, hosts=hosts, plan=str(path), lines=lines)
    write_json(folder / "advice.json", advice)
    return advice


def lines_of(path: Path, plan: FusionPlan, ratio: float) -> tuple[str, ...]:
    """Script lines that train under a plan; sparse codecs keep a fraction `ratio` of the values."""
    codecs = sorted({bucket.codec for bucket in plan.buckets})
    options = {codec: own for codec in codecs if (own := codec_options(codec, ratio)) and ratio != _RATIO}
    return plan_lines(path, options)
