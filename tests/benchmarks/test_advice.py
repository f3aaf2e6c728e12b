"""The page about advice on scripts says what was measured, and its scripts are as users write them."""

import ast

import pytest
from tests.benchmarks.test_benchmarks import ROOT, load

SCRIPTS = sorted((ROOT / "advice" / "scripts").glob("*.py"))


@pytest.fixture
def run(monkeypatch):
    return load(monkeypatch, "run", "advice")


@pytest.fixture
def page(run, capsys):
    return run.Page("t", "smoke", {})


def found(run, **fields):
    trials = [
        run.Trial("loader: 4 workers more", 0.5, 0.4, 1.0, 1.0),
        run.Trial("accumulation: 2 micro-batches", None, 0.6, 1.0, 2.0),
    ]
    return run.Found(**{"bound_by": "data", "step_s": 1.0, "advice": "Do", "trials": trials, **fields})


def test_a_cause_that_is_not_named_fails(run, page, capsys):
    run.causes(page, {"slow_loader": found(run), "straggler": found(run), "words": found(run)})
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert rows[0].endswith("holds |") and "FAILS" in rows[1] and "FAILS" not in rows[2]


def test_regret_is_over_the_best_that_was_tried_without_a_risk(run, page, capsys):
    rows = {
        "one": found(run, advised="loader: 4 workers more", fresh=0.5),
        "left": found(run),
        "worse": found(run, advised="buckets: dpro", fresh=1.02),
    }
    run.regrets(page, rows)
    told = capsys.readouterr().out
    assert "| one | loader: 4 workers more | 0.500 | <= 1.01: holds | 0.400 | +25.0 % |" in told
    assert "| left | leave it as it is | 1.000 | <= 1.01: holds | 0.400 | +150.0 % |" in told
    assert "| worse | buckets: dpro | 1.020 | <= 1.01: FAILS |" in told


def test_errors_are_those_of_predictions(run, page, capsys):
    run.predictions(page, {"one": found(run)})
    told = capsys.readouterr().out
    assert "| one | loader: 4 workers more | 1000.0 | 500.0 | 400.0 | +25.0 % |" in told
    none = run.MISSING
    assert f"| one | accumulation: 2 micro-batches | 1000.0 | {none} | 600.0 | {none} |" in told


def test_scripts_know_nothing_of_it_and_all_are_run(run):
    assert len(SCRIPTS) >= 16 and {*run.PLANTED, *run.UNTOLD, *run.ALONE} <= {one.stem for one in SCRIPTS}
    for script in SCRIPTS:
        imported = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(script.read_text()))
            for name in ([one.name for one in node.names] if isinstance(node, ast.Import) else [])
            + ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        }
        assert ("wirewise" in imported) == (script.stem == "growing"), script
        assert str(script) in run.command_of(script.stem)
