"""Classes of ranks that a network cannot tell apart."""

import pytest

from wirewise.collective import network
from wirewise.collective.symmetry import rank_classes
from wirewise.topology.presets import lab_hosts, preset


@pytest.mark.parametrize(
    ("rates", "classes"),
    [
        (["10mbit"] * 4, (0, 0, 0, 0)),
        (["10mbit", "20mbit", "10mbit", "20mbit"], (0, 1, 0, 1)),
        (["10mbit", "20mbit", "30mbit"], (0, 1, 2)),
    ],
)
def test_rates_tell_ranks_apart(rates, classes):
    assert rank_classes(network(lab_hosts(rates))) == classes


def test_ranks_beside_another_rank_are_of_another_class():
    """The link of a host tells its ranks apart, though each has the same link to it."""
    found = rank_classes(network(lab_hosts(["10mbit", "10mbit", "20mbit"], ranks_per_host=2)))
    assert found == (0, 0, 0, 0, 1, 1)


def test_machines_of_a_cluster_are_alike():
    assert len(set(rank_classes(network(preset("dgx-h100x4"))))) == 1
