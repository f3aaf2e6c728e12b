"""Methods through the same tasks: what they learn and keep, and what repeats."""

import numpy as np
import pytest

from tests.runtime.incremental.grown import FEW, small
from wirewise.errors import InputError
from wirewise.graph.rehearsal import average_forgetting, average_performance
from wirewise.runtime.incremental import METHODS, Settings, train


@pytest.fixture(scope="module")
def growing():
    return small()


@pytest.mark.slow
def test_every_method_learns_and_joint_training_is_best():
    growing = small(900)
    settings = Settings(epochs=25, budget=5, hidden=16, learning_rate=0.02, setting="class")
    found = train(growing, list(METHODS), settings)
    ap = {name: average_performance(accuracy) for name, accuracy in found.items()}
    af = {name: average_forgetting(accuracy) for name, accuracy in found.items()}
    assert max(ap, key=lambda name: ap[name]) == "joint"
    assert ap["bare"] < 0.5 and af["bare"] < -0.4
    for name in METHODS:
        assert found[name][0, 0] > 0.7, name
        if METHODS[name].learner in ("replay", "ssrm"):
            assert ap[name] > ap["bare"] + 0.1, name


@pytest.mark.parametrize("name", ["ewc", "lwf", "gem", "ssrm"])
def test_regularised_methods_keep_more_than_fine_tuning(growing, name):
    settings = Settings(epochs=20, budget=5, hidden=16, learning_rate=0.02)
    found = train(growing, ["bare", name], settings)
    assert average_forgetting(found[name]) > average_forgetting(found["bare"])


def test_the_same_seed_gives_the_same_accuracies(growing):
    one, other = (train(growing, ["coverage+kmm"], FEW)["coverage+kmm"] for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_wrong_settings_are_named(growing):
    with pytest.raises(InputError, match="budget is 0; expected at least 1"):
        Settings(budget=0)
    with pytest.raises(InputError, match="setting is 'domain'; expected one of: task, class"):
        Settings(setting="domain")
    with pytest.raises(InputError, match="method 'sea' is unknown; expected some of: bare"):
        train(growing, ["sea"], FEW)
    with pytest.raises(InputError, match=r"most is 0\.5; expected a finite number of at least 1"):
        Settings(most=0.5)
