"""Training of the learned policy, in small."""

from __future__ import annotations

import pytest
import torch

from wirewise.planners.jobs import mean_slots, problem_of
from wirewise.planners.jobs.attention import TapFinger
from wirewise.planners.jobs.policy import run_episodes
from wirewise.planners.jobs.rules import expected_queue, knowledge
from wirewise.sim.jobs import draw_queue
from wirewise_papers.tapfinger.policy_training import TrainingSettings, imitate, improve

SMALL = TrainingSettings(games=4, imitated=800, improved=512, batch=32, horizon=16)


def draw(seed):
    return problem_of(draw_queue(((8, 8), (8, 8)), 2.0, jobs=20, seed=seed), kept=1.0)


@pytest.mark.slow
def test_a_small_network_learns_the_rule_and_goes_on_by_returns():
    torch.manual_seed(0)
    network = TapFinger(width=16, layers=1)
    problems = [draw(seed) for seed in range(5)]

    def mean():
        states = zip(run_episodes(network, problems, 3000), problems, strict=True)
        return sum((state.finish - one.arrays.arrival).mean() for state, one in states) / 5

    random = mean_slots(problems, "random", knowledge(expected_queue(problems[0].arrays)))
    losses = list(imitate(network, [draw], SMALL))
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20])
    assert mean() < 0.8 * random
    assert len(list(improve(network, [draw], SMALL))) == 8 and mean() < 0.8 * random
