import dataclasses
import json
import os
from inspect import signature

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.graph.toys import toy
from wirewise.cli.data import app, generate
from wirewise.errors import GraphError, InputError
from wirewise.graph import BlockModel, Part, load, read_graph, write_graph


def call(*words, **options):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False, **options)


def record_of(*words, **options):
    result = call(*words, "--json", "-", **options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_list_names_every_set():
    names = [row["name"] for row in record_of("list")["datasets"]]
    assert {"debian", "cora", "ogbn-arxiv", "PATH.npz"} <= set(names)
    lines = call("list").stdout.splitlines()
    assert lines[0].split("\t") == ["name", "source", "summary"]
    assert "degree-skewed" in lines[-2]


def test_show_counts(tmp_path):
    record = record_of("show", "block:nodes=200,features=5,mean_degree=4")
    assert (record["nodes"], record["edges"], record["features"]) == (200, 800, 5)
    assert sum(record["split"].values()) == 200
    call("show", "block:nodes=50", "--json", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["nodes"] == 50
    with pytest.raises(InputError, match=r"cannot write .*out.json: its folder does not exist"):
        call("show", "block:nodes=50", "--json", tmp_path / "absent" / "out.json")


def test_check_tells_good_from_bad(tmp_path):
    write_graph(toy([(0, 1)]), tmp_path / "good.npz")
    assert record_of("check", tmp_path / "good.npz")["ok"] is True
    bad = dataclasses.replace(toy([(0, 1)]), edge_index=np.array([[0], [77]]))
    write_graph(bad, tmp_path / "bad.npz")
    result = call("check", tmp_path / "bad.npz", "--json", "-")
    assert result.exit_code == 1 and "to node 77" in json.loads(result.stdout)["error"]


def test_generate_writes_a_graph_that_reads_back(tmp_path):
    record = record_of("generate", "-o", tmp_path / "g.npz", "--nodes", 100, "--classes", 3, "--directed")
    data = read_graph(tmp_path / "g.npz")
    assert data.directed and data.num_nodes == record["nodes"] == 100


def test_a_folder_is_generated_converted_and_checked(tmp_path):
    knobs = ("--nodes", 100, "--classes", 3, "--features", 4)
    record = record_of("generate", "-o", tmp_path / "g", *knobs)
    call("generate", "-o", tmp_path / "g.npz", *knobs)
    assert record_of("convert", tmp_path / "g.npz", "-o", tmp_path / "h")["edges"] == record["edges"]
    assert load(str(tmp_path / "g")).fingerprint == load(str(tmp_path / "h")).fingerprint
    assert record_of("check", tmp_path / "h")["ok"] is True
    os.truncate(tmp_path / "h" / "x.npy", 200)
    result = call("check", tmp_path / "h", "--json", "-")
    assert result.exit_code == 1 and "x.npy has 200 bytes" in json.loads(result.stdout)["error"]


def test_the_commands_defaults_are_the_generators():
    options = signature(generate).parameters
    for field in dataclasses.fields(BlockModel):
        assert options[field.name].default == field.default, field.name


@pytest.mark.parametrize("source", ["-", "file"])
def test_build_debian_from_file_or_stdin(tmp_path, source):
    text = "".join(
        f"Package: p{i}\nSection: s{i % 2}\nDepends: p{(i + 1) % 20}\nDescription: some words\n\n"
        for i in range(20)
    )
    (tmp_path / "list").write_text(text)
    name = source if source == "-" else tmp_path / "list"
    record = record_of("build-debian", "--from", name, "-o", tmp_path / "d.npz", input=text)
    assert (record["nodes"], record["edges"], record["classes"]) == (20, 20, 2)
    assert read_graph(tmp_path / "d.npz").class_names == ("s0", "s1")
    with pytest.raises(GraphError, match=r"cannot read .*absent: No such file"):
        call("build-debian", "--from", tmp_path / "absent", "-o", tmp_path / "d.npz")


def test_partition_writes_parts(tmp_path):
    record = record_of(
        "partition", "block:nodes=300", "-o", tmp_path / "parts", "--parts", 3, "--method", "metis"
    )
    assert record["num_parts"] == 3 and sum(part["own"] for part in record["parts"]) == 300
    assert Part.load(tmp_path / "parts", 2, 3).fingerprint == record["fingerprint"]
    assert "size_bytes" in call("partition", "block:nodes=60", "-o", tmp_path / "p", "--parts", 2).stdout
