"""MSCCL files on the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.cli.test_show import call, refused, said
from wirewise.cli.main import app
from wirewise.collective.builders import build
from wirewise.collective.exporters import msccl, mscclpp


def exported(folder, source, *words):
    path = folder / "algorithm"
    result = CliRunner().invoke(app, ["export", source, "-o", str(path), *words])
    assert result.exit_code == 0, result.output
    return path


@pytest.mark.parametrize("form", ["msccl-xml", "msccl-xml-azure"])
def test_an_msccl_file_by_what_it_holds(tmp_path, form):
    path = exported(tmp_path, "reduce_scatter:ring:4", "--to", form, "--protocol", "LL")
    text = said(call(path))
    assert "reduce_scatter of 4 ranks as an MSCCL algorithm, LL, 1 channel" in text
    assert "says whether it is right" in text
    record = json.loads(said(call(path, "--json", "-")))
    assert (record["kind"], record["collective"], record["ranks"]) == ("msccl", "reduce_scatter", 4)
    # Each rank sends one block to the next in each of three rounds.
    assert [(row["sends to"], row["chunks sent"]) for row in record["rows"]] == [
        (str((rank + 1) % 4), "3") for rank in range(4)
    ]


def test_what_an_msccl_file_cannot_be_shown_as(tmp_path):
    path = exported(tmp_path, "all_gather:ring:4", "--to", "msccl-xml")
    assert "is an MSCCL file; show it alone" in refused("all_reduce:ring:4", path)
    path.write_text("<algo name='x'")
    assert f"{path}: cannot read an MSCCL algorithm" in refused(path)


def test_a_plan_of_mscclpp_is_checked_and_shown(tmp_path):
    file, page = tmp_path / "plan.json", tmp_path / "plan.html"
    file.write_text(mscclpp.dumps(build("all_reduce", "ring", 4)))
    done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code == 0 and "ranks end with the right values" in done.output
    done = CliRunner().invoke(app, ["show", str(file), "--html", str(page)])
    assert done.exit_code == 0 and "all" in done.output, done.output
    assert "Chunks from rank to rank" in page.read_text()
    file.write_text(file.read_text().replace('"wait"', '"nop"', 1))
    done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code == 1, done.output


def test_an_msccl_file_has_a_page(tmp_path):
    file, page = tmp_path / "ring.xml", tmp_path / "ring.html"
    file.write_text(msccl.dumps(msccl.lower(build("all_reduce", "ring", 4)), "microsoft"))
    done = CliRunner().invoke(app, ["show", str(file), "--html", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "Chunks from rank to rank" in text and "thread blocks" in text
