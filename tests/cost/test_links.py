"""The table of links: each way to make one, the prices that every family reads from it, shapes and errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.test_traces import LATENCY, RATE, trace
from wirewise.cost import TCP_PAYLOAD, LinkCost, Links, PairCosts
from wirewise.cost.gradients import V100, group_costs
from wirewise.errors import InputError
from wirewise.planners.fusion import FusionProblem, Module
from wirewise.plans.cache import CachePlan, MachineCache, pack_node_ids
from wirewise.sim import BatchTimes, predict
from wirewise.sim.flows import FlowSimulator
from wirewise.topology import Device, Host, Link, Switch, Topology, from_pairs, lab_hosts, preset
from wirewise.trace import Flow, TaskSet, TrainingTask

RATES = [10e6, 20e6, 20e6, 5e6]
"""Bytes a second of a lab's hosts."""


def lab(latency_s=1e-3):
    return lab_hosts(RATES, latency_s=latency_s)


def two_machines():
    """Two hosts of two GPUs: 100 MB/s inside, 10 and 20 MB/s to a switch."""
    inside = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 100e6, "kind": "nvlink"}
    return Topology(
        name="two",
        hosts=(Host(name="a"), Host(name="b")),
        devices=tuple(Device(name=f"{host}{n}", host=host) for host in "ab" for n in range(2)),
        switches=(Switch(name="net", kind="network"),),
        links=(
            *(
                Link(source=f"{h}{n}", target=h, latency_s=0.0, bandwidth_bytes_per_s=50e6, kind="pcie")
                for h in "ab"
                for n in range(2)
            ),
            *(Link(source=f"{h}0", target=f"{h}1", **inside) for h in "ab"),
            Link(source="a", target="net", latency_s=1e-4, bandwidth_bytes_per_s=10e6),
            Link(source="b", target="net", latency_s=1e-4, bandwidth_bytes_per_s=20e6),
        ),
    )


def cached(rows):
    """A plan under which each machine fetches so many rows of each other."""
    machines = tuple(
        MachineCache(
            nodes=pack_node_ids(np.zeros(0, np.int64)), budget=0, needed=tuple(row), fetched=tuple(row)
        )
        for row in rows.tolist()
    )
    return CachePlan(
        world_size=len(rows),
        planner="none",
        machines=machines,
        num_nodes=10,
        owner="",
        fanouts=(5,),
        batch_size=1,
        batches=1,
    )


class TestTopology:
    def test_interfaces_pairs_and_the_graph(self):
        links = Links.of(lab())
        assert links.bandwidth_out_bytes_per_s.tolist() == links.bandwidth_in_bytes_per_s.tolist() == RATES
        assert links.latency_s == pytest.approx(1e-3 * (1 - np.eye(4)))
        assert links.host_of_rank.tolist() == [0, 1, 2, 3] and links.ranks_of_host.tolist() == [1] * 4
        assert np.isinf(links.intra_bytes_per_s).all()
        assert links.pair(0, 1) == LinkCost(latency_s=1e-3, s_per_byte=1e-7)
        assert links.pair(2, 3).bandwidth_bytes_per_s == pytest.approx(5e6)
        assert links.network.ranks == 4

    def test_ranks_of_a_host_have_its_own_links(self):
        links = Links.of(two_machines())
        assert (links.hosts, links.world_size) == (2, 4) and links.host_of_rank.tolist() == [0, 0, 1, 1]
        assert links.bandwidth_out_bytes_per_s.tolist() == [10e6, 20e6]
        assert links.pair(0, 1).bandwidth_bytes_per_s == pytest.approx(100e6)
        assert links.pair(0, 3).bandwidth_bytes_per_s == pytest.approx(10e6)
        assert links.latency_s == pytest.approx(np.array([[1e-6, 2e-4], [2e-4, 1e-6]]))
        # Both ranks of a host send at once.
        assert links.intra_bytes_per_s == pytest.approx([200e6, 200e6])

    def test_one_machine_has_no_interface(self):
        links = Links.of(preset("dgx-1v"))
        assert (links.hosts, links.world_size) == (1, 8)
        assert np.isinf(links.bandwidth_out_bytes_per_s).all() and np.isfinite(links.intra_bytes_per_s).all()

    def test_measured_pairs_are_kept(self):
        """What `wirewise topo probe` measured: links that do not slow each other, or ports that bind."""
        rate = np.array([[1, 4e6, 2e6], [5e6, 1, 3e6], [2e6, 6e6, 1]])
        wait = np.array([[0, 1e-3, 2e-3], [3e-3, 0, 4e-3], [5e-3, 6e-3, 0]])
        apart = ~np.eye(3, dtype=bool)
        own = {"leaving": (rate * apart).sum(axis=1), "arriving": (rate * apart).sum(axis=0)}
        links = Links.of(from_pairs("mesh", ["x", "y", "z"], rate=rate, latency_s=wait, **own))
        alike = np.isclose(rate, rate.T, rtol=0.1)
        assert links.pairs.s_per_byte[apart] == pytest.approx(1 / rate[apart])
        assert links.pairs.latency_s[apart & ~alike] == pytest.approx(wait[apart & ~alike])
        # A rank that sends to both at once has both links.
        assert links.bandwidth_out_bytes_per_s == pytest.approx([6e6, 8e6, 8e6])
        ports = {"leaving": np.array([4.2e6, 5e6, 6e6]), "arriving": np.array([5e6, 6e6, 3.2e6])}
        bound = Links.of(from_pairs("ports", ["x", "y", "z"], rate=rate, latency_s=wait, **ports))
        assert bound.bandwidth_out_bytes_per_s == pytest.approx(ports["leaving"])
        assert bound.pair(0, 2) == LinkCost(latency_s=2e-3, s_per_byte=5e-7)

    def test_payload_counts_on_ethernet_only(self):
        links = Links.of(two_machines(), payload=TCP_PAYLOAD)
        assert links.bandwidth_in_bytes_per_s.tolist() == [TCP_PAYLOAD * 10e6, TCP_PAYLOAD * 20e6]
        assert links.pair(0, 1).bandwidth_bytes_per_s == pytest.approx(100e6)
        with pytest.raises(InputError, match=r"payload is 1\.5; expected the share"):
            Links.of(lab(), payload=1.5)

    def test_hosts_in_a_row_pass_on_no_messages_of_others(self):
        row = Topology(
            name="row",
            hosts=tuple(Host(name=name) for name in "abc"),
            links=tuple(
                Link(source=s, target=t, latency_s=1e-3, bandwidth_bytes_per_s=1e6) for s, t in ("ab", "bc")
            ),
        )
        links = Links.of(row)
        assert links.latency_s[0, 2] == pytest.approx(2e-3)
        with pytest.raises(InputError, match="no path leads from rank 0 to rank 2 past no other"):
            links.pair(0, 2)
        size = np.zeros((3, 3))
        size[0, 1] = 1e6
        assert links.wire_s(size) == pytest.approx([0.0, 1.001, 0.0])
        size[0, 2] = 1
        with pytest.raises(InputError, match="rank 2 gets bytes from one to which no path leads"):
            links.wire_s(size)


class TestPricesOfALab:
    """What each family read from a table of its own, computed by hand for the lab of four rates."""

    def test_halo_exchanges(self):
        links = Links.of(lab())
        everyone = 1e6 * (1 - np.eye(4))
        # 3 MB leave host 0 in 0.3 s; host 3 is the slowest in both directions.
        assert links.wire_s(everyone) == pytest.approx([0.601, 0.601, 0.601, 0.601])
        everyone[3] = everyone[:, 3] = 0
        assert links.wire_s(everyone) == pytest.approx([0.201, 0.201, 0.201, 0.0])

    def test_they_are_those_of_the_measured_pairs(self):
        lab_alike = Links.of(lab_hosts([10e6] * 4, latency_s=1e-3))
        measured = Links.of_pairs(LinkCost(latency_s=1e-3, s_per_byte=1e-7), 4)
        size = np.random.default_rng(0).integers(0, 10**6, (4, 4)) * (1 - np.eye(4, dtype=np.int64))
        assert lab_alike.wire_s(size).tolist() == measured.wire_s(size).tolist()
        assert lab_alike.load(size).tolist() == measured.load(size).tolist()

    def test_groups_of_gradients(self):
        # A ring over hosts goes at the pace of the slowest, 5 MB/s, in 6 rounds of 1 ms.
        (found,) = group_costs(V100, "none", Links.of(lab()))
        assert float(found.communicate_s(1e6)) == pytest.approx(150e-6 + 6e-3 + 2 * 3 / 4 * 4e6 / 5e6)
        (alike,) = group_costs(V100, "none", Links.of(lab_hosts([5e6] * 4, latency_s=0.0)))
        (uniform,) = group_costs(V100, "none", Links.uniform(4, 5e6))
        assert alike == uniform

    def test_groups_on_hosts_of_several_ranks(self):
        costs = {one.scheme: one for one in group_costs(V100, "none", Links.of(two_machines()))}
        x = 1e6
        ring = 150e-6 + 6 * 2e-4 + 2 * 3 / 4 * 4 * x / 10e6
        assert float(costs["all_reduce"].communicate_s(x)) == pytest.approx(ring)
        inside = 300e-6 + 2 * 4 * x / 2 / 100e6
        between = 150e-6 + 2 * 2e-4 + 2 * 1 / 2 * 2 * 4 * x / 2 / 10e6
        assert float(costs["hierarchical"].communicate_s(x)) == pytest.approx(inside + between)

    def test_groups_on_one_host_go_over_its_own_links(self):
        (found,) = group_costs(
            V100, "none", Links.uniform(1, np.inf, intra_bytes_per_s=4e6, ranks_per_host=4)
        )
        assert float(found.communicate_s(1e6)) == pytest.approx(150e-6 + 2 * 3 / 4 * 4e6 / 1e6)

    def test_all_reduces_of_a_replay(self):
        problem = FusionProblem(
            modules=[Module(name="m", forward_s=0.0, backward_s=0.0, gradient_bytes=4.0)],
            hosts=range(4),
            links=Links.of(lab()),
        )
        assert problem.wire.latency_s == pytest.approx(6e-3)
        assert problem.wire.s_per_byte == pytest.approx(2 * 3 / 4 / 5e6)

    def test_flows_of_a_placement(self):
        tasks = TaskSet(
            iterations=1,
            tasks=(
                TrainingTask(name="s", kind="store"),
                TrainingTask(name="x", kind="sampler", worker="w"),
                TrainingTask(name="w", kind="worker"),
            ),
            flows=(
                Flow(source="s", target="x", size_bytes=(1e6,)),
                Flow(source="x", target="w", size_bytes=(0.0,)),
            ),
        )
        simulator = FlowSimulator(tasks, Links.of(lab()))
        assert [simulator.seconds(np.array([0, host, host])) for host in range(4)] == pytest.approx(
            [0, 0.1, 0.1, 0.2]
        )

    def test_rows_of_a_mini_batch(self):
        counts = np.full((4, 4), 10.0) * (1 - np.eye(4))
        plan = cached(counts)
        # 30 rows of 1000 bytes leave host 3, 30 ids of 4 bytes before, each after a millisecond.
        assert predict(plan, BatchTimes(row_bytes=1000), Links.of(lab())).step_s == pytest.approx(
            2e-3 + 30 * 1004 / 5e6
        )
        # Two ranks of a host share its interface, and rows of the same host do not pass it.
        found = predict(plan, BatchTimes(row_bytes=1000), Links.of(two_machines())).step_s
        assert found == pytest.approx(2 * 2e-4 + 40 * 1004 / 10e6)


class TestPairs:
    def test_interfaces_are_as_fast_as_their_fastest_pair(self):
        costs = {
            (s, r): LinkCost(latency_s=0.1 * s, s_per_byte=1e-9 if s // 2 == r // 2 else 1e-6 * (1 + s))
            for s in range(4)
            for r in range(4)
            if s != r
        }
        links = Links.of_pairs(costs, 4, hosts=[0, 0, 2, 2])
        assert links.hosts == 3 and links.ranks_of_host.tolist() == [2, 0, 2]
        assert links.bandwidth_out_bytes_per_s[[0, 2]] == pytest.approx([1e6, 1e6 / 3])
        assert links.bandwidth_in_bytes_per_s[[0, 2]] == pytest.approx([1e6 / 3, 1e6])
        assert links.intra_bytes_per_s[[0, 2]] == pytest.approx([2e9, 2e9])
        assert np.isinf([links.bandwidth_out_bytes_per_s[1], links.intra_bytes_per_s[1]]).all()
        assert links.latency_s[0, 2] == pytest.approx(0.1) and links.latency_s[2, 2] == pytest.approx(0.3)
        assert links.pair(3, 0) == costs[3, 0]

    @given(st.integers(2, 5), st.integers(0, 2**31))
    def test_pairs_that_are_measured_again(self, ranks, seed):
        rng = np.random.default_rng(seed)
        hosts = rng.integers(0, ranks, ranks)

        def made(slopes):
            costs = {
                (s, r): LinkCost(latency_s=0.5, s_per_byte=slopes[s, r])
                for s in range(ranks)
                for r in range(ranks)
                if s != r
            }
            return Links.of_pairs(costs, ranks, hosts=hosts)

        one, other = made(rng.random((ranks, ranks))), made(rng.random((ranks, ranks)))
        again = one.with_pairs(other.pairs)
        size = rng.random((ranks, ranks))
        assert again.wire_s(size).tolist() == other.wire_s(size).tolist()
        for name in (
            "bandwidth_out_bytes_per_s",
            "bandwidth_in_bytes_per_s",
            "latency_s",
            "intra_bytes_per_s",
        ):
            assert getattr(again, name).tolist() == getattr(other, name).tolist()

    def test_interfaces_of_a_topology_stay(self):
        rate = np.full((3, 3), 1e6)
        sums = {"leaving": np.full(3, 2e6), "arriving": np.full(3, 2e6)}
        links = Links.of(from_pairs("mesh", ["x", "y", "z"], rate=rate, latency_s=np.zeros((3, 3)), **sums))
        slower = links.with_pairs(PairCosts(links.pairs.latency_s, 2 * links.pairs.s_per_byte))
        assert slower.bandwidth_out_bytes_per_s.tolist() == [2e6] * 3
        assert slower.pair(0, 1).s_per_byte == 2e-6

    def test_free_pairs_are_unlimited(self):
        links = Links.of_pairs(LinkCost(latency_s=0.0, s_per_byte=0.0), 3)
        assert np.isinf(links.bandwidth_out_bytes_per_s).all()
        assert links.wire_s(1 - np.eye(3)).tolist() == [0.0] * 3


def test_a_trace_says_where_ranks_are():
    links = Links.fit(trace(["y", "x", "y"]))
    assert links.host_of_rank.tolist() == [0, 1, 0]
    assert links.pair(0, 1).bandwidth_bytes_per_s == pytest.approx(RATE, rel=1e-3)
    assert links.pair(0, 1).latency_s == pytest.approx(LATENCY, rel=1e-3)
    assert links.network is None and links.known is None


class TestUniform:
    def test_ranks_per_host(self):
        links = Links.uniform(2, 1e6, 1e-3, intra_bytes_per_s=1e9, intra_latency_s=1e-6, ranks_per_host=3)
        assert links.host_of_rank.tolist() == [0, 0, 0, 1, 1, 1]
        assert links.pair(0, 2) == LinkCost(latency_s=1e-6, s_per_byte=1e-9)
        assert links.pair(0, 3) == LinkCost(latency_s=1e-3, s_per_byte=1e-6)
        size = np.zeros((6, 6))
        size[:3, 3:] = 1e3
        assert links.wire_s(size) == pytest.approx([0, 0, 0, 0.01, 0.01, 0.01])

    def test_scaled(self):
        links = Links.of(two_machines()).scaled(0.5, 1)
        assert links.bandwidth_out_bytes_per_s.tolist() == [10e6, 10e6] and links.network is None
        assert links.pair(0, 2).bandwidth_bytes_per_s == pytest.approx(5e6)
        assert links.pair(2, 3).bandwidth_bytes_per_s == pytest.approx(100e6)
        assert Links.uniform(2, 4.0).scaled(2.0).pair(0, 1).s_per_byte == 1 / 8

    def test_of_hosts(self):
        links = Links.of(two_machines()).of_hosts(np.array([1, 0, 1]))
        assert links.host_of_rank.tolist() == [0, 0, 1, 1, 2, 2]
        assert links.bandwidth_out_bytes_per_s.tolist() == [20e6, 10e6, 20e6]
        assert links.latency_s[0, 2] == pytest.approx(2e-4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bandwidth_in_bytes_per_s": np.ones(3)}, "bandwidth_in_bytes_per_s"),
        ({"latency_s": np.full((2, 2), -1.0)}, "latency_s has shape"),
        ({"burden": {"all_reduce": 0.0}}, "burden is"),
        ({"host_of_rank": np.array([0, 2])}, r"host_of_rank is \[0, 2\]; expected a number from 0 to 1"),
        ({"known": PairCosts(np.zeros((3, 3)), np.zeros((3, 3)))}, "costs of pairs of 3 ranks"),
    ],
)
def test_wrong_shapes_are_named(wrong, words):
    right = {"bandwidth_out_bytes_per_s": np.ones(2), "bandwidth_in_bytes_per_s": np.ones(2)}
    right |= {"latency_s": np.zeros((2, 2)), "intra_bytes_per_s": np.ones(2)}
    with pytest.raises(InputError, match=words):
        Links(**(right | wrong))


def test_what_cannot_be_expressed_is_refused_by_name():
    with pytest.raises(InputError, match=r"got the pair 0 -> 0; expected two different ranks below 2"):
        Links.uniform(2, 1.0).pair(0, 0)
    uneven = Links.of_pairs(LinkCost(latency_s=0.0, s_per_byte=1.0), 3, hosts=[0, 0, 1])
    with pytest.raises(InputError, match="hosts have 1 or 2 ranks; the scheme 'hierarchical' needs"):
        group_costs(V100, "none", uneven)
    with pytest.raises(InputError, match="got links of 3 ranks; expected those of 4"):
        group_costs(V100, "none", uneven, ranks=4)
    with pytest.raises(InputError, match="no interface of the links has a finite rate"):
        group_costs(V100, "none", Links.uniform(2, np.inf))


def test_links_of_a_lab_are_its_rates_less_headers():
    links = Links.of_lab(["80mbit", "8mbit"], ranks_per_host=2)
    assert links.world_size == 4
    assert links.bandwidth_out_bytes_per_s.tolist() == pytest.approx([9.57e6, 9.57e5])
    assert Links.of_lab(["80mbit"] * 2, payload=1.0).interface_bytes_per_s == pytest.approx(1e7)
    with pytest.raises(InputError, match="ranks_per_host is 0; expected at least 1"):
        Links.of_lab(["80mbit"], ranks_per_host=0)
