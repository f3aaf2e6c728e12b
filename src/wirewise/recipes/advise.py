"""Whether compressing the gradients of a training command pays: a short run of it as it is, and one under plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from wirewise import plans
from wirewise.codec.gradients import CODECS
from wirewise.cost.gradients import GradientCosts
from wirewise.cost.links import Links
from wirewise.decoding import decode_json
from wirewise.errors import InputError, PeerError
from wirewise.files import owns_folder, write_json
from wirewise.planners.fusion.cupcake import (
    LEAST_GAIN,
    CompressionProblem,
    by_rule,
    candidates,
    compression_problem,
    cupcake,
    fastest,
    finalists,
    solve,
    step_s,
)
from wirewise.planners.fusion.cupcake.trials import break_even, gain
from wirewise.plans import FusionPlan
from wirewise.recipes.cupcake_job import options_of
from wirewise.recipes.scripts import AdviceOptions
from wirewise.results import Advice
from wirewise.trials.inside import Measure, Try, environment
from wirewise.trials.inside.measuring import Advised
from wirewise.trials.inside.trying import Tried
from wirewise.trials.start import run_command

__all__ = ["Advice", "advise", "advise_on"]

DDP_BUCKETS = "bucket:25"
MOST_OFF = 0.15
"""A prediction of the step as it is that is further off than this share tells nothing about plans."""
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
    say(f"running the command as it is for {warmup + steps} steps")
    found = _measured(command, folder, Measure(
        file=str((folder / "measured.json").resolve()), codecs=codecs, ratio=asked.ratio, steps=steps, warmup=warmup
    ))  # fmt: skip
    say("planning")
    if not asked.trials:
        return advise_on(found, folder, codecs)

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
            return _tried(command, folder, task, say)
        except PeerError as error:
            say(f"the advice is as predicted, as plans could not be tried: {error}")
            return {}

    return advise_on(found, folder, codecs, measure)


def _measured(command: Sequence[str], folder: Path, task: Measure) -> Advised:
    what = f"{task.warmup + task.steps + 1} steps of a model in DistributedDataParallel"
    run_command(command, folder / "log.txt", environment(task), result=Path(task.file), what=what)
    return decode_json(Path(task.file).read_bytes(), Advised)


def _tried(command: Sequence[str], folder: Path, task: Try, say: Callable[[str], None]) -> dict[str, float]:
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
    return found.steps_s


def advise_on(
    found: Advised,
    folder: Path,
    codecs: Sequence[str],
    measure: Callable[[Mapping[str, FusionPlan]], Mapping[str, float]] = lambda _: {},
) -> Advice:
    """Plan for what was measured; writes `plan.json` and `advice.json`.

    Args:
        found: Measurements of the command's ranks.
        folder: Folder of both files.
        codecs: Codecs to choose from.
        measure: Seconds of a step under plans by name; nothing of any: predicted steps decide.
    """
    ways = candidates([*codecs, "none"])
    made = {way: cupcake(_problem(found, own), least_gain=0.0) for way, own in ways.items()}
    without, best = made["none"], min(made.values(), key=lambda plan: plan.predicted_step_s)
    predicted = {way: plan.predicted_step_s for way, plan in made.items()}
    # What the others are compared with comes first, as a script may end before all had their turns.
    tried = measure({way: made[way] for way in dict.fromkeys(["none", *finalists(made)])})
    plain = _problem(found, ("none",))
    predicted_ddp_s = step_s(plain, by_rule(plain, DDP_BUCKETS))
    error = predicted_ddp_s / found.step_s - 1.0
    steps_s = tried or predicted
    plain_s = min(tried["none"], found.step_s) if tried else without.predicted_step_s
    saved = gain(min(steps_s.values()), plain_s)
    known = bool(tried) or abs(error) <= MOST_OFF
    compresses = known and saved >= LEAST_GAIN
    way = fastest({way: made[way] for way in steps_s}, steps_s, LEAST_GAIN) if compresses else "none"
    taken = made[way]
    if not known:
        verdict = "unknown"
    elif taken.compresses:
        verdict = "compress"
    else:
        verdict = "regroup" if tried and gain(tried["none"], found.step_s) >= LEAST_GAIN else "keep"
    path = folder / "plan.json"
    plans.save(taken, path)
    latency_s, rate = _line(found.costs)
    advice = Advice(
        verdict=verdict,
        sentence=_sentence(verdict, saved, taken, found.step_s, predicted_ddp_s, tried),
        ranks=found.ranks,
        gradient_bytes=4 * sum(tensor.elements for tensor in found.trace.tensors),
        measured_step_s=found.step_s,
        predicted_ddp_s=predicted_ddp_s,
        prediction_error=error,
        predicted_plain_s=without.predicted_step_s,
        predicted_step_s=best.predicted_step_s,
        lower_bound_s=min(plan.lower_bound_s for plan in made.values()),
        gain=gain(best.predicted_step_s, without.predicted_step_s),
        tried_step_s=dict(tried),
        measured_gain=saved if tried else None,
        compress=taken.compresses,
        latency_s=latency_s,
        bandwidth_bytes_per_s=rate,
        break_even_bytes_per_s=_break_even(found, latency_s, codecs),
        plan=str(path),
        lines=_lines(path, taken, found.costs.ratio) if verdict in ("compress", "regroup") else (),
    )
    write_json(folder / "advice.json", advice)
    return advice


def _problem(
    found: Advised,
    codecs: Sequence[str],
    costs: GradientCosts | None = None,
    bandwidth_bytes_per_s: float | None = None,
) -> CompressionProblem:
    links = None if bandwidth_bytes_per_s is None else Links.uniform(found.ranks, bandwidth_bytes_per_s)
    problem = compression_problem(
        found.trace, links, codec=codecs, costs=costs or found.costs, ranks=found.ranks
    )
    return replace(problem, forward_s=found.forward_s)


def _line(costs: GradientCosts) -> tuple[float, float]:
    """Seconds of a small all-reduce, and the rate of large ones, from what was measured."""
    sizes, seconds = np.array(costs.schemes["all_reduce"]).T
    slope = max(float((seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])), 1e-15)
    share = 2 * (costs.ranks - 1) / costs.ranks
    return float(seconds[0]), share / slope


def _break_even(found: Advised, latency_s: float, codecs: Sequence[str]) -> float | None:
    """Break-even over links of any rate, with what a collective costs here beside its bytes."""
    costs = msgspec.structs.replace(found.costs, launch_s=latency_s, latency_s=0.0, schemes={}, concurrent=())

    def problem_of(bandwidth_bytes_per_s: float) -> CompressionProblem:
        return _problem(found, [*codecs, "none"], costs, bandwidth_bytes_per_s)

    return break_even(problem_of, lambda problem: solve(problem, room=16).step_s)


def _sentence(
    verdict: str,
    saved: float,
    taken: FusionPlan,
    measured_s: float,
    predicted_s: float,
    tried: Mapping[str, float],
) -> str:
    source = "measured" if tried else "predicted"
    off = f"A step as it is takes {1e3 * measured_s:.3g} ms measured and {1e3 * predicted_s:.3g} ms predicted"
    if verdict == "unknown":
        return (
            f"No advice: {off[0].lower()}{off[1:]}, more than {MOST_OFF:.0%} apart, so what plans are predicted to "
            "save says nothing here. Let plans be tried: --trials 2, and a script that trains under them."
        )
    doubt = f" {off}: only what was measured counts." if abs(predicted_s / measured_s - 1) > MOST_OFF else ""
    if verdict == "compress":
        ways = sorted({bucket.way for bucket in taken.buckets if bucket.codec != "none"})
        groups = "1 group" if len(taken.buckets) == 1 else f"{len(taken.buckets)} groups"
        return f"Compress, {', '.join(ways)} in {groups}: it saves {saved:.1%} of a step, {source}.{doubt}"
    most = f"{max(saved, 0.0):.1%} of a step, {source}"
    said = f"Do not compress: plans that do save at most {most}, less than {LEAST_GAIN:.0%}."
    if verdict == "regroup":
        better = gain(tried["none"], measured_s)
        return (
            f"{said} But regroup: other buckets, uncompressed, save {better:.1%} of a step, measured.{doubt}"
        )
    return f"{said} Leave the script as it is.{doubt}"


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
