"""A script that leaves its loop early: all ranks end after the same step, or the job names what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.runtime.recovery.trained import alone, made, outcomes
from wirewise.errors import InputError, PeerError
from wirewise.runtime import points, recovery
from wirewise.runtime.points import FAULTS
from wirewise.runtime.recovery.agent import Agent
from wirewise.runtime.recovery.early_stop import EarlyStop, check_loops
from wirewise.runtime.recovery.generations import (
    AbortJob,
    Coordinator,
    End,
    ProgressReport,
    RankStalled,
    RequestProgress,
    TrainingFinished,
    WorkerReady,
)
from wirewise.runtime.recovery.progress import CodeLocation, RankProgress
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.trees import digest_of


def train(folder: str, settings: dict[str, Any]) -> None:
    """Train up to the step at which the rank stops, and write down what it came to."""
    model, optimizers, schedule, loader = made(settings)
    training = recovery.protect(
        model, optimizers, loader, steps=30, state=recovery.State(schedulers=[schedule])
    )
    for x, y in training:
        with training.step():
            nn.functional.cross_entropy(training.model(x), y).backward()
        if training.position >= settings["stops"][training.rank]:
            break
    points.notify_point("out")
    state = TrainingState(model, optimizers, schedulers=[schedule], buffers="shared")
    outcome = {"digest": digest_of(state.shared()), "position": training.position}
    (Path(folder) / f"rank-{training.rank}.json").write_text(json.dumps(outcome))


def run(folder: Path, stops: list[int], *faults: dict[str, Any]) -> list[dict[str, Any]]:
    told = [
        {"act": "kill", "index": None, "claim": str(folder / f"claim-{number}"), **fault}
        for number, fault in enumerate(faults)
    ]
    Agent(
        train,
        (str(folder), {"stops": stops}),
        ranks=2,
        spares=1,
        folder=folder,
        environment={FAULTS: json.dumps(told)} if told else {},
    ).run()
    assert len(list(folder.glob("claim-*"))) == len(faults), "a fault was not carried out"
    return outcomes(folder, 2)


@pytest.mark.dist
def test_all_ranks_stop_where_the_undisturbed_training_does_whenever_one_is_lost(tmp_path: Path) -> None:
    # One in a step before, and one whose loop is left already.
    results = run(
        tmp_path,
        [6, 6],
        {"rank": 1, "point": "forward", "step": 3},
        {"rank": 0, "point": "out", "step": None},
    )
    assert results == [{"digest": alone({"steps": 6}, 2), "position": 6}] * 2


@pytest.mark.slow
@pytest.mark.dist
def test_ranks_that_stop_at_other_steps_are_told_which(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"rank 1 left its loop after step 4, and rank 0 went on; expected"):
        run(tmp_path, [6, 4])


def started() -> Coordinator:
    coordinator = Coordinator(2)
    for number in range(2):
        coordinator.on_event(WorkerReady((0, number), {}))
    return coordinator


def report(number: int, calls: int, inquiry: int, kind: str = "call") -> ProgressReport:
    place = CodeLocation(kind, "transport.py:1 (wait)")
    progress = RankProgress(generation=1, counts={"all": calls}, unchanged_s=9.0, place=place)
    return ProgressReport((0, number), inquiry, progress)


def test_the_job_ends_well_only_after_the_same_step() -> None:
    for steps, command in (((4, 4), End), ((4, 5), AbortJob)):
        coordinator = started()
        assert coordinator.on_event(TrainingFinished((0, 0), 1, steps[0])) == []
        (told,) = coordinator.on_event(TrainingFinished((0, 1), 1, steps[1], "KeyError: 7"))
        assert isinstance(told, command)
    named = "rank 0 left its loop after step 4, rank 1 left its loop after step 5 for an error, KeyError: 7; expected"
    assert named in told.reason


@pytest.mark.parametrize(
    ("calls", "kind", "fails"), [(8, "call", True), (7, "call", False), (8, "user", False)]
)
def test_a_rank_that_waits_for_one_that_has_left_is_noticed_and_one_that_works_is_not(
    calls: int, kind: str, fails: bool
) -> None:
    coordinator = started()
    coordinator.on_event(TrainingFinished((0, 0), 1, 4))
    (inquiry,) = coordinator.on_event(RankStalled((0, 0), 1, 3.0, left=True))
    assert isinstance(inquiry, RequestProgress)
    assert coordinator.on_event(report(0, 7, inquiry.number)) == []
    commands = coordinator.on_event(report(1, calls, inquiry.number, kind))
    assert [type(command) for command in commands] == [AbortJob] * fails


def test_what_a_loss_would_have_repeated_is_an_error() -> None:
    with pytest.raises(InputError, match=r"in an attempt that has to be repeated.*training\.position > step"):
        EarlyStop(4, "").check_whole()
    with pytest.raises(InputError, match="changed parameters since"):
        EarlyStop(4, "a").check_unchanged("b")
    with pytest.raises(InputError, match="code after the block of step 4"):
        EarlyStop(4, "a").check_repeated(True, 4)
    stop = EarlyStop(4, "a")
    stop.check_whole()
    stop.check_unchanged("a")
    stop.check_repeated(False, 4)


def test_a_replacement_in_a_second_loop_is_an_error() -> None:
    for own, most in ((0, 0), (0, 1), (2, 2), (1, 2)):
        check_loops(own, most)
    with pytest.raises(InputError, match="in loop 2 over the training"):
        check_loops(0, 2)
