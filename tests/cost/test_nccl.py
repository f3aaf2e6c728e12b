"""NCCL's model of itself: values worked out by hand, and what follows from them."""

from __future__ import annotations

import itertools

import pytest

from wirewise import topology
from wirewise.collective import network
from wirewise.collective.exporters.rings import pack_rings
from wirewise.cost import nccl
from wirewise.errors import InputError

ONE = nccl.Machine(ranks=8, hosts=1, nvlink=True, channels=6, bandwidth_bytes_per_s=150e9, gpu="volta")
MANY = nccl.Machine(ranks=16, hosts=16, nvlink=False, channels=2, bandwidth_bytes_per_s=25e9)


@pytest.mark.parametrize(
    ("what", "expected_us"),
    [
        # 6.6 + 14 x 0.6 us, 1 KB at min(39, 75) x 8/14 GB/s.
        (("all_reduce", "ring", "ll", 1000, ONE), 15.0 + 1.0 / (39 * 8 / 14)),
        # 8.4 + 14 x 3.4 us, 1 GB at 150 x 8/14 GB/s.
        (("all_reduce", "ring", "simple", 1e9, ONE), 56.0 + 1e6 / (150 * 8 / 14)),
        # 6.8 + 2 x 7 x 0.6 us; 4 KB is 64 B x 2^6, where a tree reaches 0.7 of 138 / 3.8 / 2 GB/s.
        (("all_reduce", "tree", "ll", 4096, ONE), 15.2 + 4.096 / (0.7 * 138 / 3.8 / 2)),
        # 8.4 + 7 x 3.4 us, at 150 x 8/7 GB/s.
        (("all_gather", "ring", "simple", 1e6, ONE), 32.2 + 1e3 / (150 * 8 / 7)),
        # 8.4 + 8 x 4 us: a hop of a tree in each step; 8 steps for 8 ranks.
        (("broadcast", "ring", "simple", 1e6, ONE), 40.4 + 1e3 / 150),
        # 8 + 4 x 4 + 16 x 2.8 us, at 25 x 0.75 x 16/15 GB/s.
        (("all_gather", "pat", "simple", 1e6, MANY), 68.8 + 1e3 / 20),
        # (8.4 + 30 x 14) x 1.4 us.
        (("all_reduce", "ring", "simple", 1e6, MANY), 428.4 * 1.4 + 1e3 / (25 * 16 / 30)),
    ],
)
def test_values_by_hand(what, expected_us):
    assert nccl.predict(*what) == pytest.approx(expected_us * 1e-6)


def test_candidates():
    assert ("tree", "ll128") in nccl.candidates("all_reduce", ONE)
    assert nccl.candidates("broadcast", MANY) == [("ring", "ll"), ("ring", "simple")]
    assert ("pat", "simple") in nccl.candidates("reduce_scatter", MANY)
    with pytest.raises(InputError, match="NCCL chooses no algorithm for 'all_to_all'"):
        nccl.candidates("all_to_all", ONE)


@pytest.mark.parametrize("collective", nccl.CALLS)
@pytest.mark.parametrize("on", [ONE, MANY])
def test_choices_have_no_gap_and_are_the_quickest(collective, on):
    found = nccl.choices(collective, on)
    assert found[0].min_bytes == 0
    for a, b in itertools.pairwise(found):
        assert a.max_bytes + 1 == b.min_bytes
        assert (a.algorithm, a.protocol) != (b.algorithm, b.protocol)
    for choice in found:
        size = max(64, choice.min_bytes)
        own = nccl.predict(collective, choice.algorithm, choice.protocol, size, on)
        assert own == min(nccl.predict(collective, *one, size, on) for one in nccl.candidates(collective, on))
    assert found[0].protocol == "ll" and found[-1].protocol == "simple"


def test_a_tree_is_quicker_for_small_sizes_on_many_hosts():
    assert nccl.best("all_reduce", 1024, MANY)[0] == "tree"
    assert nccl.best("all_reduce", 1e9, ONE) == ("ring", "simple")


def test_machine_of_a_topology():
    found = network(topology.preset("lab-4@400mbit"))
    on = nccl.machine(pack_rings(found), [[0], [1], [2], [3]], nvlink=False)
    assert on.ranks == on.hosts == 4
    assert on.bandwidth_bytes_per_s == pytest.approx(50e6)
    assert on.channels == 1
