"""Whether compressing gradients pays: predicted at any bandwidth, and decided by measured steps of several plans.

Prediction errors differ between codecs: for resnet50 at 1 Gbit/s, uncompressed steps are predicted 12 % too short,
those with sign codecs 4 %. The best plan with each codec is therefore made, and those that may be the fastest are
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from wirewise.planners.fusion.cupcake.problem import CompressionProblem
from wirewise.plans.fusion import Bucket, FusionPlan

__all__ = ["LEAST_GAIN", "break_even", "candidates", "fastest", "gain", "trial_candidates", "without_codecs"]

# Tables err by codec: steps of resnet50 at 1 Gbit/s were predicted 12 % too short uncompressed, 4 % with signs.
LEAST_GAIN = 0.03
"""Fraction of a step that compression must save: predictions are rarely better, and codecs have risks."""
_LOWEST, _HIGHEST = 1e5, 1e11
_CLOSE = 0.02
"""Relative width of the interval at which the search ends."""
_WITHIN = 1.25
"""Multiple of the shortest predicted step beyond which plans are not tried."""


def gain(step_s: float, plain_s: float) -> float:
    """Fraction of the uncompressed step that is saved."""
    return 1.0 - step_s / plain_s if plain_s > 0 else 0.0


def break_even(
    problem_of: Callable[[float], CompressionProblem],
    solve: Callable[[CompressionProblem], float],
    *,
    least_gain: float = LEAST_GAIN,
    within: Sequence[float] = (_LOWEST, _HIGHEST),
) -> float | None:
    """Highest bandwidth at which the best plan saves the gain over the best uncompressed one, by bisection.

    The gain falls as links get faster, since wire time shrinks and codec time does not.

    Args:
        problem_of: Problem at a bandwidth in bytes per second, with and without codecs.
        solve: Shortest step of a problem, in seconds.
        least_gain: Minimum gain, as a fraction of the uncompressed step.
        within: Lowest and highest bandwidth to search, in bytes per second.

    Returns:
        Bandwidth in bytes per second, to 2 %; the highest if compression pays even there, None if it does not at the
        lowest.
    """

    def pays(bandwidth_bytes_per_s: float) -> bool:
        problem = problem_of(bandwidth_bytes_per_s)
        return gain(solve(problem), solve(problem.uncompressed())) >= least_gain

    low, high = within
    if pays(high):
        return high
    if not pays(low):
        return None
    while high / low > 1 + _CLOSE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def candidates(codecs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Sets of codecs to plan with: each alone, by its name, and all of them, as "mixed"."""
    return {**{codec: (codec,) for codec in codecs}, "mixed": tuple(codecs)}


def trial_candidates(plans: Mapping[str, FusionPlan]) -> list[str]:
    """Names of the plans worth a trial: those with a short predicted step, without duplicates.

    Args:
        plans: Plans by name; of duplicates, the first is kept.
    """
    longest = _WITHIN * min(plan.predicted_step_s for plan in plans.values())
    # The best with all codecs may be that with one.
    different: dict[tuple[Bucket, ...], str] = {}
    for name, plan in plans.items():
        if plan.predicted_step_s <= longest:
            different.setdefault(plan.buckets, name)
    return list(different.values())


def without_codecs(plan: FusionPlan) -> FusionPlan:
    """Plan with the same buckets and schemes without codecs: the baseline for a codec's own saving.

    Compared with other buckets or schemes, a codec would be credited with their saving: fp16 once with 83 % of a step
    of 10 kB of gradients.
    """
    buckets = tuple(replace(bucket, codec="none", decode="inline") for bucket in plan.buckets)
    return FusionPlan(
        world_size=plan.world_size, planner=plan.planner, seed=plan.seed, buckets=buckets, splits=plan.splits
    )


def fastest(plans: Mapping[str, FusionPlan], steps_s: Mapping[str, float], least_gain: float) -> str:
    """Name of the plan to use: one without codecs unless they save the minimum gain.

    Args:
        plans: Plans by name.
        steps_s: Step time of each plan, in seconds.
        least_gain: Minimum gain, as a fraction of the step without codecs.
    """
    best = min(plans, key=steps_s.__getitem__)
    plain = [name for name, plan in plans.items() if not plan.compresses]
    for name in sorted(plain, key=steps_s.__getitem__):
        if gain(steps_s[best], steps_s[name]) < least_gain:
            return name
    return best
