"""Planners that choose a bit width for every halo message: `ww.planners.bitwidth.auto(problem, links, codec=costs)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from wirewise.cost import CodecCost, ExchangeCosts, LinkCost, Links
from wirewise.errors import InputError
from wirewise.planners.bitwidth.auto import AutoDecision, plan_channels
from wirewise.planners.bitwidth.auto import auto as _auto
from wirewise.planners.bitwidth.distributed import distributed as _distributed
from wirewise.planners.bitwidth.distributed import plan_own_channels
from wirewise.planners.bitwidth.milp import milp as _milp
from wirewise.planners.bitwidth.milp import paper as _paper
from wirewise.planners.bitwidth.problem import (
    BitWidthProblem,
    ChannelProblem,
    ExchangeProblem,
    noise_factor,
)
from wirewise.planners.bitwidth.static import random as _random
from wirewise.planners.bitwidth.static import uniform as _uniform
from wirewise.planners.bitwidth.threshold import threshold as _threshold
from wirewise.planners.faces import Planner, Problems, expect_links, face

__all__ = [
    "PLANNERS",
    "AutoDecision",
    "BitWidthProblem",
    "ChannelProblem",
    "ExchangeProblem",
    "auto",
    "distributed",
    "milp",
    "noise_factor",
    "paper",
    "plan_channels",
    "plan_own_channels",
    "random",
    "threshold",
    "uniform",
    "warm",
]


def _on_links(
    job: BitWidthProblem,
    links: Links | None = None,
    *,
    codec: CodecCost | None = None,
    hidden_s: Mapping[str, Any] | None = None,
) -> BitWidthProblem:
    """The problem with costs of `ExchangeCosts`, from messages and their weights alone.

    Args:
        job: Messages and weights, without costs.
        links: Links between the ranks.
        codec: Cost of encoding and decoding. Defaults to that of `CodecCost()`.
        hidden_s: Seconds of computation that hide each exchange, by its name. Defaults to none.
    """
    if job.costs is not None:
        raise InputError("the problem has costs, with links among them; give it alone, or without costs")
    costs = ExchangeCosts(
        links=expect_links(links), codec=codec or CodecCost(), hidden_s={} if hidden_s is None else hidden_s
    )
    return replace(job, costs=costs)


_PROBLEMS = Problems("messages of full-graph training", BitWidthProblem, {BitWidthProblem: _on_links})

PLANNERS: dict[str, Planner] = {
    "auto": face(_auto, "auto", _PROBLEMS),
    "threshold": face(_threshold, "threshold", _PROBLEMS),
    "distributed": face(_distributed, "distributed", _PROBLEMS),
    "milp": face(_milp, "milp", _PROBLEMS, budget="time_limit_s"),
    "paper": face(_paper, "paper", _PROBLEMS),
    "uniform": face(_uniform, "uniform", _PROBLEMS),
    "random": face(_random, "random", _PROBLEMS),
}
"""Planners by name."""

# The functions stand before the modules of the same names, which keep what else there is of each.
auto, distributed, milp, paper = (PLANNERS[name] for name in ("auto", "distributed", "milp", "paper"))
random, threshold, uniform = (PLANNERS[name] for name in ("random", "threshold", "uniform"))


def warm() -> None:
    """Compile the planners' kernels ahead of time (cached on disk), so that the first plan costs milliseconds."""
    channels = [ChannelProblem(sender=s, receiver=1 - s, weights=np.array([3.0, 2.0, 1.0])) for s in (0, 1)]
    problem = BitWidthProblem(
        exchanges=[ExchangeProblem(name="forward1", width=8, channels=channels)],
        world_size=2,
        costs=ExchangeCosts(links=Links.of_pairs(LinkCost(latency_s=0.0, s_per_byte=1e-8), 2)),
    )
    auto(problem)
    threshold(problem)
