from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter

import pytest

from wirewise import topology
from wirewise.errors import InputError, PlanError, TopologyError
from wirewise.plans import BitWidthPlan
from wirewise.topology import Topology, link_between, path_between
from wirewise.topology.presets import pcie_machine


def _rate(made: Topology, source: str, target: str) -> float:
    path = path_between(made, source, target)
    assert path is not None
    return path.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", topology.PRESETS)
def test_every_rank_of_a_preset_reaches_every_other(name: str) -> None:
    made = topology.preset(name)
    assert made.name == name
    for source, target in itertools.permutations(made.ranks, 2):
        assert _rate(made, source, target) > 0


def test_cube_mesh_gives_each_gpu_six_links_and_four_neighbours() -> None:
    made = topology.preset("dgx-1v")
    total, count = Counter[str](), Counter[str]()
    for link in (link for link in made.links if link.kind == "nvlink"):
        for end in (link.source, link.target):
            total[end] += round(link.bandwidth_bytes_per_s / 25e9)
            count[end] += 1
    assert set(total.values()) == {6} and set(count.values()) == {4} and len(total) == 8
    # No GPU forwards: pairs without a cable of their own fall back to PCIe 3.
    assert link_between(made, "gpu0", "gpu5") is None
    assert _rate(made, "gpu0", "gpu5") == pytest.approx(15.75e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "gpus", "nvlink", "pcie", "network"),
    [
        ("dgx-2", 16, 150e9, 15.75e9, 8 * 12.5e9),
        ("dgx-a100", 8, 300e9, 31.5e9, 8 * 25e9),
        ("dgx-h100", 8, 450e9, 63.0e9, 8 * 50e9),
    ],
)
def test_nvswitch_machines(name: str, gpus: int, nvlink: float, pcie: float, network: float) -> None:
    made = topology.preset(name)
    assert len(made.devices) == gpus
    assert {_rate(made, a, b) for a, b in itertools.permutations(made.ranks, 2)} == {nvlink}
    assert _rate(made, "gpu0", "host0") == pytest.approx(pcie, rel=1e-3)
    out = sum(link.bandwidth_bytes_per_s for link in made.links if link.target == "network")
    assert out == pytest.approx(network)


def test_gpus_of_one_pcie_switch_are_nearer() -> None:
    made = pcie_machine(5)
    near, far = path_between(made, "gpu0", "gpu1"), path_between(made, "gpu0", "gpu4")
    assert near is not None and far is not None
    assert (len(near.links), len(far.links)) == (2, 4)


def test_sized_presets() -> None:
    assert len(topology.preset("lab-6@50mbit").hosts) == 6
    assert _rate(topology.preset("lab-6@50mbit"), "host0", "host5") == 50e6 / 8
    assert len(topology.preset("pcie-3").devices) == 3
    for unknown in ("lab-0", "pcie-2@1gbit", "dgx", ""):
        with pytest.raises(TopologyError, match="unknown topology"):
            topology.preset(unknown)
    with pytest.raises(InputError, match="rate 'fast'"):
        topology.preset("lab-2@fast")
    with pytest.raises(TopologyError, match="expected at least one"):
        pcie_machine(4, generation=9)


def test_plans_are_checked_against_it() -> None:
    plan = BitWidthPlan(world_size=4, planner="uniform", epoch=0, channels=())
    plan.check(topology.preset("lab-4"))
    plan.check(topology.preset("pcie-4"))
    with pytest.raises(PlanError, match="the topology has 8 ranks"):
        plan.check(topology.preset("dgx-1v"))


def test_topologies_need_no_torch() -> None:
    code = "import sys, wirewise.topology; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
