"""Tasks of a growing graph, and what is measured over them (E3, E4)."""

import numpy as np
import pytest

from tests.graph.toys import toy
from wirewise.errors import GraphError, InputError
from wirewise.graph import BlockModel, block_model
from wirewise.graph.rehearsal import (
    GROWTHS,
    average_forgetting,
    average_performance,
    balanced_accuracy,
    growing_graph,
)


@pytest.fixture(scope="module")
def data():
    return block_model(BlockModel(nodes=900, classes=7, features=8))


def targets(edges):
    return np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))


def test_classes_come_in_label_order_and_the_last_odd_one_is_dropped(data):
    grown = growing_graph(data)
    assert [task.classes for task in grown.tasks] == [(0, 1), (2, 3), (4, 5)]
    assert set(data.y[grown.arrival < 0]) == {6}
    assert grown.task_of_class.tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert [t.classes for t in growing_graph(data, classes_per_task=3).tasks] == [(0, 1, 2), (3, 4, 5)]
    assert len(growing_graph(data, most_tasks=2).tasks) == 2


def test_the_split_takes_its_shares_of_every_class(data):
    grown = growing_graph(data)
    for task in grown.tasks:
        parts = [task.train, task.validation, task.test]
        assert sorted(np.concatenate(parts)) == np.flatnonzero(np.isin(data.y, task.classes)).tolist()
        for label in task.classes:
            count = [np.count_nonzero(data.y[part] == label) for part in parts]
            assert np.abs(np.array(count) / sum(count) - [0.6, 0.2, 0.2]).max() < 1 / sum(count) + 1e-9
    other = growing_graph(data, seed=1)
    assert not np.array_equal(grown.tasks[0].train, other.tasks[0].train)


@pytest.mark.parametrize("growth", GROWTHS)
def test_e4_no_node_of_a_later_task_is_there(data, growth):
    grown = growing_graph(data, growth=growth)
    whole = {(int(u), int(v)) for u, v in zip(data.in_edges.indices, targets(data.in_edges), strict=True)}
    sizes = []
    for number in range(len(grown.tasks)):
        edges = grown.edges(number)
        ends = np.stack([edges.indices, targets(edges)])
        arrived = grown.arrival[ends]
        last = number if growth != "transductive" else len(grown.tasks) - 1
        assert 0 <= arrived.min() and arrived.max() <= last
        expected = {
            pair
            for pair in whole
            if 0 <= min(a := grown.arrival[list(pair)]) <= max(a) <= last
            and (growth != "separate" or a[0] == a[1])
        }
        assert {(int(u), int(v)) for u, v in ends.T} == expected
        sizes.append(len(expected))
    assert sizes == sorted(sizes) and (sizes[0] < sizes[-1]) == (growth != "transductive")


def test_e3_measures_of_a_matrix_by_hand():
    accuracy = np.array([[0.9, np.nan, np.nan], [0.7, 0.8, np.nan], [0.5, 0.9, 0.6]])
    assert average_performance(accuracy) == pytest.approx((0.5 + 0.9 + 0.6) / 3)
    assert average_forgetting(accuracy) == pytest.approx(((0.5 - 0.9) + (0.9 - 0.8)) / 2)
    assert average_forgetting(np.array([[0.5]])) == 0
    assert average_performance(np.eye(3)) == pytest.approx(1 / 3)


def test_accuracy_is_that_of_classes():
    assert balanced_accuracy(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1])) == 0.5


def test_a_matrix_with_gaps_is_refused():
    with pytest.raises(InputError, match="a value for every task"):
        average_performance(np.full((2, 2), np.nan))
    with pytest.raises(InputError, match="square"):
        average_forgetting(np.ones((2, 3)))


def test_what_cannot_be_cut_into_tasks_is_named(data):
    with pytest.raises(GraphError, match="0 of 7 classes with at least 5000 nodes"):
        growing_graph(data, fewest=5000)
    with pytest.raises(GraphError, match="3 of 4 classes with at least 5 nodes, enough for 1 tasks"):
        # Class 3 has no nodes at all.
        growing_graph(toy([], 15, directed=False, y=np.arange(15) % 3, num_classes=4), fewest=5)
    with pytest.raises(InputError, match="at least 2 and 5"):
        growing_graph(data, classes_per_task=1)
    with pytest.raises(InputError, match="'backwards' is unknown"):
        growing_graph(data, growth="backwards")
    with pytest.raises(GraphError, match="several labels"):
        growing_graph(toy([], 4, y=np.ones((4, 2), np.float32), directed=False))
    with pytest.raises(InputError, match="got task 3; expected 0 to 2"):
        growing_graph(data).edges(3)
