from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from wirewise import topology
from wirewise.cli.topo import app
from wirewise.errors import TopologyError


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_list_names_every_preset() -> None:
    result = _invoke("list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in topology.PRESETS)
    listed = json.loads(_invoke("list", "--json", "-").stdout)["topologies"]
    assert [entry["name"] for entry in listed] == list(topology.PRESETS)


def test_show_draws_links_and_widths() -> None:
    result = _invoke("show", "lab-2@50mbit")
    assert "host0 <-> bridge\tethernet\t50 Mbit/s\t25 us" in result.stdout
    assert "host1\t50 Mbit/s\t-" in result.stdout
    shown = json.loads(_invoke("show", "lab-2@50mbit", "--json", "-").stdout)
    assert shown["links"][0]["from"] == "host0"


def test_export_gives_a_file_that_check_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    assert _invoke("export", "dgx-1v", str(file)).exit_code == 0
    assert topology.load(file) == topology.preset("dgx-1v")
    assert _invoke("export", str(file)).stdout == file.read_text()
    result = _invoke("check", str(file))
    assert result.exit_code == 0 and "every rank reaches every other" in result.stdout


def test_check_names_faults(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "n"\n[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n')
    result = _invoke("check", str(file))
    assert isinstance(result.exception, TopologyError)
    assert "no path for 2 pairs of ranks (a to b, b to a)" in str(result.exception)
    file.write_text('name = "n"\n[[hosts]]\nname = 1\n')
    with pytest.raises(TopologyError, match=r"mine\.toml, line 3: hosts\[0\]\.name"):
        CliRunner().invoke(app, ["check", str(file)], catch_exceptions=False)
