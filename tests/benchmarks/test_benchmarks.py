"""The scripts under benchmarks compute what their pages say."""

import argparse
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from wirewise.results import EpochRecord

ROOT = Path(__file__).parents[2] / "benchmarks"


def load(monkeypatch, name, folder=""):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / folder))
    # Scripts of two benchmarks may have modules of one name.
    for other, loaded in list(sys.modules.items()):
        if Path(getattr(loaded, "__file__", None) or "/").is_relative_to(ROOT):
            monkeypatch.delitem(sys.modules, other)
    module = importlib.import_module(name)
    assert Path(module.__file__).is_relative_to(ROOT)
    return module


@pytest.fixture
def common(monkeypatch):
    return load(monkeypatch, "common")


@pytest.fixture
def trainings(monkeypatch):
    return load(monkeypatch, "trainings", "full_graph")


def records(plan_s, **knobs):
    return [
        EpochRecord(epoch=i, loss=1.0, train_s=1.0, phases={"plan": s}, **knobs) for i, s in enumerate(plan_s)
    ]


def test_verdicts_come_from_the_data(common):
    assert common.verdict(3.0, least=3.0) == ">= 3: holds"
    assert common.verdict(2.99, least=3.0).endswith("FAILS")
    assert common.verdict(0.5, least=0.55, most=0.65).endswith("FAILS")
    assert common.verdict(0.7, least=0.55, most=0.65).endswith("FAILS")
    assert common.verdict(None, most=1.0).endswith("FAILS")
    assert common.verdict(float("nan"), most=1.0).endswith("FAILS")


def page_of(common, tmp_path, preset, *cells):
    """A page with one row and the command line that asks for it, with the file it is written to."""
    page, file = common.Page("T", preset, {}), tmp_path / "page.md"
    with page.table("figure", "claim") as row:
        row(*cells)
    return page, common.basic_parser("T").parse_args(["--preset", preset, "--out", str(file)]), file


def test_a_missed_threshold_ends_a_benchmark_with_an_error(common, tmp_path, capsys):
    page, options, file = page_of(common, tmp_path, "paper", "1", common.verdict(1.0, least=2.0))
    with pytest.raises(SystemExit, match="thresholds that were not met: 1"):
        page.finish(options)
    assert "not met: 1." in file.read_text()

    options.report_only = True
    page.finish(options)

    page, options, file = page_of(common, tmp_path, "paper", "3", common.verdict(3.0, least=2.0))
    page.finish(options)
    assert "not met: 0." in file.read_text()


def test_smoke_presets_are_not_judged(common, tmp_path, capsys):
    page, options, file = page_of(common, tmp_path, "smoke", "1", common.verdict(1.0, least=2.0))
    page.finish(options)
    assert "not met: 1. Smoke: not judged." in file.read_text()


@pytest.mark.sweep
@pytest.mark.parametrize("script", sorted(ROOT.glob("*/run.py")), ids=lambda script: script.parent.name)
def test_all_scripts_judge_with_the_shared_page(script):
    text = script.read_text()
    assert re.search(r"page\.finish\((options|args|given)\)", text) and "argparse" not in text


def test_rows_are_checked(common):
    assert common.chosen("s1, s3", ["s1", "s2", "s3"]) == ["s1", "s3"]
    for wrong in ("s9", "", "s1,s9"):
        with pytest.raises(argparse.ArgumentTypeError):
            common.chosen(wrong, ["s1"])


def test_ratios_pair_neighbours(common):
    assert common.paired([2.0, 9.0, 4.0], [1.0, 3.0]).tolist() == [2.0, 3.0]
    assert common.spread([0.1, 0.2, 0.3], 1e3, 0) == "200 (150 to 250)"


def test_a_page_counts_what_failed_and_names_the_command(common, tmp_path, capsys):
    page = common.Page("Title", "smoke", {"Repeats": "2"})
    with page.table("a", "threshold") as row:
        row(1, common.verdict(1.0, least=2.0))
        row(2, common.verdict(3.0, least=2.0))
    page.finish(common.basic_parser("T").parse_args(["--out", str(tmp_path / "results" / "page.md")]))
    text = (tmp_path / "results" / "page.md").read_text()
    assert "not met: 1" in text and "- Command: `python " in text and "| 2 | >= 2: holds |" in text
    assert "| 2 | >= 2: holds |" in capsys.readouterr().out


def test_planning_is_counted_over_whole_cycles(trainings):
    again, whole = trainings.plan_share(records([0, 0, 0.8, 0, 0.2, 0, 0, 0, 0.9]), 4)
    assert again == pytest.approx(0.05)
    assert whole == pytest.approx(1.9 / 9)
    assert trainings.plan_share(records([0.5, 0.5]), 4)[0] is None


def test_bits_are_those_after_the_first_plan(trainings):
    before, after = {"forward1": {8: 100}}, {"forward1": {4: 30}, "backward1": {32: 10}}
    trained = records([0] * 3, bits=before) + records([0], bits=after)
    assert trainings.bits_used(trained) == "4: 75 %, 32: 25 %"


def test_channels_of_a_host(trainings):
    slow, others = trainings.channel_means({"0-3": 2.0, "3-1": 3.0, "0-1": 8.0, "13-1": 7.0}, 3)
    assert slow == [2.0, 3.0] and others == [8.0, 7.0]


def test_every_row_of_the_thresholds_has_a_mode(monkeypatch):
    accuracy = load(monkeypatch, "run", "accuracy")
    assert accuracy.lost_points([0.8, 0.7], [0.79, 0.71]) == pytest.approx(np.array([1.0, -1.0]))
    for limits in accuracy.MOST_LOST.values():
        assert limits.keys() == accuracy.MOST_LOSS.keys()


def test_the_parts_of_a_step_by_hand(monkeypatch):
    load(monkeypatch, "workloads", "replay_accuracy")
    load(monkeypatch, "jobs", "replay_accuracy")
    accuracy = load(monkeypatch, "accuracy", "replay_accuracy")
    # Two ops touch, one is inside another; a transfer reaches over the end of the compute and of the step.
    found = accuracy._parts(
        [(0.0, 1.0), (1.0, 3.0), (1.5, 2.0), (9.0, 12.0)], [(2.0, 5.0), (4.0, 6.0)], 0.5, 10.0
    )
    assert found.tolist() == pytest.approx([3.5, 3.0, 1.0, 3.0])


def test_figures_older_than_the_code_are_measured_again(common, monkeypatch, tmp_path):
    file = tmp_path / "page.json"
    common.KeptFigures(file)["new"] = {"seconds": 1.0}
    kept = common.KeptFigures(file)
    assert kept["new"] == {"seconds": 1.0}
    monkeypatch.setattr(common.time, "time", lambda: 0.0)
    kept["old"] = {"seconds": 2.0}
    assert list(common.KeptFigures(file)) == ["new"]
    nowhere = common.KeptFigures(None)
    nowhere["here"] = 1
    assert nowhere["here"] == 1
