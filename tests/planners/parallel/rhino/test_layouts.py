"""Moves between layouts: their steps, their bytes, and that they arrive."""

import itertools

from wirewise.planners.parallel.rhino.layouts import layout_steps
from wirewise.plans import parse_placements

WORDS = ("R", "P", "S0", "S1", "S1/3")


def kinds(source: str, target: str, mesh=(2,), size=2400):
    steps = layout_steps(parse_placements(source.split()), parse_placements(target.split()), size, mesh)
    return None if steps is None else [(step.kind, step.mesh_dim, step.sent_bytes) for step in steps]


def test_one_dimension_takes_the_cheapest_collective():
    assert kinds("P", "R") == [("all_reduce", 0, 2400)]
    assert kinds("P", "S1") == [("reduce_scatter", 0, 1200)]
    assert kinds("S0", "R") == [("all_gather", 0, 1200)]
    assert kinds("S0", "S1/3") == [("all_to_all", 0, 600)]
    assert kinds("S1/3", "S1") == [("all_gather", 0, 1200), ("slice", 0, 0)]
    assert kinds("R", "S0") == [("slice", 0, 0)]
    assert kinds("R", "P") is None


def test_an_inner_cut_gives_way_when_an_outer_one_of_its_dimension_changes():
    assert kinds("S0 S0", "R S0", (2, 2)) == [
        ("all_gather", 1, 600),
        ("all_gather", 0, 1200),
        ("slice", 1, 0),
    ]
    assert kinds("S0 S0", "S0 R", (2, 2)) == [("all_gather", 1, 600)]
    assert kinds("S0 P", "S0 R", (2, 2)) == [("all_reduce", 1, 1200)]


def test_every_move_of_two_dimensions_arrives():
    for source, target in itertools.product(itertools.product(WORDS, repeat=2), repeat=2):
        steps = layout_steps(parse_placements(source), parse_placements(target), 3600, (2, 3))
        if steps is None:
            assert any(b == "P" != a for a, b in zip(source, target, strict=True))
            continue
        assert not steps or source != target
        assert all(step.sent_bytes <= 2 * 3600 for step in steps)
        touched = {step.mesh_dim for step in steps}
        assert touched >= {axis for axis in range(2) if source[axis] != target[axis]}
