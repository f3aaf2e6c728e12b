"""Bit widths independent of the messages: uniform, or random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wirewise import rng
from wirewise.errors import PlanError
from wirewise.planners.bitwidth.problem import BitWidthProblem, make_plan
from wirewise.plans import BITS, BitWidthPlan

__all__ = ["random", "uniform"]


def uniform(problem: BitWidthProblem, *, bits: int = 8, seed: int = 0) -> BitWidthPlan:
    """Give every message the same width.

    Args:
        problem: Messages whose widths are chosen.
        bits: Width that all messages get.
        seed: Recorded in the plan.

    Raises:
        PlanError: `bits` is not a valid width.
    """
    problem.validate()
    _check((bits,))
    found = {key: np.full(n, bits, dtype=np.uint8) for key, n in problem.messages().items()}
    return make_plan(problem, found, planner=f"uniform-{bits}", seed=seed)


def random(
    problem: BitWidthProblem,
    *,
    bits: Sequence[int] = (2, 4, 8),
    seed: int = 0,
    epoch: int = 0,
) -> BitWidthPlan:
    """Sample a width for every message, anew for each seed and epoch, the same on every rank.

    Args:
        problem: Messages whose widths are chosen.
        bits: Widths to sample from, with equal probability.
        seed: Seed of the samples.
        epoch: Epoch that the plan is for.

    Raises:
        PlanError: `bits` holds an invalid width.
    """
    problem.validate()
    _check(bits)
    choices = np.array(sorted(bits), dtype=np.uint8)
    found = {}
    for (name, sender, receiver), count in problem.messages().items():
        key = rng.stream_key(seed, epoch, *name.encode(), sender, receiver)
        drawn = rng.row_keys(key, np.arange(count)).astype(np.uint64)
        found[name, sender, receiver] = choices[(drawn * np.uint64(len(choices))) >> np.uint64(32)]
    return make_plan(problem, found, planner="random", seed=seed, epoch=epoch)


def _check(bits: Sequence[int]) -> None:
    if not bits or not set(bits) <= set(BITS):
        raise PlanError(f"bits are {tuple(bits)}; expected widths of {BITS}")
