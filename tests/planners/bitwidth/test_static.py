"""Bits that do not look at the messages: uniform and drawn."""

from __future__ import annotations

import pytest

from wirewise.errors import PlanError

from . import problems
from .problems import plan

SMALL = problems.problem(
    problems.exchange(3, 30), problems.exchange(3, 30, name="backward1", scale=1e-6, seed=1), ranks=3
)


def test_uniform():
    p = plan(SMALL, problems.costs(3), method="uniform", bits=2)
    assert p.counts("forward1") == {2: 180}
    with pytest.raises(PlanError, match="bits are"):
        plan(SMALL, problems.costs(3), method="uniform", bits=5)


def test_random_is_even_and_drawn_anew_each_epoch():
    big = problems.problem(problems.exchange(2, 6000), ranks=2)
    first = plan(big, problems.costs(2), method="random", seed=1)
    counts = first.counts("forward1")
    assert set(counts) == {2, 4, 8}
    assert all(abs(n - 4000) < 300 for n in counts.values())
    assert plan(big, problems.costs(2), method="random", seed=1, epoch=1).channels != first.channels
    assert plan(big, problems.costs(2), method="random", seed=2).channels != first.channels
    # The measured price of not looking at the weights: 8.7 times the variance of 4 bits for equal weights.
    equal = problems.problem(problems.exchange(2, 6000, sigma=0.0), ranks=2)
    noise = plan(equal, problems.costs(2), method="random").noise["forward1"]
    assert noise / plan(equal, problems.costs(2), method="uniform", bits=4).noise[
        "forward1"
    ] == pytest.approx(8.7, rel=0.05)
