"""Queues are drawn as the paper says, the same from the same seed."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from wirewise.errors import InputError
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue


def test_the_same_seed_draws_the_same_queue():
    assert draw_queue(seed=3) == draw_queue(seed=3) != draw_queue(seed=4)


def test_all_jobs_can_be_there_from_the_beginning():
    queue = draw_queue(EVEN, inf, jobs=7)
    assert [job.arrival for job in queue.queue] == [0] * 7 and len({job.name for job in queue.queue}) == 7


@pytest.mark.parametrize(("clusters", "rate"), [(EVEN, 3.0), (UNEVEN, 6.0)])
def test_arrivals_kinds_and_clusters_have_the_distributions_of_the_paper(clusters, rate):
    queue = draw_queue(clusters, rate, jobs=20_000, seed=1).arrays()
    a_slot = np.bincount(queue.arrival)[:-1]
    assert a_slot.mean() == pytest.approx(rate, rel=0.03) and a_slot.var() == pytest.approx(rate, rel=0.05)
    assert queue.kind.mean() == pytest.approx(0.5, abs=0.02)
    sizes = np.bincount(queue.reach.sum(axis=1), minlength=len(clusters) + 1)[1:] / 20_000
    assert sizes == pytest.approx(1 / len(clusters), abs=0.02)
    assert len(draw_queue(clusters, rate).queue) == 64 * len(clusters)


@pytest.mark.slow
def test_load_swings_and_paces_spread():
    queue = draw_queue(jobs=40_000, swing=0.8, noise=0.5, seed=2).arrays()
    by_phase = np.bincount(queue.arrival % 32)
    assert by_phase[8] > 4 * by_phase[24]
    assert np.log(queue.pace).std() == pytest.approx(0.5, rel=0.03) and np.log(
        queue.pace
    ).mean() == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"swing": 1.0}, {"noise": -1.0}, {"jobs": 0}])
def test_what_cannot_be_drawn_is_named(wrong):
    with pytest.raises(InputError, match="expected a rate above 0"):
        draw_queue(**wrong)
