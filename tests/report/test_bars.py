"""Bars of variants."""

import pytest

from tests.papers.test_adaqp_page import svgs
from tests.report.test_comparison_page import made
from wirewise.report.comparison_page import comparison_html
from wirewise.results import Variant


def test_bars_are_as_long_as_their_values_and_the_goal_is_marked_above_them():
    (chart,) = svgs(comparison_html(made(), "title"))
    bars = [one for one in chart.iter() if one.get("class", "").startswith("bar")]
    widths = [float(one.get("width")) for one in bars]
    assert [one.get("class") for one in bars] == ["bar c0", "bar c2"]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.02)
    drawn = [one.get("class") for one in chart.iter()]
    assert drawn.index("goal") > max(drawn.index("bar c0"), drawn.index("bar c2"))


def test_a_negative_or_missing_value_is_told_and_not_drawn():
    odd = {
        name: Variant(cells={"step": name}, length=value, words=name)
        for name, value in (("lost", float("nan")), ("less", -1.0), ("more", 2.0))
    }
    (chart,) = svgs(comparison_html(made(variants=odd), "title"))
    assert [one.get("width") for one in chart.iter() if one.get("class") == "bar c1"][:2] == ["0.00", "0.00"]
    assert {"lost", "less", "more"} <= {one.text for one in chart.iter()}
