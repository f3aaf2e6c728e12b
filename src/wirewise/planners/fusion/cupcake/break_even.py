"""The bandwidth below which compressing gradients makes a step shorter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wirewise.planners.fusion.cupcake.problem import CompressionProblem

__all__ = ["LEAST_GAIN", "break_even", "gain"]

LEAST_GAIN = 0.03
"""Share of a step that compressing has to save: measured steps are rarely predicted better, and codecs have risks."""
_LOWEST, _HIGHEST = 1e5, 1e11
_CLOSE = 0.02
"""Relative width of the interval at which the search ends."""


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
