"""Whether compressing the gradients of a training command pays: a short run of it as it is, and one under plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from wirewise import plans
from wirewise.codec.gradients import CODECS
from wirewise.cost.gradients import Advised
from wirewise.decoding import decode_json
from wirewise.errors import InputError, PeerError
from wirewise.files import owns_folder, write_json
from wirewise.planners.fusion.cupcake.advice import NO_STEPS, advice_on
from wirewise.plans import FusionPlan
from wirewise.recipes.cupcake_job import options_of
from wirewise.recipes.scripts import AdviceOptions
from wirewise.results import Advice
from wirewise.trials.inside import Measure, Try, environment
from wirewise.trials.inside.trying import Tried
from wirewise.trials.start import hosts_of_command, run_command

__all__ = ["Advice", "advise", "advise_on"]

_RATIO = 0.01
"""Share of the values that sparse codecs keep if they are not told."""


@owns_folder
def advise(
    command: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    asked: AdviceOptions | None = None,
) -> Advice:
    """Run a command for some steps, measure its gradients, codecs and links, plan, and run it again under plans.

    If the command fails under the plans, `say` is told why, and the advice is as predicted. One that ends before all
    plans had their turns is advised by those that had.

    Args:
        command: Command of a script that trains with DistributedDataParallel, such as torchrun train.py; not changed.
        folder: Takes the log, what was measured, the plan and the advice.
        say: Hears what goes on.
        asked: Codecs to choose from, steps, and windows in which plans are tried, which share the steps.

    Raises:
        InputError: An unknown codec.
        PeerError: The command failed, or never came to the last step; the message holds its last words.
    """
    asked = asked or AdviceOptions()
    codecs, steps, warmup = asked.codecs, asked.steps, asked.warmup
    if unknown := [name for name in codecs if name not in CODECS]:
        raise InputError(f"unknown gradient codec {unknown[0]!r}; expected some of: {', '.join(CODECS)}")
    hosts = hosts_of_command(command)
    say(f"running the command as it is for {warmup + steps} steps")
    found = _measured(command, folder, Measure(
        file=str((folder / "measured.json").resolve()), codecs=codecs, ratio=asked.ratio, steps=steps, warmup=warmup
    ))  # fmt: skip
    say("planning")
    if not asked.trials:
        return advise_on(found, folder, codecs, hosts=hosts)

    seconds: dict[str, list[float]] = {}

    def measure(tried: Mapping[str, FusionPlan]) -> dict[str, float]:
        files = {name: (folder / f"tried-{name}.json").resolve() for name in tried}
        for name, plan in tried.items():
            plans.save(plan, files[name])
        task = Try(
            file=str((folder / "tried.json").resolve()),
            plans={name: str(file) for name, file in files.items()},
            options={codec: options_of(codec, asked.ratio) for codec in codecs},
            windows=asked.trials,
            steps=max(steps // asked.trials, 1),
            warmup=warmup,
        )
        say(
            f"running the command under {len(tried)} plans in turns ({', '.join(tried)}): {task.script_steps} steps, "
            f"about {found.step_s * task.script_steps:.0f} s and the start; a shorter script tries what it can"
        )
        try:
            seen = _tried(command, folder, task, say)
            seconds.update(seen.seconds)
            return seen.steps_s
        except PeerError as error:
            say(f"the advice is as predicted, as plans could not be tried: {error}")
            return {}

    return advise_on(found, folder, codecs, measure, seconds, hosts=hosts)


def _measured(command: Sequence[str], folder: Path, task: Measure) -> Advised:
    what = f"{task.warmup + task.steps + 1} steps of a model in DistributedDataParallel"
    run_command(command, folder / "log.txt", environment(task), result=Path(task.file), what=what)
    return decode_json(Path(task.file).read_bytes(), Advised)


def _tried(command: Sequence[str], folder: Path, task: Try, say: Callable[[str], None]) -> Tried:
    what = f"the first of {len(task.order)} windows of {task.steps} steps"
    run_command(command, folder / "trial-log.txt", environment(task), result=Path(task.file), what=what)
    found = decode_json(Path(task.file).read_bytes(), Tried)
    if found.windows < len(task.order):
        left = [name for name in task.plans if name not in found.steps_s]
        say(
            f"the script ended after {found.windows} of {len(task.order)} windows, as it has fewer than "
            f"{task.script_steps} steps{'; not tried: ' + ', '.join(left) if left else ''}"
        )
    if "none" not in found.steps_s or len(found.steps_s) < min(2, len(task.plans)):
        raise PeerError(
            f"the script ended before a plan with and one without compression had {task.steps} steps each; give it "
            "more steps, or ask for fewer with --steps and --warmup"
        )
    return found


def advise_on(
    found: Advised,
    folder: Path,
    codecs: Sequence[str],
    measure: Callable[[Mapping[str, FusionPlan]], Mapping[str, float]] = lambda _: {},
    steps: Mapping[str, Sequence[float]] = NO_STEPS,
    *,
    hosts: int = 1,
) -> Advice:
    """Plan for what was measured; writes `plan.json` and `advice.json`.

    Args:
        found: Measurements of the command's ranks.
        folder: Folder of both files.
        codecs: Codecs to choose from.
        measure: Seconds of a step under plans by name; nothing of any: predicted steps decide.
        steps: Seconds of each step under these plans, once `measure` has returned.
        hosts: Hosts of the allocation that the command ran on.
    """
    advice, taken = advice_on(found, codecs, measure, steps)
    path = folder / "plan.json"
    plans.save(taken, path)
    changes = advice.verdict in ("compress", "regroup")
    lines = _lines(path, taken, found.costs.ratio) if changes else ()
    advice = msgspec.structs.replace(advice, hosts=hosts, plan=str(path), lines=lines)
    write_json(folder / "advice.json", advice)
    return advice


def _lines(path: Path, plan: FusionPlan, ratio: float) -> tuple[str, ...]:
    codecs = sorted({bucket.codec for bucket in plan.buckets})
    options = {codec: own for codec in codecs if (own := options_of(codec, ratio)) and ratio != _RATIO}
    names = "Compression, parallel" if options else "parallel"
    more = f", compression=Compression(options={options})" if options else ""
    return (
        "from wirewise.plans import load",
        f"from wirewise.runtime.data_parallel import {names}",
        f'model = parallel(model, load("{os.path.relpath(path)}"), optimizer{more})  # not DistributedDataParallel',
    )
