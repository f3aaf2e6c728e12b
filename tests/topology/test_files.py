from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from tests.topology.strategies import topologies
from wirewise import topology
from wirewise.errors import InputError, TopologyError
from wirewise.topology import Topology

GOOD = """\
name = "two"
description = '''
[[links]]
'''

[[hosts]]
name = "a"

[[hosts]]
name = "b"

[[links]]  # the first
from = "a"
to = "b"
latency_s = 1e-5
bandwidth_bytes_per_s = 1_000_000

[[links]]
from = "b"
to = "a"
kind = "infiniband"
latency_s = 0
bandwidth_bytes_per_s = 2e6
"""


@given(topologies())
def test_what_is_written_reads_back_equal(made: Topology) -> None:
    assert topology.loads(topology.dumps(made)) == made


@pytest.mark.sweep
@pytest.mark.parametrize("name", topology.PRESETS)
def test_presets_survive_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    topology.save(topology.preset(name), file)
    assert topology.load(file) == topology.preset(name)


def test_numbers_may_be_whole_and_defaults_left_out() -> None:
    first, second = topology.loads(GOOD).links
    assert (first.kind, first.direction, first.bandwidth_bytes_per_s) == ("ethernet", "both", 1e6)
    assert (second.kind, second.latency_s) == ("infiniband", 0.0)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (
            'to = "a"',
            'to = "c"',
            20,
            "links[1].to: there is no host, device or switch 'c'; expected one of a, b",
        ),
        ('from = "a"', 'from = "c"', 13, "links[0].from"),
        ('to = "a"\n', "", 18, "links[1]: object missing required field `to`"),
        ("latency_s = 0", "latency_s = -1", 22, "links[1].latency_s: got -1.0; expected seconds"),
        ("latency_s = 0", "latency_s = inf", 22, "links[1].latency_s"),
        (
            "= 1_000_000",
            "= 0",
            16,
            "links[0].bandwidth_bytes_per_s: got 0.0; expected bytes per second, above 0",
        ),
        ("= 1_000_000", "= nan", 16, "links[0].bandwidth_bytes_per_s"),
        ("= 1_000_000", "= true", 16, "links[0].bandwidth_bytes_per_s: expected `float`, got `bool`"),
        ('kind = "infiniband"', 'kind = "string"', 21, "links[1].kind: invalid enum value 'string'"),
        ('kind = "infiniband"', 'speed = "fast"', 21, "links[1].speed: unknown key"),
        ('kind = "infiniband"\n', "", 18, "links[0] goes from 'b' to 'a' by ethernet too"),
        ('name = "b"', 'name = "a"', 10, "hosts[1].name: 'a' is the name of hosts[0] too"),
        ('name = "b"', 'name = ""', 10, "hosts[1].name: got ''"),
        ('name = "b"', 'name = "b"\ncores = 2', 11, "hosts[1].cores: unknown key"),
        ('name = "two"', 'nme = "two"', 1, "nme: unknown key"),
        ('name = "two"', "name = 2", 1, "name: expected `str`, got `int`"),
        ('name = "two"', "", 1, "topology: object missing required field `name`"),
        ("latency_s = 0", "latency_s = ", 22, "no TOML"),
        ("latency_s = 0", 'latency_s = "', 22, "no TOML"),
    ],
)
def test_a_fault_is_named_with_file_line_and_path(old: str, new: str, line: int, words: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(TopologyError) as raised:
        topology.loads(GOOD.replace(old, new), source="mine.toml")
    assert str(raised.value).startswith(f"mine.toml, line {line}: ")
    assert words in str(raised.value)


def test_a_fault_in_an_inline_array_leads_to_its_line() -> None:
    text = 'name = "n"\nhosts = [{name = "a"}]\nlinks = [{from = "a", to = "a", latency_s = 0, '
    text += "bandwidth_bytes_per_s = 1}]"
    with pytest.raises(TopologyError, match=r"line 3: links\[0\]\.to: 'a' is linked to itself"):
        topology.loads(text)


def test_a_topology_has_hosts() -> None:
    with pytest.raises(TopologyError, match="hosts: got no host"):
        topology.loads('name = "n"\nhosts = []')


def test_dangling_devices_and_switches_are_named() -> None:
    with pytest.raises(TopologyError, match=r"line 5: devices\[0\]\.host: there is no host 'b'"):
        topology.loads('name = "n"\n[[hosts]]\nname = "a"\n[[devices]]\nhost = "b"\nname = "d"')
    with pytest.raises(TopologyError, match=r"line 6: switches\[0\]\.host"):
        topology.loads(
            'name = "n"\n[[hosts]]\nname = "a"\n[[switches]]\nkind = "pcie"\nhost = "b"\nname = "s"'
        )


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*absent\.toml"):
        topology.load(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match=r"binary\.toml: no UTF-8"):
        topology.load(tmp_path / "binary.toml")
    with pytest.raises(InputError, match="cannot write"):
        topology.save(topology.preset("lab-4"), tmp_path / "no" / "folder.toml")


def test_values_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"mine\.toml: values are nested too deeply; expected tables"):
        topology.loads("x = " + "[" * 5000 + "]" * 5000, source="mine.toml")
