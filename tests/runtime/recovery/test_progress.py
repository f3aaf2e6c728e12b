"""Blame of a rank that others wait for: it lacks behind and waits for nobody; a waiting rank is never blamed."""

from __future__ import annotations

import textwrap
import threading
from pathlib import Path

import pytest
import torch

from wirewise.runtime.recovery import Agent, run_script
from wirewise.runtime.recovery.generations import (
    BeginGeneration,
    Coordinator,
    KillWorker,
    ProgressReport,
    RankStalled,
    RequestProgress,
    WorkerLost,
    WorkerReady,
)
from wirewise.runtime.recovery.progress import CodeLocation, RankProgress, find_hung_ranks, locate_thread

CALL, BACKWARD, USER = (
    CodeLocation("call", "transport.py:1 (wait)"),
    CodeLocation("backward", "graph.py:1 (run)"),
    CodeLocation("user", "train.py:3 (read)"),
)


def standing(
    calls: int, place: CodeLocation, *, since_s: float = 9.0, generation: int = 1, **more: int
) -> RankProgress:
    return RankProgress(
        generation=generation, counts={"all": calls, **more}, unchanged_s=since_s, place=place
    )


def test_a_rank_that_has_not_come_to_a_call_is_to_blame_wherever_it_hangs():
    for place in (USER, BACKWARD):
        blamed = find_hung_ranks({0: standing(5, CALL), 1: standing(4, place), 2: standing(5, BACKWARD)}, 3.0)
        assert list(blamed) == [1]
    assert blamed[1] == f"no progress for 9.0 s, while ranks 0, 2 waited for it; it was in {BACKWARD.where}"


def test_nobody_is_to_blame_where_nobody_waits():
    # A long evaluation, a checkpoint, a compilation of all ranks.
    assert find_hung_ranks({0: standing(5, USER), 1: standing(5, USER)}, 3.0) == {}
    # One has begun a call and works on: a broadcast of which it is the source.
    assert find_hung_ranks({0: standing(5, USER), 1: standing(4, USER)}, 3.0) == {}


def test_a_rank_that_moves_or_waits_itself_is_not_to_blame():
    assert find_hung_ranks({0: standing(5, CALL), 1: standing(4, USER, since_s=1.0)}, 3.0) == {}
    assert find_hung_ranks({0: standing(5, CALL, since_s=2.0), 1: standing(4, USER)}, 3.0) == {}
    # In a call that has no number, such as a receive.
    assert find_hung_ranks({0: standing(5, CALL), 1: standing(4, CALL)}, 3.0) == {}


def test_who_waits_in_another_group_is_passed_over_for_whom_it_waits():
    # Shards 0, 1 and 2, 3; replicas 0, 2 and 1, 3. Rank 1 hangs, so that rank 0 waits, and for it rank 2.
    standings = {
        0: RankProgress(generation=1, counts={"0,1": 8, "0,2": 3}, unchanged_s=9, place=CALL),
        1: RankProgress(generation=1, counts={"0,1": 7, "1,3": 3}, unchanged_s=9, place=USER),
        2: RankProgress(generation=1, counts={"2,3": 9, "0,2": 4}, unchanged_s=9, place=CALL),
        3: RankProgress(generation=1, counts={"2,3": 9, "1,3": 4}, unchanged_s=9, place=BACKWARD),
    }
    assert list(find_hung_ranks(standings, 3.0)) == [1]


def test_a_rank_that_does_not_come_to_the_next_generation_is_to_blame():
    standings = {0: standing(0, CALL, generation=2), 1: standing(7, USER), 2: standing(0, CALL, generation=2)}
    assert list(find_hung_ranks(standings, 3.0)) == [1]


def test_a_rank_that_has_not_sent_a_message_is_to_blame_and_a_receiver_is_not():
    def stage(place: CodeLocation, done: dict[str, int], awaits: dict[str, int]) -> RankProgress:
        return RankProgress(generation=1, counts={}, done=done, awaits=awaits, unchanged_s=9.0, place=place)

    # Stage 1 hangs before it sends; stage 0 has sent more than that one takes, and waits for its gradient.
    standings = {
        0: stage(CALL, {"line 0": 5, "updates": 3}, {"line 1": 3}),
        1: stage(USER, {"line 1": 2, "line 2": 3, "updates": 3}, {"line 0": 4}),
        2: stage(CALL, {"line 3": 2, "updates": 3}, {"line 2": 4}),
    }
    assert list(find_hung_ranks(standings, 3.0)) == [1]
    # A rank ahead is not awaited by those behind; one that catches up is, by those that meet it.
    assert (
        find_hung_ranks({0: stage(CALL, {"updates": 3}, {}), 1: stage(USER, {"updates": 2}, {})}, 3.0) == {}
    )
    meeting = {0: stage(CALL, {"updates": 3}, {"updates": 3}), 1: stage(USER, {"updates": 2}, {})}
    assert list(find_hung_ranks(meeting, 3.0)) == [1]


def test_several_that_hang_are_all_to_blame():
    assert list(find_hung_ranks({0: standing(5, CALL), 1: standing(4, USER), 2: standing(4, USER)}, 3.0)) == [
        1,
        2,
    ]


def test_the_coordinator_asks_all_before_it_has_anyone_killed():
    coordinator = Coordinator(3)
    for number in range(3):
        coordinator.on_event(WorkerReady((0, number), {}))
    assert coordinator.on_event(RankStalled((0, 0), 7, 3.0)) == []  # Of another generation.
    assert coordinator.on_event(RankStalled((0, 0), 1, 3.0)) == [RequestProgress(1)]
    assert coordinator.on_event(ProgressReport((0, 0), 1, standing(5, CALL))) == []
    assert coordinator.on_event(ProgressReport((0, 1), 1, standing(4, USER))) == []
    assert coordinator.on_event(ProgressReport((0, 2), 0, standing(5, CALL))) == []  # Of another inquiry.
    (kill,) = coordinator.on_event(ProgressReport((0, 2), 1, standing(5, CALL)))
    assert (
        isinstance(kill, KillWorker) and kill.worker == (0, 1) and "it was in train.py:3 (read)" in kill.cause
    )
    # While processes are missing ranks wait for those.
    coordinator.on_event(WorkerLost((0, 1), kill.cause, 1.0))
    assert coordinator.on_event(RankStalled((0, 0), 1, 3.0)) == []
    (begun,) = coordinator.on_event(WorkerReady((0, 3), {}))
    assert isinstance(begun, BeginGeneration) and begun.generation.notes == {1: kill.cause}


def test_places_are_told_by_the_innermost_function_that_is_not_pythons_own():
    met, seen = threading.Event(), threading.Event()

    class Hook(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, x):
            met.set()
            seen.wait()
            return x

    def in_user_code() -> None:
        met.set()
        seen.wait()

    def in_backward() -> None:
        Hook.apply(torch.ones(1, requires_grad=True)).backward()

    for target in (in_user_code, in_backward):
        thread = threading.Thread(target=target)
        thread.start()
        met.wait()
        place = locate_thread(thread.ident or 0)
        seen.set()
        thread.join()
        met.clear(), seen.clear()
        assert place.kind == "user" and Path(__file__).name in place.where
    assert locate_thread(-1).kind == "user"


HANGING = """
import os, sys, time
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from wirewise.runtime import recovery

where, claim = sys.argv[1:3]

def hang(here, step):
    if where != here or step != 6:
        return
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    while where == "forward":
        pass
    time.sleep(600)

class Rows(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        hang("loader", 6 if index == 17 else 0)
        return torch.full((4,), float(index)), torch.ones(1)

class Held(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, x):
        hang("backward", training.position if training.rank else 0)
        return x

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"} if where == "loader" else {}
    loader = DataLoader(Rows(), batch_size=2, **workers)
    sync = {"buckets": recovery.Buckets(), "ddp": recovery.DDP()}[sys.argv[3]]
    training = recovery.protect(model, optim.SGD(model.parameters(), 1e-4), loader, steps=12, sync=sync)
    for x, y in training:
        if where == "slow":
            # Longer than the limit, on all ranks: an evaluation.
            time.sleep(4 * (training.position == 6))
        with training.step():
            hang("forward", training.position if training.rank else 0)
            h = Held.apply(training.model[0](x) if sys.argv[3] == "buckets" else training.model(x))
            out = training.model[1](h) if sys.argv[3] == "buckets" else h
            nn.functional.mse_loss(out, y).backward()
        hang("between", training.position if training.rank else 0)
    print("sum", sum(p.double().sum() for p in model.parameters()).item())
"""


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    ("where", "sync"),
    [
        ("forward", "buckets"),
        ("backward", "ddp"),
        ("between", "ddp"),
        ("loader", "buckets"),
        ("slow", "buckets"),
    ],
)
def test_a_rank_that_hangs_in_the_users_code_is_replaced_and_a_slow_one_is_not(tmp_path, where, sync):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(HANGING))
    sums = {}
    for claimed in (True, False):
        folder = tmp_path / str(claimed)
        claim = tmp_path / f"claim-{claimed}"
        if claimed:
            claim.touch()
        arguments = [str(script), [where, str(claim), sync]]
        # Workers that are spawned import torch first: on busy processors one rank's starts seconds after the other's.
        limit_s = 10.0 if where == "loader" else 2.0
        agent = Agent(run_script, arguments, ranks=2, spares=1, folder=folder, progress_timeout_s=limit_s)
        outcome = agent.run()
        logs = [log.read_text().split() for log in folder.glob("*.log")]
        sums[claimed] = {log[-1] for log in logs if "sum" in log}
        causes = [cause for one in outcome.recoveries for cause in one.causes]
        assert len(causes) == (not claimed and where != "slow"), causes
        # Which rank reads row 17 is the sampler's affair.
        assert all("no progress for" in cause and "waited for it; it was in" in cause for cause in causes)
    assert sums[True] == sums[False] and len(sums[True]) == 1
