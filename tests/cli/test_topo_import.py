"""`wirewise topo import`: a topology file of NCCL as TOML."""

from typer.testing import CliRunner

from tests.topology.test_nccl_xml import XGMI
from wirewise import topology
from wirewise.cli.main import app


def test_a_file_becomes_a_topology_and_what_it_leaves_open_is_said(tmp_path):
    file, out = tmp_path / "node.xml", tmp_path / "node.toml"
    file.write_text(XGMI)
    done = CliRunner().invoke(app, ["topo", "import", str(file), "--hosts", "2", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "note: the rate of one xgmi link is not in the file" in done.output
    found = topology.load(out)
    assert (found.name, len(found.hosts), len(found.devices)) == ("node", 2, 4)


def test_what_is_no_such_file_is_named(tmp_path):
    file = tmp_path / "graph.xml"
    file.write_text("<graphs/>")
    done = CliRunner().invoke(app, ["topo", "import", str(file)])
    assert done.exit_code == 2
    assert "graph.xml: got <graphs>; expected <system>" in done.output
