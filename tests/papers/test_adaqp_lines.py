"""Curves of modes over time."""

from tests.papers.examples import EDGES, USUAL
from tests.papers.test_adaqp_page import read, svgs
from wirewise_papers.adaqp.page import page_html


def test_curves_hold_every_epoch_of_a_short_run_and_marks_where_the_goal_was_reached() -> None:
    page = page_html(USUAL)
    reader = read(page)
    points = [value.split(";") for key, value in reader.attributes if key == "data-points"]
    assert [len(p) for p in points] == [20, 20, 4, 4]
    loss = svgs(page)[0]
    rings = [e for e in loss.iter() if "ring" in e.get("class", "")]
    assert len(rings) == 2
    assert [e.get("class") for e in rings] == ["dot c1 ring", "dot c0 ring"]


def test_a_diverged_mode_is_named_where_its_line_ends() -> None:
    assert "adaqp: NaN" in read(page_html(EDGES["diverged"])).words
    assert "adaqp: NaN" not in read(page_html(USUAL)).words
