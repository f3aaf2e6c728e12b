"""Rows on unequal devices: who has them, who needs them, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import PlanError
from wirewise.plans import DeployedDevice, DeployedGroup, DeploymentPlan, RowMove


def plan(*groups, batch=8, world=3):
    return DeploymentPlan(
        world_size=world,
        planner="example",
        batch=batch,
        devices=tuple(DeployedDevice(name=f"gpu{i}", host=f"host{i}") for i in range(world)),
        groups=groups,
        predicted_step_s=1.0,
        baseline_step_s=2.0,
        predicted_bytes=(0,) * world,
    )


WIDE = DeployedGroup(
    ops=("a", "b"), devices=(0, 2), rows=(5, 3), communication="duplicate", duplicated=("b",)
)
OWNED = DeployedGroup(ops=("c", "d"), devices=(1, 2), owners=(2, 1), communication="mp")
SERVED = DeployedGroup(ops=("e",), devices=(0, 1), rows=(2, 6), owners=(1,), communication="ps", priority=2)


def test_rows_go_from_who_has_them_to_who_needs_them():
    found = plan(WIDE, OWNED, SERVED)
    found.check_itself()
    assert DeploymentPlan.from_json(found.to_json()) == found
    assert found.rows_of("b") == {0: (0, 5), 2: (5, 8)}
    assert found.rows_of("c") == {2: (0, 8)}
    assert found.moves("b", "c") == [RowMove(0, 2, 0, 5), RowMove(2, 2, 5, 8)]
    assert found.moves("b", "e") == [RowMove(0, 0, 0, 2), RowMove(0, 1, 2, 5), RowMove(2, 1, 5, 8)]
    assert found.placements[2] == {
        "ops": ["e"],
        "devices": ["gpu0", "gpu1"],
        "rows": [2, 6],
        "communication": "ps",
    }
    assert found.table()[1][1][2:] == ["mp", "-", "8", "8"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("group", "change", "place"),
    [
        (WIDE, {"rows": (5, 2)}, "8 in all"),
        (WIDE, {"rows": (8, 0)}, "at least 1"),
        (WIDE, {"devices": (2, 0)}, "ascending ranks"),
        (WIDE, {"devices": (0, 3)}, "ascending ranks, 0 to 2"),
        (WIDE, {"duplicated": ()}, "duplicated are"),
        (WIDE, {"duplicated": ("c",)}, "duplicated are"),
        (WIDE, {"owners": (0, 2)}, "expected none"),
        (OWNED, {"owners": (2, 2)}, "an owner"),
        (OWNED, {"rows": (4, 4)}, "no rows"),
        (OWNED, {"ops": ("c", "c")}, "each name in one group once"),
        (SERVED, {"owners": (2,)}, "one of the devices"),
    ],
)
def test_a_group_that_cannot_be_is_shown(group, change, place):
    wrong = msgspec.structs.replace(group, **change)
    with pytest.raises(PlanError, match=place) as caught:
        plan(wrong).check_itself()
    assert "$.groups[0]" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"batch": 0}, r"\$\.batch"),
        ({"devices": ()}, r"\$\.devices"),
        ({"predicted_bytes": (1,)}, r"\$\.predicted_bytes"),
        ({"predicted_step_s": float("nan")}, r"\$\.predicted_step_s"),
        ({"groups": ()}, r"\$\.groups"),
        ({"groups": (WIDE, WIDE)}, r"\$\.groups\[1\]"),
        ({"devices": (DeployedDevice(name="g", host="h", speed=0.0),) * 3}, r"\$\.devices\[0\]"),
    ],
)
def test_a_plan_that_cannot_be_is_shown(change, place):
    with pytest.raises(PlanError, match=place):
        msgspec.structs.replace(plan(WIDE), **change).check_itself()
