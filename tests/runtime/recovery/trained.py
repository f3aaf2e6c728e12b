"""A small training that tests protect, kill and compare."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.recovery import aborting
from wirewise.plans import FusionPlan
from wirewise.runtime import recovery
from wirewise.runtime.points import FAULTS
from wirewise.runtime.recovery.agent import Agent, Recoveries
from wirewise.runtime.recovery.batches import TrainingBatches
from wirewise.runtime.recovery.seeded import seed_all
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.recovery.sync import Sync
from wirewise.runtime.trees import digest_of


def made(settings: dict[str, Any]) -> tuple[nn.Sequential, list[torch.optim.Optimizer], Any, DataLoader]:
    """Model, optimizers, schedule and loader."""
    torch.manual_seed(1)
    width = settings.get("width", 32)
    model = nn.Sequential(
        nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4)
    )
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters(), 0.01)]
    if settings.get("mixed"):
        optimizers = [
            torch.optim.SGD(model[0].parameters(), 0.05, momentum=0.9),
            torch.optim.Adam(model[1].parameters(), 0.01),
            recovery.Lamb([model[4].weight], 0.01),
            torch.optim.Adam([model[4].bias], 0.01, amsgrad=True),
        ]
    schedule = torch.optim.lr_scheduler.StepLR(optimizers[0], 7, 0.9)
    data = TensorDataset(torch.randn(240, 16), torch.randint(4, (240,)))
    return model, optimizers, schedule, DataLoader(data, batch_size=5, shuffle=True)


def plan_of(model: nn.Module, codec: str) -> FusionPlan:
    """Several small buckets; the session sets the number of ranks."""
    sizes = {name: p.nbytes for name, p in reversed(list(model.named_parameters()))}
    plan = FusionPlan.by_size(sizes, 1, 600)
    scheme = "all_reduce" if codec == "none" else "all_gather"
    buckets = tuple(msgspec.structs.replace(one, codec=codec, scheme=scheme) for one in plan.buckets)
    return msgspec.structs.replace(plan, buckets=buckets)


def sync_of(model: nn.Module, settings: dict[str, Any]) -> Sync:
    """Strategy that the settings name."""
    name, consistency = settings.get("sync", "buckets"), settings.get("consistency", "auto")
    if name == "buckets":
        plan = plan_of(model, settings.get("codec", "none"))
        return recovery.Buckets(plan, mirrored=settings.get("mirrored", False), consistency=consistency)
    if name == "backward":
        return recovery.Backward(plan_of(model, "none"), consistency=consistency)
    return {"ddp": recovery.DDP, "fold": recovery.Fold}[name](consistency=consistency)


def train(folder: str, settings: dict[str, Any]) -> None:
    """Train as a rank, and write down what it came to."""
    model, optimizers, schedule, loader = made(settings)
    if settings.get("backend") == aborting.NAME:
        aborting.register()
    saved = settings.get("checkpoints")
    training = recovery.protect(
        model,
        optimizers,
        loader,
        steps=settings.get("steps", 30),
        sync=sync_of(model, settings),
        state=recovery.State(schedulers=[schedule]),
        checkpoints=None if saved is None else recovery.Checkpoints(saved, every=5),
        ranks=recovery.Ranks(backend=settings.get("backend")),
    )
    for x, y in training:
        with training.step():
            time.sleep(settings.get("sleep_s", 0.0))
            nn.functional.cross_entropy(training.model(x), y).backward()
    state = TrainingState(model, optimizers, schedulers=[schedule], buffers="shared")
    pools = training._way.pools
    outcome = {
        "digest": digest_of(state.shared()),
        "own": "" if pools is None else digest_of(pools.state_dict()),
        "generation": training.generation,
        "position": training.position,
        "calls": sum(group.calls for group in aborting.AbortingGroup.made),
        "local_rank": os.environ.get("LOCAL_RANK"),
    }
    (Path(folder) / f"rank-{training.rank}.json").write_text(json.dumps(outcome))


def alone(settings: dict[str, Any], shares: int) -> str:
    """Digest of the training in one process, by hand: the mean over all shares, buffers of the first."""
    model, optimizers, schedule, loader = made(settings)
    batches = TrainingBatches(loader, shares, 0)
    for step in range(settings.get("steps", 30)):
        gradients: list[list[Tensor]] = []
        start = [buffer.clone() for buffer in model.buffers()]
        kept: list[Tensor] = []
        for share in range(shares):
            _fill(model, start)
            x, y = batches.draw(step, share, range(shares))
            seed_all(0, step, share)
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
            kept = kept or [buffer.clone() for buffer in model.buffers()]
        _fill(model, kept)
        for p, *parts in zip(model.parameters(), *gradients, strict=True):
            p.grad = sum(part / shares for part in parts)  # type: ignore[assignment]
        for optimizer in optimizers:
            optimizer.step()
        schedule.step()
    return digest_of(TrainingState(model, optimizers, schedulers=[schedule], buffers="shared").shared())


def _fill(model: nn.Module, values: list[Tensor]) -> None:
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.copy_(value)


def outcomes(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What the ranks wrote."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def run(
    folder: Path, settings: dict[str, Any], faults: Sequence[dict[str, Any]] = (), **options: Any
) -> tuple[Recoveries, list[str]]:
    """Train with an agent under faults; what it came to, and the digest of each rank."""
    options = {"ranks": 2, "spares": 1, **options}
    told = [{**fault, "claim": str(folder / f"claim-{number}")} for number, fault in enumerate(faults)]
    agent = Agent(
        train,
        (str(folder), settings),
        folder=folder,
        environment={"OF_HOST": "0", **({FAULTS: json.dumps(told)} if told else {})},
        **options,
    )
    recoveries = agent.run()
    assert len(list(folder.glob("claim-*"))) == len(faults), "a fault was not carried out"
    return recoveries, [one["digest"] for one in outcomes(folder, options["ranks"])]
