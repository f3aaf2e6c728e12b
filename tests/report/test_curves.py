"""Curves break where nothing is known, and stay inside their frame."""

import re

from wirewise.report.curves import Curve, curves_chart


def test_a_curve_is_a_line_with_a_dot_at_each_known_value():
    drawn = curves_chart(
        [Curve("as it is", (2.0, 1.0, 0.5)), Curve("<b>", (1.0, None, 1.0))], ["1", "2", "4"], "Step", "rate"
    )
    assert drawn.count("<circle") == 5 and "&lt;b&gt;" in drawn and "<b>" not in drawn
    paths = re.findall(r'<path d="([^"]*)" class="line c(\d)"', drawn)
    assert [(path.count("M"), path.count("L"), colour) for path, colour in paths] == [
        (1, 2, "1"),
        (2, 0, "2"),
    ]
    assert "as it is, 4: 0.500 s" in drawn


def test_nothing_known_is_no_chart():
    assert curves_chart([Curve("as it is", (None, None))], ["1", "2"], "Step", "rate") == ""
    assert curves_chart([Curve("as it is", (1.0,))], ["1"], "Step", "rate") == ""
