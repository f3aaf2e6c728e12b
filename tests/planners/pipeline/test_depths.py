from __future__ import annotations

import itertools

import pytest

from tests.sim.pipeline_jobs import chain, costs_of, links, one_each
from wirewise.planners.pipeline.depths import choose_depths
from wirewise.sim.pipelines import steady_update


def simulated(p, m, c, style="eager"):
    job, on = chain(p, c), links(p)

    def seconds(depths):
        plan = one_each(style, p, m, depths=depths)
        _, begin, end = steady_update(plan, costs_of(plan, job), on, shared_nics=False)
        return end - begin

    return seconds


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("c", "expected"),
    [
        (0.0, (4, 3, 2, 1)),
        (0.25, (6, 5, 3, 1)),
        (0.5, (7, 5, 3, 1)),
        (1.0, (7, 5, 3, 1)),
        (1.5, (7, 5, 3, 1)),
    ],
)
def test_the_fewest_in_flight_that_hide_messages(c, expected):
    """Vectors with the least sum of all that reach the makespan of eager 1F1B."""
    seconds = simulated(4, 16, c)
    found = choose_depths(seconds, [16] * 4)
    assert found == expected
    eager = seconds((7, 5, 3, 1))
    assert seconds(found) == pytest.approx(eager)
    fewer = [
        vector
        for vector in itertools.product(range(1, 8), range(1, 6), range(1, 4), [1])
        if sum(vector) < sum(found) and list(vector) == sorted(vector, reverse=True)
    ]
    assert all(seconds(vector) > eager * (1 + 1e-9) for vector in fewer)


def test_memory_limits_what_is_in_flight():
    seconds = simulated(4, 16, 1.0)
    capped = choose_depths(seconds, [5, 5, 3, 1])
    assert capped[0] <= 5 and capped[1] <= 5
    assert seconds((4, 3, 2, 1)) > seconds(capped) > seconds((7, 5, 3, 1))
    assert choose_depths(seconds, [1, 1, 1, 1]) == (1, 1, 1, 1)


def test_updates_without_a_flush():
    found = choose_depths(simulated(3, 8, 0.5, "2bw"), [8] * 3)
    assert found == (5, 3, 1)
