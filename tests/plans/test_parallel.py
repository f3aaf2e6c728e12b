"""Parallel plans: words of placements, what is refused, places of ranks, bytes of a step."""

import pytest
from msgspec.structs import replace

from wirewise.errors import InputError, PlanError
from wirewise.plans import DimPlacement, Move, MoveStep, ParallelPlan, parse_placements
from wirewise.plans.parallel import joint_step


def plan(**changes) -> ParallelPlan:
    """Two stages of 2 ranks: x and w make y (P), which is summed and sent on."""
    both = (
        MoveStep(kind="all_reduce", mesh_dim=0, size_bytes=64, sent_bytes=64),
        MoveStep(kind="send", size_bytes=64, sent_bytes=64),
    )
    given = {
        "world_size": 4,
        "planner": "by hand",
        "graph": "0" * 16,
        "mesh": (2,),
        "mesh_names": ("model",),
        "ranks": ((0, 1), (2, 3)),
        "microbatches": 3,
        "stage_of": (0, 0, 0, 1),
        "placements": (("S1",), ("S0",), ("P",), ("R",)),
        "moves": (Move(producer=2, consumers=(3,), source=("P",), target=("R",), steps=both),),
    }
    return ParallelPlan(**given | changes)


def test_words_of_placements_read_back():
    words = ["R", "P", "S0", "S2/3"]
    found = parse_placements(words)
    assert found[3] == DimPlacement("S", 2, 3)
    assert list(map(str, found)) == words
    for word in ("S", "S1/1", "S1/0", "R0", "s0", ""):
        with pytest.raises(InputError, match="expected R, P, S and a dimension"):
            parse_placements([word])


def test_a_plan_reads_back_and_counts_its_bytes():
    found = plan()
    found.check_itself()
    assert ParallelPlan.from_json(found.to_json()) == found
    assert found.collective_bytes == (64 + 64) * 3 * 2
    assert [found.place_of(rank) for rank in range(4)] == [(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,))]
    assert found.table()[1] == [["all_reduce", "3", "192 B"], ["send", "3", "192 B"]]
    assert plan(placements=(("S1,R",), ("S0",), ("P",), ("R",))).placement_of(0, 1) == (DimPlacement("R"),)


MOVE = plan().moves[0]
SUM = replace(MOVE, steps=MOVE.steps[:1])
ALONE = {
    "world_size": 2,
    "ranks": ((0, 1),),
    "microbatches": 1,
    "stage_of": (0, 0, 0, 0),
    "moves": (SUM,),
}
"""One stage, whose only move is a sum."""


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"mesh_names": ()}, "$.mesh"),
        ({"ranks": ((0, 1), (2,))}, "$.ranks[1]"),
        ({"ranks": ((0, 1), (2, 2))}, "$.ranks"),
        ({"microbatches": 0}, "$.microbatches"),
        ({"gap": float("nan")}, "$.gap"),
        ({"memory_bytes": (1,)}, "$.memory_bytes"),
        ({"stage_of": (0, 0, 0, 2)}, "$.stage_of[3]"),
        ({"stage_of": (0,)}, "$.stage_of"),
        ({"placements": (("S1",), ("X",), ("P",), ("R",))}, "$.placements[1]"),
        ({"recompute": (9,)}, "$.recompute"),
        ({"moves": (replace(MOVE, consumers=(7,)),)}, "$.moves[0]"),
        ({"moves": (replace(MOVE, source=("R",)),)}, "$.moves[0]"),
        ({"moves": (MOVE, MOVE)}, "$.moves[1]"),
        ({"moves": (replace(MOVE, steps=(MoveStep(kind="slice"),)),)}, "$.moves[0]"),
        ({"inner": {9: ()}}, "$.inner"),
        ({"buckets": ((0,),)}, "$.buckets"),
        (ALONE | {"buckets": ((0, 0),)}, "$.buckets[0]"),
        (ALONE | {"buckets": ((), (0,))}, "$.buckets[0]"),
        (ALONE | {"moves": (MOVE,), "buckets": ((0,),)}, "$.buckets[0]"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(changes, place):
    with pytest.raises(PlanError) as caught:
        plan(**changes).check_itself()
    assert place in str(caught.value)


def test_sums_may_go_together():
    plan(**ALONE, buckets=((0,),)).check_itself()
    joint = joint_step([SUM.steps[0], SUM.steps[0]])
    assert (joint.kind, joint.size_bytes, joint.sent_bytes) == ("all_reduce", 128, 128)


def test_another_graph_is_refused():
    with pytest.raises(PlanError, match="make the plan again"):
        plan().check_graph("1" * 16, len(plan().placements))
    with pytest.raises(PlanError, match=r"entries - at .* expected one for each of the 99 nodes"):
        plan().check_graph(plan().graph, 99)
