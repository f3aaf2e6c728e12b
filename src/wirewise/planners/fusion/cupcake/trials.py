"""Plans between which measured steps decide.

Predictions err differently for different codecs: of resnet50 at 1 Gbit/s uncompressed steps are predicted 12 % too
short, those with signs 4 %. So the best plan with each codec is made, and those that may be the fastest are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wirewise.planners.fusion.cupcake.break_even import gain
from wirewise.plans.fusion import Bucket, FusionPlan

__all__ = ["candidates", "fastest", "finalists"]

_WITHIN = 1.25
"""Multiple of the shortest predicted step beyond which plans are not tried."""


def candidates(codecs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Codecs of the plans to choose from: each alone, by its name, and all of them, as "mixed"."""
    return {**{codec: (codec,) for codec in codecs}, "mixed": tuple(codecs)}


def finalists(plans: Mapping[str, FusionPlan]) -> list[str]:
    """Names of the plans that are worth a trial: predicted to be short, and each once.

    Args:
        plans: By name; of equal ones the first is taken.
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
