"""Links that are measured in a lab are those that it shapes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from wirewise import lab
from wirewise.cli.main import app
from wirewise.topology import load, path_between


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.dist
def test_shaped_links_are_found(tmp_path):
    file = tmp_path / "measured.toml"
    with lab.Lab(3, "80mbit", {2: "40mbit"}) as network:
        done = network.run(
            ["-m", "wirewise", "topo", "probe", "-o", str(file)], launcher="torchrun", timeout_s=90
        )
    assert done.exit_code == 0
    found = load(file)
    # Whether rates fit one switch, or each pair has its own, is up to how busy the machine was.
    for source, target, shaped in (
        ("host0", "host1", 80e6 / 8),
        ("host0", "host2", 40e6 / 8),
        ("host2", "host1", 40e6 / 8),
    ):
        path = path_between(found, source, target)
        # Headers take 4 to 5 % of what is shaped; the rest is for a busy machine, but not as much as links differ.
        assert 0.6 < path.bandwidth_bytes_per_s / shaped < 1.05
        assert 0 < path.latency_s < 5e-3


def test_without_ranks_it_says_how_to_start(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    result = CliRunner().invoke(app, ["topo", "probe", "-o", str(tmp_path / "t.toml")])
    assert result.exit_code != 0
    assert "torchrun" in str(result.exception) or "torchrun" in result.output
