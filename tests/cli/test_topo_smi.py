"""`wirewise topo smi`: a machine's table as a topology file."""

from __future__ import annotations

from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.topology import load

TABLE = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\t0-15\t0
GPU1\tNV4\t X \t0-15\t0
"""


def test_a_table_becomes_a_file(tmp_path):
    out = tmp_path / "machine.toml"
    done = CliRunner().invoke(app, ["topo", "smi", "-", "-o", str(out), "--nvlink", "200gbit"], input=TABLE)
    assert done.exit_code == 0, done.output
    found = load(out)
    assert found.ranks == ("gpu0", "gpu1")
    (nvlink,) = [link for link in found.links if link.kind == "nvlink"]
    assert nvlink.bandwidth_bytes_per_s == 4 * 25e9


def test_another_text_is_refused():
    done = CliRunner().invoke(app, ["topo", "smi", "-"], input="No devices were found\n")
    assert done.exit_code != 0
    assert "nvidia-smi topo -m" in done.output
