"""Costs of programs: counts, closed forms, simulated times."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.report.test_collective_view import LATENCY_S, RATE, SIZE, crossbar, network_of
from wirewise.collective import check, network
from wirewise.collective.builders import build
from wirewise.cost.collectives import CLOSED_FORMS, closed_form
from wirewise.errors import ProgramError
from wirewise.report.collective_analysis import analyse, analysis_object
from wirewise.report.collective_view import (
    cost_rows,
)
from wirewise.topology import preset


@pytest.mark.sweep
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


def test_figures_as_an_object():
    found = analysis_object(network_of(build("all_reduce", "ring", 4)))
    assert (found["rounds"], found["messages"]) == (6, 24)
    assert found["sent_bytes"] == [1_500_000.0] * 4
    json.dumps(found, allow_nan=False)
