from __future__ import annotations

import pytest

from wirewise.collective import network
from wirewise.collective.bounds import all_gather_inverse_rate
from wirewise.errors import TopologyError
from wirewise.topology import Topology, path_between, preset
from wirewise.topology.smi import from_smi, parse_smi

DGX_1V = """\
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\t0-19,40-59\t0
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\t0-19,40-59\t0
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\t0-19,40-59\t0
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\t0-19,40-59\t0
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\t20-39,60-79\t1
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\t20-39,60-79\t1
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\t20-39,60-79\t1
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\t20-39,60-79\t1
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS
mlx5_1\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""

WORKSTATION = """\
        GPU0    GPU1    GPU2    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PXB     NODE    SYS     0-15    0               N/A
GPU1    PXB      X      NODE    SYS     0-15    0               N/A
GPU2    NODE    NODE     X      SYS     0-15    0               N/A
NIC0    SYS     SYS     SYS      X

NIC Legend:

  NIC0: mlx5_0
"""


def _table(gpus: int, cell: str) -> str:
    names = [f"GPU{n}" for n in range(gpus)]
    rows = ["\t".join([a, *(" X " if a == b else cell for b in names), "0-63", "0"]) for a in names]
    return "\n".join(["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"]), *rows])


def _nvlinks(made: Topology) -> dict[frozenset[str], float]:
    return {
        frozenset((link.source, link.target)): link.bandwidth_bytes_per_s
        for link in made.links
        if link.kind == "nvlink"
    }


def test_dgx_1v_has_the_links_of_the_preset() -> None:
    made = from_smi(DGX_1V, name="dgx-1v")
    assert _nvlinks(made) == _nvlinks(preset("dgx-1v"))
    assert all_gather_inverse_rate(network(made, {"nvlink"})) * 150 * 10**9 == 7


def test_pcie_is_drawn_from_ports_and_numa_nodes() -> None:
    made = from_smi(DGX_1V)
    joined = {(link.source, link.target) for link in made.links if link.kind != "nvlink"}
    assert {("gpu0", "pcie0"), ("gpu1", "pcie0"), ("pcie0", "socket0"), ("pcie0", "network")} <= joined
    assert {target for source, target in joined if source in ("gpu2", "gpu3")} == {"pcie1", "pcie2"}
    # From socket to socket through memory: GPU, bridge, socket, host, socket, bridge, GPU.
    path = path_between(made, "gpu0", "gpu5")
    assert path is not None and path.bandwidth_bytes_per_s == 31.5e9
    network(made, {"pcie", "socket"})


def test_bridges_and_nodes_of_a_machine_without_nvlink() -> None:
    table = parse_smi(WORKSTATION)
    assert table.gpus == ("GPU0", "GPU1", "GPU2") and table.joined["GPU0", "GPU1"] == "PXB"
    assert table.numa["GPU2"] == "0" and table.nvlinks("GPU0", "GPU1") == 0
    made = from_smi(WORKSTATION, pcie_bytes_per_s=16e9, port_rate="200gbit")
    uplinks = {link.source: link.target for link in made.links if link.kind == "pcie"}
    assert uplinks["gpu0"] == uplinks["gpu1"] != uplinks["gpu2"]
    assert uplinks[uplinks["gpu0"]] == uplinks[uplinks["gpu2"]]
    (port,) = (link for link in made.links if link.kind == "infiniband")
    assert port.bandwidth_bytes_per_s == 25e9 and uplinks[port.source] != uplinks[uplinks["gpu0"]]


@pytest.mark.parametrize(
    ("gpus", "cell", "switched"), [(8, "NV12", True), (4, "NV4", False), (2, "NV12", False)]
)
def test_more_links_than_a_gpu_can_have_are_a_switch(gpus: int, cell: str, switched: bool) -> None:
    made = from_smi(_table(gpus, cell))
    assert ("nvswitch" in {s.name for s in made.switches}) == switched
    assert set(_nvlinks(made).values()) == {int(cell[2:]) * 25e9}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU0\t X \tNV1", "GPU0\t X \tNV", "row GPU0, column GPU1: got 'NV'"),
        ("GPU1\tNV1\t X ", "GPU1\tNV3\t X ", "row GPU0, column GPU1: got NV1, and NV3 the other way"),
        ("GPU3\tNV2\tNV1\tNV2\t X ", "GPU3\tNV2\tNV1\tNV2\tNV1", "row GPU3, column GPU3: got 'NV1'"),
        ("GPU7\tSYS", "GPU9\tSYS", "got 0 rows of GPU7; expected one"),
        ("mlx5_1\tSYS\tSYS", "mlx5_1\tSYS", "row mlx5_1 has 9 entries; expected 10"),
    ],
)
def test_malformed_tables_are_named(old: str, new: str, message: str) -> None:
    assert DGX_1V.count(old) == 1
    with pytest.raises(TopologyError, match=message):
        parse_smi(DGX_1V.replace(old, new))


def test_other_text_is_named() -> None:
    with pytest.raises(TopologyError, match="no line of column names"):
        parse_smi("Failed to initialize NVML: Driver/library version mismatch")
