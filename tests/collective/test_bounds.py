from __future__ import annotations

import numpy as np
import pytest

from tests.collective.brute_force import all_cuts, leaving, must_leave
from tests.collective_networks import SECTION_7, machine_network, random_network
from wirewise.collective import COLLECTIVES, Collective, Network, network
from wirewise.collective.bounds import all_gather_inverse_rate, bound, two_phase_s
from wirewise.collective.network import Edge
from wirewise.errors import InputError, TopologyError
from wirewise.topology import preset


@pytest.mark.parametrize("name", SECTION_7)
def test_a1_all_gather_of_published_machines(name: str) -> None:
    made = machine_network(name)
    assert all_gather_inverse_rate(made) == SECTION_7[name]
    for collective in ("all_gather", "reduce_scatter"):
        seconds = bound(made, collective, made.ranks * 1e9).seconds
        assert seconds == pytest.approx(float(SECTION_7[name] * 10**9), rel=1e-9)


def test_a1_all_to_all_between_two_ndv2_takes_the_relay() -> None:
    made = machine_network("ndv2x2")
    found = bound(made, "all_to_all", 1e9)
    # Eight by eight pairs of 1/16 GB cross a link of 12.5 GB/s.
    assert found.seconds == pytest.approx(64 / 16 / 12.5)
    assert found.cut in (tuple(range(8)), tuple(range(8, 16))) and found.exact


def test_uneven_lab_network() -> None:
    made = network(preset("h4"))
    found = bound(made, "all_reduce", 16 * 2**20)
    assert found.seconds == pytest.approx(0.1917, abs=1e-4)
    assert found.cut in ((0, 1), (2, 3))
    assert two_phase_s(made, 16 * 2**20) == pytest.approx(found.seconds)


def test_equal_links_of_all_reduce_are_bound_by_what_ranks_take_in() -> None:
    made = network(preset("dgx-a100x1"))
    found = bound(made, "all_reduce", 8e9)
    assert found.cut == () and found.seconds == pytest.approx(2 * 7 * 8e9 / (8 * 300e9))
    assert two_phase_s(made, 8e9) == pytest.approx(found.seconds)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(200))
def test_a3_bounds_are_the_tightest_of_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(4, 7))
    made = random_network(seed, ranks, switches=int(rng.integers(0, 9 - ranks)))
    count = int(rng.integers(2, ranks + 1))
    members = tuple(sorted(rng.choice(ranks, count, replace=False).tolist()))
    root = members[seed % count]
    for collective in COLLECTIVES:
        found = bound(made, collective, 1.0, root=root, members=members)
        expected = max(all_cuts(made, collective, root, members))
        assert found.seconds == pytest.approx(expected, rel=1e-12), collective
        if found.vertices:
            _check_certificate(made, collective, root, members, found.seconds, found.vertices)
            assert found.cut == tuple(v for v in found.vertices if v < ranks)


def test_pairs_of_dies_bound_the_all_reduce_of_mi250() -> None:
    # Eight pairs with 300 GB/s into each are tighter than any cut and than the single dies.
    found = bound(machine_network("mi250x1"), "all_reduce", 1e9)
    assert found.seconds == pytest.approx(2 * 7 * 1e9 / (8 * 300e9)) and len(found.parts) == 8
    assert two_phase_s(machine_network("mi250x1"), 1e9) == pytest.approx(found.seconds)


def test_certificate_of_large_machines() -> None:
    for name in ("dgx-2x2", "mi250x2"):
        made = machine_network(name)
        for collective in COLLECTIVES:
            found = bound(made, collective, 1e9)
            assert found.seconds == pytest.approx(found.bytes_leaving / found.bandwidth_bytes_per_s)
            if found.vertices:
                group = tuple(range(made.ranks))
                _check_certificate(made, collective, 0, group, found.seconds * 1e-9, found.vertices)


def test_one_member_needs_no_time() -> None:
    assert bound(machine_network("dgx-1v"), "all_gather", 1e9, members=(3,)).seconds == 0
    assert bound(machine_network("dgx-1v"), "all_to_all", 0).seconds == 0


def test_bad_arguments_are_named() -> None:
    made = machine_network("dgx-1v")
    with pytest.raises(InputError, match="got the collective 'gossip'"):
        bound(made, "gossip", 1.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="size of -1"):
        bound(made, "broadcast", -1)
    with pytest.raises(InputError, match=r"members \(0, 9\)"):
        bound(made, "all_gather", 1, members=(0, 9))
    with pytest.raises(InputError, match="root 5"):
        bound(made, "broadcast", 1, root=5, members=(0, 1))
    cut_off = Network(name="n", ranks=2, vertices=("a", "b"), edges=(Edge(0, 1, 1.0, 0.0),))
    with pytest.raises(TopologyError, match=r"no edge leads out of the vertices \[1\]"):
        bound(cut_off, "all_gather", 1.0)


def _check_certificate(
    made: Network,
    collective: Collective,
    root: int,
    members: tuple[int, ...],
    seconds: float,
    vertices: tuple[int, ...],
) -> None:
    inside = set(vertices)
    again = must_leave(collective, inside, root, members) / leaving(made, inside)
    assert again == pytest.approx(seconds, rel=1e-12)
