"""Whether to compress gradients, regroup them or keep a script as it is, from what its ranks measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import msgspec
import numpy as np

from wirewise.cost.gradients import Advised, GradientCosts
from wirewise.cost.links import Links
from wirewise.planners.fusion.cupcake import (
    LEAST_GAIN,
    CompressionProblem,
    by_rule,
    candidates,
    compression_problem,
    cupcake,
    fastest,
    finalists,
    gain,
    solve,
    step_s,
)
from wirewise.planners.fusion.cupcake.trials import break_even
from wirewise.plans.fusion import LOSSES, FusionPlan
from wirewise.results import Advice
from wirewise.units import format_size

__all__ = ["NO_STEPS", "advice_on"]

_DDP_BUCKETS = "bucket:25"
NO_STEPS: Mapping[str, Sequence[float]] = MappingProxyType({})
_LEAST_STEPS, _RESAMPLES = 4, 2000
_MOST_OFF = 0.15
"""A prediction of the step as it is that is further off than this share tells nothing about plans."""


def advice_on(
    found: Advised,
    codecs: Sequence[str],
    measure: Callable[[Mapping[str, FusionPlan]], Mapping[str, float]],
    steps: Mapping[str, Sequence[float]] = NO_STEPS,
) -> tuple[Advice, FusionPlan]:
    """Advice, not yet with a file of the plan, and the plan to take.

    Args:
        found: Measurements of the command's ranks.
        codecs: Codecs to choose from.
        measure: Seconds of a step under plans by name; nothing of any: predicted steps decide.
        steps: Seconds of each step under these plans, once `measure` has returned; empty: no interval is told.
    """
    ways = candidates([*codecs, "none"])
    made = {way: cupcake(_problem(found, own), least_gain=0.0) for way, own in ways.items()}
    without, best = made["none"], min(made.values(), key=lambda plan: plan.predicted_step_s)
    predicted = {way: plan.predicted_step_s for way, plan in made.items()}
    # What the others are compared with comes first, as a script may end before all had their turns.
    tried = measure({way: made[way] for way in dict.fromkeys(["none", *finalists(made)])})
    plain = _problem(found, ("none",))
    predicted_ddp_s = step_s(plain, by_rule(plain, _DDP_BUCKETS))
    error = predicted_ddp_s / found.step_s - 1.0
    steps_s = tried or predicted
    plain_s = min(tried["none"], found.step_s) if tried else without.predicted_step_s
    saved = gain(min(steps_s.values()), plain_s)
    known = bool(tried) or abs(error) <= _MOST_OFF
    best_way = min(steps_s, key=steps_s.__getitem__)
    interval = _interval(steps.get(best_way, ()), steps.get("none", ()))
    # A gain that chance alone may have made is none.
    compresses = known and saved >= LEAST_GAIN and (interval is None or interval[0] > 0)
    way = fastest({way: made[way] for way in steps_s}, steps_s, LEAST_GAIN) if compresses else "none"
    taken = made[way]
    if not known:
        verdict = "unknown"
    elif taken.compresses:
        verdict = "compress"
    else:
        verdict = "regroup" if tried and gain(tried["none"], found.step_s) >= LEAST_GAIN else "keep"
    latency_s, rate = _line(found.costs)
    advice = Advice(
        verdict=verdict,
        sentence=_sentence(verdict, saved, taken, found.step_s, predicted_ddp_s, tried, interval),
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
        measured_gain_interval=interval,
        compress=taken.compresses,
        latency_s=latency_s,
        bandwidth_bytes_per_s=rate,
        break_even_bytes_per_s=_break_even(found, latency_s, codecs),
        plan="",
        lines=(),
        notes=tuple(_notes(found, taken)),
    )
    return advice, taken


def _interval(own: Sequence[float], plain: Sequence[float]) -> tuple[float, float] | None:
    """Interval of 95 % of the share that the median of one list of steps saves of the other's; None: too few steps."""
    if min(len(own), len(plain)) < _LEAST_STEPS:
        return None
    draw = np.random.default_rng(0)
    medians = [np.median(draw.choice(values, (_RESAMPLES, len(values))), axis=1) for values in (own, plain)]
    low, high = np.quantile(1.0 - medians[0] / medians[1], (0.025, 0.975))
    return float(low), float(high)


def _notes(found: Advised, taken: FusionPlan) -> Iterator[str]:
    """Models that were left out, and what a lossy codec may cost beside time."""
    if found.others:
        names = ", ".join(f"{one.name} ({format_size(one.gradient_bytes)})" for one in found.others)
        yield (
            f"the script has further models in DistributedDataParallel, {names}; they train as they are, and the "
            f"advice is on the one with most bytes of gradients, {found.trace.model}"
        )
    for name in sorted({bucket.codec for bucket in taken.buckets} - {"none"}):
        yield (
            f"{name} sends {LOSSES.get(name, 'less')} in the place of each gradient. What that does to the model was "
            "not tried: compare the loss of whole runs with and without it"
        )


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
    interval: tuple[float, float] | None = None,
) -> str:
    source = "measured" if tried else "predicted"
    if interval is not None:
        source += f" against the same runtime without codecs (95 %: {interval[0]:.1%} to {interval[1]:.1%})"
    off = f"A step as it is takes {1e3 * measured_s:.3g} ms measured and {1e3 * predicted_s:.3g} ms predicted"
    if verdict == "unknown":
        return (
            f"No advice: {off[0].lower()}{off[1:]}, more than {_MOST_OFF:.0%} apart, so what plans are predicted to "
            "save says nothing here. Let plans be tried: --trials 2, and a script that trains under them."
        )
    doubt = f" {off}: only what was measured counts." if abs(predicted_s / measured_s - 1) > _MOST_OFF else ""
    if verdict == "compress":
        ways = sorted({bucket.way for bucket in taken.buckets if bucket.codec != "none"})
        groups = "1 group" if len(taken.buckets) == 1 else f"{len(taken.buckets)} groups"
        return f"Compress, {', '.join(ways)} in {groups}: it saves {saved:.1%} of a step, {source}.{doubt}"
    most = f"{max(saved, 0.0):.1%} of a step, {source}"
    why = f"less than {LEAST_GAIN:.0%}" if saved < LEAST_GAIN else "which chance alone may have made"
    said = f"Do not compress: plans that do save at most {most}, {why}."
    if verdict == "regroup":
        better = gain(tried["none"], measured_s)
        return (
            f"{said} But regroup: other buckets, uncompressed, save {better:.1%} of a step, measured.{doubt}"
        )
    return f"{said} Leave the script as it is.{doubt}"
