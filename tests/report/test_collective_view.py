"""The page of programs: what it says is what the program is, and it is sound HTML that loads nothing."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from tests.papers.test_adaqp_page import read, svgs
from wirewise.collective import Program, Transfer, network
from wirewise.collective.builders import BUILDERS, build
from wirewise.errors import InputError, ProgramError, TopologyError, TraceError
from wirewise.report import collective_view
from wirewise.report.collective_analysis import Analysis, analyse
from wirewise.report.collective_view import (
    MOST_BYTES,
    collective_html,
    cost_rows,
    recorded_html,
    recorded_rows,
    titles,
)
from wirewise.topology import lab_hosts, preset
from wirewise.trace import Header, Op, RankTrace, Trace

EVIL = "</script><script>alert(1)</script>"
LATENCY_S = 50e-6
RATE = 1.25e9
SIZE = 1_000_000


def crossbar(ranks: int):
    """Ranks around a switch, whose messages cost no processor time, as textbooks count."""
    made = network(lab_hosts([RATE] * ranks, latency_s=LATENCY_S))
    return msgspec.structs.replace(made, message_s=(), processors=0)


def network_of(program: Program, size_bytes: float = SIZE) -> Analysis:
    return analyse(program, crossbar(program.ranks), size_bytes)


def page_of(*programs: Program) -> str:
    return collective_html([network_of(program) for program in programs])


def recorded(name: str = "message") -> Trace:
    """Three ranks: 0 to 1, then 1 to 2, then an all-reduce of all."""
    groups = {"world": [0, 1, 2]}

    def op(collective, start, end, size, **more):
        return Op(
            name=name,
            kind="communication",
            start_s=start,
            end_s=end,
            step=more.pop("step", 0),
            group="world",
            collective=collective,
            size_bytes=size,
            **more,
        )

    ops = [
        [op("send", 1.0, 1.1, 1_000_000, peer=1)],
        [op("recv", 1.0, 1.2, 1_000_000, peer=0), op("send", 1.2, 1.3, 2_000_000, peer=2, step=1)],
        [op("recv", 1.0, 1.5, 2_000_000, peer=1, step=1)],
    ]
    for own in ops:
        own.append(op("all_reduce", 1.5, 1.8, 4_000, seq=0, step=1))
    return Trace(
        ranks=[
            RankTrace(Header(rank=rank, world_size=3, host=f"host{rank}", groups=groups), own)
            for rank, own in enumerate(ops)
        ],
        aligned=True,
    )


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="views">(.*?)</script>', page, re.S)[1])


def test_the_page_is_sound_and_loads_nothing():
    page = page_of(build("all_reduce", "ring", 4), build("all_reduce", "rabenseifner", 4))
    reader = read(page)
    assert {"src", "href"}.isdisjoint(key for key, _ in reader.attributes)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert reader.tags.count("script") == 2
    assert len(page) < 150_000
    assert svgs(page)
    words = " ".join(reader.words)
    for part in ("When", "Where", "Cost", "Which size suits which program", "All steps", "Definitions"):
        assert part in words


@pytest.mark.parametrize("kind", ["broadcast", "all_to_all", "reduce_scatter"])
def test_the_data_is_the_program(kind):
    """H3: nothing is lost on the way into the page."""
    algorithm = next(name for of, name in BUILDERS if of == kind)
    program = build(kind, algorithm, 5, segments=2)
    (view,) = data_of(page_of(program))["views"]
    found = {
        Transfer(view["transfers"][t], source, target, step, bool(view["reduces"][t]))
        for step, source, target, first, count, _ in view["messages"]
        for t in range(first, first + count)
    }
    assert found == set(program.transfers)
    assert view["starts"] == [list(program.starts_at(chunk)) for chunk in range(program.chunks)]
    assert view["ends"] == [list(program.ends_at(chunk)) for chunk in range(program.chunks)]
    assert len(view["start_s"]) == len(view["end_s"]) == 2 * len(view["messages"])
    assert max(view["end_s"]) == pytest.approx(view["finish_s"], rel=1e-5)
    assert sum(m[5] for m in view["messages"]) * 2 == pytest.approx(
        sum(program.chunk_bytes(SIZE)[t.chunk] for t in program.transfers)
    )


def test_what_textbooks_bound_stands_above_the_table():
    page = page_of(build("all_reduce", "ring", 8))
    assert "the largest of 3 \u03b1, 1.75 n\u03b2, 0.875 n\u03b3" in page


def test_titles_tell_programs_apart():
    ring = network_of(build("all_reduce", "ring", 4))
    other = network_of(build("all_gather", "ring", 4))
    assert titles([ring]) == ["ring"]
    assert titles([ring, ring]) == ["ring (1)", "ring (2)"]
    assert titles([ring, other]) == ["all_reduce ring, 4 ranks", "all_gather ring, 4 ranks"]


def test_names_are_escaped():
    program = msgspec.structs.replace(build("all_reduce", "ring", 2), name=EVIL)
    net = msgspec.structs.replace(crossbar(2), name=EVIL, vertices=(EVIL, "b", "c"))
    page = collective_html([analyse(program, net, SIZE)])
    read(page)
    assert EVIL not in page
    assert data_of(page)["networks"][0]["names"][0] == EVIL


@pytest.mark.parametrize("ranks", [1, 2])
def test_small_programs_have_a_page(ranks):
    for collective, algorithm in BUILDERS:
        try:
            program = build(collective, algorithm, ranks)
        except ProgramError:
            continue  # not for so few
        read(page_of(program))


def test_what_does_not_fit_is_refused(monkeypatch):
    ring = build("all_reduce", "ring", 4)
    with pytest.raises(TopologyError, match="is for 4 ranks and 'lab-5' has 5"):
        analyse(ring, crossbar(5), SIZE)
    with pytest.raises(InputError, match="got no program, or several networks"):
        collective_html([network_of(ring), analyse(ring, network(preset("lab-4")), SIZE)])
    with pytest.raises(InputError, match="got no program"):
        collective_html([])
    monkeypatch.setattr(collective_view, "MOST_BYTES", 10_000)
    with pytest.raises(InputError, match=r"the page would be .* kB; .* show fewer ranks"):
        page_of(ring)


def test_a_large_program_has_a_page_of_less_than_two_megabytes():
    """H2."""
    assert len(page_of(build("all_gather", "ring", 64))) < MOST_BYTES


def test_the_table_has_a_row_for_each_program():
    found = [network_of(build("all_gather", name, 4)) for name in ("ring", "bruck")]
    titles_, rows = cost_rows(found, titles(found))
    assert titles_[:4] == ["program", "rounds", "messages", "sent by a rank"]
    assert [row[:4] for row in rows] == [["ring", "3", "12", "750 kB"], ["bruck", "2", "8", "750 kB"]]
    assert {len(row) for row in rows} == {len(titles_)}


def test_a_recorded_run():
    """H3."""
    page = recorded_html(recorded(), "run")
    read(page)
    (view,) = data_of(page)["views"]
    assert [m[1:3] + m[5:] for m in view["messages"]] == [[0, 1, 1_000_000], [1, 2, 2_000_000]]
    assert view["start_s"] == pytest.approx([0.0, 0.2])
    assert view["end_s"] == pytest.approx([0.2, 0.5])
    assert len(view["spans"]) == 3
    assert recorded_rows(recorded()).rows == [
        ["0", "1", "1", "1.00 MB", "0.200 s"],
        ["1", "2", "1", "2.00 MB", "0.300 s"],
    ]


def test_a_step_of_a_recorded_run():
    (view,) = data_of(recorded_html(recorded(), "run", 0))["views"]
    assert len(view["messages"]) == 1
    assert view["spans"] == []
    with pytest.raises(TraceError, match="no communication in step 7"):
        recorded_html(recorded(), "run", 7)


def test_names_of_a_recorded_run_are_escaped():
    assert EVIL not in recorded_html(recorded(EVIL), EVIL)
