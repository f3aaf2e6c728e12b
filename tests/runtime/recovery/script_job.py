"""A training whose script changes state itself, at every place of its loop; tests kill its ranks there and compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from wirewise.runtime import points, recovery
from wirewise.runtime.points import FAULTS
from wirewise.runtime.recovery.agent import Agent, Recoveries
from wirewise.runtime.trees import digest_of

__all__ = ["Average", "run", "train"]


class Average:
    """An average of the weights, and how often it was updated."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.updates = model, 0
        self.mean = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, *_: int) -> None:
        self.updates += 1
        for name, p in self.model.named_parameters():
            self.mean[name].lerp_(p.detach(), 0.1 / self.updates)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "updates": self.updates}

    def load_state_dict(self, state: Any) -> None:
        self.updates = state["updates"]
        for name, mean in state["mean"].items():
            self.mean[name].copy_(mean)


class Counting(torch.optim.AdamW):
    """An optimizer whose update follows a count, which is an attribute and an entry of its state."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.count += 1
        state: Any = self.state
        state["steps"] = state.get("steps", 0) + 1
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.mul_(1 - 1e-4 * self.count / state["steps"] * (self.count % 7))
        return result


class Augmented(Dataset):
    """A dataset whose samples get noise as they are drawn."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.data[index]
        return x + 0.1 * torch.randn(16), y


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)


class Script:
    """What the script keeps, and changes before, within and after the block, and inside the commit."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.manual_seed(1)
        self.settings = settings
        self.model = nn.Sequential(
            nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4)
        )
        kind = torch.optim.AdamW if settings.get("sharded") else Counting
        self.optimizer = kind(self.model.parameters(), 0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        # Shards of the weights take the place of parameters, which an average by hand does not expect.
        averaged = nn.Module() if settings.get("sharded") else self.model
        self.after, self.inside = Average(averaged), Average(averaged)
        self.counted: list[float] = []
        data = Augmented(TensorDataset(torch.randn(240, 16), torch.randint(4, (240,))))
        self.loader = DataLoader(data, batch_size=5, shuffle=True)

    def protect(self) -> recovery.Training:
        sync = recovery.Shards(shard, 2) if self.settings.get("sharded") else recovery.Buckets()
        training = recovery.protect(
            self.model,
            self.optimizer,
            self.loader,
            steps=self.settings["steps"],
            sync=sync,
            state=recovery.State(
                objects={"after": self.after, "inside": self.inside, "scheduler": self.scheduler}
            ),
        )
        training.on_commit(self.inside.update)
        return training

    def top(self, step: int) -> None:
        """Code between the batch and the block."""
        self.optimizer.param_groups[0]["weight_decay"] = 0.01 * (1 + step % 3)
        points.notify_point("top")

    def past(self, step: int) -> None:
        """Code after the block."""
        points.notify_point("past")
        self.after.update()
        self.scheduler.step()
        self.optimizer.param_groups[0]["lr"] *= 0.99
        with torch.no_grad():
            self.model[4].bias.mul_(0.999)
        ranks = torch.ones(())
        dist.all_reduce(ranks)
        self.counted.append(float(ranks))
        points.notify_point("far past")

    def evaluate(self, x: Any, y: Any) -> float:
        """Mean loss of all ranks on a batch; with shards, which only the block gathers, their updates."""
        if self.settings.get("sharded"):
            mean = torch.tensor(float(self.after.updates))
        else:
            self.model.eval()
            with torch.no_grad():
                mean = nn.functional.cross_entropy(self.model(x), y)
            self.model.train()
        dist.all_reduce(mean)
        return float(mean)


def train(folder: str, settings: dict[str, Any]) -> None:
    """Train as a rank, and write down what it came to."""
    script = Script(settings)
    training = script.protect()
    results: dict[int, float] = {}
    for x, y in training:
        step = training.position
        script.top(step)
        with training.step():
            loss = nn.functional.cross_entropy(training.model(x), y)
            points.notify_point("computed")
            loss.backward()
        if not settings["guarded"] or training.position > step:
            script.past(step)
        if training.position > step and training.position % 3 == 0:
            results[training.position] = script.evaluate(x, y)
    state = {
        "state": training._state.shared(),
        "objects": [one.state_dict() for one in (script.after, script.inside, script.scheduler)],
    }
    outcome = {"digest": digest_of(state), "updates": [script.after.updates, script.inside.updates]}
    outcome["results"] = results
    (Path(folder) / f"rank-{training.rank}.json").write_text(json.dumps(outcome))


def run(
    folder: Path, settings: dict[str, Any], faults: Sequence[dict[str, Any]] = (), **options: Any
) -> tuple[Recoveries, list[dict[str, Any]]]:
    """Train with an agent under faults; what it came to, and what each rank wrote."""
    folder.mkdir()
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
    paths = [folder / f"rank-{rank}.json" for rank in range(options["ranks"])]
    return recoveries, [json.loads(path.read_text()) for path in paths]
