from __future__ import annotations

import pytest

from tests.planners.pipeline.problems import random_trace
from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.planners.pipeline import PipelineProblem, problem_of
from wirewise.planners.pipeline.cuts import figures


def wires(links, positions, replicas):
    return PipelineProblem(random_trace(1, 8), links, 64).wires(positions, replicas, 1)


def test_replicas_on_a_host_share_its_interface():
    """Two hosts of two ranks: two positions of two replicas, which both send over the one link."""
    links = Links.uniform(2, 100.0, 0.5, ranks_per_host=2, intra_bytes_per_s=1000.0, intra_latency_s=0.1)
    found = wires(links, 2, 2)
    assert found.latency_s.tolist() == [0.5] and found.s_per_byte.tolist() == pytest.approx([2 / 100])
    # Activations leave the first host and gradients enter it, of both replicas.
    assert found.host_s_per_byte[:, 0].tolist() == pytest.approx([0.02, 0.02, 0.02, 0.02])
    # Replicas of a position are on one host, so gradients do not leave it: 2 (w - 1) / w of each byte.
    assert found.exchange_s.tolist() == pytest.approx([0.2, 0.2])
    assert found.exchange_s_per_byte.tolist() == pytest.approx([1 / 1000.0] * 2)


def test_positions_on_a_host_use_what_is_inside_it():
    links = Links.uniform(2, 100.0, 0.5, ranks_per_host=2, intra_bytes_per_s=1000.0, intra_latency_s=0.1)
    found = wires(links, 4, 1)
    assert found.latency_s.tolist() == pytest.approx([0.1, 0.5, 0.1])
    assert found.s_per_byte.tolist() == pytest.approx([0.001, 0.01, 0.001])
    assert found.host_s_per_byte[:, [0, 2]].sum() == 0


def test_stages_of_several_ranks_get_values_whole():
    """Two positions of two ranks, each on a host of its own: a value enters both of the next, from one of the first."""
    problem = PipelineProblem(random_trace(1, 8), Links.uniform(4, 100.0, 0.5), 64)
    found = problem.wires(2, 1, 2)
    assert found.s_per_byte.tolist() == pytest.approx([0.01])
    # Out of hosts 0 to 3, then into them: activations 0 -> 2 -> 3, gradients 2 -> 0 -> 1.
    assert found.host_s_per_byte[:, 0].tolist() == pytest.approx([0.02, 0, 0.02, 0, 0.01, 0.01, 0.01, 0.01])
    assert problem.wires(1, 2, 2).latency_s.size == 0


def test_one_position_has_no_messages():
    found = wires(Links.uniform(4, 100.0, 0.5), 1, 4)
    assert found.latency_s.size == found.s_per_byte.size == 0
    assert found.exchange_s.tolist() == pytest.approx([3.0])
    assert found.exchange_s_per_byte.tolist() == pytest.approx([1.5 / 100])


def test_tables_are_made_once_for_a_size():
    problem = problem_of(random_trace(2, 5, skips=2), Links.uniform(2, 100.0))
    assert problem.batch == 16
    assert problem.tables(2) is problem.tables(2) and problem.tables(1) is not problem.tables(2)
    expected = figures(problem.sums(2), problem.trace, problem.sets)
    assert (problem.tables(2).compute_s == expected.compute_s).all()


def test_a_problem_without_samples_or_memory_is_refused():
    for more in ({"batch": 0}, {"memory_bytes": -1.0}, {"memory_bytes": float("nan")}):
        with pytest.raises(InputError, match="expected at least 1 and more than 0"):
            problem_of(random_trace(1, 3), Links.uniform(2, 100.0), **more)
