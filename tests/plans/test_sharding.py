"""Layouts as words, the sizes of their parts, and what is refused."""

from __future__ import annotations

import pytest
import torch

from wirewise.errors import InputError
from wirewise.plans import LaidOutTensor, Sharding, parse_sharding
from wirewise.plans.sharding import ITEM_BYTES, chunked, movements


@pytest.mark.sweep
@pytest.mark.parametrize("size", range(12))
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_parts_are_those_of_torch_chunk(size, parts):
    whole = torch.arange(size)
    expected = [part.tolist() for part in whole.chunk(parts)] if size else []
    found = [whole[slice(*chunked(size, parts, number))].tolist() for number in range(parts)]
    assert [part for part in found if part] == expected


def test_bytes_are_those_of_torch():
    for name, size in ITEM_BYTES.items():
        assert getattr(torch, name).itemsize == size


@pytest.mark.parametrize("text", ["2x4:S0,R,R", "2x2x2:S02,S1", "3:", "2x2:S10,R", "2x2:S0,R,P1"])
def test_words_read_back(text):
    assert parse_sharding(text).text == text


def test_ranks_of_a_mesh():
    assert parse_sharding("2x2:R", first_rank=4).ranks == (4, 5, 6, 7)
    assert parse_sharding("2x2@3,0-1,7:R").ranks == (3, 0, 1, 7)


def test_two_axes_cut_in_their_order():
    outer_first, inner_first = parse_sharding("2x3:S01"), parse_sharding("2x3:S10")
    assert [outer_first.local_shape((12,), rank) for rank in range(6)] == [(2,)] * 6
    assert outer_first.extents((12,))[1] == (((2, 4),),)
    assert inner_first.extents((12,))[1] == (((4, 6),),)
    assert parse_sharding("4:S0").local_shape((5,), 3) == (0,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2x4", "expected MESH:PLACEMENTS such as 2x4:S0,R,R"),
        ("2xb:R", "expected MESH:PLACEMENTS"),
        ("2:T0", "expected R, S with axes such as S0, S01 or S10"),
        ("2:S", "expected R, S with axes"),
        ("2:S1", "there is no axis 1; expected axes 0 to 0"),
        ("2x2:S0,S0", "axis 0 splits or sums twice"),
        ("2@0:R", "expected 2 different ranks, as the mesh 2 has"),
        ("2@1,1:R", "expected 2 different ranks"),
        ("2@a-3:R", "got the ranks 'a-3'"),
    ],
)
def test_words_that_are_no_layout(text, said):
    with pytest.raises(InputError, match=said):
        parse_sharding(text)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((((0, 2),),), "got intervals of 1 ranks; expected 2"),
        (
            (((0, 3),), ((2, 3), (1, 2), (1, 3))),
            "rows[1]: got [(2, 3), (1, 2), (1, 3)]; expected intervals that",
        ),
        ((((0, 3),), ((3, 5),)), "rows[1]: got [(3, 5)]"),
    ],
)
def test_rows_that_are_none(rows, said):
    layout = Sharding(mesh=(2,), ranks=(0, 1), dims=((), ()), rows=rows)
    assert said in "".join(layout.faults((4, 2)))
    one = LaidOutTensor(name="x", shape=(4, 2), dtype="int8", source=layout, target=layout.summed)
    assert any("rows" in fault for fault in one.faults())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float31"}, "dtype: got 'float31'"),
        ({"shape": (-1,)}, "shape: got [-1]"),
        ({"shape": ()}, "source.dims: got 1 placements"),
    ],
)
def test_what_a_tensor_may_be(change, said):
    layout = parse_sharding("2:S0")
    given = {"name": "x", "shape": (4,), "dtype": "int8"} | change
    one = LaidOutTensor(**given, source=layout, target=layout)
    assert any(fault.startswith(said) for fault in one.faults())


def test_slices_by_who_holds_and_who_needs_them():
    one = LaidOutTensor(
        name="x",
        shape=(4, 6),
        dtype="int8",
        source=parse_sharding("2:S0,R"),
        target=parse_sharding("2@2-3:R,S0"),
    )
    found = movements([one, one])
    assert [(m.holders, m.receivers) for m in found] == [
        (((0,),), (2,)), (((0,),), (3,)), (((1,),), (2,)), (((1,),), (3,)),
    ]  # fmt: skip
    assert [s.tensor for s in found[0].slices] == [0, 1]
    assert found[1].slices[0].box == ((0, 2), (3, 6))
    assert found[0].slices[0].elements == 6


def test_the_way_back_brings_a_sum_whole_to_all_addends():
    one = LaidOutTensor(
        name="x",
        shape=(4,),
        dtype="float32",
        source=parse_sharding("2:R,P0"),
        target=parse_sharding("2@2-3:S0"),
    )
    assert one.reverse.source == one.target
    assert one.reverse.target == parse_sharding("2:R")
