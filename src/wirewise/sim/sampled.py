"""Distributions of predictions by sampling: random stragglers, and random failures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from wirewise.cost.intervals import gain_of
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.plans.base import Plan
from wirewise.plans.fusion import FusionPlan
from wirewise.plans.recovery import RecoveryPlan
from wirewise.plans.stages import StagePlan
from wirewise.sim.dispatch import predict
from wirewise.sim.recorded import modules_of_trace
from wirewise.sim.recovery import losses_of, recovery_figures
from wirewise.trace.modules import ModuleTrace
from wirewise.trace.records import Trace
from wirewise.trace.recovery import RecoveryTrace

__all__ = ["LEAST_SAMPLES", "SampledTimes", "parse_stragglers", "sample_failures", "sample_stragglers"]

Vector = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Vector]

LEAST_SAMPLES = 10
"""Minimum number of samples, below which the interval of a median is meaningless."""
_LONGEST = 12.0
"""Longest recovery in times between failures: beyond it hardly one ends before the next failure."""


class SampledTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of times in seconds, from independent samples."""

    samples: int
    seed: int
    mean_s: float
    mean_ci95_s: tuple[float, float]
    """95 % confidence interval of the mean, by Student's t."""
    median_s: float
    median_ci95_s: tuple[float, float]
    """95 % confidence interval of the median, by order statistics."""
    p95_s: float
    """95th percentile, in seconds."""


def parse_stragglers(text: str) -> Draw:
    """Parse a distribution of compute slowdowns; returns a function of a generator and the number of ranks.

    - ``exp:MEAN``: 1 plus an exponential variable with this mean
    - ``lognormal:SIGMA``: lognormal with this sigma and median 1
    - ``some:SHARE:FACTOR``: the factor with probability SHARE, else 1

    Args:
        text: Name and parameters of a distribution, such as exp:0.1.

    Raises:
        InputError: The name is unknown, or parameters are out of range.
    """
    word, *rest = text.split(":")
    try:
        figures = [float(one) for one in rest]
    except ValueError:
        figures = []
    if word == "exp" and len(figures) == 1 and 0 <= figures[0] < math.inf:
        return lambda random, ranks: 1.0 + random.exponential(figures[0], ranks)
    if word == "lognormal" and len(figures) == 1 and 0 <= figures[0] <= 3:
        return lambda random, ranks: random.lognormal(0.0, figures[0], ranks)
    if word == "some" and len(figures) == 2 and 0 <= figures[0] <= 1 <= figures[1] < math.inf:
        return lambda random, ranks: np.where(random.random(ranks) < figures[0], figures[1], 1.0)
    raise InputError(
        f"got the stragglers {text!r}; expected exp:MEAN, lognormal:SIGMA up to 3, or some:SHARE:FACTOR with a share "
        "from 0 to 1 and a factor from 1 on"
    )


def sample_stragglers(
    plan: Plan,
    job: Any,
    links: Links | None,
    stragglers: Draw,
    *,
    samples: int = 200,
    seed: int = 0,
    **conditions: Any,
) -> SampledTimes:
    """Sample the time of a step or an update under random compute slowdowns of every rank.

    Collectives of data-parallel training always wait for the slowest rank, so only its factor matters and one rank is
    simulated; of a pipeline, replicas with equal factors are simulated once.

    Args:
        plan: Fusion plan with a `Trace` or `ModuleTrace`, or plan of stages.
        job: The job as for `predict`.
        links: The links as for `predict`.
        stragglers: Distribution of the ranks' compute slowdowns.
        samples: Number of samples.
        seed: Seed of the samples.
        conditions: Conditions as for `predict`.

    Raises:
        InputError: The ranks of the job cannot be distinguished, or there are too few samples.
    """
    if isinstance(plan, FusionPlan) and isinstance(job, Trace):
        job, links = modules_of_trace(job, links)
    random = np.random.default_rng(seed)

    def step_s() -> float:
        by = stragglers(random, plan.world_size)
        if isinstance(plan, StagePlan):
            return predict(plan, job, links, slowdown=by, **conditions).step_s
        slowest = float((by * (job.slowdown or np.ones(plan.world_size))).max())
        return predict(plan, replace(job, slowdown=[slowest] * plan.world_size), links, **conditions).step_s

    if not isinstance(plan, StagePlan) and not (
        isinstance(plan, FusionPlan) and isinstance(job, ModuleTrace)
    ):
        raise InputError(
            f"stragglers of a {plan.family} plan with a {type(job).__name__} cannot be drawn: one rank stands for all; "
            "expected a plan of stages, or a fusion plan with a Trace or ModuleTrace"
        )
    return _summed(samples, seed, step_s)


def sample_failures(
    plan: RecoveryPlan,
    job: RecoveryTrace,
    links: Links,
    mtbf_s: float,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> SampledTimes:
    """Sample the time of the work between two failures, as in `predict`, under random failures.

    Their number is Poisson in the time of progress; each occurs uniformly between two checkpoints, and one during a
    recovery restarts it.

    Args:
        plan: Sources of lost state, logs, checkpoints and spares.
        job: Stages and figures of the job.
        links: Links between its ranks.
        mtbf_s: Mean time between failures, in seconds.
        samples: Number of samples.
        seed: Seed of the samples.

    Raises:
        PlanError: Raised by `predict`, or recoveries last so much longer than the time between failures that hardly
            one ends.
    """
    predict(plan, job, links, mtbf_s=mtbf_s)
    found, losses = recovery_figures(plan, job, links, mtbf_s), losses_of(plan, job, links, mtbf_s)
    whole_s, steps = job.step_s + found.overhead_s, plan.interval_steps
    segment_s = steps * whole_s + found.checkpoint_s
    longest = max(one.fixed_s + steps * one.step_s for one in losses) + max(whole_s, found.checkpoint_s)
    if longest > _LONGEST * mtbf_s:
        raise PlanError(
            f"a recovery can take {longest:.4g} s at a failure every {mtbf_s:.4g} s, so that hardly one ends; shorten "
            "interval_steps - at `$.interval_steps` - or expect fewer failures"
        )
    random, on_s = np.random.default_rng(seed), mtbf_s * segment_s / (steps * job.step_s)
    shares = np.array([one.share for one in losses])

    def recovery_s() -> float:
        one = losses[random.choice(len(losses), p=shares / shares.sum())]
        if random.random() * segment_s < steps * whole_s:
            lost_s = one.fixed_s + random.random() * whole_s + int(random.integers(steps)) * one.step_s
        else:
            lost_s = one.fixed_s + steps * one.step_s + random.random() * found.checkpoint_s
        ends = math.exp(-lost_s / mtbf_s)
        # Each attempt that fails lasts an exponential time that is shorter than the recovery.
        failed = random.random(random.geometric(ends) - 1)
        return lost_s - mtbf_s * float(np.log1p(-failed * (1.0 - ends)).sum())

    return _summed(
        samples, seed, lambda: on_s + sum(recovery_s() for _ in range(random.poisson(on_s / mtbf_s)))
    )


def _summed(samples: int, seed: int, draw: Callable[[], float]) -> SampledTimes:
    if samples < LEAST_SAMPLES:
        raise InputError(f"got {samples} samples; expected at least {LEAST_SAMPLES}")
    found = np.sort([draw() for _ in range(samples)])
    mean, low = gain_of(found), max(int(binom.ppf(0.025, samples, 0.5)) - 1, 0)
    return SampledTimes(
        samples=samples,
        seed=seed,
        mean_s=mean.mean,
        mean_ci95_s=mean.ci95,
        median_s=float(np.median(found)),
        median_ci95_s=(float(found[low]), float(found[-1 - low])),
        p95_s=float(np.quantile(found, 0.95)),
    )
