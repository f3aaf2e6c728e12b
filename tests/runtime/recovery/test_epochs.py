"""Full-graph trainings in which a rank dies amid an epoch, bit for bit as nobody had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.full_graph.training import build_trainer, on_slow_links, small_graph, split
from wirewise.errors import InputError
from wirewise.runtime.full_graph import Trainer, checkpoint
from wirewise.runtime.recovery.agent import Agent
from wirewise.runtime.recovery.epochs import train_epochs
from wirewise.runtime.recovery.points import FAULTS
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import digest_of

EPOCHS, RANKS = 6, 3


def train(folder: str, mode: str, mirrored: bool) -> None:
    """Train as a rank, and write down what it came to."""
    parts = split(small_graph(), RANKS)

    def build(transport: Transport) -> Trainer:
        trainer = build_trainer(parts[transport.rank], transport, mode, replan_every=2, evaluate_every=2)
        # Measured times would give each run a plan of its own.
        on_slow_links(trainer)
        return trainer

    seen = []
    for trainer in train_epochs(build, EPOCHS, Path(folder) / "memory", mirrored=mirrored):
        seen.append(trainer.epoch)
    state = checkpoint.state_of(trainer)
    for lane in state["lanes"].values():
        del lane["state"]["arrivals"]  # seconds
    outcome = {"digest": digest_of(state), "seen": seen}
    (Path(folder) / f"rank-{trainer.transport.rank}.json").write_text(json.dumps(outcome))


def run(folder: Path, mode: str, faults: list[dict[str, Any]], mirrored: bool) -> tuple[Any, list[str]]:
    folder.mkdir()
    told = [{**fault, "claim": str(folder / f"claim-{number}")} for number, fault in enumerate(faults)]
    agent = Agent(
        train,
        (str(folder), mode, mirrored),
        folder=folder,
        environment={FAULTS: json.dumps(told)} if told else {},
        ranks=RANKS,
        spares=len(faults),
    )
    recoveries = agent.run()
    assert len(list(folder.glob("claim-*"))) == len(faults), "a fault was not carried out"
    assert not [path for path in (folder / "memory").rglob("*") if path.is_file()]
    outcomes = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    assert all(one["seen"][-1] == EPOCHS for one in outcomes)
    return recoveries, [one["digest"] for one in outcomes]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "mirrored"), [("adaqp", False), ("pipegcn", True)])
def test_kills_amid_epochs_change_no_bit(mode: str, mirrored: bool, tmp_path: Path) -> None:
    faults = [
        {"act": "kill", "rank": 1, "point": "bucket", "step": 3, "index": 0},
        {"act": "kill", "rank": 0, "point": "committed", "step": 4, "index": None},
    ]
    recoveries, digests = run(tmp_path / "hit", mode, faults, mirrored)
    _, expected = run(tmp_path / "calm", mode, [], mirrored)
    assert digests == expected
    assert [one.ranks for one in recoveries.recoveries] == [(1,), (0,)]
    assert all(one.lost_iterations == 0 for one in recoveries.recoveries)


def test_no_epochs_and_no_agent_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="epochs is 0; expected at least 1"):
        next(train_epochs(lambda _: None, 0, tmp_path))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="no agent has started this process"):
        next(train_epochs(lambda _: None, 1, tmp_path))  # type: ignore[arg-type, return-value]
