"""The page about a trace: sound HTML, nothing from elsewhere, text escaped."""

from __future__ import annotations

import re

import msgspec
import pytest

from tests.papers.test_adaqp_page import read, svgs
from tests.trace.synthetic import make
from wirewise.report.replay_page import replay_html
from wirewise.report.waterfall import waterfall
from wirewise.sim.analysis import analyse
from wirewise.trace import Trace, align

EVIL = '<script>alert("x")</script>'


def shown(**options) -> tuple[Trace, str]:
    trace = align(make(**options).seen)
    return trace, replay_html(trace, analyse(trace))


@pytest.fixture(scope="module")
def usual():
    trace = align(make(ranks=4, steps=6, slowdown={2: 1.6}, clock_s=1.0).seen)
    return trace, analyse(trace)


def test_the_page_is_sound_and_loads_nothing(usual):
    page = replay_html(*usual)
    reader = read(page)
    links = [value for name, value in reader.attributes if name in ("src", "href")]
    assert links == []
    assert not re.search(r"url\(|@import", page)
    assert len(svgs(page)) == 4
    assert page.count("<script>") == 1


def test_the_first_line_is_the_diagnosis(usual):
    trace, found = usual
    page = replay_html(trace, found)
    head = re.search(r"<h1>(.*?)</h1>", page)[1].replace("\N{NO-BREAK SPACE}", " ")
    assert head == found.diagnosis.sentence
    assert "Rank 2" in head
    words = " ".join(read(page).words)
    for part in (
        "One step",
        "Exposed and overlapped communication",
        "What changes would give",
        "Replay against",
    ):
        assert part in words
    assert "rank 2" in words


def test_what_a_command_adds_comes_before_the_step(usual):
    page = replay_html(*usual, "<section>what the plan gave</section>")
    assert page.index("what the plan gave") < page.index("One step")


def test_every_rank_has_its_lanes_and_the_critical_path_is_outlined(usual):
    trace, found = usual
    chart = waterfall(trace, found.step, found.critical, [0, 1, 2, 3])
    assert chart.count('class="lane"') == 12
    assert len(re.findall(r'class="[^"]* crit"', chart)) >= 3
    assert "on the critical path" in chart
    assert waterfall(trace, 999, set(), [0]) == ""


def test_names_are_escaped():
    run = make(ranks=2, steps=4)
    for rank in run.true.ranks:
        rank.ops = [
            msgspec.structs.replace(op, name=EVIL) if op.kind == "optimizer" else op for op in rank.ops
        ]
        rank.header = msgspec.structs.replace(
            rank.header, environment={EVIL: EVIL}, host=f"{EVIL}{rank.header.rank}"
        )
    trace = align(run.true)
    trace.notes.append(EVIL)
    page = replay_html(trace, analyse(trace))
    read(page)
    assert "alert" in page
    assert EVIL not in page


@pytest.mark.parametrize(
    "options",
    [{"ranks": 1, "steps": 3}, {"ranks": 2, "steps": 1}, {"ranks": 3, "steps": 2, "sizes": (1,)}],
    ids=str,
)
def test_small_traces_have_a_page(options):
    _, page = shown(**options)
    assert svgs(page)
    read(page)
