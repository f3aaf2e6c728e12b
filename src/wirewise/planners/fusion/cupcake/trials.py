"""Whether compressing gradients pays: by predictions at any bandwidth, and by the measured steps of several plans.

Predictions err differently for different codecs: of resnet50 at 1 Gbit/s uncompressed steps are predicted 12 % too
short, those with signs 4 %. So the best plan with each codec is made, and those that may be the fastest are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wirewise.planners.fusion.cupcake.problem import CompressionProblem
from wirewise.plans.fusion import Bucket, FusionPlan

__all__ = ["LEAST_GAIN", "break_even", "candidates", "fastest", "finalists", "gain"]

LEAST_GAIN = 0.03
"""Share of a step that compressing has to save: measured steps are rarely predicted better, and codecs have risks."""
_LOWEST, _HIGHEST = 1e5, 1e11
_CLOSE = 0.02
"""Relative width of the interval at which the search ends."""
_WITHIN = 1.25
"""Multiple of the shortest predicted step beyond which plans are not tried."""


def gain(step_s: float, plain_s: float) -> float:
    """Share of the uncompressed step that is saved."""
    return 1.0 - step_s / plain_s if plain_s > 0 else 0.0


def break_even(
    problem_of: Callable[[float], CompressionProblem],
    solve: Callable[[CompressionProblem], float],
    *,
    least_gain: float = LEAST_GAIN,
    within: Sequence[float] = (_LOWEST, _HIGHEST),
) -> float | None:
    """The highest bandwidth at which the best plan saves the gain over the best uncompressed one, by bisection.

    The gain falls as links get faster: wires cost less, and codecs what they did.

    Args:
        problem_of: The problem at a bandwidth in bytes per second, with options that compress and others.
        solve: Seconds of the shortest step of a problem.
        least_gain: Share of the uncompressed step.
        within: Lowest and highest bandwidth to look at, bytes per second.

    Returns:
        Bytes per second, to 2 %; the highest if it pays even there, None if it does not at the lowest.
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
    """Codecs of the plans to choose from: each alone, by its name, and all of them, as "mixed"."""
    return {**{codec: (codec,) for codec in codecs}, "mixed": tuple(codecs)}


def finalists(plans: Mapping[str, FusionPlan]) -> list[str]:
    """Names of the plans that are worth a trial: predicted to be short, and each once.

    Args:
        plans: Plans by name; of equal ones the first is taken.
    """
    longest = _WITHIN * min(plan.predicted_step_s for plan in plans.values())
    # The best with all codecs may be that with one.
    different: dict[tuple[Bucket, ...], str] = {}
    for name, plan in plans.items():
        if plan.predicted_step_s <= longest:
            different.setdefault(plan.buckets, name)
    return list(different.values())


def fastest(plans: Mapping[str, FusionPlan], steps_s: Mapping[str, float], least_gain: float) -> str:
    """The plan to take: without codecs unless they save the least gain.

    Args:
        plans: Plans by name.
        steps_s: Seconds of a step of each.
        least_gain: Share of the step without codecs.
    """
    best = min(plans, key=steps_s.__getitem__)
    plain = [name for name, plan in plans.items() if not plan.compresses]
    for name in sorted(plain, key=steps_s.__getitem__):
        if gain(steps_s[best], steps_s[name]) < least_gain:
            return name
    return best
