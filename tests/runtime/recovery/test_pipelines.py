"""Stages are killed in the middle of their passes; what remains is the training that nobody disturbed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.runtime.pipeline.examples import chain, plan_for, tied, unet
from tests.runtime.recovery.pipeline_job import Job, run
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline import LayerGraph
from wirewise.runtime.recovery.agent import Recoveries
from wirewise.runtime.recovery.helping import HelperOptions

pytestmark = pytest.mark.dist


def dropped() -> LayerGraph:
    return chain(8, dropout=0.4)


def alike(one: Any, other: Any) -> bool:
    """Whether two states are the same bit by bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


CASES = {
    "every stage of 1f1b, one after the other": (
        dropped, "1f1b", {},
        {(1, 1): StagePass(5, "B", 1, 1), (2, 0): StagePass(7, "F", 0, 2), (3, 2): StagePass(9, "B", 2, 0)},
    ),
    "every stage of 2bw, one after the other, with help": (
        dropped, "2bw", {"helping": HelperOptions(dropped, 2)},
        {(1, 2): StagePass(5, "B", 2, 1), (2, 1): StagePass(7, "F", 1, 2), (3, 0): StagePass(9, "B", 0, 0)},
    ),
    "logs that are cut: all go back to a checkpoint, and another rank dies as they begin to": (
        dropped, "1f1b",
        {"torn": True, "faults": [{"act": "kill", "rank": 0, "point": "restore", "index": 1, "step": None}]},
        {(1, 1): StagePass(6, "B", 1, 1)},
    ),
    "neighbours at once, skips over a stage": (
        unet, "2bw", {"also": (1,)}, {(1, 0): StagePass(6, "B", 0, 1)},
    ),
    "a shared parameter and a clipped norm, logs fetched from other hosts": (
        tied, "1f1b", {"clip": 0.05, "apart": True}, {(1, 0): StagePass(6, "B", 0, 1), (2, 1): StagePass(7, "B", 1, 2)},
    ),
}  # fmt: skip


@cache
def undisturbed(build: Callable[[], LayerGraph], style: str, clip: float | None) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        plan = plan_for(build(), 3, style=style, microbatches=3)
        return run(Job(build, plan, 11, Path(folder) / "job", clip=clip), spares=0)[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_killed_stages_leave_no_trace(case: str, tmp_path: Path) -> None:
    build, style, more, kills = CASES[case]
    plan = plan_for(build(), 3, style=style, microbatches=3)
    expected = undisturbed(build, style, more.get("clip"))
    found, recoveries = run(Job(build, plan, 11, tmp_path / "job", kills=kills, **more), spares=2)
    assert sum(len(one.ranks) for one in recoveries.recoveries) == len(kills) + sum(
        len(more.get(name, ())) for name in ("also", "faults")
    )
    assert recoveries.recoveries[-1].committed_s > recoveries.recoveries[-1].seen_s
    for rank, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert alike(one["state"], other["state"]), rank
        updates = [update for update, _ in one["seen"]]
        if not more.get("torn"):
            assert updates == sorted(set(updates)), "a survivor went back"
        losses = dict(other["seen"])
        assert all(losses[update] == value for update, value in one["seen"])
        # Updates between checkpoints, of a segment, one that another rank is behind, one that was broken off.
        volume = max(later - earlier for earlier, later in pairwise(one["log_bytes"]))
        assert max(one["log_bytes"]) <= (4 + 3 + 1 + 1) * volume


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lost_rank_takes_the_state_of_a_replica_of_its_stage(tmp_path: Path) -> None:
    plan = plan_for(dropped(), 2, style="2bw", microbatches=3, replicas=2)
    kills = {(1, 2): StagePass(5, "B", 1, 1), (2, 1): StagePass(7, "F", 0, 2)}
    expected, _ = run(Job(dropped, plan, 10, tmp_path / "undisturbed"), spares=0)
    found, recoveries = run(
        Job(dropped, plan, 10, tmp_path / "disturbed", kills=kills, keep="replicas"), spares=2
    )
    assert [(one.ranks, one.strategy) for one in recoveries.recoveries] == [
        ((2,), "replica"),
        ((1,), "replica"),
    ]
    assert all(alike(one["state"], other["state"]) for one, other in zip(found, expected, strict=True))
    assert found[0]["seen"] == expected[0]["seen"] and found[3]["seen"] == expected[3]["seen"]
    for one, other in zip(found, expected, strict=True):
        # Updates until all ranks have done one, not until a checkpoint.
        volume = max(later - earlier for earlier, later in pairwise(other["log_bytes"]))
        assert max(one["log_bytes"]) <= 3 * volume


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stages_that_hang_in_the_users_code_are_replaced(tmp_path: Path) -> None:
    plan = plan_for(dropped(), 3, style="1f1b", microbatches=3)
    # In the middle, at the end, and a replacement while it catches up, for which the others wait at the store.
    hangs = {
        (1, 1): StagePass(5, "B", 1, 1),
        (2, 2): StagePass(7, "F", 2, 2),
        (3, 2): StagePass(5, "F", 2, 0),
    }
    found, recoveries = run(Job(dropped, plan, 11, tmp_path / "job", hangs=hangs), spares=3)
    assert _hung(recoveries) == [(1,), (2,), (2,)]
    expected = undisturbed(dropped, "1f1b", None)
    assert all(alike(one["state"], other["state"]) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_replica_that_hangs_while_others_wait_for_its_gradients_is_replaced(tmp_path: Path) -> None:
    plan = plan_for(dropped(), 2, style="2bw", microbatches=3, replicas=2)
    expected, _ = run(Job(dropped, plan, 8, tmp_path / "undisturbed", clip=0.05), spares=0)
    hangs = {(1, 2): StagePass(4, "B", 1, 2)}
    job = Job(dropped, plan, 8, tmp_path / "disturbed", clip=0.05, hangs=hangs, keep="replicas")
    found, recoveries = run(job)
    assert _hung(recoveries) == [(2,)]
    assert all(alike(one["state"], other["state"]) for one, other in zip(found, expected, strict=True))


def _hung(recoveries: Recoveries) -> list[tuple[int, ...]]:
    """Ranks of each recovery, all of which were replaced for making no progress."""
    causes = [cause for one in recoveries.recoveries for cause in one.causes]
    assert all("no progress for" in cause and "it was in" in cause for cause in causes), causes
    return [one.ranks for one in recoveries.recoveries]
