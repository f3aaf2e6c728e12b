"""Charts of pages as files of their own."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from wirewise.errors import InputError
from wirewise.report import shell
from wirewise.report.bars import Bar, bars_chart
from wirewise.report.pictures import is_page, pictures_of, write_pictures


def page_of(*charts: str, script: str = "") -> str:
    legend = shell.legend({"compute & wait": "c1", "idle": "c0"}, "outlined: late")
    sections = [shell.section("Time <b>of</b> ranks", "", shell.figure(chart, legend)) for chart in charts]
    return shell.page("A run", [shell.head("wirewise", "A run"), *sections], script=script)


CHART = bars_chart([Bar("rank 0", 1.0, "1 s"), Bar("rank 1", 2.0, "2 s")], "Seconds of each rank")


def test_a_chart_is_a_whole_file_with_title_and_meanings_of_colours() -> None:
    drawn = 'const later = `<svg viewBox="0 0 ${w} ${h}" role="img" aria-label="later"></svg>`;'
    (picture,) = pictures_of(page_of(CHART, script=drawn))
    assert picture.title == "Time of ranks"
    root = ElementTree.fromstring(picture.svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Time of ranks", "compute & wait", "idle", "outlined: late", "rank 1", "2 s"} <= set(texts)
    assert "--c1:" in picture.svg and "prefers-color-scheme:dark" in picture.svg
    *_, width, height = map(float, root.attrib["viewBox"].split())
    charts = [element for element in root if element.tag.endswith("}svg")]
    assert len(charts) == 1
    right = float(charts[0].attrib["x"]) + float(charts[0].attrib["width"])
    bottom = float(charts[0].attrib["y"]) + float(charts[0].attrib["height"])
    assert right <= width and bottom <= height


def test_every_chart_of_a_page_is_written_in_its_order(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(page_of(CHART, CHART))
    assert is_page(page)
    files = write_pictures(page, tmp_path / "pictures")
    assert [file.name for file in files] == ["01-time-of-ranks.svg", "02-time-of-ranks.svg"]
    assert all(file.read_text().startswith("<svg ") for file in files)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"<!doctype html><p>no chart", "has no charts"), (b"<!doctype html>\xff", "is not UTF-8")],
)
def test_pages_without_charts_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(content)
    with pytest.raises(InputError, match=message):
        write_pictures(page, tmp_path / "pictures")


def test_a_missing_page_and_a_file_in_place_of_the_folder_are_refused(tmp_path: Path) -> None:
    assert not is_page(tmp_path / "none.html")
    with pytest.raises(InputError, match=r"cannot use .*none.html: No such file"):
        write_pictures(tmp_path / "none.html", tmp_path)
    page = tmp_path / "page.html"
    page.write_text(page_of(CHART))
    with pytest.raises(InputError, match=r"cannot use .*page.html: (File exists|Not a directory)"):
        write_pictures(page, page)
