"""The page about stalls says what was measured."""

from wirewise.cost.stalls import Amount
from wirewise.report.comparison_page import comparison_html
from wirewise.report.stalls_page import stalls_comparison

ROWS = [
    ("compute", Amount(0.06, (0.05, 0.07))),
    ("network", Amount(0.03, (0.02, 0.04))),
    ("residual", Amount(-0.001, (-0.002, 0.0))),
    ("total", Amount(0.089, (0.08, 0.1))),
]


def test_parts_shares_and_notes_are_there():
    found = stalls_comparison("2 ranks", "The largest stall is <b>", ROWS, ["a note & more"])
    assert [row[0] for row in found.rows] == [name for name, _ in ROWS]
    page = comparison_html(found, "Stalls")
    assert "The largest stall is &lt;b&gt;" in page
    assert "67.4 %" in page and "33.7 %" in page
    assert "a note &amp; more" in page
    assert page.count('class="bar') == len(ROWS) and page.endswith("</html>\n")
