"""Runs compared: what was made slower is found, what was not is not."""

import json

import pytest
from typer.testing import CliRunner

from tests.trace.synthetic import make
from wirewise.advice import compare
from wirewise.cli.main import app
from wirewise.errors import InputError
from wirewise.trace import write_trace

SMALL, HEAVY = (4_000, 40_000, 20_000), (400_000, 40_000_000, 20_000_000)
SLOWER = {
    "rank": ({"slowdown": {1: 1.5}}, "rank 1 computes longer"),
    "data": ({"data_s": 0.02}, "The phase data grew by 20.0 ms"),
    "network": ({"sizes": HEAVY}, "of the collectives bucket "),
}


def run(folder, **options):
    write_trace(make(**{"ranks": 3, "steps": 12, "sizes": SMALL, "jitter": 0.05, **options}).seen, folder)
    return folder


@pytest.fixture
def baseline(tmp_path):
    return run(tmp_path / "a", seed=1)


@pytest.mark.parametrize("planted", SLOWER)
def test_what_got_slower_is_named(planted, baseline, tmp_path):
    options, words = SLOWER[planted]
    found = compare(baseline, run(tmp_path / "b", seed=2, **options))
    assert found.step.slower and found.exceeds(0.05) and found.sentence.startswith("A step got slower")
    assert words in found.sentence, found.sentence
    assert not compare(tmp_path / "b", baseline).exceeds(0.0)
    assert compare(tmp_path / "b", baseline).sentence.startswith("A step got faster")


def test_noise_is_no_change(baseline, tmp_path):
    found = compare(baseline, run(tmp_path / "b", seed=2))
    assert not found.exceeds(0.0) and "as long as before" in found.sentence
    assert found.step.ci95[0] < 0 < found.step.ci95[1]


def test_the_command_ends_with_code_1_beyond_the_limit(baseline, tmp_path):
    slow = run(tmp_path / "b", seed=2, data_s=0.02)
    words = ["compare", str(baseline), str(slow), "--json", "-"]
    told = CliRunner().invoke(app, [*words, "--fail-over", "5%"])
    assert told.exit_code == 1 and json.loads(told.stdout)["failed"] is True
    assert CliRunner().invoke(app, [*words, "--fail-over", "0.5"]).exit_code == 0
    table = CliRunner().invoke(app, words[:3])
    assert table.exit_code == 0 and "data (rank " in table.stdout and "slower" in table.stdout
    told = CliRunner().invoke(app, [*words, "--fail-over", "much"])
    assert told.exit_code == 2 and "--fail-over is 'much'; expected a share of the step" in told.output


def test_runs_that_cannot_be_compared(baseline, tmp_path):
    with pytest.raises(InputError, match=r"a has 3 ranks and .*b 2; expected two runs of one job"):
        compare(baseline, run(tmp_path / "b", ranks=2))
    with pytest.raises(InputError, match="c has 3 steps that all ranks have; expected at least 4"):
        compare(baseline, run(tmp_path / "c", steps=3))
