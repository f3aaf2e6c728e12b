"""The page about a trace: sound HTML, nothing from elsewhere, text escaped."""

from __future__ import annotations

import re

import msgspec
import pytest

from tests.report.test_page import read, svgs
from tests.trace.synthetic import make
from wirewise.report.replay_json import analysis_object
from wirewise.report.replay_page import replay_html
from wirewise.report.waterfall import shown_ranks, waterfall
from wirewise.sim.analysis import analyse
from wirewise.trace import Op, Trace, align

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


def test_many_ranks_are_thinned_and_the_straggler_is_kept():
    trace = make(ranks=40, steps=2).true
    ranks = shown_ranks(trace, 17)
    assert {0, 17, 39} <= set(ranks)
    assert len(ranks) <= 17


def test_ops_are_drawn_without_the_ops_inside_them():
    trace = make(ranks=1, steps=1).true
    ops = trace.ranks[0].ops
    begin, end = min(op.start_s for op in ops), max(op.end_s for op in ops)
    alone = waterfall(trace, 0, set(), [0])
    ops.append(Op(name="script", kind="other", start_s=begin, end_s=end, step=0))
    chart = waterfall(trace, 0, set(), [0])
    high = re.compile(r'height="([\d.]+)" class="p-central')
    assert set(high.findall(chart)) == set(high.findall(alone))
    assert "p-other" in chart
    assert "p-other" not in alone


def test_many_short_ops_are_drawn_as_few():
    trace = make(ranks=1, steps=1).true
    trace.ranks[0].ops += [
        Op(name="short", kind="other", start_s=100 + 1e-6 * i, end_s=100 + 1e-6 * i + 5e-7, step=0)
        for i in range(5000)
    ]
    chart = waterfall(trace, 0, set(), [0])
    assert chart.count("<rect") < 400
    assert re.search(r"rank 0, other: \d+ short pieces from short on", chart)


def test_the_object_is_the_page_in_numbers(usual):
    trace, found = usual
    written = analysis_object(trace, found)
    assert written["straggler_rank"] == 2
    assert len(written["per_rank"]) == 4
    assert written["per_rank"][2]["compute_s"] == found.compute_s[2]
    assert written["link_sensitivity"][0]["host"] == -1
