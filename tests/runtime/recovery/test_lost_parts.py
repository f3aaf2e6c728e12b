"""Kills amid compressed training: what codecs of the dead rank had not sent yet is there, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.runtime.data_parallel.examples import batch, plan_of
from wirewise.runtime import recovery
from wirewise.runtime.data_parallel import Compression
from wirewise.runtime.points import FAULTS
from wirewise.runtime.recovery.agent import Agent
from wirewise.runtime.trees import digest_of

STEPS, RANKS = 9, 2
WAYS = [("topk", "divisible"), ("dgc", "all_gather"), ("powersgd", "all_gather")]
"""Codec and scheme of each bucket: together they keep residuals, those of owners, momentum and factors."""


def train(folder: str) -> None:
    """Train as a rank, and write down what it came to, with all that codecs remember."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Dropout(0.3), nn.Linear(20, 12), nn.Linear(12, 4)
    )
    names = [name for name, _ in model.named_parameters()][::-1]
    plan = plan_of(model, [names[:2], names[2:4], names[4:]], RANKS)
    buckets = tuple(
        msgspec.structs.replace(bucket, codec=codec, scheme=scheme)
        for bucket, (codec, scheme) in zip(plan.buckets, WAYS, strict=True)
    )
    training = recovery.protect(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01, foreach=False),
        lambda step, share: batch(share, step),
        steps=STEPS,
        sync=recovery.Buckets(
            msgspec.structs.replace(plan, buckets=buckets), compression=Compression(seed=3)
        ),
    )
    for x, y in training:
        with training.step():
            nn.functional.cross_entropy(training.model(x), y).backward()
    state = training._state
    digests = [state.digest(), digest_of(state.own()["named"])]
    (Path(folder) / f"rank-{training.rank}.json").write_text(json.dumps(digests))


def run(folder: Path, faults: list[dict[str, Any]]) -> tuple[Any, list[list[str]]]:
    folder.mkdir()
    told = [{**fault, "claim": str(folder / f"claim-{number}")} for number, fault in enumerate(faults)]
    agent = Agent(
        train,
        (str(folder),),
        folder=folder,
        environment={FAULTS: json.dumps(told)} if told else {},
        ranks=RANKS,
        spares=len(faults),
    )
    recoveries = agent.run()
    assert len(list(folder.glob("claim-*"))) == len(faults), "a fault was not carried out"
    return recoveries, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


def kill(rank: int, point: str, step: int, index: int | None = None) -> dict[str, Any]:
    return {"act": "kill", "rank": rank, "point": point, "step": step, "index": index}


@pytest.mark.dist
@pytest.mark.slow
def test_compressed_training_outlives_kills(tmp_path: Path) -> None:
    faults = [kill(1, "bucket", 3, 1), kill(0, "update", 5), kill(1, "committed", 6)]
    recoveries, found = run(tmp_path / "hit", faults)
    _, expected = run(tmp_path / "calm", [])
    assert found == expected
    # All have one model; what is not sent yet is another on every rank.
    assert len({model for model, _ in found}) == 1 and len({own for _, own in found}) == RANKS
    assert [one.ranks for one in recoveries.recoveries] == [(1,), (0,), (1,)]
    assert all(one.lost_iterations == 0 for one in recoveries.recoveries)
