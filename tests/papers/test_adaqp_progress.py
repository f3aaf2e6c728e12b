import io

import pytest
from rich.console import Console

from tests.papers.examples import HOSTILE, USUAL
from wirewise_papers.adaqp.progress import TrainingProgress
from wirewise_papers.adaqp.progress import TrainingProgress as Progress


def train(progress: TrainingProgress) -> None:
    progress.note(f"before {HOSTILE}")
    progress.start(["fp32", "adaqp"], 20)
    for turn in range(0, 20, 5):
        for name, mode in USUAL.modes.items():
            for record in mode.epochs[turn : turn + 5]:
                progress.epoch(name, record)
        progress.note(f"turn {turn}")
    progress.finish()
    progress.finish()


def test_lines_about_every_tenth_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    train(TrainingProgress())
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert f"before {HOSTILE}" in lines and "turn 15" in lines
    assert sum(line.startswith("fp32 ") for line in lines) == 11
    last = [line for line in lines if line.startswith("adaqp")][-1]
    assert "epoch 20/20" in last and "loss 1.089" in last and "validation 73.86 %" in last
    assert "0.400 s/epoch" in last and last.endswith("done")
    first = next(line for line in lines if line.startswith("adaqp"))
    assert "epoch 1/20" in first and first.endswith("30.4 s left")
    assert "\x1b" not in out


def test_standard_output_stays_free(capsys: pytest.CaptureFixture[str]) -> None:
    train(TrainingProgress(to_stderr=True))
    out, err = capsys.readouterr()
    assert out == "" and "epoch 20/20" in err


def test_bars_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, markup=False, highlight=False)
    monkeypatch.setattr("wirewise_papers.adaqp.progress.plain_console", lambda to_stderr: console)
    train(Progress())
    shown = screen.getvalue()
    assert "20/20" in shown and "validation 73.86 %" in shown and f"before {HOSTILE}" in shown


def test_finish_without_start_and_unknown_modes() -> None:
    progress = TrainingProgress()
    progress.finish()
    progress.epoch("late", USUAL.modes["fp32"].epochs[0])
    progress.finish()
