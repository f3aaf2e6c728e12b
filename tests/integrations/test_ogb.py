import sys

import numpy as np
import pytest

from wirewise.errors import InputError
from wirewise.integrations.ogb import official_score


class Accuracy:
    """What the benchmark's evaluator does with one label a node."""

    def eval(self, given):
        assert given["y_true"].ndim == given["y_pred"].ndim == 2
        return {"acc": np.float64((given["y_true"] == given["y_pred"]).mean())}


def test_the_largest_score_is_the_prediction():
    scores = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert official_score("ogbn-arxiv", np.array([1, 0, 0]), scores, evaluator=Accuracy()) == {
        "acc": pytest.approx(2 / 3)
    }


def test_scores_of_several_tasks_are_passed_on():
    scores = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert official_score("ogbn-proteins", scores.astype(int), scores, evaluator=Accuracy()) == {"acc": 1}


def test_what_does_not_fit_is_named(monkeypatch):
    with pytest.raises(InputError, match=r"got labels \[2\] and scores \[3, 2\]; expected a row each"):
        official_score("ogbn-arxiv", np.zeros(2, int), np.zeros((3, 2)))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(
        InputError, match=r"OGB .* needs the package ogb; install it with: pip install .*ogb\]'$"
    ):
        official_score("ogbn-arxiv", np.zeros(3, int), np.zeros((3, 2)))
