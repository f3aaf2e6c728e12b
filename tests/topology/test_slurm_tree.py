"""Slurm's tree of switches becomes a topology whose rates the user gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from wirewise import topology
from wirewise.cli.main import app
from wirewise.errors import TopologyError
from wirewise.topology.slurm_tree import expand_hostlist, from_slurm_tree

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=node[0-3]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=node[4-5],big01
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=node[0-5],big01 Switches=s[0-1]
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", ["node7"]),
        ("n[0-2,7],login", ["n0", "n1", "n2", "n7", "login"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[0-1]x", ["r1n0x", "r1n1x", "r2n0x", "r2n1x"]),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, names: list[str]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    "text", ["n[0-2", "n0-2]", "n[a-b]", "n[1-2],", "n[]", "n[0-99999]", "n[0-99]m[0-99]"]
)
def test_malformed_and_endless_lists_are_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=r"expected names and ranges|more than 4096 hosts"):
        expand_hostlist(text)


def test_nodes_hang_at_their_own_switch_and_uplinks_carry_what_is_below() -> None:
    found, notes = from_slurm_tree(TREE, rate_bytes_per_s=1e9)
    assert [host.name for host in found.hosts] == [*(f"node{n}" for n in range(6)), "big01"]
    rates = {(link.source, link.target): link.bandwidth_bytes_per_s for link in found.links}
    assert rates["node0", "s0"] == rates["big01", "s1"] == 1e9
    assert rates["s0", "s2"] == 4e9 and rates["s1", "s2"] == 3e9 and len(rates) == 9
    assert len(notes) == 2 and "Slurm does not tell rates" in notes[0]
    narrow, few = from_slurm_tree(TREE, rate_bytes_per_s=1e9, uplink_bytes_per_s=2e9)
    assert {link.bandwidth_bytes_per_s for link in narrow.links if link.target == "s2"} == {2e9}
    assert len(few) == 1
    # Plans can be made on it.
    assert len(topology.path_between(found, "node0", "node5").links) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected the output of scontrol show topology"),
        (
            "SwitchName=s0 Level=0",
            "line 1 is 'SwitchName=s0 Level=0'; expected SwitchName=NAME with Nodes= or",
        ),
        ("NodeName=a Nodes=b", "expected SwitchName=NAME"),
        ("SwitchName=s0 Nodes=a\nSwitchName=s0 Nodes=b", "line 2 names the switch 's0' again"),
        (
            "SwitchName=s0 Nodes=a\nSwitchName=s1 Nodes=a\nSwitchName=t Switches=s[0-1]",
            "'a' is below the switches",
        ),
        ("SwitchName=s0 Switches=s1", "has the switch 's1' below it, which no line describes"),
        ("SwitchName=s0 Nodes=a\nSwitchName=s1 Nodes=b", "2 switches are below no other"),
        (
            "SwitchName=t Nodes=a\nSwitchName=x Switches=y\nSwitchName=y Switches=x",
            "x, y are below each other",
        ),
    ],
)
def test_what_is_no_tree_is_refused(text: str, words: str) -> None:
    with pytest.raises(TopologyError) as error:
        from_slurm_tree(text, rate_bytes_per_s=1e9)
    assert words in str(error.value)


def test_the_command_takes_rates_for_slurm_and_only_for_slurm(tmp_path: Path) -> None:
    file, out = tmp_path / "tree.txt", tmp_path / "cluster.toml"
    file.write_text(TREE)
    call = lambda *more: CliRunner().invoke(app, ["topo", "import", str(file), *more])  # noqa: E731
    done = call("--rate", "25gbit", "-o", str(out))
    assert done.exit_code == 0 and "note: Slurm does not tell rates" in done.output
    assert len(topology.load(out).hosts) == 7
    assert call().exit_code == 2 and "expected --rate" in call().output
    assert call("--rate", "25gbit", "--hosts", "2").exit_code == 2
    file.write_text("<system/>")
    assert "which is not of Slurm" in call("--rate", "25gbit").output
