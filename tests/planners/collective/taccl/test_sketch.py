"""Sketches, profiles, logical topologies and symmetries of TACCL."""

import json

import msgspec
import pytest

from wirewise.collective import check, network
from wirewise.errors import InputError
from wirewise.planners.collective.problem import CollectiveProblem
from wirewise.planners.collective.taccl import synthesize
from wirewise.planners.collective.taccl.instance import instance
from wirewise.planners.collective.taccl.logical import LogicalLink, logical
from wirewise.planners.collective.taccl.profiles import PROFILES, SKETCHES
from wirewise.planners.collective.taccl.sketch import (
    load_profile,
    load_sketch,
    loads_profile,
    loads_sketch,
)
from wirewise.topology import preset

RELAY = {
    "nnodes": 2,
    "intranode_sketch": {"strategy": "none"},
    "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [1]}},
    "symmetry_offsets": [[8, 16]],
    "hyperparameters": {"input_chunkup": 1},
}
NDV2 = {
    "name": "NDv2_1MB",
    "gpus_per_node": 8,
    "nics_per_node": 1,
    "alpha": 0.3,
    "node_betas_list": [23, 46],
    "node_invbws_list": [23, 46],
    "remote_invbw": 107,
    "remote_alpha": 2.6,
    "remote_beta": 105,
}
SWITCH = {"strategy": "switch", "switches": [[0, 1, 2, 3]], "switch_hyperedge_strategy": ["uc-min"]}
FOUR = {"name": "four", "gpus_per_node": 4, "alpha": 1, "node_betas_list": [12], "node_invbws_list": [13]}


def made(sketch, profile):
    return logical(loads_profile(json.dumps(profile)), loads_sketch(json.dumps(sketch)))


def test_files_of_the_published_format_load(tmp_path):
    """C6: the format of relays, switches, strategies by name and sender maps reads as the shipped records."""
    (tmp_path / "sketch.json").write_text(json.dumps(RELAY))
    (tmp_path / "profile.json").write_text(json.dumps(NDV2))
    assert load_sketch(tmp_path / "sketch.json") == SKETCHES["ndv2-sk-1"]
    assert load_profile(tmp_path / "profile.json") == PROFILES["ndv2-1MB"].profile
    for name, sketch in SKETCHES.items():
        text = msgspec.json.encode(sketch)
        assert loads_sketch(text) == sketch, name
    alone = {**RELAY, "nnodes": 1, "symmetry_offsets": [], "hyperparameters": {"input_chunkup": 6}}
    del alone["internode_sketch"]
    assert loads_sketch(json.dumps(alone)).chunkup == 6
    pairs = json.loads(msgspec.json.encode(SKETCHES["dgx2-sk-1"]))
    assert pairs["internode_sketch"]["internode_conn"]["15"] == [14]
    assert pairs["internode_sketch"]["gpus_to_sender_rev_map"]["3"] == [2, 3]


@pytest.mark.parametrize(
    ("sketch", "profile", "local", "remote"),
    [
        ("ndv2-sk-1", "ndv2-1MB", {23, 46}, 107),
        ("ndv2-sk-2", "ndv2-1KB", {32, 34}, 260 + 656),
        ("ndv2-sk-3", "ndv2-1KB", {32, 34}, 260 + 82),
        ("ndv2-sk-3", "ndv2-32KB", {10, 17}, 26 + 262),
        ("dgx2-sk-1", "dgx2-1MB", {8}, 107),
        ("dgx2-sk-2", "dgx2-1KB", {31}, 260 + 20),
    ],
)
def test_costs_are_truncated_and_shared_as_published(sketch, profile, local, remote):
    top = logical(PROFILES[profile].profile, SKETCHES[sketch])
    assert {hop.cost for hop in top.hops.values() if not hop.remote} == local
    assert {hop.cost for hop in top.hops.values() if hop.remote} == {remote}


def test_senders_and_relays():
    top = logical(PROFILES["dgx2-1MB"].profile, SKETCHES["dgx2-sk-1"])
    assert sorted(pair for pair, hop in top.hops.items() if hop.remote)[:3] == [(1, 16), (3, 18), (5, 20)]
    assert top.senders[4:6] == ((5,), (5,)) and top.senders[21] == (21,)
    assert top.own_first and top.connections == 1
    assert len(top.ports) == 2 * 32


def test_equal_switches_are_parallel_links():
    sketch = {"nnodes": 1, "intranode_sketch": {**SWITCH, "switches": [[0, 1, 2, 3]] * 5}}
    sketch["intranode_sketch"]["switch_hyperedge_strategy"] = ["uc-max"] * 5
    top = made(sketch, FOUR)
    assert set(top.hops.values()) == {LogicalLink(1, 2, links=5)}
    assert {(port.cost, port.links) for port in top.ports} == {(3, 5)}


def test_a_nic_is_shared_where_hosts_are_more_than_two():
    top = logical(PROFILES["ndv2-1MB"].profile, SKETCHES["ndv2-sk-1-n4"])
    nics = {port.name: port.pairs for port in top.ports}
    assert len(nics) == 8
    assert nics["NIC out of 8"] == {(8, 1), (8, 17), (8, 25)}
    assert nics["NIC in to 1"] == {(8, 1), (16, 1), (24, 1)}


def test_matrices_are_by_target_and_source():
    custom = {**FOUR, "links": [[0] * 4 for _ in range(4)]}
    del custom["node_betas_list"], custom["node_invbws_list"]
    custom["links"][1][0] = custom["links"][2][1] = custom["links"][3][2] = custom["links"][0][3] = 2
    custom |= {"betas": [[5.0] * 4] * 4, "invbws": [[6.5] * 4] * 4}
    top = made({"nnodes": 1, "intranode_sketch": {"strategy": "minmax"}}, custom)
    assert top.hops == dict.fromkeys([(0, 1), (1, 2), (2, 3), (3, 0)], LogicalLink(1, 5, links=2))
    assert top.spread == 1


@pytest.mark.parametrize(
    ("sketch", "profile", "message"),
    [
        ({"nnodes": 2, "intranode_sketch": {"strategy": "none"}}, NDV2, "internode_sketch"),
        ({**RELAY, "nnode": 2}, NDV2, "nnode"),
        (
            {**RELAY, "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [9]}}},
            NDV2,
            "from 0 to 7",
        ),
        ({"nnodes": 1, "intranode_sketch": {**SWITCH, "switches": []}}, FOUR, "only there"),
        ({"nnodes": 1, "intranode_sketch": {**SWITCH, "switches": [[0, 1], [1, 2]]}}, FOUR, "one for each"),
        ({"nnodes": 1, "intranode_sketch": {**SWITCH, "switches": [[0, 9]]}}, FOUR, "from 0 to 3"),
        (RELAY, {**NDV2, "node_betas_list": [23]}, "lists of 1 betas and 2"),
        (RELAY, {**NDV2, "nics_per_node": 0}, "no NICs"),
        (
            {"nnodes": 1, "intranode_sketch": {"strategy": "none"}},
            {**FOUR, "node_invbws_list": [0.5]},
            "factor",
        ),
    ],
)
def test_what_cannot_be_used_is_named(sketch, profile, message):
    with pytest.raises(InputError, match=message):
        made(sketch, profile)


def test_a_sender_is_needed_for_all():
    between = {**RELAY["internode_sketch"], "gpus_to_sender_rev_map": {"0": [0, 1, 2]}}
    with pytest.raises(InputError, match="chunks of GPU 3"):
        made({**RELAY, "internode_sketch": between}, NDV2)


def test_symmetries_must_hold():
    top = made({**RELAY, "symmetry_offsets": [[4, 16]]}, NDV2)
    with pytest.raises(InputError, match=r"\[4, 16\]"):
        _ = instance(top, "all_gather", 1).group


def test_orbits_and_groups():
    top = logical(PROFILES["dgx2-1MB"].profile, SKETCHES["dgx2-sk-1"])
    asked = instance(top, "all_gather", 2)
    assert len(asked.group) == 16
    keys = [(c, *pair) for c, pairs in enumerate(asked.allowed) for pair in pairs]
    found = asked.orbits(keys, "crr")
    assert len(set(found.values())) * 16 == len(keys)
    assert all(found[tuple(image)] == found[key] for key in keys[:50] for image in asked.images(key))
    assert instance(top, "broadcast", 1).generators == ()


def test_chunks_leave_a_host_once_and_through_their_sender():
    top = logical(PROFILES["dgx2-1MB"].profile, SKETCHES["dgx2-sk-1"])
    asked = instance(top, "all_to_all", 1)
    for demand, pairs in zip(asked.demands, asked.allowed, strict=True):
        away = {(s, t) for s, t in pairs if top.hops[s, t].remote}
        crosses = any(top.node(t) != top.node(demand.origin) for t in demand.targets)
        assert {s for s, _ in away} == (set(top.senders[demand.origin]) if crosses else set())


def test_profiles_of_other_sizes_keep_rates_and_latencies():
    measured = PROFILES["ndv2-1MB"]
    small = measured.at(1024.0)
    assert small.profile.alpha * small.unit_s == pytest.approx(0.3e-6)
    assert small.profile.remote_beta * small.unit_s == pytest.approx(105e-6 / 1024)
    assert small.profile.betas[1][0] * small.unit_s == pytest.approx(23e-6 / 1024)
    assert small.profile.betas[5][0] == 0.0


def test_a_sketch_is_turned_around_for_sums():
    """The published relay of an NDv2 sends from GPU 0 to GPU 1 of the other host in sums, too: ports are one-way."""
    turned = SKETCHES["ndv2-sk-1"].mirrored()
    assert turned.connections(8) == {1: (0,)}
    assert turned.mirrored() == SKETCHES["ndv2-sk-1"]
    assert SKETCHES["ndv2-sk-2"].mirrored() == SKETCHES["ndv2-sk-2"]
    pairs = SKETCHES["dgx2-sk-1"]
    assert pairs.mirrored().mirrored() == pairs


@pytest.mark.slow
def test_the_published_sketch_of_ndv2_sums_on_its_preset():
    net = network(preset("ndv2x2"))
    problem = CollectiveProblem(network=net, collective="all_reduce", size_bytes=1e6)
    program = synthesize(problem, sketch=SKETCHES["ndv2-sk-1"], time_limit_s=6.0)
    check(program)
    between = {(t.source, t.target) for t in program.transfers if t.source // 8 != t.target // 8}
    assert between == {(0, 9), (8, 1)}
