from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.conformance.test_plan_laws import recovery
from wirewise.errors import PlanError
from wirewise.plans import RecoveryPhases

PLAN = recovery()


def stages(number, **change):
    return {"stages": tuple(replace(s, **change) if n == number else s for n, s in enumerate(PLAN.stages))}


def logs(number, **change):
    return {"logs": tuple(replace(s, **change) if n == number else s for n, s in enumerate(PLAN.logs))}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (stages(0, ranks=(1,)), r"ranks \[1, 1, 2, 3\] - at `\$\.stages`"),
        (stages(1, group=2), r"`\$\.stages\[1\]`: group is 2; expected 0 or.* 1"),
        (stages(0, group=1), r"`\$\.stages\[0\]`: group is 1; expected 0"),
        (stages(1, strategy="replica"), r"recovered by replica with the ranks \[1\]"),
        (stages(1, strategy="checkpoint"), "some stages are recovered by log and some by checkpoint"),
        (
            {
                "stages": tuple(
                    replace(s, strategy="checkpoint" if n < 2 else "replica")
                    for n, s in enumerate(PLAN.stages)
                )
            },
            "there are 2 groups",
        ),
        (logs(0, target=7), r"`\$\.logs\[0\]`: expected stages of 0 to 2"),
        (logs(0, source=2), r"`\$\.logs\[0\]`: expected two groups"),
        (logs(1, source=0, target=2), r"`\$\.logs\[1\]`: tier is disk"),
        (logs(1, source=0, target=1, tier="memory"), r"`\$\.logs\[1\]`: stands twice"),
        (logs(1, bytes_per_step=float("inf")), "bytes_per_step is inf"),
        ({"interval_steps": 0}, r"interval_steps is 0 - at `\$\.interval_steps`"),
        ({"spares": -1}, "spares is -1"),
        ({"mtbf_s": 0.0}, "mtbf_s is 0.0"),
        ({"heartbeat_s": 0.3}, "at least two heartbeats of 0.3 s"),
    ],
)
def test_what_is_inconsistent_is_named(change, said):
    with pytest.raises(PlanError, match=said):
        replace(PLAN, **change).check_itself()


def test_groups_and_words():
    assert PLAN.groups == ((0,), (1, 2))
    assert PLAN.headline == (
        "recovery plan by 'example' for 4 ranks: stages recovered 2 by log, 1 by replica, a checkpoint every 30 steps"
    )
    phases = RecoveryPhases(
        detect_s=0.1, fence_s=0.2, regroup_s=0.3, restore_s=0.4, recompute_s=0.5, resume_s=0.6
    )
    assert phases.total_s == pytest.approx(2.1)
    with pytest.raises(PlanError, match=r"there are 1 recoveries - at `\$\.recoveries`"):
        replace(PLAN, recoveries=(phases,)).check_itself()
    _, rows = replace(PLAN, recoveries=(phases,) * 3).table()
    assert rows[0] == ["0", "0", "log", "0", "1 (disk)", "2.100"]
