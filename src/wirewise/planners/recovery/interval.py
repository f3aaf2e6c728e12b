"""Steps between checkpoints: rules of Young and Daly, and the optimum of the goodput."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["RULES", "best_interval", "daly_s", "young_s"]

RULES = ("best", "young", "daly")
"""Rules for the interval between checkpoints."""


def young_s(mtbf_s: float, checkpoint_s: float, lost_share: float = 1.0) -> float:
    """Training time between checkpoints by Young's first-order formula, in seconds.

    J. W. Young: A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.

    Args:
        mtbf_s: Mean time between failures, in seconds.
        checkpoint_s: Time for which a checkpoint blocks training, in seconds.
        lost_share: Time to redo a lost step, relative to the step time; small with logs.
    """
    return math.sqrt(2.0 * checkpoint_s * mtbf_s / lost_share) if lost_share > 0 else math.inf


def daly_s(mtbf_s: float, checkpoint_s: float, lost_share: float = 1.0) -> float:
    """Training time between checkpoints by Daly's higher-order formula, in seconds (FGCS 22(3), 2006, equation 37).

    Args:
        mtbf_s: Mean time between failures, in seconds.
        checkpoint_s: Time for which a checkpoint blocks training, in seconds.
        lost_share: Time to redo a lost step, relative to the step time.
    """
    if lost_share <= 0:
        return math.inf
    rare_s = mtbf_s / lost_share
    if checkpoint_s >= 2.0 * rare_s:
        return rare_s
    ratio = math.sqrt(checkpoint_s / (2.0 * rare_s))
    return math.sqrt(2.0 * checkpoint_s * rare_s) * (1.0 + ratio / 3.0 + ratio**2 / 9.0) - checkpoint_s


def best_interval(goodput: Callable[[int], float], minimum: int, maximum: int) -> int:
    """Find the number of steps with the most goodput, which must be unimodal: O(log most) calls.

    Args:
        goodput: Goodput with a checkpoint every n steps.
        minimum: Smallest number of steps.
        maximum: Largest number of steps, at least `minimum`.
    """
    while minimum < maximum:
        middle = (minimum + maximum) // 2
        if goodput(middle + 1) > goodput(middle):
            minimum = middle + 1
        else:
            maximum = middle
    return minimum
