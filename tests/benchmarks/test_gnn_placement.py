"""The script about placed GNN tasks writes its pages."""

import sys

import pytest
from tests.benchmarks.test_benchmarks import load


def page_of(monkeypatch, tmp_path, rows):
    run = load(monkeypatch, "run", "gnn_placement")
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out), "--only", rows])
    run.main()
    return out.read_text()


def test_the_page_compares_orders_placements_and_flows(monkeypatch, tmp_path):
    page = page_of(monkeypatch, tmp_path, "policies,search,events,graph")
    assert "| mixed | iter | " in page and "| uniform | oes | store-affine |" in page
    assert "| omcoflow |" in page and "| blocks |" in page
    assert "Thresholds that were not met: 0." in page


@pytest.mark.lab
@pytest.mark.slow
def test_the_page_of_the_lab_names_both_placements(monkeypatch, tmp_path):
    page = page_of(monkeypatch, tmp_path, "lab")
    assert "| 0 | colocated |" in page and "| 0 | gnn-tasks |" in page and "mean measured gain" in page
