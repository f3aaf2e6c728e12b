"""Candidates are ranked by what a sample takes, and the answer names those that pay."""

from wirewise.advice.ranking import advice_of
from wirewise.advice.records import FAMILIES, Candidate


def candidate(family, predicted_s, **rest):
    return Candidate(family=family, planner="x", predicted_step_s=predicted_s, **rest)


def advised(*candidates):
    answers = {
        family: [one for one in candidates if one.family == family] or "no reason" for family in FAMILIES
    }
    return advice_of(answers, step_s=1.0, bound_by="unknown", bound_reason="", ranks=2)


def test_what_is_free_of_risk_comes_first_and_the_risk_is_named():
    found = advised(
        candidate("links", 0.6),
        candidate("buckets", 0.8, lines=("b",)),
        candidate("codecs", 0.5, lines=("c",), risk="loses"),
    )
    assert [one.family for one in found.candidates] == ["codecs", "links", "buckets"]
    assert found.advice == (
        "Do first: links, x: 0.600 s a step instead of 1.00 s (\N{MINUS SIGN}40.0 %, predicted). "
        "In the script: buckets, x: 0.800 s a step instead of 1.00 s (\N{MINUS SIGN}20.0 %, predicted). "
        "At a risk: codecs, x: 0.500 s a step instead of 1.00 s (\N{MINUS SIGN}50.0 %, predicted); loses."
    )
    assert found.lines == ("b",)


def test_a_risk_has_to_save_more_than_what_is_free_of_it():
    free = candidate("buckets", 0.2, lines=("b",))
    assert "At a risk" not in advised(free, candidate("codecs", 0.197, lines=("c",), risk="loses")).advice
    assert "At a risk: codecs" in advised(free, candidate("codecs", 0.19, lines=("c",), risk="loses")).advice


def test_a_step_with_more_samples_counts_by_the_sample():
    found = advised(candidate("accumulation", 1.5, work=2.0, lines=("a",)))
    assert found.candidates[0].gain(1.0) == 0.25 and "0.750 s for as many samples" in found.advice


def test_a_gain_that_is_small_or_uncertain_is_no_reason_to_change():
    for one in (
        candidate("buckets", 0.98, lines=("b",)),
        candidate("buckets", 0.9, ci95=(0.7, 1.1), lines=("b",)),
        candidate("buckets", 0.5, measured_step_s=1.02, lines=("b",)),
        candidate("buckets", None, lines=("b",)),
    ):
        found = advised(one)
        assert found.advice.startswith("Leave it as it is") and found.lines == ()
        assert any(row[0] == "leave it as it is" for row in found.table()[1])


def test_notebooks_and_pages_escape_what_traces_say():
    found = advised(candidate("links", 0.5, note="<b>"))
    for text in (found._repr_html_(), found.page()):
        assert "&lt;b&gt;</" in text and "<b></" not in text


def test_bars_of_a_page_say_what_its_table_says():
    """A trial's gain is over the steps beside it, also where the machine was faster when the job was recorded."""
    one = candidate("buckets", 0.9, measured_step_s=1.1, baseline_step_s=1.25, lines=("b",))
    page = advised(one).page()
    assert (
        "1.10 s measured (\N{MINUS SIGN}12.0 % of 1.25 s)" in page
        and "0.900 s predicted (\N{MINUS SIGN}10.0 %)" in page
    )
    assert "\N{MINUS SIGN}12.0 %" in next(row for row in advised(one).table()[1] if row[0] == "buckets: x")
