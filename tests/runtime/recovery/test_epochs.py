"""Full-graph trainings in which a rank dies amid an epoch, bit for bit as nobody had."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.full_graph.training import build_trainer, on_slow_links, small_graph, split
from wirewise.errors import InputError
from wirewise.graph import Part
from wirewise.runtime.full_graph import Trainer, checkpoint
from wirewise.runtime.points import FAULTS
from wirewise.runtime.recovery.agent import Agent
from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.epochs import train_epochs
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import digest_of

EPOCHS, RANKS = 8, 2


def build(parts: list[Part], mode: str, transport: Transport) -> Trainer:
    trainer = build_trainer(parts[transport.rank], transport, mode, replan_every=2, evaluate_every=2)
    # Measured times would give each run a plan of its own.
    on_slow_links(trainer)
    return trainer


def digest(trainer: Trainer) -> str:
    state = checkpoint.state_of(trainer)
    for lane in state["lanes"].values():
        del lane["state"]["arrivals"]  # seconds
    return digest_of(state)


def train(folder: str, mode: str, mirrored: bool, hangs_after: int = EPOCHS) -> None:
    """Train as a rank, and write down what it came to; rank 1 hangs after an epoch, once."""
    torch.set_num_threads(1)
    made = partial(build, split(small_graph(), RANKS), mode)
    seen, ends_s = [], []
    for trainer in train_epochs(made, EPOCHS, mirrored=mirrored):
        seen.append(trainer.epoch)
        ends_s.append(clock_s())
        claim = Path(folder) / "hung"
        if trainer.epoch == hangs_after < EPOCHS and trainer.transport.rank == 1 and not claim.exists():
            claim.touch()
            time.sleep(600)
    outcome = {"digest": digest(trainer), "seen": seen, "ends_s": ends_s}
    (Path(folder) / f"rank-{trainer.transport.rank}.json").write_text(json.dumps(outcome))


def undisturbed(mode: str) -> list[str]:
    """Digest of each rank after as many epochs, on ranks that are threads."""
    parts = split(small_graph(), RANKS)

    def body(rank: int, group: Any, store: Any) -> str:
        trainer = build(parts, mode, Transport(group, timeout_s=30, store=store))
        for _ in range(EPOCHS):
            trainer.train_epoch()
            if trainer.due():
                trainer.evaluate()
        found = digest(trainer)
        trainer.close()
        trainer.transport.close()
        return found

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run_ranks_as_threads(RANKS, body)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "mirrored"), [("adaqp", False), ("adaqp-paper", False), ("pipegcn", True), ("sancus", True)]
)
def test_kills_amid_epochs_change_no_bit(mode: str, mirrored: bool, tmp_path: Path) -> None:
    kills = [(1, "bucket", 3, 0), (0, "committed", 4, None)]
    faults = [
        {"act": "kill", "rank": r, "point": p, "step": s, "index": i, "claim": str(tmp_path / f"claim-{s}")}
        for r, p, s, i in kills
    ]
    environment = {FAULTS: json.dumps(faults)}
    settings = str(tmp_path), mode, mirrored
    agent = Agent(train, settings, folder=tmp_path, environment=environment, ranks=RANKS, spares=2)
    recoveries = agent.run().recoveries
    assert [one.ranks for one in recoveries] == [(1,), (0,)]
    assert all(one.lost_iterations == 0 for one in recoveries)
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    assert [one["digest"] for one in found] == undisturbed(mode)
    # The one that took the place of rank 1 began with the epoch that was under way.
    assert found[1]["seen"] == list(range(4, EPOCHS + 1))
    # The first new step after the last failure counts, not the last one of the training.
    last = recoveries[-1]
    assert (
        last.resumed_s
        < last.committed_s
        < min(one["ends_s"][one["seen"].index(last.step + 2)] for one in found)
    )


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_that_hangs_between_epochs_is_replaced(tmp_path: Path) -> None:
    settings = str(tmp_path), "adaqp", False, 3
    agent = Agent(train, settings, folder=tmp_path, ranks=RANKS, spares=1, progress_timeout_s=2.0)
    (recovery,) = agent.run().recoveries
    assert recovery.ranks == (1,) and "no progress for" in recovery.causes[0]
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    assert [one["digest"] for one in found] == undisturbed("adaqp")


def test_no_epochs_and_no_agent_are_refused() -> None:
    with pytest.raises(InputError, match="epochs is 0; expected at least 1"):
        next(train_epochs(lambda _: None, 0))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="no agent has started this process"):
        next(train_epochs(lambda _: None, 1))  # type: ignore[arg-type, return-value]
