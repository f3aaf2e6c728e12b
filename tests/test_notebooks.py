"""Notebooks: tables of plans, predictions and topologies, and the example's cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import wirewise as ww
from wirewise.notebooks import table_html

NOTEBOOK = Path(__file__).parents[1] / "examples" / "plans_and_predictions.ipynb"


def test_text_is_escaped_and_long_tables_are_cut() -> None:
    html = table_html("a < b", ["<i>"], [[f"row {n} &"] for n in range(60)])
    assert "a &lt; b" in html and "&lt;i&gt;" in html and "row 39 &amp;" in html and "row 40" not in html
    assert "and 20 more rows" in html


def test_topologies_plans_and_predictions_are_tables() -> None:
    topology = ww.topology.preset("lab-4@200mbit")
    plan = ww.planners.collective.greedy("all_reduce", ww.cost.Links.of(topology), size_bytes=1e6)
    prediction = ww.sim.predict(plan, None, ww.cost.Links.of(topology))
    for item, text in ((topology, "4 ranks on 4 hosts"), (plan, plan.headline), (prediction, "simulated")):
        html = item._repr_html_()
        assert text in html and "<table>" in html


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_cells_of_the_example_run_and_show_what_is_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells():
        *lines, last = "".join(cell["source"]).splitlines()
        exec("\n".join(lines), names)
        shown = eval(last, names)
        (output,) = cell["outputs"]
        assert shown._repr_html_() == "".join(output["data"]["text/html"])
