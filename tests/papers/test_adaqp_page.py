import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.papers.examples import EDGES, USUAL, long_result
from tests.report.test_plan import PLAN
from wirewise_papers.adaqp.page import page_html
from wirewise_papers.adaqp.summary import summary_sentence

VOID = {"meta", "br", "img", "link", "input"}


class Reader(HTMLParser):
    """Collects text and attributes, and checks that elements close in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]


@pytest.mark.sweep
@pytest.mark.parametrize("name", EDGES)
def test_every_odd_result_makes_a_sound_page(name: str) -> None:
    page = page_html(EDGES[name])
    reader = read(page)
    said = " ".join(reader.words).replace("\u00a0", " ")
    assert summary_sentence(EDGES[name]) in said
    for drawing in svgs(page):
        for element in drawing.iter():
            for key in {"x", "y", "width", "height", "cx", "cy", "d"} & set(element.keys()):
                assert "nan" not in element.attrib[key] and "inf" not in element.attrib[key]
    assert {"src", "href"}.isdisjoint(key for key, _ in reader.attributes)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert reader.tags.count("script") == 1


def test_figures_of_the_usual_page() -> None:
    reader = read(page_html(USUAL))
    said = " ".join(reader.words).replace("\u00a0", " ")
    for figure in (
        "3.00\u00d7",
        "6.00\u00d7",
        "\u22120.10",
        "900 MB",
        "1.06 GB",
        "24.0 s",
        "0.400 s",
        "75.36 %",
    ):
        assert figure in said
    for part in ("final loss of fp32: 1.100", "forward1", "backward2", "How this was measured"):
        assert part in said
    assert "Devices are emulated by threads." in said and "network namespace" in said
    assert "wirewise run adaqp" in said
    tips = [value for key, value in reader.attributes if key == "data-tip"]
    assert "adaqp, payload: 150 MB" in tips
    assert any(t.startswith("adaqp, wire: 0.227 s") for t in tips)
    assert any("1 bit 30.0 %, 2 bit 20.0 %, 4 bit 30.0 %, 8 bit 20.0 %; mean 3.50 bits" in t for t in tips)


def test_print_is_never_dark() -> None:
    assert "@media screen and (prefers-color-scheme:dark)" in page_html(USUAL)
    assert "@media (prefers-color-scheme:dark)" not in page_html(USUAL)


def test_loopback_says_that_no_link_was_limited() -> None:
    said = " ".join(read(page_html(EDGES["loopback"])).words)
    assert "No link was limited" in said and "kernel counter to compare" in said and "namespace" not in said


def test_long_runs_stay_small() -> None:
    page = page_html(long_result())
    assert len(page.encode()) < 400_000
    assert all(len(v.split(";")) <= 240 for k, v in read(page).attributes if k == "data-points")


def test_text_is_escaped() -> None:
    assert "alert(&quot;" in page_html(EDGES["hostile"])
    assert "<script>alert" not in page_html(EDGES["hostile"])


def test_a_plan_is_drawn_too() -> None:
    assert "bitwidth plan by" not in page_html(USUAL)
    assert "bitwidth plan by" in page_html(USUAL, PLAN)
