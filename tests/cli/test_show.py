"""`wirewise show` of programs, plans of collectives and recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.papers.test_adaqp_page import read
from tests.report.test_collective_view import data_of, recorded
from tests.trace.synthetic import make
from wirewise import collective, plans
from wirewise.cli.main import app
from wirewise.collective.builders import algorithms, build
from wirewise.plans import BitWidthPlan, ChannelBits, CollectivePlan
from wirewise.plans.collective import Certificate
from wirewise.topology import Host, Link, Topology, lab_hosts, save
from wirewise.trace import write_trace


def call(*words):
    return CliRunner().invoke(app, ["show", *map(str, words)])


def said(result):
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words):
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def plan(**changes) -> CollectivePlan:
    fields = {
        "world_size": 4,
        "planner": "test",
        "program": build("all_gather", "ring", 4),
        "size_bytes": 4096,
        "topology": "lab-4",
        "bound_s": 1e-4,
        "predicted_s": 2e-4,
        "certificate": Certificate(cut=(0,), bandwidth_bytes_per_s=2.5e7),
    }
    return CollectivePlan(**(fields | changes))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", collective.COLLECTIVES)
def test_every_collective_has_a_page_with_all_its_algorithms(kind, tmp_path):
    lines = said(call(kind, "--ranks", 6, "--html", tmp_path / "page.html")).splitlines()
    page = (tmp_path / "page.html").read_text()
    read(page)
    shown = [view["title"] for view in data_of(page)["views"]]
    assert set(shown) <= set(algorithms(kind))
    assert len(shown) >= 2
    assert lines[0].startswith(f"{kind.replace('_', '-').capitalize()} in {len(shown)} ways")
    assert lines[-1] == f"Page: {tmp_path / 'page.html'}"


def test_an_algorithm_by_name():
    text = said(call("all_reduce:ring:4"))
    assert text.startswith(
        "All-reduce by ring among 4 ranks: 6 rounds, 24 messages; 1.00 MB on lab-4@10gbit takes 2.38 ms"
    )
    assert said(call("all-reduce:ring", "--ranks", 4)) == text


def test_figures_as_json():
    record = json.loads(
        said(call("broadcast:chain:5", "--segments", 3, "--root", 2, "--size", "2MB", "--json", "-"))
    )
    (one,) = record["programs"]
    assert (one["name"], one["ranks"], one["size_bytes"], one["messages"]) == ("chain", 5, 2_000_000, 12)


def test_program_files_plans_and_names_beside_each_other(tmp_path):
    collective.save(build("all_gather", "bruck", 4), tmp_path / "program.json")
    plans.save(plan(), tmp_path / "plan.json")
    words = [tmp_path / "program.json", tmp_path / "plan.json", "all_gather:neighbour_exchange:4"]
    text = said(call(*words, "--html", tmp_path / "page.html"))
    # Size and topology are those of the plan.
    assert "for 4.10 kB on lab-4" in text.splitlines()[0]
    views = data_of((tmp_path / "page.html").read_text())["views"]
    assert [view["title"] for view in views] == ["bruck", "ring", "neighbour_exchange"]


def test_a_plan_alone_is_a_table_and_with_html_a_page(tmp_path):
    plans.save(plan(), tmp_path / "plan.json")
    assert said(call(tmp_path / "plan.json")).startswith("step\tmessages")
    record = json.loads(said(call(tmp_path / "plan.json", "--json", "-")))
    assert record["family"] == "collective"
    said(call(tmp_path / "plan.json", "--html", tmp_path / "page.html"))
    assert data_of((tmp_path / "page.html").read_text())["networks"][0]["name"] == "lab-4"


def test_a_plan_for_a_topology_that_is_no_preset_says_so(tmp_path):
    plans.save(plan(topology="mine"), tmp_path / "plan.json")
    result = call(tmp_path / "plan.json", "--html", tmp_path / "page.html")
    assert result.exit_code == 0
    assert "topology 'mine' is no preset; shown on equal hosts" in result.stderr


def test_other_plans_have_a_page_too(tmp_path):
    channel = ChannelBits(exchange="forward1", sender=0, receiver=1, width=64, bits=bytes([4, 8, 8]))
    plans.save(BitWidthPlan(world_size=2, planner="threshold", channels=(channel,)), tmp_path / "plan.json")
    said(call(tmp_path / "plan.json", "--html", tmp_path / "page.html"))
    read((tmp_path / "page.html").read_text())


def test_a_topology_file_gives_ranks_and_links(tmp_path):
    save(lab_hosts(["1gbit", "2gbit", "4gbit"]), tmp_path / "net.toml")
    record = json.loads(said(call("all_reduce", "--topology", tmp_path / "net.toml", "--json", "-")))
    assert {one["ranks"] for one in record["programs"]} == {3}
    assert {one["network"] for one in record["programs"]} == {"lab-3"}


def test_hierarchical_algorithms_get_the_hosts_of_the_topology():
    record = json.loads(said(call("all_reduce", "--topology", "dgx-2x2", "--size", "16MB", "--json", "-")))
    by_name = {one["name"]: one["simulated_s"] for one in record["programs"]}
    assert by_name["hierarchical"] < by_name["ring"]


def test_algorithms_without_a_route_are_left_out_with_a_word(tmp_path):
    hosts = tuple(Host(name=f"h{n}") for n in range(4))
    links = tuple(
        Link(source=f"h{n}", target=f"h{(n + 1) % 4}", latency_s=1e-6, bandwidth_bytes_per_s=1e9)
        for n in range(4)
    )
    save(Topology(name="square", hosts=hosts, links=links), tmp_path / "square.toml")
    result = call("all_gather", "--topology", tmp_path / "square.toml", "--json", "-")
    shown = [one["name"] for one in json.loads(result.stdout)["programs"]]
    assert "ring" in shown and "recursive_doubling" not in shown
    assert "square has no route for recursive_doubling" in result.stderr
    told = refused("all_gather:recursive_doubling:4", "--topology", tmp_path / "square.toml")
    assert "which network 'square' joins only over other ranks" in told


def test_a_recorded_run(tmp_path):
    write_trace(recorded(), tmp_path / "run")
    text = said(call(tmp_path / "run", "--html", tmp_path / "page.html"))
    assert text.splitlines()[1] == "0\t1\t1\t1.00 MB\t0.200 s"
    assert len(data_of((tmp_path / "page.html").read_text())["views"][0]["messages"]) == 2
    record = json.loads(said(call(tmp_path / "run", "--step", 1, "--json", "-")))
    assert [row["to"] for row in record["messages"]] == ["2"]


def test_a_run_without_messages_says_so(tmp_path):
    write_trace(make(ranks=2, steps=2).seen, tmp_path / "run")
    assert "no messages between ranks, only collectives" in said(call(tmp_path / "run"))


def test_mistakes_are_named(tmp_path):
    assert "got the algorithm 'rung' of all_reduce; expected ring" in refused("all_reduce:rung:4")
    assert "'all_reduce:ring:x' is not understood" in refused("all_reduce:ring:x")
    assert "cannot read plan file" in refused(Path("absent.json"))
    assert "is for 4 ranks and 'lab-5' has 5" in refused("all_reduce:ring:4", "--topology", "lab-5")
    write_trace(recorded(), tmp_path / "run")
    assert "is a recorded run; show it alone" in refused("all_reduce:ring:3", tmp_path / "run")
    wrong = build("all_gather", "ring", 3)
    wrong = collective.Program(
        name="cut", collective="all_gather", ranks=3, chunks=3, transfers=wrong.transfers[:-1]
    )
    collective.save(wrong, tmp_path / "wrong.json")
    assert "'cut' (all_gather): incomplete" in refused(tmp_path / "wrong.json")


def test_charts_of_a_page_are_files_of_their_own(tmp_path):
    page = tmp_path / "page.html"
    said(call("all_reduce:ring:4", "--html", page))
    shown = json.loads(said(call(page, "--svg", tmp_path / "charts", "--json", "-")))
    (file,) = shown["pictures"]
    assert Path(file).name == "01-which-size-suits-which-program.svg"
    assert "write its charts as files: --svg FOLDER" in refused(page)
    assert "expected one page that a command wrote" in refused("all_reduce", "--svg", tmp_path)
