import io

import pytest
from rich.console import Console

from tests.papers.examples import EDGES, HOSTILE, USUAL
from wirewise_papers.adaqp.page import measures, print_result
from wirewise_papers.adaqp.summary import summary_sentence


def test_piped_text_is_plain_and_starts_with_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(USUAL)
    out = capsys.readouterr().out
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == summary_sentence(USUAL)
    assert lines[-1] == "Note: Devices are emulated by threads."
    assert "\x1b" not in out
    rows = {line[:22].strip(): line[22:].split() for line in lines[1:-1]}
    assert rows["time per epoch"] == ["1.20", "s", "0.400", "s"]
    assert rows["speed-up per epoch"] == ["reference", "3.00\u00d7"]
    assert rows["bytes sent, kernel"] == ["1.06", "GB", "340", "MB"]
    assert rows["difference in points"] == ["reference", "\u22120.10"]
    assert rows["mean bits a value"] == ["32.0", "3.50"]


@pytest.mark.parametrize("name", EDGES)
def test_every_odd_result_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_result(EDGES[name])
    assert capsys.readouterr().out.splitlines()[0] == summary_sentence(EDGES[name])


def test_a_narrow_terminal_keeps_figures_whole() -> None:
    screen = io.StringIO()
    print_result(USUAL, Console(file=screen, width=80, force_terminal=True, color_system=None, markup=False))
    assert max(map(len, screen.getvalue().splitlines())) <= 80
    assert "0.380 to 0.440 s" in screen.getvalue()


def test_markup_in_names_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(EDGES["hostile"])
    assert f"Note: {HOSTILE}" in capsys.readouterr().out


def test_never_reached_is_said_and_unmeasured_rows_are_left_out() -> None:
    cells, _ = measures(EDGES["never reached"])["time to loss"]
    assert cells == {"fp32": "24.0 s", "adaqp": "never"}
    labels = measures(EDGES["loopback"]).keys()
    assert "bytes sent, kernel" not in labels and "bytes sent, payload" in labels
    assert all(meaning.endswith(".") for _, meaning in measures(USUAL).values())
