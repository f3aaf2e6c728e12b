"""`wirewise check` and `wirewise export`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from tests.collective.exporters import nccl_plugin
from tests.collective.exporters.test_chakra import read
from wirewise.cli.main import app
from wirewise.collective import Program, save
from wirewise.collective.builders import build
from wirewise.collective.exporters import msccl, mscclpp_plan
from wirewise.plans import Certificate, CollectivePlan
from wirewise.plans import save as save_plan


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def ring(tmp_path):
    save(build("all_reduce", "ring", 8), tmp_path / "ring.json")
    return tmp_path / "ring.json"


@pytest.fixture
def broken(tmp_path):
    whole = build("all_reduce", "ring", 4)
    fields = {name: getattr(whole, name) for name in whole.__struct_fields__}
    save(Program(**{**fields, "transfers": whole.transfers[:-1]}), tmp_path / "broken.json")
    return tmp_path / "broken.json"


def plan_file(folder, program):
    plan = CollectivePlan(
        planner="test",
        world_size=program.ranks,
        program=program,
        size_bytes=1000,
        topology="lab-4",
        bound_s=0.0,
        predicted_s=0.0,
        certificate=Certificate(cut=(0,), bandwidth_bytes_per_s=1.0),
    )
    save_plan(plan, folder / "plan.json")
    return folder / "plan.json"


def test_check_says_that_a_program_is_right(ring):
    result = call("check", ring)
    assert result.exit_code == 0, result.output
    assert "is right: all_reduce of 8 ranks in 14 steps and 112 messages" in result.stdout
    found = json.loads(call("check", ring, "--json", "-").stdout)
    assert (found["verdict"], found["right"], found["faults"]) == ("right", True, [])
    assert "is right" in found["reason"]


def test_check_names_the_first_fault(broken):
    result = call("check", broken)
    assert result.exit_code == 1
    assert "incomplete: rank" in result.stdout and "without the values of ranks" in result.stdout
    found = json.loads(call("check", broken, "--json", "-").stdout)
    assert not found["right"] and len(found["faults"]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<algo name='x'", "file: xml: unclosed token"),
        ("<plan/>", "got the element 'plan'; expected `algo`"),
    ],
)
def test_files_that_are_no_msccl(tmp_path, text, message):
    (tmp_path / "file.xml").write_text(text)
    result = call("check", tmp_path / "file.xml")
    assert result.exit_code == 1 and message in result.stdout


@pytest.mark.parametrize("name", ["ring.txt", "ring", "ring.json"])
def test_an_msccl_file_is_known_by_what_it_holds(tmp_path, name):
    out = tmp_path / name
    assert call("export", "all_reduce:ring:3", "--to", "msccl-xml", "-o", out).exit_code == 0
    assert "fits microsoft's MSCCL" in call("check", out).stdout
    out.write_text("\ufeff\n <!-- moved -->\n" + out.read_text(), encoding="utf-8")
    assert call("check", out).exit_code == 0


def test_a_program_is_known_whatever_its_name(tmp_path):
    save(build("all_reduce", "ring", 4), tmp_path / "ring.xml")
    assert "is right: all_reduce of 4 ranks" in call("check", tmp_path / "ring.xml").stdout


def test_steps_that_azure_does_not_hold(tmp_path):
    """The executor of Azure holds 64 steps of a thread block, microsoft/msccl 256."""
    out = tmp_path / "chain.xml"
    call("export", "broadcast:chain:3", "--to", "msccl-xml", "-o", out)
    root = ET.fromstring(out.read_text())
    block = root.find(".//tb")
    (step,) = block.findall("step")
    for number in range(1, 70):
        block.append(ET.Element("step", {**step.attrib, "s": str(number)}))
    out.write_text(ET.tostring(root, encoding="unicode"))
    limits = [
        json.loads(call("check", out, "--dialect", d, "--json", "-").stdout) for d in ("azure", "microsoft")
    ]
    told = [[fault for fault in found["faults"] if ": steps: " in fault] for found in limits]
    assert len(told[0]) == 1 and "64" in told[0][0]
    assert told[1] == []


def test_programs_come_from_plans_and_names_too(tmp_path, ring):
    path = plan_file(tmp_path, build("all_gather", "ring", 4))
    assert ": all_gather of 4 ranks" in call("check", path).stdout
    assert ": reduce_scatter of 5 ranks" in call("check", "reduce-scatter:ring:5").stdout
    raw = json.loads(path.read_text())
    raw["program"]["transfers"] = raw["program"]["transfers"][:-1]
    path.write_text(json.dumps(raw))
    assert call("check", path).exit_code == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nothing.json", "cannot read 'nothing.json': No such file or directory; expected a program file"),
        ("all_reduce:ring:x", "got 'x' ranks"),
        ("all_reduce:rings:4", "rings"),
    ],
)
def test_sources_that_are_none(source, message):
    result = call("check", source)
    assert result.exit_code == 2
    assert message in result.stderr


def test_files_without_a_program(tmp_path):
    for text in ("{", '{"program": 3}', '{"kind": "other"}', "[" * 100_000):
        (tmp_path / "x.json").write_text(text)
        result = call("check", tmp_path / "x.json")
        assert result.exit_code == 2
        assert "x.json" in result.stderr


@pytest.mark.parametrize(("form", "dialect"), [("msccl-xml", "microsoft"), ("msccl-xml-azure", "azure")])
def test_msccl(ring, tmp_path, form, dialect):
    out = tmp_path / "ring.xml"
    options = [
        "--protocol",
        "LL",
        "--in-place",
        "--fuse",
        "--instances",
        "2",
        "--min-size",
        "1KiB",
        "--max-size",
        "1MiB",
    ]
    result = call("export", ring, "--to", form, "-o", out, *options)
    assert result.exit_code == 0, result.output
    assert "MSCCL_" in result.stdout
    algorithm = msccl.loads(out.read_text(), dialect)
    assert (algorithm.protocol, algorithm.in_place, algorithm.channels) == ("LL", True, 2)
    assert (algorithm.min_bytes, algorithm.max_bytes) == (1024, 2**20)
    assert call("check", out, "--dialect", dialect).exit_code == 0
    root = ET.fromstring(out.read_text())
    root.set("proto", "simple")
    out.write_text(ET.tostring(root, encoding="unicode"))
    result = call("check", out, "--dialect", dialect)
    assert result.exit_code == 1
    assert "algo: protocol: got 'simple'" in result.stdout


def test_a_rooted_file_is_checked_for_its_root(tmp_path):
    save(build("broadcast", "binomial", 6, root=2), tmp_path / "b.json")
    out = tmp_path / "b.xml"
    assert call("export", tmp_path / "b.json", "--to", "msccl-xml", "-o", out).exit_code == 0
    assert call("check", out, "--root", "2").exit_code == 0
    assert "gpu 0: result" in call("check", out).stdout


def test_mscclpp(tmp_path):
    out = tmp_path / "plan.json"
    result = call("export", "all_gather:ring:4", "--to", "mscclpp-json", "-o", out, "--json", "-")
    assert json.loads(result.stdout) == {"format": "mscclpp-json", "files": [str(out)]}
    assert list(mscclpp_plan.violations(mscclpp_plan.loads(out.read_text()))) == []


def test_nccl_tuner(ring, tmp_path):
    out = tmp_path / "tuner.csv"
    result = call("export", ring, "--to", "nccl-tuner", "-o", out, "--topology", "dgx-1v", "--gpu", "volta")
    assert result.exit_code == 0, result.output
    rows = nccl_plugin.loads(out.read_text())
    assert {row.collective for row in rows} == {"allreduce"}
    assert {(row.hosts, row.ranks) for row in rows} == {(1, 8)}
    assert rows[0].min_bytes == 0 and rows[-1].max_bytes == 2**63 - 1
    assert (rows[-1].algorithm, rows[-1].protocol) == ("ring", "simple")
    assert "needs --topology" in call("export", ring, "--to", "nccl-tuner", "-o", out).stderr
    result = call("export", ring, "--to", "nccl-tuner", "-o", out, "--topology", "lab-4")
    assert result.exit_code == 2 and "has 4 ranks" in result.stderr


def channels(path):
    graph = ET.parse(path).getroot().find("graph")
    return graph.attrib, [[int(gpu.get("dev"), 16) for gpu in c.iter("gpu")] for c in graph]


def test_nccl_graph_of_a_program(ring, tmp_path):
    out = tmp_path / "graph.xml"
    assert call("export", ring, "--to", "nccl-graph", "-o", out).exit_code == 0
    assert channels(out)[1] == [list(range(8))]
    assert call("export", ring, "--to", "nccl-graph", "-o", out, "--topology", "dgx-a100").exit_code == 0
    attributes, found = channels(out)
    assert attributes["typeintra"] == "NVL"
    assert float(attributes["speedintra"]) * len(found) == pytest.approx(300, rel=0.01)


def test_nccl_graph_of_a_topology(tmp_path):
    out = tmp_path / "graph.xml"
    words = ["export", "all_reduce:recursive_doubling:8", "--to", "nccl-graph", "-o", out]
    assert "is no ring" in call(*words).stderr
    assert call(*words, "--topology", "dgx-1v").exit_code == 0
    attributes, found = channels(out)
    assert len(found) * float(attributes["speedintra"]) == pytest.approx(150)


def test_chakra(ring, tmp_path):
    result = call("export", ring, "--to", "chakra", "-o", tmp_path / "run", "--size", "8MB")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.glob("run.*.et")) == [f"run.{r}.et" for r in range(8)]
    assert f"Wrote {tmp_path / 'run.0.et'} to run.7.et." in result.stdout
    # A ring of eight ranks: each sends and receives an eighth of the buffer 14 times.
    for rank in range(8):
        messages = [node for node in read(tmp_path / f"run.{rank}.et") if node[1] in (5, 6)]
        assert [node[1] for node in messages].count(5) == len(messages) / 2 == 14
        assert {node[4]["comm_size"][1] for node in messages} == {1_000_000}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "pdf"], "--to is 'pdf'; expected one of: msccl-xml"),
        (["--to", "msccl-xml", "--protocol", "ll"], "--protocol is 'll'; expected one of: Simple"),
        (["--to", "nccl-tuner", "--gpu", "kepler"], "--gpu is 'kepler'; expected one of: volta"),
        (["--to", "chakra", "--size", "large"], "large"),
    ],
)
def test_wrong_options(ring, tmp_path, options, message):
    result = call("export", ring, "-o", tmp_path / "x", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert (
        "--dialect is 'ibm'; expected one of: microsoft" in call("check", "x.xml", "--dialect", "ibm").stderr
    )


def test_a_wrong_program_is_not_exported(broken, tmp_path):
    result = call("export", broken, "--to", "chakra", "-o", tmp_path / "x")
    assert result.exit_code == 2 and "incomplete" in result.stderr
    assert not list(tmp_path.glob("x*"))
