"""Closed forms against programs that are counted, and against their simulation on an ideal crossbar."""

from fractions import Fraction

import pytest

from tests.sim.test_programs import ADD_S_PER_BYTE, LATENCY_S, S_PER_BYTE, crossbar
from wirewise.collective import Program, Transfer
from wirewise.collective.builders import BUILDERS, build
from wirewise.cost.collectives import CLOSED_FORMS, closed_form, count, lower_bound
from wirewise.errors import ProgramError
from wirewise.sim.programs import simulate

TIMES = (LATENCY_S, S_PER_BYTE, ADD_S_PER_BYTE)
PIPELINES = ("chain", "double_tree")


def built(collective, algorithm, ranks, segments=1):
    """The program, or None where the algorithm does not work for so many ranks."""
    try:
        return build(collective, algorithm, ranks, segments=segments)
    except ProgramError:
        return None


def in_rounds_s(program, size_bytes):
    line = simulate(
        program, crossbar(program.ranks), size_bytes, reduce_s_per_byte=ADD_S_PER_BYTE, in_rounds=True
    )
    return line.finish_s


def test_every_algorithm_but_those_for_hosts_has_a_closed_form():
    assert set(CLOSED_FORMS) == {
        key for key in BUILDERS if not key[1].startswith(("hierarchical", "host_ring"))
    }


@pytest.mark.sweep
@pytest.mark.parametrize(("collective", "algorithm"), CLOSED_FORMS)
def test_counts(collective, algorithm):
    """H1: rounds, messages and most bytes of a rank."""
    for ranks in range(2, 17):
        program = built(collective, algorithm, ranks)
        if program is not None:
            assert count(program) == closed_form(collective, algorithm, ranks).counts, ranks


SEQUENTIAL = [key for key in CLOSED_FORMS if key[1] != "double_tree"]


@pytest.mark.sweep
@pytest.mark.parametrize(("collective", "algorithm"), SEQUENTIAL)
@pytest.mark.sample(12)
def test_time_on_a_crossbar(collective, algorithm):
    """H4: predicted = simulated."""
    for ranks in range(2, 17):
        program = built(collective, algorithm, ranks)
        for size_bytes in (1000, 1e7) if program else ():
            predicted_s = closed_form(collective, algorithm, ranks).seconds(size_bytes, *TIMES)
            assert in_rounds_s(program, size_bytes) == pytest.approx(predicted_s, rel=1e-9), ranks
            assert lower_bound(collective, ranks).seconds(size_bytes, *TIMES) <= predicted_s * (1 + 1e-9)


@pytest.mark.sweep
@pytest.mark.parametrize(("collective", "algorithm"), SEQUENTIAL)
def test_segments_take_no_longer(collective, algorithm):
    """But for a hundredth, where two segments get in each other's way."""
    for ranks in (3, 7, 8, 14):
        program = built(collective, algorithm, ranks, segments=3)
        for size_bytes in (1000, 1e7) if program else ():
            predicted_s = closed_form(collective, algorithm, ranks, 3).seconds(size_bytes, *TIMES)
            assert in_rounds_s(program, size_bytes) <= 1.01 * predicted_s, ranks


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("ranks", [2, 3, 8, 15, 16, 33])
def test_chain_is_exact_in_any_number_of_segments(collective, ranks):
    for segments in (1, 4, 32):
        predicted_s = closed_form(collective, "chain", ranks, segments).seconds(1e7, *TIMES)
        simulated_s = in_rounds_s(build(collective, "chain", ranks, segments=segments), 1e7)
        assert simulated_s == pytest.approx(predicted_s, rel=1e-9)


@pytest.mark.parametrize("ranks", [4, 8, 15, 16, 32])
def test_double_tree_in_many_segments_takes_about_its_closed_form(ranks):
    for segments in (16, 64):
        predicted_s = closed_form("broadcast", "double_tree", ranks, segments).seconds(1e7, *TIMES)
        line = simulate(build("broadcast", "double_tree", ranks, segments=segments), crossbar(ranks), 1e7)
        assert line.finish_s == pytest.approx(predicted_s, rel=0.2)


@pytest.mark.parametrize("ranks", [17, 24, 32, 64, 100, 128])
def test_pat_beyond_one_message_of_blocks(ranks):
    counts, form = count(build("all_gather", "pat", ranks)), closed_form("all_gather", "pat", ranks).counts
    assert counts.rank_bytes == form.rank_bytes
    if ranks & (ranks - 1):
        assert counts.rounds <= form.rounds and counts.messages <= form.messages
    else:
        assert counts == form


def test_textbook_figures():
    """Spelled out once, so that a slip in the shared helpers shows."""
    eight = {
        ("broadcast", "binomial"): (3, 3, 0),
        ("broadcast", "scatter_all_gather"): (10, Fraction(7, 4), 0),
        ("reduce", "rabenseifner"): (6, Fraction(7, 4), Fraction(7, 8)),
        ("all_gather", "bruck"): (3, Fraction(7, 8), 0),
        ("all_reduce", "ring"): (14, Fraction(7, 4), Fraction(7, 8)),
        ("all_reduce", "recursive_doubling"): (3, 3, 3),
        ("all_to_all", "bruck"): (3, Fraction(3, 2), 0),
    }
    for key, wanted in eight.items():
        form = closed_form(*key, 8)
        assert (form.latencies, form.moved, form.added) == wanted, key
    assert closed_form("all_reduce", "recursive_doubling", 11).latencies == 3 + 2
    assert lower_bound("all_reduce", 8) == (3, Fraction(7, 4), Fraction(7, 8))


def test_any_program_can_be_counted():
    program = Program(
        name="uneven", collective="broadcast", ranks=3, chunks=2, shares=(1, 3),
        transfers=(Transfer(0, 0, 1, 0), Transfer(1, 0, 1, 0), Transfer(1, 0, 2, 4), Transfer(0, 1, 2, 9)),
    )  # fmt: skip
    assert count(program) == (10, 3, Fraction(7, 4))


def test_what_has_no_closed_form():
    with pytest.raises(ProgramError, match="simulate the program instead"):
        closed_form("all_reduce", "hierarchical", 8)
    with pytest.raises(ProgramError, match="at least 2 ranks"):
        closed_form("all_reduce", "ring", 1)
