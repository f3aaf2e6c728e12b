"""The page about planners of collectives can be made, and nothing simulated in it fails."""

import pytest
from tests.benchmarks.test_benchmarks import load

TIMED = ("exact", "many", "choice", "drift")


@pytest.fixture
def run(monkeypatch):
    return load(monkeypatch, "run", "collective_planners")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "many", "orders", "noise", "levels", "choice", "drift"])
def test_rows(run, name, capsys):
    page = run.Page("Planners", "smoke", {})
    preset = run.PRESETS["smoke"] | {
        "tori": ((3, 4),),
        "sizes": (1_000_000,),
        "orders": ((3, 2, True),),
        "noise": ((8, 8),),
    }
    run.ROWS[name](page, preset)
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) > 3
    if name not in TIMED:
        assert "holds" in printed and "FAILS" not in printed


def test_answers_of_the_exact_search(run, capsys):
    run.exact_row(run.Page("Planners", "smoke", {}), run.PRESETS["smoke"])
    answers = [
        line.split("|")[2:4] for line in capsys.readouterr().out.splitlines() if line.startswith("| (")
    ]
    assert len(answers) == 5
    assert all(found.strip() == expected.strip() for found, expected in answers)
