"""Site and reports in a browser: no page is wider than a phone, all pictures load, search finds common words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.advice.test_ranking import advised, candidate
from tests.harness.browser import Browser

# A browser is many processes, and the machine may be busy.
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

DOCS = Path(__file__).parents[1] / "docs"
PHONE = 390
"""Width of a phone, in CSS pixels."""
EXTENSIONS = "myst_parser,sphinx_design,mathml,systems_page"
"""Extensions without the reference, as importing all packages takes longer than everything else."""
FOUND = {
    "bucket": "howto/own-buckets.html",
    "checkpoint": "howto/survive-with-more-state.html",
    "NeighborLoader": "howto/mini-batches.html",
    "straggler": "howto/why-is-my-step-slow.html",
}
"""A page that must be among the first results of a search."""
_FIRST = 6
_LOOK = """
const page = document.documentElement;
return {
  wider: page.scrollWidth - page.clientWidth,
  broken: [...document.images].filter((one) => one.complete && !one.naturalWidth).map((one) => one.src),
};
"""
_RESULTS = """
await until(() => document.querySelectorAll("ul.search li a").length >= %d
  || /did not match|found/.test(by("search-results").textContent));
return [...document.querySelectorAll("ul.search li a")].map((one) => one.getAttribute("href"));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The pages without the reference."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    options = ["-D", f"extensions={EXTENSIONS}", "-D", "exclude_patterns=_build,_ext,reference"]
    command = [sys.executable, "-m", "sphinx", "-q", "-d", str(folder / "cache"), *options]
    subprocess.run([*command, str(DOCS), str(folder / "html")], check=True, capture_output=True)
    return folder / "html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


def test_no_page_is_wider_than_a_phone_and_all_pictures_load(site, browser):
    pages = [page for page in sorted(site.rglob("*.html")) if page.stem not in ("genindex", "search")]
    assert len(pages) > len(list(DOCS.rglob("*.md"))) - 3
    with browser.tab(width=PHONE, height=844, dark=True) as tab:
        bad = {}
        for page in pages:
            tab.visit(page.as_uri())
            found = tab.run(_LOOK)
            if found["wider"] > 0 or found["broken"]:
                bad[str(page.relative_to(site))] = found
        assert bad == {}
        assert tab.complaints() == []


def test_the_check_finds_a_wide_page_and_a_broken_picture(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<div style="width: 500px">wide</div><img src="missing.png">', encoding="utf-8")
    with browser.tab(width=PHONE, height=844) as tab:
        tab.visit(page.as_uri())
        found = tab.run(_LOOK)
    assert found["wider"] > 0 and len(found["broken"]) == 1


@pytest.mark.parametrize("word", FOUND)
def test_search_finds_the_page_of_a_word(site, browser, word):
    with browser.tab() as tab:
        tab.visit(f"{(site / 'search.html').as_uri()}?q={word}")
        results = [result.partition("#")[0].partition("?")[0] for result in tab.run(_RESULTS % _FIRST)]
    assert FOUND[word] in list(dict.fromkeys(results))[:_FIRST]


def test_a_report_fits_a_phone_with_charts_that_can_be_read(browser, tmp_path):
    page = tmp_path / "advice.html"
    page.write_text(
        advised(candidate("buckets", 0.5, lines=("line = " + "x" * 200,))).page(), encoding="utf-8"
    )
    with browser.tab(width=PHONE, height=844, dark=True) as tab:
        tab.visit(page.as_uri())
        found = tab.run(_LOOK)
        widths = tab.run(
            "return [...document.querySelectorAll('section>figure>svg')].map((one) => one.clientWidth);"
        )
        assert tab.complaints() == []
    assert found == {"wider": 0, "broken": []}
    assert widths and min(widths) >= 600
