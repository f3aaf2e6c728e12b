"""Random topologies that are consistent."""

from __future__ import annotations

from hypothesis import strategies as st

from wirewise.topology import Device, Host, Link, Switch, Topology

_names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
_kinds = st.sampled_from(["ethernet", "infiniband", "nvlink", "pcie", "socket"])


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(_names, min_size=2, max_size=8, unique=True))
    hosts = names[: draw(st.integers(1, len(names)))]
    rest = names[len(hosts) :]
    devices = rest[: draw(st.integers(0, len(rest)))]
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda p: p[0] != p[1])
    links = draw(st.lists(st.tuples(pairs, _kinds), max_size=8, unique_by=lambda e: (frozenset(e[0]), e[1])))
    return Topology(
        name=draw(_names),
        description=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
        hosts=tuple(Host(name=n) for n in hosts),
        devices=tuple(
            Device(name=n, host=draw(st.sampled_from(hosts)), kind=draw(st.sampled_from(["gpu", "cpu"])))
            for n in devices
        ),
        switches=tuple(
            Switch(name=n, kind="network", host=draw(st.none() | st.sampled_from(hosts)))
            for n in rest[len(devices) :]
        ),
        links=tuple(
            Link(
                source=source,
                target=target,
                kind=kind,
                direction=draw(st.sampled_from(["both", "one"])),
                latency_s=draw(st.floats(0, 10)),
                bandwidth_bytes_per_s=draw(st.floats(1e-3, 1e15)),
            )
            for (source, target), kind in links
        ),
    )
