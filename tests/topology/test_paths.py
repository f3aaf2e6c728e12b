from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from tests.topology.strategies import topologies
from wirewise import topology
from wirewise.errors import TopologyError
from wirewise.topology import Device, Host, Link, Switch, Topology, link_between, neighbours, path_between


def _cable(source: str, target: str, rate: float, latency_s: float = 1.0, direction: str = "both") -> Link:
    return Link(
        source=source,
        target=target,
        bandwidth_bytes_per_s=rate,
        latency_s=latency_s,
        direction=direction,  # type: ignore[arg-type]
    )


def test_the_widest_path_wins_then_the_quickest() -> None:
    made = Topology(
        name="t",
        hosts=tuple(Host(name=n) for n in "abcd"),
        links=(
            _cable("a", "b", 1.0),
            _cable("a", "c", 5.0, 1.0),
            _cable("c", "b", 4.0, 1.0),
            _cable("a", "d", 4.0, 0.5),
            _cable("d", "b", 4.0, 0.5),
        ),
    )
    path = path_between(made, "a", "b")
    assert path is not None
    assert [link.target for link in path.links] == ["d", "b"]
    assert (path.latency_s, path.bandwidth_bytes_per_s) == (1.0, 4.0)
    direct = link_between(made, "b", "a")
    assert direct is not None and (direct.source, direct.target) == ("b", "a")
    assert link_between(made, "c", "d") is None
    assert neighbours(made, "a") == ("b", "c", "d")


def test_devices_do_not_pass_traffic_on() -> None:
    made = Topology(
        name="t",
        hosts=(Host(name="h"),),
        devices=tuple(Device(name=n, host="h") for n in "abc"),
        links=(_cable("a", "b", 9.0), _cable("b", "c", 9.0), _cable("a", "h", 1.0), _cable("h", "c", 1.0)),
    )
    path = path_between(made, "a", "c")
    assert path is not None and path.bandwidth_bytes_per_s == 1.0


def test_a_one_way_link_goes_one_way() -> None:
    made = Topology(
        name="t", hosts=(Host(name="a"), Host(name="b")), links=(_cable("a", "b", 1.0, direction="one"),)
    )
    assert path_between(made, "a", "b") is not None
    assert path_between(made, "b", "a") is None
    assert neighbours(made, "b") == ()


@given(topologies())
def test_paths_are_chains_and_never_narrower_than_a_direct_link(made: Topology) -> None:
    names = [end.name for part in (made.hosts, made.devices, made.switches) for end in part]
    devices = {device.name for device in made.devices}
    for source, target in itertools.permutations(names, 2):
        path, direct = path_between(made, source, target), link_between(made, source, target)
        if path is None:
            assert direct is None
            continue
        stops = [path.links[0].source, *(link.target for link in path.links)]
        assert (stops[0], stops[-1]) == (source, target)
        assert all(x.target == y.source for x, y in itertools.pairwise(path.links))
        assert not devices & set(stops[1:-1])
        assert path.bandwidth_bytes_per_s == min(link.bandwidth_bytes_per_s for link in path.links)
        assert direct is None or path.bandwidth_bytes_per_s >= direct.bandwidth_bytes_per_s


def test_unknown_ends_are_named() -> None:
    made = Topology(name="t", hosts=(Host(name="a"),), switches=(Switch(name="s", kind="network"),))
    for call in (link_between, path_between):
        with pytest.raises(
            TopologyError, match="'t' has no host, device or switch 'x'; expected one of a, s"
        ):
            call(made, "a", "x")
    with pytest.raises(TopologyError, match="'x'"):
        neighbours(made, "x")
    with pytest.raises(TopologyError, match="to itself"):
        path_between(made, "a", "a")


def test_names_of_the_package_exist() -> None:
    assert all(hasattr(topology, name) for name in topology.__all__)
