"""The page of programs: what it says is what the program is, and it is sound HTML that loads nothing."""

from __future__ import annotations

import json
import math
import re

import msgspec
import numpy as np
import pytest

from tests.report.test_page import read, svgs
from wirewise.collective import Program, Transfer, check, network
from wirewise.collective.builders import BUILDERS, build
from wirewise.cost.collectives import CLOSED_FORMS, closed_form
from wirewise.errors import InputError, ProgramError, TopologyError, TraceError
from wirewise.report import collective_view
from wirewise.report.collective_analysis import Analysis, analyse, analysis_object
from wirewise.report.collective_chart import Range, SizeTimes, crossover_chart, curves, fastest
from wirewise.report.collective_data import places, program_object
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
    return network(lab_hosts([RATE] * ranks, latency_s=LATENCY_S))


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


@pytest.mark.parametrize("ranks", range(2, 17))
def test_counts_are_the_closed_forms(ranks):
    """H1: what the panel says of each algorithm. PAT's forms are bounds beyond powers of two."""
    told = 0
    for collective, algorithm in CLOSED_FORMS:
        try:
            found = network_of(build(collective, algorithm, ranks))
        except ProgramError:
            continue  # not for this number of ranks
        check(found.program)
        form = closed_form(collective, algorithm, ranks)
        most = max(*found.sent_bytes, *found.received_bytes)
        assert sum(found.sent_bytes) == pytest.approx(sum(found.received_bytes))
        if algorithm == "pat":
            continue
        assert (found.rounds, found.messages) == form.counts[:2]
        assert most == pytest.approx(float(form.counts.rank_bytes) * SIZE)
        assert found.textbook == form
        told += 1
    assert told >= 20


def test_the_textbook_time_is_the_closed_form_on_equal_links():
    ring = build("all_reduce", "ring", 8)
    found = network_of(ring)
    assert found.textbook_s == pytest.approx(14 * LATENCY_S + 1.75 * SIZE / RATE, rel=1e-9)
    cells = dict(zip(*cost_rows([found], ["ring"])[:1], cost_rows([found], ["ring"]).rows[0], strict=True))
    assert cells["textbook"] == "14 \u03b1 + 1.75 n\u03b2 + 0.875 n\u03b3"
    assert cells["in rounds"] == "2.10 ms"
    assert analyse(ring, network(preset("dgx-1v")), SIZE).textbook_s is None
    renamed = msgspec.structs.replace(build("all_reduce", "recursive_doubling", 8), name="ring")
    assert network_of(renamed).textbook is None


@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
def test_the_predicted_time_is_the_simulated_one_on_a_crossbar(ranks):
    """H4: closed form, simulation in rounds and, where ranks are in step anyway, the time that the page plays."""
    for collective, algorithm in CLOSED_FORMS:
        if algorithm in ("double_tree", "pat"):
            continue  # their forms are approximate
        try:
            found = analyse(build(collective, algorithm, ranks), crossbar(ranks), SIZE, 1e-10)
        except ProgramError:
            continue  # not for this number of ranks
        assert found.in_rounds_s == pytest.approx(found.textbook_s, rel=1e-9)
        if algorithm in ("ring", "recursive_doubling") and ranks & (ranks - 1) == 0:
            assert found.timeline.finish_s == pytest.approx(found.textbook_s, rel=1e-9)


@pytest.mark.parametrize("name", ["lab-4", "dgx-1v", "dgx-2", "pcie-8"])
@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "all_reduce", "all_to_all"])
def test_the_red_edges_are_as_wide_as_the_bound_says(name, collective):
    net = network(preset(name))
    algorithm = next(n for of, n in BUILDERS if of == collective)
    found = analyse(build(collective, algorithm, net.ranks), net, SIZE)
    wide = sum(net.edges[edge].bandwidth_bytes_per_s for edge in found.cut_edges)
    assert wide == pytest.approx(found.bound.bandwidth_bytes_per_s)
    assert found.timeline.finish_s >= found.bound.seconds
    view = program_object(found, "")
    assert view["cut_edges"] == found.cut_edges
    assert "no program takes less" in view["cut_words"]


@pytest.mark.parametrize("name", ["lab-4", "lab-16", "dgx-1v", "dgx-2", "pcie-8"])
def test_vertices_do_not_lie_on_each_other(name):
    found = np.array(places(network(preset(name))))
    apart = np.hypot(*(found[:, None] - found[None]).transpose(2, 0, 1)) + 9 * np.eye(len(found))
    assert apart.min() > 0.15
    assert np.abs(found).max() <= 1 + 1e-9


def test_links_of_a_route_carry_its_bytes():
    found = network_of(build("broadcast", "flat", 4))
    busiest = found.network.edges[found.busiest_edge]
    assert (busiest.source, found.network.vertices[busiest.target]) == (0, "bridge")
    assert found.edge_bytes[found.busiest_edge] == pytest.approx(3 * SIZE)


def test_what_textbooks_bound_stands_above_the_table():
    page = page_of(build("all_reduce", "ring", 8))
    assert "the largest of 3 \u03b1, 1.75 n\u03b2, 0.875 n\u03b3" in page


def test_the_fastest_of_each_size():
    sizes = (1.0, 10.0, 100.0)
    early, late = SizeTimes("a", sizes, (1.0, 2.0, 90.0)), SizeTimes("b", sizes, (4.0, 2.0, 10.0))
    found = fastest([early, late, SizeTimes("bound", sizes, (0.1, 0.1, 0.1))])
    assert found == [
        Range(("a",), 1.0, 10.0),
        Range(("a", "b"), 10.0, 100.0),
    ]
    steep = SizeTimes("c", sizes, (0.5, 1.0, 100.0))
    first, second = fastest([steep, late, SizeTimes("bound", sizes, (0.1, 0.1, 0.1))])
    assert (first.titles, second.titles) == (("c",), ("b",))
    # Ahead by a factor of 2 at 10, behind by 10 at 100.
    assert first.to_bytes == second.from_bytes == pytest.approx(10 ** (1 + math.log(2) / math.log(20)))


def test_small_buffers_want_few_rounds_and_large_ones_few_bytes():
    found = [network_of(build("all_reduce", name, 8)) for name in ("recursive_doubling", "ring")]
    drawn = curves(found, titles(found))
    ranges = fastest(drawn)
    assert [one.titles for one in ranges] == [("recursive_doubling",), ("ring",)]
    # 3 (a + n b) = 14 a + 1.75 n b
    assert ranges[0].to_bytes == pytest.approx(11 * LATENCY_S * RATE / 1.25, rel=0.1)
    assert crossover_chart(drawn).count("data-tip") == 2 * len(drawn[0].sizes)


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


def test_figures_as_an_object():
    found = analysis_object(network_of(build("all_reduce", "ring", 4)))
    assert (found["rounds"], found["messages"]) == (6, 24)
    assert found["sent_bytes"] == [1_500_000.0] * 4
    json.dumps(found, allow_nan=False)


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
