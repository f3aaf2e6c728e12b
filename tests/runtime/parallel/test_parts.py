"""Parts of tensors on meshes: cut and joined again, in blocks too; shapes; sizes that cannot be shared."""

from __future__ import annotations

import itertools

import pytest
import torch

from wirewise.errors import PlanError
from wirewise.plans.parallel import parse_placements
from wirewise.runtime.parallel.parts import local_shape, part_of_mesh, whole_of_parts

MESH = (2, 3)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    ["R R", "S0 R", "R S1", "S0 S1", "S0 S0", "S1/2 R", "S1/3 S0", "P R", "P S1", "S0 P", "S1/2 S1/2"],
)
def test_parts_are_joined_to_the_whole(words):
    placements, whole = parse_placements(words.split()), torch.randn(6, 24)
    places = itertools.product(*map(range, MESH))
    parts = [part_of_mesh(whole, placements, MESH, place) for place in places]
    assert {tuple(one.shape) for one in parts} == {local_shape(whole.shape, placements, MESH)}
    assert torch.equal(whole_of_parts(parts, placements, MESH), whole)


def test_a_strided_part_is_one_of_each_block():
    whole = torch.arange(12)
    part = part_of_mesh(whole, parse_placements(["S0/3"]), (2,), (1,))
    assert part.tolist() == [2, 3, 6, 7, 10, 11]


def test_parts_that_would_be_unequal_are_refused():
    with pytest.raises(PlanError, match="a dimension of 5 is placed S0 on 2 ranks; expected a multiple of 2"):
        local_shape((5, 4), parse_placements(["S0", "R"]), MESH)
    with pytest.raises(PlanError, match="expected one of its dimensions"):
        local_shape((4,), parse_placements(["S1", "R"]), MESH)
