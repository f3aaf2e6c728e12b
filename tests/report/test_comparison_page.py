"""The page that all comparisons share: what a system gives is there, in order, as text."""

import re

import pytest

from tests.papers.test_adaqp_page import read, svgs
from wirewise.report.comparison_page import best_of, comparison_html, predicted_variant
from wirewise.report.figures import seconds, signed
from wirewise.results import Comparison, PredictedStep, Variant

EVIL = "<b>&"


def made(**changes):
    given = {
        "kind": "wirewise run it",
        "sentence": "b is faster: 0.5 s.",
        "cards": (("Fastest", "0.500 s", EVIL),),
        "title": "Steps",
        "lead": EVIL,
        "what": "plan",
        "variants": {
            "a": Variant(
                cells={"step": "1.00 s", "sent": "\N{EN DASH}"}, length=1.0, words="1.00 s", colour="c0"
            ),
            EVIL: Variant(cells={"step": "0.500 s", "sent": "3 B"}, length=0.5, words=EVIL, colour="c2"),
        },
        "goal": 0.25,
        "notes": (EVIL, "links are shaped"),
        "facts": {"command": EVIL, "torch": "2.9"},
    }
    return Comparison(**given | changes)


def test_everything_is_told_in_order_and_escaped():
    page = comparison_html(made(), EVIL, ["<i>second</i>"], first=["<i>first</i>"])
    words = " ".join(read(page).words)
    order = [
        "faster",
        "Fastest",
        "first",
        "Steps",
        "second",
        "How this was measured",
        "links are shaped",
        "torch",
    ]
    places = [words.index(part) for part in order]
    assert places == sorted(places) and EVIL not in page
    assert f"<code>{EVIL}</code>".replace(EVIL, "&lt;b&gt;&amp;") in page


def test_a_variant_without_a_length_has_a_row_and_no_bar():
    refused = Variant(cells={"step": "", "sent": "refused: too large"})
    page = comparison_html(made(variants={"a": refused}, goal=0.0), "title")
    assert svgs(page) == [] and "<td>refused: too large</td>" in page


@pytest.mark.parametrize(("variants", "told"), [(2, True), (4, False)])
def test_explained_figures_have_a_row_each_and_meanings_where_there_is_room(variants, told):
    shown = {f"mode{i}": Variant(cells={"step": f"{i} s"}) for i in range(variants)}
    found = made(variants=shown, meanings={"step": "Median of steps."})
    assert found.rows == [("step", *(f"{i} s" for i in range(variants)))] and found.titles[0] == ""
    page = comparison_html(found, "title")
    assert ('class="modes "' in page) == told and "Median of steps." in page
    assert re.search(r'<th scope="row">step</th><td class="num">0 s</td>', page)


def test_nothing_compared_is_a_page_too():
    found = made(variants={}, cards=(), notes=(), facts={}, goal=0.0)
    page = comparison_html(found, "title")
    assert found.titles == ("plan",) and found.rows == []
    assert "Steps" not in page and "How this" not in page and 'class="cards"' not in page


def test_a_prediction_stands_beside_what_was_measured():
    step = PredictedStep(step_s=0.5, predicted_step_s=0.4)
    found = predicted_variant(step, best_of("plain", "fast", "plain"), {"step": "0.5 s"})
    assert (found.length, found.colour, found.cells) == (0.5, "c0", {"step": "0.5 s"})
    assert found.words == f"{seconds(0.5)} (predicted {seconds(0.4)}, {signed(-0.2)})"
