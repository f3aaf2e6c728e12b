"""The script about placed GNN tasks writes its pages."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


def page_of(monkeypatch, tmp_path, rows, *more):
    run = load(monkeypatch, "run", "gnn_placement")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out), "--only", rows, *more])
    run.main()
    return out.read_text()


@pytest.mark.slow
def test_the_page_compares_orders_placements_and_flows(monkeypatch, tmp_path):
    page = page_of(monkeypatch, tmp_path, "policies,search,events,graph")
    assert "| mixed | iter | " in page and "| uniform | oes | store-affine |" in page
    assert "| omcoflow |" in page and "| blocks |" in page
    assert "Thresholds that were not met: 0." in page


@pytest.mark.lab
@pytest.mark.slow
def test_the_page_of_the_lab_names_both_placements_under_each_scheduler(monkeypatch, tmp_path):
    page = page_of(monkeypatch, tmp_path, "lab", "--scheduler", "iter,oes")
    for scheduler in ("iter", "oes"):
        assert f"| {scheduler} | 0 | colocated |" in page and f"| {scheduler} | 0 | gnn-tasks |" in page
        assert f"mean measured gain over colocated under {scheduler}" in page
    assert "fifo" not in page.split("## Carried out")[1]


def test_an_unknown_scheduler_is_refused(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit):
        page_of(monkeypatch, tmp_path, "events", "--scheduler", "iter,best")
    assert "expected some of iter,oes,fifo" in capsys.readouterr().err
