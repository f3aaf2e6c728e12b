"""Advice on whether to compress gradients, regroup them or keep a script unchanged, from measurements of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from wirewise.cost.gradients import GradientCosts, TrainingMeasurements
from wirewise.cost.intervals import ratio95
from wirewise.cost.links import Links
from wirewise.planners.fusion.cupcake import (
    LEAST_GAIN,
    CompressionProblem,
    by_rule,
    candidates,
    compression_problem,
    cupcake,
    fastest,
    gain,
    solve,
    step_s,
    trial_candidates,
    without_codecs,
)
from wirewise.planners.fusion.cupcake.trials import break_even
from wirewise.plans.fusion import LOSSES, FusionPlan
from wirewise.results import CompressionAdvice
from wirewise.units import format_size

__all__ = ["NO_STEPS", "recommend"]

_DDP_BUCKETS = "bucket:25"
NO_STEPS: Mapping[str, Sequence[float]] = MappingProxyType({})
_LEAST_STEPS = 4
_MOST_OFF = 0.15
"""A prediction of the step as it is that is further off than this share tells nothing about plans."""


def recommend(
    measurements: TrainingMeasurements,
    codecs: Sequence[str],
    measure: Callable[[Mapping[str, FusionPlan]], Mapping[str, float]],
    steps: Mapping[str, Sequence[float]] = NO_STEPS,
) -> tuple[CompressionAdvice, FusionPlan]:
    """Recommend a plan; returns the advice, whose plan is not yet saved, and the plan.

    Args:
        measurements: Measurements of the command's ranks.
        codecs: Codecs to choose from.
        measure: Returns measured step times under plans, in seconds by plan name; predicted times decide if it
            returns none.
        steps: Step times under these plans, in seconds, filled once `measure` has returned; empty for no intervals.
    """
    ways = candidates([*codecs, "none"])
    made = {way: cupcake(_problem(measurements, own), least_gain=0.0) for way, own in ways.items()}
    without, best = made["none"], min(made.values(), key=lambda plan: plan.predicted_step_s)
    predicted = {way: plan.predicted_step_s for way, plan in made.items()}
    plans = {**made, **_controls(made)}
    # References come first, as a script may end before all plans had their turns.
    order = dict.fromkeys(["none", *(way for way in plans if way not in made), *trial_candidates(made)])
    tried = measure({way: plans[way] for way in order})
    plain = _problem(measurements, ("none",))
    predicted_ddp_s = step_s(plain, by_rule(plain, _DDP_BUCKETS))
    error = predicted_ddp_s / measurements.step_s - 1.0
    steps_s = tried or predicted
    reference = _reference(plans, tried, steps, measurements)
    plain_s = reference.step_s if tried else without.predicted_step_s
    best_way = min(steps_s, key=steps_s.__getitem__)
    saved = gain(steps_s[best_way], plain_s)
    known = bool(tried) or abs(error) <= _MOST_OFF
    interval = _interval(steps.get(best_way, ()), reference.seconds)
    # A gain that chance alone may have made is none.
    compresses = known and saved >= LEAST_GAIN and (interval is None or interval[0] > 0)
    way = fastest({way: plans[way] for way in steps_s}, steps_s, LEAST_GAIN) if compresses else reference.way
    taken = plans[way]
    regrouped = gain(tried[reference.way], measurements.step_s) if tried else 0.0
    regrouped_interval = _interval(steps.get(reference.way, ()), measurements.seconds)
    if not known:
        verdict = "unknown"
    elif taken.compresses:
        verdict = "compress"
    elif regrouped >= LEAST_GAIN and (regrouped_interval is None or regrouped_interval[0] > 0):
        verdict = "regroup"
    else:
        verdict = "keep"
    source = f"measured against {reference.name}{_format_interval(interval)}" if tried else "predicted"
    latency_s, rate = _line(measurements.costs)
    advice = CompressionAdvice(
        verdict=verdict,
        sentence=_sentence(verdict, saved, taken, measurements.step_s, predicted_ddp_s, source, regrouped),
        ranks=measurements.ranks,
        gradient_bytes=4 * sum(tensor.elements for tensor in measurements.trace.tensors),
        measured_step_s=measurements.step_s,
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
        break_even_bytes_per_s=_break_even(measurements, latency_s, codecs),
        plan="",
        lines=(),
        notes=tuple(_notes(measurements, taken)),
    )
    return advice, taken


class _Reference(NamedTuple):
    """Steps without codecs that a gain is told against."""

    way: str
    """Name of the uncompressed plan whose step is shortest."""
    name: str
    step_s: float
    seconds: Sequence[float]


def _controls(made: Mapping[str, FusionPlan]) -> dict[str, FusionPlan]:
    """References of the plans that are worth a trial and compress, by name; each grouping and schemes once."""
    known, found = {_routes(made["none"])}, dict[str, FusionPlan]()
    for way in trial_candidates(made):
        if made[way].compresses and _routes(made[way]) not in known:
            known.add(_routes(made[way]))
            found[f"{way}-uncompressed"] = without_codecs(made[way])
    return found


def _routes(plan: FusionPlan) -> tuple[tuple[tuple[str, ...], str], ...]:
    return tuple((bucket.parameters, bucket.scheme) for bucket in plan.buckets)


def _reference(
    plans: Mapping[str, FusionPlan],
    tried: Mapping[str, float],
    steps: Mapping[str, Sequence[float]],
    measurements: TrainingMeasurements,
) -> _Reference:
    """The shortest step without codecs: of a plan that was tried, or of the script as it is."""
    plain = [way for way in tried if not plans[way].compresses]
    way = min(plain, key=tried.__getitem__, default="none")
    if tried.get(way, measurements.step_s) >= measurements.step_s:
        return _Reference(
            way, "the script as it is, in the run before", measurements.step_s, measurements.seconds
        )
    name = "the same runtime without codecs"
    if way != "none":
        name += f", by {' and '.join(sorted({bucket.scheme for bucket in plans[way].buckets}))}"
    return _Reference(way, name, tried[way], steps.get(way, ()))


def _format_interval(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return f", no interval as fewer than {_LEAST_STEPS} steps are known"
    return f" (95 %: {interval[0]:.1%} to {interval[1]:.1%})"


def _interval(own: Sequence[float], plain: Sequence[float]) -> tuple[float, float] | None:
    """Interval of 95 % of the share that the median of one list of steps saves of the other's; None: too few steps."""
    if min(len(own), len(plain)) < _LEAST_STEPS:
        return None
    low, high = ratio95(own, plain)
    return 1.0 - high, 1.0 - low


def _notes(measurements: TrainingMeasurements, taken: FusionPlan) -> Iterator[str]:
    """Models that were left out, and what a lossy codec may cost beside time."""
    if measurements.others:
        names = ", ".join(f"{one.name} ({format_size(one.gradient_bytes)})" for one in measurements.others)
        yield (
            f"the script has further models in DistributedDataParallel, {names}; they train as they are, and the "
            f"advice is on the one with most bytes of gradients, {measurements.trace.model}"
        )
    for name in sorted({bucket.codec for bucket in taken.buckets} - {"none"}):
        yield (
            f"{name} sends {LOSSES.get(name, 'less')} in the place of each gradient. What that does to the model was "
            "not tried: compare the loss of whole runs with and without it"
        )


def _problem(
    measurements: TrainingMeasurements,
    codecs: Sequence[str],
    costs: GradientCosts | None = None,
    bandwidth_bytes_per_s: float | None = None,
) -> CompressionProblem:
    links = (
        None if bandwidth_bytes_per_s is None else Links.uniform(measurements.ranks, bandwidth_bytes_per_s)
    )
    problem = compression_problem(
        measurements.trace, links, codec=codecs, costs=costs or measurements.costs, ranks=measurements.ranks
    )
    return replace(problem, forward_s=measurements.forward_s)


def _line(costs: GradientCosts) -> tuple[float, float]:
    """Seconds of a small all-reduce, and the rate of large ones, from what was measured."""
    sizes, seconds = np.array(costs.schemes["all_reduce"]).T
    slope = max(float((seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])), 1e-15)
    share = 2 * (costs.ranks - 1) / costs.ranks
    return float(seconds[0]), share / slope


def _break_even(measurements: TrainingMeasurements, latency_s: float, codecs: Sequence[str]) -> float | None:
    """Break-even over links of any rate, with what a collective costs here beside its bytes."""
    costs = msgspec.structs.replace(
        measurements.costs, launch_s=latency_s, latency_s=0.0, schemes={}, concurrent=()
    )

    def problem_of(bandwidth_bytes_per_s: float) -> CompressionProblem:
        return _problem(measurements, [*codecs, "none"], costs, bandwidth_bytes_per_s)

    return break_even(problem_of, lambda problem: solve(problem, room=16).step_s)


def _duration(value_s: float) -> str:
    """Three digits in the larger unit that needs no exponent: "7.44 ms", "1.06 s"."""
    return f"{value_s:.3g} s" if value_s >= 1 else f"{1e3 * value_s:.3g} ms"


def _sentence(
    verdict: str,
    saved: float,
    taken: FusionPlan,
    measured_s: float,
    predicted_s: float,
    source: str,
    regrouped: float,
) -> str:
    off = f"A step as it is takes {_duration(measured_s)} measured and {_duration(predicted_s)} predicted"
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
        schemes = sorted({bucket.scheme for bucket in taken.buckets} - {"all_reduce"})
        by = f" by {' and '.join(schemes)}" if schemes else ""
        return (
            f"{said} But regroup: other buckets, uncompressed{by}, save {regrouped:.1%} of a step as it is, "
            f"measured.{doubt}"
        )
    return f"{said} Leave the script as it is.{doubt}"
