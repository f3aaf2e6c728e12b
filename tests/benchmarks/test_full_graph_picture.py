from xml.etree import ElementTree

import pytest
from benchmarks.full_graph.picture import picture_svg
from tests.papers.examples import EDGES, USUAL, long_result


@pytest.mark.parametrize("name", EDGES)
def test_every_odd_result_makes_sound_svg(name: str) -> None:
    text = picture_svg(EDGES[name])
    root = ElementTree.fromstring(text)
    assert (root.get("width"), root.get("height")) == ("900", "380")
    for element in root.iter():
        for key in {"x", "y", "width", "height", "d"} & set(element.keys()):
            assert "nan" not in element.attrib[key]
    assert "href" not in text and "script>" not in text.replace("&lt;script&gt;", "").replace(
        "script&gt;", ""
    )


def test_usual_picture_holds_the_figures() -> None:
    root = ElementTree.fromstring(picture_svg(USUAL))
    words = [e.text for e in root.iter() if e.tag.endswith("text")]
    for figure in (
        "3.00\u00d7",
        "fp32, 1.20 s",
        "adaqp, 0.400 s",
        "8.00 s",
        "24.0 s",
        "150 MB payload sent instead of 900 MB",
    ):
        assert figure in words
    bars = [
        e for e in root.iter() if e.get("class") in ("bar c0", "bar c1") and float(e.get("x", "0")) == 600
    ]
    wide = [float(bar.get("width", "0")) for bar in bars]
    assert wide[0] / wide[1] == pytest.approx(3.0, rel=0.01)


def test_bars_stay_inside_with_many_modes() -> None:
    root = ElementTree.fromstring(picture_svg(long_result(epochs=600, modes=9)))
    bottoms = [
        float(e.get("y", 0)) + float(e.get("height", 0)) for e in root if e.get("class", "").startswith("bar")
    ]
    assert max(bottoms) < 380
