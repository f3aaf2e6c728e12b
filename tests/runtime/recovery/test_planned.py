"""Plans as arguments of the runtime: exactly what they say, or refused by name."""

from __future__ import annotations

import inspect

import pytest
from msgspec.structs import replace

from tests.planners.recovery.problems import job
from wirewise.cost import Links
from wirewise.errors import PlanError
from wirewise.planners import PLANNERS
from wirewise.plans import MessageLog
from wirewise.runtime.recovery import (
    Agent,
    Buckets,
    HelperOptions,
    SenderLog,
    protect,
    settings_of,
    train_through_faults,
)

SWIFT = PLANNERS["recovery"]["swift"]
CHAIN = SWIFT(
    job([0.09, 0.05, 0.07], [1e6, 2e6]), Links.uniform(3, 1e11, 1e-5), mtbf_s=60.0, helpers=1, disk_price=2.0
)
BESIDE = SWIFT(
    job([0.09, 0.05], [1e6], ranks=[(0, 1), (2, 3)]), Links.uniform(4, 1e9, 1e-4), mtbf_s=60.0, spares=2
)
REPLICAS = SWIFT(job([0.05], [], ranks=[(0, 1)]), Links.uniform(2, 1e9, 1e-4), mtbf_s=60.0, spares=2)


def test_fields_are_arguments_of_the_runtime():
    found = settings_of(CHAIN)
    assert found.agent == {"spares": 1, "silence_s": CHAIN.silence_limit_s}
    assert found.every == CHAIN.interval_steps and found.helping == {"ranks": 2, "mode": CHAIN.parallel_mode}
    assert found.log == {} and found.keep == "checkpoint"
    on_disk = replace(CHAIN, logs=tuple(replace(log, tier="disk") for log in CHAIN.logs))
    assert settings_of(on_disk).log == {"memory_bytes": 0}
    both = settings_of(REPLICAS, hosts=2)
    assert (
        both.agent["spares"] == 1
        and both.session == {"sync": Buckets(consistency="auto")}
        and both.helping == {}
    )
    beside = settings_of(BESIDE)
    assert (beside.log, beside.keep, beside.helping) == ({"chunk_steps": 1}, "replicas", {})
    assert {"every", "keep", "helping"} <= set(inspect.signature(train_through_faults).parameters)
    for call, given in (
        (Agent, both.agent),
        (protect, both.session),
        (SenderLog, {"memory_bytes": 0} | beside.log),
        (HelperOptions, found.helping),
    ):
        assert set(given) <= set(inspect.signature(call).parameters)


def grouped(plan):
    stages = tuple(replace(one, group=group) for one, group in zip(plan.stages, (0, 1, 1), strict=True))
    return replace(plan, stages=stages, logs=tuple(log for log in plan.logs if 0 in (log.source, log.target)))


def on_both(plan):
    first = plan.logs[0]
    return replace(
        plan,
        logs=tuple(replace(log, tier="disk") if log.target == first.target else log for log in plan.logs),
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (replace(CHAIN, heartbeat_s=0.2), r"heartbeat_s is 0.2 - at `\$\.heartbeat_s`"),
        (replace(REPLICAS, spares=3), r"spares is 3 - at `\$\.spares`; expected a multiple of 2 hosts"),
        (replace(REPLICAS, helpers=1), r"`\$\.helpers`; a job of one stage"),
        (
            replace(REPLICAS, stages=(replace(REPLICAS.stages[0], strategy="checkpoint"),)),
            "recovered by checkpoint; sessions recover from replicas",
        ),
        (grouped(CHAIN), r"`\$\.stages\[2\]`: group is 1; every stage logs all"),
        (on_both(CHAIN), r"some logs lie in memory and some on disk - at `\$\.logs`"),
        (replace(BESIDE, helpers=1), r"`\$\.helpers`; stages that replicas give back"),
        (replace(CHAIN, consistency="undo"), r"consistency is 'undo' - at `\$\.consistency`"),
        (replace(CHAIN, interval_steps=0), r"interval_steps is 0"),
    ],
)
def test_what_would_be_carried_out_otherwise_is_refused(changed, said):
    with pytest.raises(PlanError, match=said):
        settings_of(changed, hosts=2 if len(changed.stages) == 1 else 1)


def test_pipelines_with_other_strategies_are_refused():
    chain = job([0.09, 0.05], [1e6], ranks=[(0,), (1, 2)])
    mixed = SWIFT(chain, Links.uniform(3, 1e9, 1e-4), mtbf_s=60.0)
    assert isinstance(mixed.logs[0], MessageLog)
    with pytest.raises(
        PlanError, match=r"stage 1 - at `\$\.stages\[1\]`: recovered by replica, stage 0 by log"
    ):
        settings_of(mixed)
    uneven = SWIFT(
        job([0.09, 0.05], [1e6], ranks=[(0, 3), (1, 2, 4)]), Links.uniform(5, 1e9, 1e-4), mtbf_s=60.0
    )
    with pytest.raises(PlanError, match=r"has the ranks \[1, 2, 4\], stage 0 \[0, 3\]"):
        settings_of(uneven)
