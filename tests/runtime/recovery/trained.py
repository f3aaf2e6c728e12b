"""A small training that tests protect, kill and compare."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from wirewise.plans import FusionPlan
from wirewise.runtime import recovery
from wirewise.runtime.recovery.agent import Agent, Recoveries
from wirewise.runtime.recovery.batches import Batches, seed_all
from wirewise.runtime.recovery.points import FAULTS
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.trees import digest_of

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, foreach=False),
    "adam": lambda ps: torch.optim.Adam(ps, 0.01, foreach=False),
    "adamw": lambda ps: torch.optim.AdamW(ps, 0.01, foreach=False),
    "amsgrad": lambda ps: torch.optim.Adam(ps, 0.01, amsgrad=True, foreach=False),
    "lamb": lambda ps: recovery.Lamb(ps, 0.01),
}


def made(settings: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer, Any, DataLoader]:
    """Model, optimizer, schedule and loader."""
    torch.manual_seed(1)
    width = settings.get("width", 32)
    model = nn.Sequential(
        nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4)
    )
    optimizer = OPTIMIZERS[settings.get("optimizer", "adamw")](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    data = TensorDataset(torch.randn(240, 16), torch.randint(4, (240,)))
    return model, optimizer, schedule, DataLoader(data, batch_size=5, shuffle=True)


def train(folder: str, settings: dict[str, Any]) -> None:
    """Train as a rank, and write down what it came to."""
    model, optimizer, schedule, loader = made(settings)
    through = settings.get("through", "buckets")
    sizes = {name: p.nbytes for name, p in reversed(list(model.named_parameters()))}
    training = recovery.protect(
        model,
        optimizer,
        loader,
        steps=settings.get("steps", 30),
        schedulers=[schedule],
        through=through,
        # Several small buckets; the reducer takes the number of ranks as it is.
        plan=FusionPlan.by_size(sizes, 1, 600) if through == "buckets" else None,
        consistency=settings.get("consistency", "auto"),
    )
    for x, y in training:
        with training.step():
            time.sleep(settings.get("sleep_s", 0.0))
            nn.functional.cross_entropy(training.model(x), y).backward()
    outcome = {
        "digest": digest_of(
            TrainingState(model, optimizer, schedulers=[schedule], buffers="shared").shared()
        ),
        "generation": training.generation,
        "position": training.position,
    }
    (Path(folder) / f"rank-{training.rank}.json").write_text(json.dumps(outcome))


def alone(settings: dict[str, Any], shares: int) -> str:
    """Digest of the training in one process, by hand: the mean over all shares, buffers of the first."""
    model, optimizer, schedule, loader = made(settings)
    batches = Batches(loader, shares, 0)
    for step in range(settings.get("steps", 30)):
        gradients: list[list[Tensor]] = []
        start = [buffer.clone() for buffer in model.buffers()]
        kept: list[Tensor] = []
        for share in range(shares):
            _fill(model, start)
            x, y = batches.draw(step, share, range(shares))
            seed_all(0, step, share)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
            kept = kept or [buffer.clone() for buffer in model.buffers()]
        _fill(model, kept)
        for p, *parts in zip(model.parameters(), *gradients, strict=True):
            p.grad = sum(part / shares for part in parts)  # type: ignore[assignment]
        optimizer.step()
        schedule.step()
    return digest_of(TrainingState(model, optimizer, schedulers=[schedule], buffers="shared").shared())


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
        environment={FAULTS: json.dumps(told)} if told else {},
        **options,
    )
    recoveries = agent.run()
    assert len(list(folder.glob("claim-*"))) == len(faults), "a fault was not carried out"
    return recoveries, [one["digest"] for one in outcomes(folder, options["ranks"])]
