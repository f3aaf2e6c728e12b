"""What is taught is learned, by the function that later decides."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.planners.placement.tag.network import new_weights, scores
from wirewise_papers.tag.policy_training import build_examples, train
from wirewise_papers.tag.random_models import random_problem


@pytest.mark.slow
def test_lessons_are_learned():
    problem = random_problem(10_001, hosts=2, groups=4)
    taught = build_examples(problem, simulations=60, positions=2, seed=0)
    weights = new_weights(0)
    losses = list(train(taught, weights, epochs=25, rate=1e-2))
    assert losses[-1] < 0.5 * losses[0]
    # numpy and torch agree about what was learned.
    seen = taught[0].seen._replace(
        **{name: getattr(taught[0].seen, name).numpy() for name in taught[0].seen._fields if name != "group"}
    )
    assert np.argmax(scores(weights, seen)) in np.flatnonzero(taught[0].target.numpy() > 0.1)
