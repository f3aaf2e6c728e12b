from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import PlanError
from wirewise.plans import StagePlan, ValueSplit
from wirewise.plans.sharding import parse_sharding
from wirewise.plans.timetables import StageAction

change = msgspec.structs.replace
MODULES = [f"block{i}" for i in range(8)]


def plan(**more):
    given = {"style": "1f1b", "microbatches": 4, **more}
    return StagePlan.from_cuts(MODULES, given.pop("cuts", [3, 6]), **given)


def test_a_chain_cut_by_hand():
    made = plan(replicas=2, width=2, recompute=True, microbatch_size=3)
    assert [stage.modules for stage in made.stages] == [
        ("block0", "block1", "block2"),
        ("block3", "block4", "block5"),
        ("block6", "block7"),
    ]
    assert made.ranks == (((0, 1), (2, 3)), ((4, 5), (6, 7)), ((8, 9), (10, 11)))
    assert made.place_of(7) == (1, 1, 1)
    assert made.all_edges == ((0, 1), (1, 2)) and made.depths == (3, 2, 1)
    assert (made.positions, made.replicas, made.world_size) == (3, 2, 12)
    with pytest.raises(PlanError, match="rank 12 has no stage"):
        made.place_of(12)


def test_positions_of_other_width():
    made = plan(width=[2, 1, 3], replicas=2, splits=[ValueSplit(module="block5", stage=2, dim=1)])
    assert made.ranks == (((0, 1), (2, 3)), ((4,), (5,)), ((6, 7, 8), (9, 10, 11)))
    assert [made.width_of(stage) for stage in range(3)] == [2, 1, 3]
    assert made.layout_of("block5", 2, 1, 2) == parse_sharding("3:R,S0", first_rank=9)
    assert made.layout_of("block5", 1, 0, 2) == parse_sharding("1:R,R", first_rank=4)
    with pytest.raises(PlanError, match=r"splits dimension 1 of the output of module 'block5', which has 1"):
        made.layout_of("block5", 2, 0, 1)
    addends = plan(width=2, splits=[ValueSplit(module="block2", stage=0)])
    assert addends.layout_of("block2", 0, 0, 1) == parse_sharding("2:R,P0")
    for wrong in ([2, 1], [1, 0, 1]):
        with pytest.raises(PlanError, match="or one for each of 3 positions"):
            plan(width=wrong)
    with pytest.raises(PlanError, match=r"stands there twice"):
        plan(width=2, splits=2 * [ValueSplit(module="block2", stage=0, dim=0)])


def test_stages_of_a_position_have_a_value_alike():
    cut = {"cuts": [2, 4, 6], "style": "interleaved", "microbatches": 6, "width": 2}
    edges = [(0, 1), (1, 2), (2, 3), (0, 2)]
    splits = [ValueSplit(module="block1", stage=stage, dim=0) for stage in (0, 2)]
    assert plan(**cut, edges=edges, splits=splits).splits == tuple(splits)
    with pytest.raises(PlanError, match="stages 0 and 2 of one position have 'block1' in parts that differ"):
        plan(**cut, edges=edges, splits=splits[:1])


def test_stages_of_a_position_are_interleaved():
    made = plan(cuts=[2, 4, 6], style="interleaved", microbatches=6)
    assert [stage.position for stage in made.stages] == [0, 1, 0, 1]
    assert made.world_size == 2
    with pytest.raises(PlanError, match="expected a multiple of 3 stages"):
        plan(cuts=[2, 4, 6], style="interleaved", chunks=3)


def test_updates_follow_each_other_on_two_versions():
    made = plan(style="2bw", exchange="hidden")
    said = "".join(f"{s.kind}{s.update}.{s.microbatch} " for s in made.steps(1, 2))
    assert said == ("F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F1.0 B0.3 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3 ")


@pytest.mark.parametrize("cuts", [[0, 4], [4, 4], [8], [5, 3]])
def test_cuts_that_leave_nothing_are_refused(cuts):
    with pytest.raises(PlanError, match="cuts are"):
        plan(cuts=cuts)


def row(made, position, **changes):
    """The plan with other actions of a position, by place."""
    rows = [list(one) for one in made.timetable]
    for place, action in changes.items():
        rows[position][int(place[1:])] = action
    return change(made, timetable=tuple(map(tuple, rows)))


def stage(made, number, **changes):
    stages = list(made.stages)
    stages[number] = change(stages[number], **changes)
    return change(made, stages=tuple(stages))


def split(**more):
    """Positions of 1, 2 and 1 ranks; the second one takes a value in parts."""
    given = {"module": "block2", "stage": 1, "dim": 0, **more}
    return lambda _: change(plan(width=[1, 2, 1]), splits=(ValueSplit(**given),))


FAULTS = {
    "style": (lambda p: change(p, style="mine"), r"\$\.style"),
    "microbatches": (lambda p: change(p, microbatches=0), r"\$\.microbatches"),
    "fewer microbatches": (lambda p: change(p, microbatches=3), r"expected microbatches 0 to 2"),
    "more microbatches": (lambda p: change(p, microbatches=5), r"timetable\[0\].*a forward pass is missing"),
    "samples": (lambda p: change(p, microbatch_size=0), r"\$\.microbatch_size"),
    "hidden": (lambda p: change(p, exchange="hidden"), r"\$\.exchange"),
    "seconds": (lambda p: change(p, predicted_s=float("nan")), r"\$\.predicted_s"),
    "bytes": (lambda p: change(p, predicted_bytes=(1,)), r"\$\.predicted_bytes"),
    "passes": (lambda p: change(p, pass_s=((1.0, -2.0, 1.0),) * 3), r"\$\.pass_s"),
    "messages": (lambda p: change(p, message_s=(1.0,)), r"\$\.message_s"),
    "split of no module": (split(module="mine"), r"\$\.splits\[0\].*no stage has this module"),
    "split elsewhere": (split(stage=2), r"\$\.splits\[0\].*no activations travel there from stage 0"),
    "split on one rank": (split(stage=0), r"\$\.splits\[0\].*one rank has the stage"),
    "split of no dimension": (split(dim=-1), r"\$\.splits\[0\].*dim is -1"),
    "partial sums taken": (split(dim=None), r"\$\.splits\[0\].*a stage cannot take partial sums"),
    "no ranks": (lambda p: change(p, ranks=()), r"\$\.ranks"),
    "absent rank": (lambda p: change(p, ranks=(((0,),), ((1,),), ((3,),))), r"\$\.ranks"),
    "rank twice": (lambda p: change(p, ranks=(((0,),), ((1,),), ((1,),))), r"\$\.ranks"),
    "other replicas": (lambda p: change(p, ranks=(((0,), (1,)), ((2,),)), world_size=3), r"\$\.ranks\[1\]"),
    "no modules": (lambda p: stage(p, 1, modules=()), r"\$\.stages\[1\]"),
    "module twice": (lambda p: stage(p, 1, modules=("block7",)), r"\$\.stages\[2\].*'block7'"),
    "position": (lambda p: stage(p, 1, position=3), r"\$\.stages\[1\]"),
    "idle position": (lambda p: stage(p, 1, position=0), r"position 1 has no stage"),
    "edge": (lambda p: change(p, edges=((0, 1), (2, 1))), r"\$\.edges\[1\]"),
    "edge twice": (lambda p: change(p, edges=((0, 1), (0, 1))), r"\$\.edges"),
    "rows": (lambda p: change(p, timetable=p.timetable[:2]), r"\$\.timetable"),
    "depth": (lambda p: change(p, depths=(2, 2, 1)), r"keeps 3 activations.*\$\.depths\[0\]"),
    "another's stage": (lambda p: row(p, 0, a0=StageAction("F", 1, 0)), "another position has"),
    "twice": (lambda p: row(p, 0, a1=StageAction("F", 0, 0)), "F0 of stage 0 once more"),
    "no backward": (lambda p: row(p, 2, a1=StageAction("I", 2, 0)), "no backward pass over microbatch 0"),
    "both backward": (
        lambda p: change(
            p, timetable=(p.timetable[0], p.timetable[1], (*p.timetable[2], StageAction("W", 2, 0)))
        ),
        "backward twice",
    ),
    "backward first": (
        lambda p: row(p, 2, a0=StageAction("B", 2, 0), a1=StageAction("F", 2, 0)),
        "B0 of stage 2 in update 0 comes before its F",
    ),
    "deadlock": (
        lambda p: row(p, 1, a2=StageAction("F", 1, 2), a3=StageAction("F", 1, 3), a4=StageAction("B", 1, 0),
                      a5=StageAction("B", 1, 1), a6=StageAction("B", 1, 2)),
        "keeps 4 activations",
    ),
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_with_its_place(name):
    wrong, said = FAULTS[name]
    with pytest.raises(PlanError, match=said):
        wrong(plan()).check_itself()


def test_positions_that_wait_for_each_other_are_refused():
    made = row(plan(), 1, a2=StageAction("F", 1, 2), a3=StageAction("F", 1, 3), a4=StageAction("B", 1, 0),
               a5=StageAction("B", 1, 1), a6=StageAction("B", 1, 2))  # fmt: skip
    with pytest.raises(PlanError, match="position 0 waits before B0 of stage 0"):
        change(made, depths=(3, 4, 1)).check_itself()


def test_the_picture_names_ranks_and_actions():
    titles, rows = plan(replicas=2).table()
    assert titles[1] == "ranks" and rows[1][1] == "2 3"
    assert rows[2][-1] == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert "3 stages at 3 positions, 2 replicas, 4 microbatches of 1 sample," in plan(replicas=2).summary()
