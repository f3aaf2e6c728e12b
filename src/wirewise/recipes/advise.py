"""Whether compressing the gradients of a training command pays: a short run of it as it is, and the best plan."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from wirewise import plans
from wirewise.codec.gradients import CODECS
from wirewise.cost.gradients import GradientCosts, GroupLinks
from wirewise.errors import InputError, PeerError
from wirewise.files import atomic_file, make_folder
from wirewise.planners.fusion.cupcake import (
    LEAST_GAIN,
    CompressionProblem,
    by_rule,
    compression_problem,
    cupcake,
    solve,
    step_s,
)
from wirewise.planners.fusion.cupcake.break_even import break_even, gain, uncompressed
from wirewise.profile.launch import environment, find_program
from wirewise.recipes.advise_worker import ENTRY, VARIABLE, AdviceWish, Advised, read

__all__ = ["Advice", "advise", "advise_on"]

DDP_BUCKETS = "bucket:25"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, what was planned, and what to do."""

    sentence: str
    ranks: int
    gradient_bytes: int
    measured_step_s: float
    """Of the command as it is."""
    predicted_ddp_s: float
    """The same, predicted with buckets of 25 MiB."""
    predicted_plain_s: float
    """Of the best buckets without compression."""
    predicted_step_s: float
    """Of the best plan that may compress."""
    lower_bound_s: float
    gain: float
    """Share of the best uncompressed step that compressing saves, predicted."""
    compress: bool
    latency_s: float
    """Of an all-reduce, fitted to measured ones."""
    bandwidth_bytes_per_s: float
    """Of each rank, fitted to measured all-reduces."""
    break_even_bytes_per_s: float | None
    """Bandwidth below which compressing pays; None: at none."""
    plan: str
    """File of the plan to use."""
    lines: tuple[str, ...]
    """What to write into the script."""


def advise(
    command: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    *,
    codecs: Sequence[str] = ("fp16", "topk", "efsign"),
    ratio: float = 0.01,
    steps: int = 20,
    warmup: int = 5,
) -> Advice:
    """Run a command for some steps, measure its gradients, codecs and links, and plan.

    Args:
        command: Of a script that trains with DistributedDataParallel, such as torchrun train.py; not changed.
        folder: Takes the log, what was measured, the plan and the advice.
        say: Hears what goes on.
        codecs: To choose from.
        ratio: Share of the values that sparse codecs keep.
        steps: That are measured.
        warmup: Steps before them.

    Raises:
        InputError: An unknown codec or too few steps.
        PeerError: The command failed, or never came to the last step; the message holds its last words.
    """
    if unknown := [name for name in codecs if name not in CODECS]:
        raise InputError(f"unknown gradient codec {unknown[0]!r}; expected some of: {', '.join(CODECS)}")
    if steps < 2 or warmup < 0:
        raise InputError(f"got {steps} steps after {warmup}; expected at least 2 after 0 or more")
    make_folder(folder)
    say(f"running the command as it is for {warmup + steps} steps")
    found = _measured(command, folder, AdviceWish(
        file=str((folder / "measured.json").resolve()), codecs=tuple(codecs), ratio=ratio, steps=steps, warmup=warmup
    ))  # fmt: skip
    say("planning")
    return advise_on(found, folder, codecs)


def _measured(command: Sequence[str], folder: Path, wish: AdviceWish) -> Advised:
    Path(wish.file).unlink(missing_ok=True)
    log = folder / "log.txt"
    with log.open("wb") as file:
        done = subprocess.run(
            [find_program(command[0]), *command[1:]],
            env=environment({ENTRY: {VARIABLE: msgspec.json.encode(wish).decode()}}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    if done.returncode or not Path(wish.file).exists():
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise PeerError(
            f"the command ended with exit code {done.returncode} before {wish.warmup + wish.steps + 1} steps of a "
            f"model in DistributedDataParallel; its log is {log}, and ends:\n{last}"
        )
    return read(wish.file)


def advise_on(found: Advised, folder: Path, codecs: Sequence[str]) -> Advice:
    """Plan for what was measured; writes `plan.json` and `advice.json`."""
    problem = _problem(found, found.costs, GroupLinks(found.ranks), codecs)
    plain = uncompressed(_problem(found, found.costs.without_codecs(), GroupLinks(found.ranks), ()))
    without, mixed = cupcake(plain), cupcake(problem, least_gain=0.0)
    # Uncompressed groups cost more in a plan that compresses others, as they are not launched at once.
    best = min(without, mixed, key=lambda plan: plan.predicted_step_s)
    saved = gain(best.predicted_step_s, without.predicted_step_s)
    compress = saved >= LEAST_GAIN
    path = folder / "plan.json"
    plans.save(best if compress else without, path)
    latency_s, rate = _line(found.costs)
    advice = Advice(
        sentence=_sentence(saved, compress, best),
        ranks=found.ranks,
        gradient_bytes=4 * sum(tensor.elements for tensor in found.trace.tensors),
        measured_step_s=found.step_s,
        predicted_ddp_s=step_s(plain, by_rule(plain, DDP_BUCKETS)),
        predicted_plain_s=without.predicted_step_s,
        predicted_step_s=best.predicted_step_s,
        lower_bound_s=min(without.lower_bound_s, mixed.lower_bound_s),
        gain=saved,
        compress=compress,
        latency_s=latency_s,
        bandwidth_bytes_per_s=rate,
        break_even_bytes_per_s=_break_even(found, latency_s, codecs),
        plan=str(path),
        lines=_lines(path),
    )
    with atomic_file(folder / "advice.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(advice)))
    return advice


def _problem(
    found: Advised, costs: GradientCosts, links: GroupLinks, codecs: Sequence[str]
) -> CompressionProblem:
    problem = compression_problem(found.trace, costs, links, [*codecs, "none"])
    return replace(problem, forward_s=found.forward_s)


def _line(costs: GradientCosts) -> tuple[float, float]:
    """Seconds of a small all-reduce, and the rate of large ones, from what was measured."""
    sizes, seconds = np.array(costs.schemes["all_reduce"]).T
    slope = max(float((seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])), 1e-15)
    share = 2 * (costs.ranks - 1) / costs.ranks
    return float(seconds[0]), share / slope


def _break_even(found: Advised, latency_s: float, codecs: Sequence[str]) -> float | None:
    """With what a collective costs here beside its bytes, and links of any rate."""
    costs = msgspec.structs.replace(found.costs, launch_s=latency_s, latency_s=0.0, schemes={}, concurrent=())

    def problem_of(bandwidth_bytes_per_s: float) -> CompressionProblem:
        return _problem(found, costs, GroupLinks(found.ranks, bandwidth_bytes_per_s), codecs)

    return break_even(problem_of, lambda problem: solve(problem, room=16).step_s)


def _sentence(saved: float, compress: bool, best: plans.FusionPlan) -> str:
    ways = sorted({bucket.way for bucket in best.buckets if bucket.codec != "none"})
    if not compress:
        return (
            f"Do not compress: the best plan that does would save {max(saved, 0.0):.1%} of a step, less than "
            f"{LEAST_GAIN:.0%}."
        )
    return f"Compress, {', '.join(ways)} in {len(best.buckets)} groups: it is predicted to save {saved:.1%} of a step."


def _lines(path: Path) -> tuple[str, ...]:
    return (
        "from wirewise.plans import load",
        "from wirewise.runtime.data_parallel import parallel",
        f'model = parallel(model, load("{os.path.relpath(path)}"), optimizer)  # not DistributedDataParallel',
    )
