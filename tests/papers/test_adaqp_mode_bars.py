"""Phases and bits of modes as bars."""

from tests.papers.examples import EDGES, USUAL
from tests.papers.test_adaqp_page import read
from wirewise_papers.adaqp.page import page_html


def test_a_mode_of_one_width_has_no_chart_of_bits() -> None:
    assert "Bits by layer and direction" in page_html(USUAL)
    assert "Bits by layer and direction" not in page_html(EDGES["one mode"])


def test_phases_and_bits_are_readable_without_a_pointer() -> None:
    said = read(page_html(USUAL)).words
    assert "0.227 s" in said and "choosing bits" in said
    assert "forward1, 3.95 bits on the mean" in said
