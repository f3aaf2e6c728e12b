"""Programs on numbers: layouts of buffers, uneven chunks, and what is refused."""

import numpy as np
import pytest

from tests.collective.reference import expected, run, spans
from wirewise.collective import Program, Transfer
from wirewise.collective.builders import build
from wirewise.errors import InputError, ProgramError


def test_all_to_all_is_a_transposition():
    inputs = [np.arange(6) + 10 * r for r in range(3)]
    out = run(build("all_to_all", "bruck", 3), inputs)
    assert np.array_equal(np.stack(out), np.stack(inputs).reshape(3, 3, 2).swapaxes(0, 1).reshape(3, 6))


def test_only_the_root_of_a_gather_has_a_result():
    out = run(build("gather", "binomial", 3, root=1), [np.array([r, r]) for r in range(3)])
    assert out[0] is None and out[2] is None
    assert out[1].tolist() == [0, 0, 1, 1, 2, 2]


def test_relays_have_no_buffers():
    program = Program(
        name="by rank 1", collective="all_reduce", ranks=3, chunks=1, members=(0, 2),
        transfers=(
            Transfer(0, 0, 1, 0), Transfer(0, 1, 2, 1, True), Transfer(0, 2, 1, 2), Transfer(0, 1, 0, 3),
        ),
    )  # fmt: skip
    inputs = [np.array([1, 2]), None, np.array([10, 20])]
    assert [None if o is None else o.tolist() for o in run(program, inputs)] == [[11, 22], None, [11, 22]]


@pytest.mark.parametrize("elements", [0, 1, 7, 1000])
def test_uneven_shares_cover_each_block(elements):
    program = Program(
        name="halves", collective="all_gather", ranks=2, chunks=6, shares=(1, 2, 4, 1, 1, 1),
        transfers=tuple(Transfer(c, c // 3, 1 - c // 3, 0) for c in range(6)),
    )  # fmt: skip
    places = spans(program, elements)
    assert [places[0][0], places[2][1], places[3][0], places[5][1]] == [0, elements, 0, elements]
    inputs = [np.random.default_rng(r).normal(size=elements) for r in range(2)]
    for found, wanted in zip(run(program, inputs), expected(program, inputs), strict=True):
        assert np.array_equal(found, wanted)


def test_small_integers_stay_small_integers():
    out = expected(build("all_reduce", "ring", 2), [np.array([100], np.int8), np.array([100], np.int8)])
    assert out[0].dtype == np.int8 and out[0].tolist() == [-56]


def test_what_is_refused():
    program = build("all_gather", "ring", 2)
    with pytest.raises(InputError, match="got 1 inputs"):
        run(program, [np.zeros(1)])
    with pytest.raises(InputError, match="got nothing from rank 1"):
        run(program, [np.zeros(1), None])
    with pytest.raises(InputError, match=r"blocks of \[1, 2\] elements"):
        run(program, [np.zeros(1), np.zeros(2)])
    with pytest.raises(InputError, match="a multiple of its 2 blocks"):
        run(build("reduce_scatter", "ring", 2), [np.zeros(3), np.zeros(3)])
    nothing = Program(name="none", collective="broadcast", ranks=2, chunks=1, transfers=())
    with pytest.raises(ProgramError, match="rank 1 needs chunk 0"):
        run(nothing, [np.zeros(1), None])
