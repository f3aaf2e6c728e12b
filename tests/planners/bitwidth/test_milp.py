"""Bit widths by integer programming, and the assigner as published."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost import ExchangeCosts
from wirewise.errors import PlanError
from wirewise.planners.bitwidth.program import BitWidthProgram
from wirewise.planners.bitwidth.threshold import solve

from . import problems
from .problems import plan

SMALL = problems.problem(
    problems.exchange(3, 30), problems.exchange(3, 30, name="backward1", scale=1e-6, seed=1), ranks=3
)


def test_paper_starts_with_eight_bits_and_then_solves_the_published_program():
    ring = problems.costs(3, ring=True)
    assert plan(SMALL, ring, method="paper", cycle=0).counts("forward1") == {8: 180}
    p = plan(SMALL, ring, method="paper", group_size=7)
    assert p.planner == "paper"
    program = BitWidthProgram(
        SMALL.exchanges[0], ring.links, group_size=7, normaliser="min", exact_bytes=False
    )
    bits = program.expand(solve(program))
    assert all(np.array_equal(bits[c.sender, c.receiver], c.array) for c in p.of("forward1"))
    assert plan(SMALL, ring, method="paper", group_size=15, solver="milp").planner == "paper"


def test_highs_says_when_time_runs_out():
    hard = problems.problem(problems.exchange(4, 500), ranks=4)
    with pytest.raises(PlanError, match="found no assignment within"):
        plan(
            hard,
            ExchangeCosts(links=problems.random_links(4)),
            method="milp",
            group_size=1,
            time_limit_s=1e-3,
        )
