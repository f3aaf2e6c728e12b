"""Machines from the topology files of NCCL and RCCL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wirewise.collective import network
from wirewise.errors import TopologyError
from wirewise.topology import dumps, from_nccl_xml, loads, path_between

XGMI = """<system version="2">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="01:00" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="03:00" class="0x038000" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="64" gcn="910" rank="0" gdr="1"><xgmi target="43:00" count="2" tclass="0x038000"/></gpu>
      </pci>
      <pci busid="04:00" class="0x020700" link_speed="8 GT/s" link_width="8">
        <nic><net name="a" dev="0" speed="100000" latency="3.5" port="1"/><net name="b" dev="1" speed="100000"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="43:00" class="0x038000" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="64" gcn="910" rank="1" gdr="1"><xgmi target="03:00" count="2" tclass="0x038000"/></gpu>
    </pci>
  </cpu>
</system>"""

NVSWITCH = """<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
  <pci busid="a" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90" rank="0" gdr="1">
    <nvlink target="s" count="18" tclass="0x068000"/></gpu></pci>
  <pci busid="b" class="0x030200" link_speed="" link_width="16"><gpu dev="1" sm="90" rank="1" gdr="1">
    <nvlink target="s" count="18" tclass="0x068000"/></gpu></pci>
</cpu></system>"""


def rates(topology):
    return {(link.source, link.target): link.bandwidth_bytes_per_s for link in topology.links}


def test_pcie_xgmi_and_ports_of_two_hosts():
    found = from_nccl_xml(XGMI, name="amd", hosts=2)
    assert [device.name for device in found.topology.devices] == ["h0-gpu0", "h0-gpu1", "h1-gpu0", "h1-gpu1"]
    assert {device.type for device in found.topology.devices} == {"gfx910"}
    rate = rates(found.topology)
    # Generation 4 x 16 lanes, 128b/130b; xGMI counts once though both ends name it.
    assert rate["h0-gpu0", "h0-pcie-01:00"] == pytest.approx(16e9 * 16 * 128 / 130 / 8)
    assert rate["h0-gpu0", "h0-gpu1"] == 2 * 36e9
    # Two ports of one card are as wide as both, behind the card's own PCIe.
    assert rate["h1-nic-04:00", "network"] == 25e9
    assert rate["h1-nic-04:00", "h1-pcie-01:00"] == pytest.approx(8e9 * 8 * 128 / 130 / 8)
    across = path_between(found.topology, "h0-gpu0", "h1-gpu1")
    assert across is not None and across.bandwidth_bytes_per_s == rate["h1-nic-04:00", "h1-pcie-01:00"]
    assert loads(dumps(found.topology)) == found.topology
    told = " / ".join(found.notes)
    assert (
        "xgmi link is not in the file: 36 GB/s" in told and "NUMA nodes is not in the file: 16 GB/s" in told
    )


def test_nvlinks_to_switches_and_what_is_left_open():
    found = from_nccl_xml(NVSWITCH)
    rate = rates(found.topology)
    assert rate["gpu0", "nvswitch"] == rate["gpu1", "nvswitch"] == 18 * 25e9
    assert "PCIe links without link_speed count as 8 GT/s" in found.notes
    assert network(found.topology).rate(0, 1) == 18 * 25e9


@pytest.mark.parametrize(
    ("text", "hosts", "message"),
    [
        ("<system>", 1, "cannot read a topology file"),
        ("<graphs/>", 1, "got <graphs>; expected <system>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><system/>", 1, "document type"),
        ("<system/>", 1, "no <cpu>"),
        ("<system><cpu numaid='0'/></system>", 1, "no <gpu>"),
        (XGMI.replace('link_speed="8 GT/s"', 'link_speed="fast"'), 1, "pci 04:00: got the link_speed 'fast'"),
        (XGMI.replace('count="2"', 'count="x"'), 1, "<xgmi> has count='x'"),
        (XGMI.replace('busid="04:00" ', ""), 1, "<pci> has no busid"),
        (NVSWITCH, 2, "no network card, and 2 hosts"),
        (XGMI, 0, "got 0 hosts"),
    ],
)
def test_what_cannot_be_understood_is_named(text, hosts, message):
    with pytest.raises(TopologyError, match=message):
        from_nccl_xml(text, hosts=hosts)


def files():
    folder = Path(os.environ.get("WIREWISE_DATA", "data")) / "rccl" / "topologies"
    return sorted(folder.glob("*.xml"))


@pytest.mark.skipif(not files(), reason="needs the topology files of RCCL")
def test_every_file_of_rccl_is_read():
    for file in files():
        text = file.read_text("utf-8")
        for hosts in (1, 2) if "<net " in text else (1,):
            found = from_nccl_xml(text, hosts=hosts).topology
            assert len(found.devices) == hosts * text.count("<gpu "), file
            assert network(found).ranks == len(found.devices)
