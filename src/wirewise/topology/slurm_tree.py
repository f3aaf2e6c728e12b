"""Topologies from the tree of switches that Slurm knows (`scontrol show topology`, or `topology.conf`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from wirewise.errors import TopologyError
from wirewise.topology.model import Host, Switch, Topology, cable
from wirewise.topology.nccl_xml import ImportedTopology
from wirewise.units import format_rate

__all__ = ["expand_hostlist", "from_slurm_tree"]

_MOST_HOSTS = 4096
_NETWORK_S, _HOP_S = 2e-6, 5e-7
"""Latencies of a host's link and of one between switches: orders of magnitude."""
_FIELD = re.compile(r"(\w+)=(\S+)")
_PART = re.compile(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_hostlist(text: str) -> list[str]:
    """Names in a list of Slurm's, such as "node[00-03,7],login".

    Raises:
        TopologyError: The list is malformed, or names more than 4,096 hosts.
    """
    found: list[str] = []
    for part in _parts(text):
        pieces = [
            list(_numbers(piece[1:-1], text)) if piece.startswith("[") else [piece]
            for piece in re.split(r"(\[[^\]]*\])", part)
        ]
        for names in itertools.product(*pieces):
            if len(found) == _MOST_HOSTS:
                raise TopologyError(f"the list {text[:80]!r} names more than {_MOST_HOSTS} hosts")
            found.append("".join(names))
    return found


def _parts(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        match = _PART.match(text, place)
        if match is None or not match[0] or "]" in re.sub(r"\[[^\[\]]*\]", "", match[0]):
            raise _malformed(text)
        yield match[0]
        place = match.end()
        if place < len(text):
            if text[place] != "," or place + 1 == len(text):
                raise _malformed(text)
            place += 1


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for one in ranges.split(","):
        match = _RANGE.fullmatch(one)
        if match is None:
            raise _malformed(text)
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= _MOST_HOSTS:
            raise TopologyError(f"the list {text[:80]!r} names more than {_MOST_HOSTS} hosts")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _malformed(text: str) -> TopologyError:
    return TopologyError(f"got the list {text[:80]!r}; expected names and ranges such as node[0-3,7],login")


def from_slurm_tree(
    text: str, *, rate_bytes_per_s: float, uplink_bytes_per_s: float | None = None, name: str = "cluster"
) -> ImportedTopology:
    """Parse the switches and nodes of a cluster; Slurm does not know their rates.

    Args:
        text: Output of `scontrol show topology`, or a `topology.conf` of the tree plugin.
        rate_bytes_per_s: Rate of each node's link, each way.
        uplink_bytes_per_s: Rate of each link between switches. Defaults to that of all nodes below it together.
        name: Name of the topology.

    Raises:
        TopologyError: The text is no such tree.
    """
    nodes: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = {key.lower(): value for key, value in _FIELD.findall(line.partition("#")[0])}
        if not fields:
            continue
        switch = fields.get("switchname")
        if switch is None or not {"nodes", "switches"} & fields.keys():
            raise TopologyError(
                f"line {number} is {line.strip()[:80]!r}; expected SwitchName=NAME with Nodes= or Switches="
            )
        if switch in below:
            raise TopologyError(f"line {number} names the switch {switch!r} again")
        # Of a switch above others Slurm repeats all nodes below.
        below[switch] = expand_hostlist(fields["switches"]) if "switches" in fields else []
        nodes[switch] = (
            [] if below[switch] or fields["nodes"] == "(null)" else expand_hostlist(fields["nodes"])
        )
    _check(below, nodes)
    uplink = {
        switch: uplink_bytes_per_s or rate_bytes_per_s * len(_hosts(switch, below, nodes)) for switch in below
    }
    links = [
        cable(host, switch, "ethernet", rate_bytes_per_s, _NETWORK_S)
        for switch in nodes
        for host in nodes[switch]
    ]
    links += [
        cable(lower, switch, "ethernet", uplink[lower], _HOP_S) for switch in below for lower in below[switch]
    ]
    notes = [f"Slurm does not tell rates: each node's link is taken to carry {format_rate(rate_bytes_per_s)}"]
    if any(below.values()) and uplink_bytes_per_s is None:
        notes.append(
            "links between switches are taken to carry what all nodes below them send; --uplink says it"
        )
    found = Topology(
        name=name,
        description="Nodes and switches of a Slurm cluster; rates as given on import.",
        hosts=tuple(Host(name=host) for own in nodes.values() for host in own),
        switches=tuple(Switch(name=switch, kind="network") for switch in below),
        links=tuple(links),
    )
    return ImportedTopology(found, tuple(notes))


def _check(below: Mapping[str, list[str]], nodes: Mapping[str, list[str]]) -> None:
    """Raise unless it is one tree, with each node at one switch."""
    if not below:
        raise TopologyError("got no line with SwitchName=; expected the output of scontrol show topology")
    upper: dict[str, str] = {}
    for switch, lower in [*below.items(), *nodes.items()]:
        for one in lower:
            if one in upper:
                raise TopologyError(
                    f"{one!r} is below the switches {upper[one]!r} and {switch!r}; expected a tree"
                )
            upper[one] = switch
    for switch, lower in below.items():
        for one in lower:
            if one not in below:
                raise TopologyError(
                    f"switch {switch!r} has the switch {one!r} below it, which no line describes"
                )
    roots = [switch for switch in below if switch not in upper]
    if len(roots) != 1:
        raise TopologyError(
            f"{len(roots)} switches are below no other ({', '.join(roots[:4])}); expected one, as nodes of different "
            "trees cannot send to each other: import them one by one"
        )
    reached = list(roots)
    for switch in reached:
        reached += below[switch]
    if len(reached) < len(below):
        raise TopologyError(
            f"the switches {', '.join(sorted(below.keys() - set(reached))[:4])} are below each other"
        )


def _hosts(switch: str, below: Mapping[str, list[str]], nodes: Mapping[str, list[str]]) -> list[str]:
    """Nodes below a switch."""
    found, left = [], [switch]
    while left:
        one = left.pop()
        found += nodes[one]
        left += below[one]
    return found
