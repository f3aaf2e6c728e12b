"""Rings for stock NCCL, as the XML that it reads from NCCL_GRAPH_FILE.

NCCL reads the graphs in the file by number (0: rings), and searches for the others itself. A file describes the
devices of one host; with several hosts, all of them must use the same file (NVIDIA/nccl, src/graph/search.cc).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Literal

from wirewise.collective.exporters.rings import Ring
from wirewise.errors import ProgramError

__all__ = ["LinkType", "dumps"]

LinkType = Literal["NVL", "PIX", "PXB", "PHB", "SYS"]
"""Widest detour of a hop: NVLink only, PCIe switches, the host's bridge, the socket's link."""
_RINGS, _RING_PATTERN = 0, 4
_CHANNEL_BYTES_PER_S = 25e9
"""Bandwidth of one channel of NCCL; wider rings are given several."""


def dumps(
    rings: Sequence[Ring],
    hosts: Sequence[Sequence[int]],
    *,
    inside: LinkType = "SYS",
    between: LinkType = "SYS",
    most_channels: int = 32,
) -> str:
    """Format rings as a file for NCCL_GRAPH_FILE.

    Args:
        rings: Orders of the ranks; a ring of unknown bandwidth is written as 10 GB/s per channel.
        hosts: Ranks of each host, in the order of its devices.
        inside: Link type between devices of a host.
        between: Path type from a device to its network card.
        most_channels: Maximum number of NCCL channels.

    Raises:
        ProgramError: A ring leaves a host before it has visited all its devices, or hosts differ in their order.
    """
    # A wide ring is used by several channels; so are narrower ones, which keeps them in proportion.
    widest = max(ring.bandwidth_bytes_per_s for ring in rings)
    times = max(1, min(most_channels // len(rings), round(widest / _CHANNEL_BYTES_PER_S)))
    speed = min((ring.bandwidth_bytes_per_s for ring in rings), default=0.0) / times / 1e9 or 10.0
    root = ET.Element("graphs", version="1")
    graph = ET.SubElement(
        root,
        "graph",
        id=str(_RINGS),
        pattern=str(_RING_PATTERN),
        crossnic="0",
        nchannels=str(len(rings) * times),
        speedintra=f"{speed:g}",
        speedinter=f"{speed:g}",
        latencyinter="0",
        typeintra=inside,
        typeinter=between,
        samechannels="0" if len(rings) > 1 else "1",
    )
    for _ in range(times):
        for ring in rings:
            _add_channel(graph, ring, hosts)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _add_channel(graph: ET.Element, ring: Ring, hosts: Sequence[Sequence[int]]) -> None:
    channel = ET.SubElement(graph, "channel")
    devices = _local_order(ring, hosts)
    if len(hosts) > 1:
        ET.SubElement(channel, "net", dev="0")
    for device in devices:
        gpu = ET.SubElement(channel, "gpu", dev=f"{device:x}")
        if len(hosts) == 1:
            # With several hosts the ranks differ; NCCL then finds them by the device.
            gpu.set("rank", str(hosts[0][device]))
    if len(hosts) > 1:
        ET.SubElement(channel, "net", dev="0")


def _local_order(ring: Ring, hosts: Sequence[Sequence[int]]) -> list[int]:
    """Devices in the order in which the ring passes each host."""
    place = {rank: (h, d) for h, ranks in enumerate(hosts) for d, rank in enumerate(ranks)}
    if {*place} != {*ring.order}:
        raise ProgramError(
            f"got a ring over {len(ring.order)} ranks for hosts with {len(place)}; give all of them"
        )
    visits = [place[rank] for rank in ring.order]
    # Begin where a host begins.
    start = next((i for i in range(len(visits)) if visits[i][0] != visits[i - 1][0]), 0)
    visits = visits[start:] + visits[:start]
    size = len(hosts[0])
    parts = [visits[i : i + size] for i in range(0, len(visits), size)]
    orders = {tuple(d for _, d in part) for part in parts}
    if any(len({h for h, _ in part}) > 1 for part in parts) or len(orders) > 1:
        raise ProgramError(
            f"the ring {ring.order} does not pass each host at once and in the same order of devices, as one "
            "NCCL_GRAPH_FILE for all hosts needs; order the ranks by host"
        )
    return list(orders.pop())
